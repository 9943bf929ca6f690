"""Numbers of the console while nodes are killed or hung, or a disk is full: never zero, never "none", equal to the SDK
and to admin commands.

Brokers as processes; the pages in a browser are tested in tests/browser.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kit.console_client import Tab
from kit.sdk import application

from bmqtwist.testing import BrokerProcess, ClusterProcess
from bmqtwist.testing.process import free_port

STRONG = "bmq://bmq.test.persistent.priority.sc/q"
DOMAIN = "bmq.test.persistent.priority.sc"
MESSAGES = 40
WAIT_S = 60.0
LARGE = bytes(range(256)) * (9 << 12)  # 9 MiB: three parts between nodes

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path) as nodes:
        for name in nodes.names:
            nodes[name].expect("Transitioning to AVAILABLE", deadline=WAIT_S)
        yield nodes


def check_numbers(tab: Tab, messages: int = MESSAGES, since: float = inf) -> Any:
    """Check that all documents have the queue and its messages, and the history from `since` on, too; return the cluster
    document."""
    document = tab.cluster()
    assert document["stored"]["messages"] == messages, document["partitions"]
    page = tab.ask("/api/v1/queues")[1]
    assert [(row["uri"], row["messages"]) for row in page["rows"]] == [(STRONG, messages)] and page["total"] == 1, page
    one = tab.ask(f"/api/v1/queue?uri={quote(STRONG)}")[1]
    assert one["messages"] == messages and one["history"][-1][1] == messages
    domain, = [row for row in tab.ask("/api/v1/domains")[1]["domains"] if row["name"] == DOMAIN]
    assert (domain["queues"], domain["messages"], domain["inUse"]) == (1, messages, True)
    stored = [row[5] for row in document["history"] if row[0] >= since]
    assert set(stored) <= {messages, None}, document["history"]
    return document


def until(tab: Tab, condition: Callable[[Any], bool], since: float = inf) -> Any:
    """Check all numbers until a condition on the cluster document holds; return the document."""
    end = time.monotonic() + WAIT_S
    while not condition(document := check_numbers(tab, since=since)):
        assert time.monotonic() < end, json.dumps(document["nodes"])
        time.sleep(0.2)
    return document


def states(document: Any) -> dict[str, str]:
    return {node["name"]: node["state"] for node in document["nodes"]}


def test_numbers_stay_known_while_nodes_die(cluster: ClusterProcess) -> None:
    leader = cluster.leader
    first, second = [name for name in cluster.names if name != leader]
    with application(cluster[first].url) as app:
        app.session.open_queue(STRONG, write=True)
        for number in range(MESSAGES):
            app.post(STRONG, b"%d" % number)
    tab = Tab(cluster.consoles[first])
    until(tab, lambda document: document["verdict"]["level"] == "good" and bool(document["history"]))
    since = time.time()

    cluster[leader].kill()
    document = until(tab, lambda document: document["leader"]["node"] in (first, second)
                     and {each["primary"] for each in document["partitions"]} <= {first, second}, since)
    assert states(document)[leader] == "down" and not document["nodes"][cluster.names.index(leader)]["answers"]
    answer = cluster[first].admin(json.dumps({"encoding": "JSON_COMPACT", "domains": {"domain": {
        "name": DOMAIN, "command": {"info": {}}}}}))
    found = json.loads(answer)
    primary = next(each["primary"] for each in document["partitions"] if each["queues"])
    if primary == first:
        assert found["domainInfo"]["capacityMeter"]["numMessages"] == MESSAGES

    cluster[second].kill()
    document = until(tab, lambda document: states(document)[second] == "down", since)
    assert document["verdict"]["level"] == "bad" and "2 are required" in document["verdict"]["text"]
    assert {each["source"] for each in document["partitions"]} == {first}
    row = tab.ask("/api/v1/queues")[1]["rows"][0]
    assert row["copyAt"] == first or primary == first

    cluster[first].kill()  # the last one: its metadata and its copy are on its disk
    cluster[first].launch()
    end = time.monotonic() + WAIT_S
    while True:
        try:
            document = check_numbers(tab, since=since)
            break
        except (OSError, AssertionError, TypeError, KeyError):
            assert time.monotonic() < end, cluster[first].log[-30:]
            time.sleep(0.3)
    assert any(row[0] < since for row in document["history"]), "the history survives the restart"
    assert [node["lastAnswerAt"] for node in document["nodes"] if node["name"] != first] == [None, None]
    assert "none" not in document["verdict"]["text"]


def test_a_hung_node_keeps_its_values_and_a_large_payload_is_downloaded_from_a_replica(cluster: ClusterProcess) -> None:
    leader = cluster.leader
    first, second = [name for name in cluster.names if name != leader]
    with application(cluster[first].url) as app:
        app.session.open_queue(STRONG, write=True)
        app.post(STRONG, LARGE, wait=False)
        app.next_ack(WAIT_S)
    tab = Tab(cluster.consoles[first])
    guid = tab.ask(f"/api/v1/messages?uri={quote(STRONG)}")[1]["messages"][0]["guid"]
    status, payload = tab.ask(f"/api/v1/message/payload?uri={quote(STRONG)}&guid={guid}&node={leader}",
                              headers={"Accept-Encoding": "identity"}, encoding="latin-1")
    assert status == 200 and payload.encode("latin-1") == LARGE
    end = time.monotonic() + WAIT_S
    while not (before := next(node for node in check_numbers(tab, 1)["nodes"] if node["name"] == second))["answers"]:
        assert time.monotonic() < end
        time.sleep(0.2)
    cluster[second].pause()
    end = time.monotonic() + WAIT_S
    while (node := next(each for each in check_numbers(tab, 1)["nodes"] if each["name"] == second))["answers"]:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert node["state"] in ("unreachable", "down") and node["lastAnswerAt"] >= before["lastAnswerAt"]
    assert node["state"] == "down" or node["memoryBytes"] is not None
    cluster[second].resume()
    while not next(each for each in check_numbers(tab, 1)["nodes"] if each["name"] == second)["answers"]:
        assert time.monotonic() < end + WAIT_S
        time.sleep(0.2)


DISK_BYTES = 32 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a storage directory on a file system of DISK_BYTES."""
    location = tmp_path / "storage"
    location.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", location], check=False,
                      capture_output=True).returncode:
        pytest.skip("needs a full file system, and this user must not mount a tmpfs: run the tests as root")
    yield location
    subprocess.run(["umount", "--lazy", location], check=False)


def test_the_verdict_of_a_single_node_names_its_full_disk(tmp_path: Path, small_disk: Path) -> None:
    port, uri = free_port(), "bmq://bmq.test.persistent.priority/q"
    with BrokerProcess(tmp_path, app={"bmqtwist": {"http": {"port": port, "localRole": "admin"}}}) as broker:
        tab = Tab(f"http://127.0.0.1:{port}")
        with application(broker.url) as app:
            app.session.open_queue(uri, write=True)
            app.post(uri, b"before")
            (node,) = tab.cluster()["nodes"]
            space = node["storage"]
            assert space["location"] == str(small_disk) and space["totalBytes"] == DISK_BYTES
            assert space["usedBytes"] <= space["allocatedBytes"] <= DISK_BYTES - space["freeBytes"] < 1 << 20
            with open(small_disk / "filler", "wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            end, reasons, document = time.monotonic() + WAIT_S, "", tab.cluster()
            while not ("is failing" in reasons and "is full" in reasons and document["history"]):
                app.post(uri, bytes(20_000), wait=False)  # until the file needs another page of the disk
                time.sleep(0.2)
                document = tab.cluster()
                reasons = " ".join(document["verdict"]["reasons"])
                assert time.monotonic() < end, document["verdict"]
    (node,) = document["nodes"]
    assert document["verdict"]["level"] == "bad" and node["state"] == "up" and "No space left" in node["problem"]
    assert document["verdict"]["text"].startswith(f"The disk of node {node['name']} is full: ")
    assert str(small_disk) in document["verdict"]["text"] and "starting" not in reasons
    assert "its queues accept no messages: [Errno 28] No space left on device." in reasons
    assert document["history"][-1][7] <= node["storage"]["totalBytes"]
