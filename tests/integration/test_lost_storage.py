"""Processes of a cluster after the mistakes of operators: a lost directory, a wrong list of nodes, two histories."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from kit.cli_kit import Cli

from bmqtwist.errors import BmqError
from bmqtwist.sdk import simple
from bmqtwist.testing import BrokerProcess, ClusterProcess

QUEUE = "bmq://bmq.test.persistent.priority.sc/q"
DEADLINE_S = 150.0  # the profile of the cluster has long waits, and the machine may be busy
pytestmark = pytest.mark.process


def post(broker: BrokerProcess, count: int, name: str) -> list[bytes]:
    """Post messages that are acknowledged; return their payloads."""
    payloads = [f"{name} {number}".encode() for number in range(count)]
    with simple.Session(broker.url) as session:
        queue = session.open(QUEUE, write=True)
        for payload in payloads:
            assert queue.post(payload).ok
    return payloads


def received(broker: BrokerProcess, count: int) -> set[bytes]:
    """Receive messages without confirming them."""
    found = set[bytes]()
    with simple.Session(broker.url) as session:
        queue = session.open(QUEUE, read=True)
        while len(found) < count:
            message = queue.get(DEADLINE_S)
            assert message is not None, f"{len(found)} of {count} messages"
            found.add(message.data)
    return found


def status(broker: BrokerProcess) -> str:
    """Return the status of the cluster at a node; empty while it does not answer."""
    try:
        return broker.admin("CLUSTERS CLUSTER c3 STATUS")
    except (BmqError, OSError):
        return ""


def wait_for(broker: BrokerProcess, text: str) -> None:
    """Wait until the status of a node has a text."""
    end = time.monotonic() + DEADLINE_S
    while text not in status(broker):
        assert time.monotonic() < end, (text, status(broker))
        time.sleep(0.1)


def remove_storage(broker: BrokerProcess) -> None:
    """Empty the directories of a stopped node."""
    for directory in (broker.root / "storage", broker.root / "archive"):
        for path in directory.iterdir():
            path.unlink()


def test_an_empty_node_and_a_stale_one_wait_for_the_node_with_the_messages(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path) as cluster:
        before = post(cluster["n1"], 5, "before")
        cluster["n3"].kill()
        cluster.elect()
        payloads = before + post(cluster["n1"], 200, "acknowledged")
        for name in ("n1", "n2"):
            cluster[name].kill()
        remove_storage(cluster["n2"])
        for name in ("n2", "n3"):
            cluster[name].launch()
        for name in ("n2", "n3"):
            wait_for(cluster[name], "WAITING_FOR_MEMBERS (waits for [n1, 1], [n2, 2])")
        end = time.monotonic() + 3.0  # elections of the profile `fast` take less than a second
        while time.monotonic() < end:
            assert not any("Is Healthy    : Yes" in status(cluster[name]) for name in ("n2", "n3"))
        cluster["n1"].launch()
        for name in cluster.names:
            wait_for(cluster[name], "Is Healthy    : Yes")
        assert received(cluster["n2"], len(payloads)) == set(payloads)


def test_a_node_with_a_wrong_list_of_nodes_does_not_start_and_says_why(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path) as cluster:
        payloads = post(cluster["n1"], 50, "first")
        node = cluster["n3"]
        assert node.stop() == 0
        nodes = node.config.clusters["myClusters"][0]["nodes"]
        node.config.clusters["myClusters"][0]["nodes"] = nodes[2:]
        node.config.write()
        files = {path.name: path.read_bytes() for path in (node.root / "storage").iterdir()}
        checked = Cli(node.url).run_in_process("check", str(node.config.etc))
        assert checked.code and "n1 (id 1) is missing; n2 (id 2) is missing" in checked.out.decode() + checked.err
        node.launch()
        assert node.wait(DEADLINE_S)
        assert [line for line in node.log() if "n1 (id 1) is missing; n2 (id 2) is missing" in line]
        assert {path.name: path.read_bytes() for path in (node.root / "storage").iterdir()} == files
        payloads += post(cluster["n1"], 100, "second")
        for name in ("n1", "n2"):
            assert cluster[name].stop() == 0
        node.config.clusters["myClusters"][0]["nodes"] = nodes
        node.config.write()
        cluster.start()
        for name in cluster.names:
            wait_for(cluster[name], "Is Healthy    : Yes")
        assert received(node, len(payloads)) == set(payloads)


def test_a_node_that_was_forced_to_run_alone_never_joins_the_others(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path) as cluster:
        payloads = post(cluster["n1"], 20, "before")
        stale = cluster["n3"]
        stale.kill()
        cluster.elect()
        payloads += post(cluster["n1"], 100, "majority")
        cli, etc = Cli(stale.url), str(stale.config.etc)
        assert cli.run_in_process("cluster", "unsafe-force", etc, "--accept-data-loss").code == 0
        stale.launch()
        stale.expect("Cluster (c3) is available", deadline=DEADLINE_S)
        post(stale, 10, "alone")
        assert stale.stop() == 0
        assert cli.run_in_process("cluster", "unsafe-clear", etc).code == 0
        stale.launch()
        for name in ("n1", "n3"):
            cluster[name].expect("its storage belongs to the cluster with the id", deadline=DEADLINE_S)
        payloads += post(cluster["n1"], 10, "after")
        assert stale.stop() == 0
        shutil.rmtree(stale.root / "storage")
        stale.launch()
        wait_for(stale, "Is Healthy    : Yes")
        assert received(stale, len(payloads)) == set(payloads)
