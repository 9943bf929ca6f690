"""Consoles of three nodes as processes: each shows the whole cluster and forwards actions to the node concerned."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kit.console import users
from kit.console_client import Tab
from kit.sdk import application

from bmqtwist.testing import ClusterProcess

STRONG = "bmq://bmq.test.persistent.priority.sc/q"
WAIT_S = 30.0

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def until(look: Callable[[], Any], what: Callable[[Any], bool]) -> Any:
    """Wait until a condition on the watched document is true; return the document."""
    end = time.monotonic() + WAIT_S
    while not what(found := look()):
        assert time.monotonic() < end, json.dumps({name: each for name, each in found.items() if name != "history"})[-4000:]
        time.sleep(0.1)
    return found


def is_complete(document: Any) -> bool:
    return document["verdict"]["level"] == "good" and len(document["nodes"]) == 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path) as nodes:
        for name in nodes.names:
            nodes[name].expect("Transitioning to AVAILABLE", deadline=WAIT_S)
        yield nodes


def test_the_console_of_each_node_shows_and_controls_the_whole_cluster(cluster: ClusterProcess) -> None:
    tabs = {name: Tab(url) for name, url in cluster.consoles.items()}
    leader = cluster.leader
    others = [name for name in cluster.names if name != leader]
    with application(cluster[others[0]].url) as app:
        app.session.open_queue(STRONG, read=False, write=True)
        for number in range(20):
            app.post(STRONG, b"%d" % number)
        for name, tab in tabs.items():
            found = until(tab.cluster, lambda document: is_complete(document) and bool(document["queuesTop"]))
            assert found["servedBy"] == name and found["leader"]["node"] == leader
            assert {node["name"]: node["url"] for node in found["nodes"]} == cluster.consoles
            assert [node["state"] for node in found["nodes"]] == ["up"] * 3
            assert found["queuesTop"][0]["uri"] == STRONG and found["queuesTop"][0]["messages"] == 20
            assert sum(node["sessions"] for node in found["nodes"]) == 1
            assert {partition["primary"] for partition in found["partitions"]} == {leader}
            assert tab.ask("/api/v1/queues")[1]["rows"][0]["messages"] == 20
            one = tab.ask(f"/api/v1/queue?uri={quote(STRONG)}")[1]
            assert one["primary"] == leader and one["messages"] == 20 and len(one["producers"]) == 1
            assert len(tab.ask(f"/api/v1/messages?uri={quote(STRONG)}&limit=5")[1]["messages"]) == 5
            assert len(tab.ask("/api/v1/clients")[1]["clients"]) == 1
        replica = tabs[others[1]]
        guid = replica.ask(f"/api/v1/messages?uri={quote(STRONG)}&limit=1&node={others[1]}")[1]["messages"][0]["guid"]
        assert replica.ask(f"/api/v1/message/payload?uri={quote(STRONG)}&guid={guid}") == (200, "0")
        assert replica.ask(f"/api/v1/nodes/{leader}/preflight")[1]["node"] == leader
        wrong = replica.post("/api/v1/queues/purge", {"uri": STRONG, "confirm": "x", "reason": "r"})
        assert wrong[0] == 400 and wrong[1]["field"] == "confirm"
        status, answer = replica.post("/api/v1/queues/purge", {"uri": STRONG, "confirm": STRONG, "reason": "not needed"})
        assert (status, answer["messages"]) == (200, 20)
        assert replica.ask("/api/v1/audit")[1]["entries"][0]["action"] == "purge"
        entry = tabs[leader].ask("/api/v1/audit")[1]["entries"][0]
        assert entry["action"] == "purge" and entry["from"].endswith(f"by {others[1]}") and entry["reason"] == "not needed"
        assert replica.post("/api/v1/alarms", {"text": "Rack 7 burns", "node": leader}) == (200, {"ok": True})
        listed = until(tabs[others[0]].cluster, lambda document: "OPERATOR" in {each["category"] for each in
                                                                                document["alarms"]})
        (raised,) = [each for each in listed["alarms"] if each["category"] == "OPERATOR"]
        assert (raised["node"], raised["text"]) == (leader, "Rack 7 burns (raised by local)")
        cluster[leader].expect("ALARM [OPERATOR] Rack 7 burns (raised by local)")
        assert tabs[leader].ask("/api/v1/audit")[1]["entries"][0]["action"] == "raise_alarm"
        assert tabs[others[0]].post(f"/api/v1/alarms/{raised['id']}/clear", {}) == (200, {"ok": True})
        posted = replica.post("/api/v1/publish", {"uri": STRONG, "payload": "hello", "count": 3})
        assert [each["status"] for each in posted[1]["results"]] == ["SUCCESS"] * 3
    partition = found["queuesTop"][0]["partition"]
    assert replica.post(f"/api/v1/partitions/{partition}/move", {"to": others[0]}) == (200, {"ok": True})
    until(replica.cluster,
          lambda document: document["partitions"][partition]["primary"] == others[0] and is_complete(document))
    assert replica.post(f"/api/v1/partitions/{partition}/rollover", {}) == (200, {"ok": True})


def test_the_console_of_a_proxy_shows_its_cluster(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, proxies=1) as cluster:
        for name in cluster.names:
            cluster[name].expect("Transitioning to AVAILABLE", deadline=WAIT_S)
        tab = Tab(cluster.consoles["p1"])
        found = until(tab.cluster, is_complete)
        assert found["servedBy"] == "p1" and [node["name"] for node in found["nodes"]] == cluster.names
        assert [proxy["name"] for proxy in found["proxies"]] == ["p1"] and found["leader"]["node"] == cluster.leader
        with application(cluster["p1"].url) as app:
            app.session.open_queue(STRONG, read=False, write=True)
            app.post(STRONG, b"one")
            rows = until(lambda: tab.ask("/api/v1/queues")[1], lambda page: page["total"] == 1)["rows"]
            assert rows[0]["messages"] == 1
            one = tab.ask(f"/api/v1/queue?uri={quote(STRONG)}")[1]
            assert [each["node"] for each in one["producers"]] == ["p1"] and one["primary"] == cluster.leader
            assert until(tab.cluster, lambda document: document["proxies"][0]["sessions"] == 1)
        for node in ("", f"&node={cluster.leader}"):
            [message] = tab.ask(f"/api/v1/messages?uri={quote(STRONG)}{node}")[1]["messages"]
        assert tab.ask(f"/api/v1/message?uri={quote(STRONG)}&guid={message['guid']}")[1]["payload"] == "b25l"
        target = next(name for name in cluster.names if name != cluster.leader)
        assert tab.post(f"/api/v1/partitions/{rows[0]['partition']}/move", {"to": target}) == (200, {"ok": True})
        until(tab.cluster, lambda document: document["partitions"][rows[0]["partition"]]["primary"] == target)


def test_consoles_show_proxies_and_their_clients_and_a_proxy_forwards_a_purge(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, proxies=2) as cluster:
        for name in cluster.names:
            cluster[name].expect("Transitioning to AVAILABLE", deadline=WAIT_S)
        tabs = {name: Tab(url) for name, url in cluster.consoles.items()}
        with application(cluster["p1"].url) as app, application(cluster["p2"].url) as other:
            app.session.open_queue(STRONG, read=False, write=True)
            other.session.open_queue(STRONG, read=True, write=False)
            for number in range(5):
                app.post(STRONG, b"%d" % number)
            for name in (*cluster.names, "p1"):
                found = until(tabs[name].cluster, lambda document: is_complete(document) and [
                    max(link["unconfirmed"] for link in proxy["links"]) for proxy in document["proxies"]] == [0, 5]
                              and all(proxy["memoryBytes"] and proxy["version"] for proxy in document["proxies"]))
                for proxy in found["proxies"]:
                    assert proxy["url"] == cluster.consoles[proxy["name"]] and proxy["host"] == proxy["name"]
                    assert [link["node"] for link in proxy["links"]] == cluster.names
                    assert sorted(link["queues"] for link in proxy["links"]) == [0, 0, 1]
                answer = tabs[name].ask("/api/v1/clients")[1]
                assert sorted(row["node"] for row in answer["clients"] if row["proxy"]) == ["p1", "p2"]
                assert len({row["id"] for row in answer["clients"]}) == 2 and answer["missing"] == {}
                one = tabs[name].ask(f"/api/v1/queue?uri={quote(STRONG)}")[1]
                assert [each["node"] for each in one["producers"]] == ["p1"] and one["missing"] == {}
                assert [(each["node"], each["unconfirmed"]) for each in one["consumers"]] == [("p2", 5)]
                assert branches(one["tree"]) == [("client", "p1"), ("client", "p2")]
        proxy, leader = tabs["p1"], tabs[cluster.leader]
        wrong = proxy.post("/api/v1/queues/purge", {"uri": STRONG, "confirm": "x", "reason": "r"})
        assert wrong[0] == 400 and wrong[1]["field"] == "confirm"
        nowhere = f"{STRONG}-other"
        assert proxy.post("/api/v1/queues/purge", {"uri": nowhere, "confirm": nowhere, "reason": "r"})[0] == 404
        status, answer = proxy.post("/api/v1/queues/purge", {"uri": STRONG, "confirm": STRONG, "reason": "not needed"})
        assert (status, answer["messages"]) == (200, 5)
        assert [each["action"] for each in proxy.ask("/api/v1/audit")[1]["entries"]] == ["purge"] * 3
        entry = leader.ask("/api/v1/audit")[1]["entries"][0]
        assert entry["action"] == "purge" and entry["from"].endswith("by p1") and entry["reason"] == "not needed"
        cluster["p2"].kill()
        until(leader.cluster, lambda document: [each["name"] for each in document["proxies"]] == ["p1"])


def test_permissions_at_the_console_of_a_proxy_are_those_of_the_cluster(tmp_path: Path) -> None:
    key = tmp_path / "console.key"
    key.write_bytes(b"k" * 64)
    console = {"users": list(users()), "keyFile": str(key)}
    with ClusterProcess(tmp_path, proxies=1, app={"bmqtwist": {"http": console}}) as cluster:
        for name in cluster.names:
            cluster[name].expect("Transitioning to AVAILABLE", deadline=WAIT_S)
        with application(cluster["p1"].url) as app:
            app.session.open_queue(STRONG, read=False, write=True)
            for number in range(3):
                app.post(STRONG, b"%d" % number)
        purge = "/api/v1/queues/purge", {"uri": STRONG, "confirm": STRONG, "reason": "not needed"}
        anonymous, viewer, operator, admin = (Tab(cluster.consoles["p1"]) for _ in range(4))
        assert anonymous.post(*purge)[0] == 401
        for tab, name in ((viewer, "vera"), (operator, "olaf"), (admin, "ada")):
            assert tab.log_in(name) == 303
        until(viewer.cluster, is_complete)
        for tab in (viewer, operator):
            status, answer = tab.post(*purge)
            assert status == 403 and "admin" in answer["error"]
        assert [admin.post(*purge)[1]["messages"] for _ in range(2)] == [3, 0]
        leader = Tab(cluster.consoles[cluster.leader])
        assert leader.log_in("ada") == 303
        entries = leader.ask("/api/v1/audit")[1]["entries"]
        assert [(each["action"], each["user"], each["role"]) for each in entries] == [
            ("login", "ada", "admin"), ("purge", "ada", "admin"), ("purge", "ada", "admin")]


def branches(branch: Any, above: str = "") -> list[tuple[str, str]]:
    """Return the leaves of a distribution tree: kind of each, and its upstream broker."""
    ends = [each for child in branch["children"] for each in branches(child, branch["name"])]
    return sorted(ends) if branch["children"] else [(branch["kind"], above)]


def test_consoles_show_a_crashed_node_and_the_progress_of_a_stopping_one(cluster: ClusterProcess) -> None:
    leader = cluster.leader
    first, second = [name for name in cluster.names if name != leader]
    tab = Tab(cluster.consoles[first])
    until(tab.cluster, is_complete)
    tab.open_websocket()
    while not tab.document:
        assert tab.read_frames()
    cluster[second].kill()
    end = time.monotonic() + WAIT_S
    while tab.document["nodes"][second]["state"] != "down":
        assert tab.read_frames() and time.monotonic() < end
    assert tab.document["verdict"]["level"] == "warning" and second in tab.document["verdict"]["text"]
    assert tab.document["nodes"][second]["url"] == cluster.consoles[second]
    said = len(cluster[second].records)
    cluster[second].launch()
    cluster[second].expect("Transitioning to AVAILABLE", since=said, deadline=WAIT_S)
    until(tab.cluster, is_complete)
    assert tab.post(f"/api/v1/nodes/{leader}/stop", {"confirm": leader, "reason": "new disk"}) == (200, {"ok": True})
    stages = set()
    while (node := tab.document["nodes"][leader])["state"] != "down":
        if node.get("stop"):
            stages.add(node["stop"]["stage"])
        assert tab.read_frames() and time.monotonic() < end + 2 * WAIT_S
    assert stages and node["stop"]["done"] and node["stop"]["reason"] == "new disk"
    assert until(tab.cluster, lambda document: document["leader"]["node"] not in ("", leader))
    tab.close()
    assert not [line for name in cluster.names for line in cluster[name].records if "INTERNAL_ERROR" in line
                or "Internal error" in line]
