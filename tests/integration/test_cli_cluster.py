"""`bmq cluster`: start, stop and restart of the brokers of a cluster, as processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.cli_kit import Cli, Done

from bmqtwist.cli.cluster.local import BrokerView, ClusterRecord, LocalCluster, leader_of, problems
from bmqtwist.cli.cluster.processes import find_pid, is_broker, send_signal, wait_until_recognizable
from bmqtwist.config.sample import SAMPLE_CLUSTER, sample_brokers
from bmqtwist.daemon.preflight import check

QUEUE = "bmq://bmq.test.persistent.priority/q"
STRONG_QUEUE = "bmq://bmq.test.persistent.priority.sc/q"


@pytest.fixture
def bmq(tmp_path: Path) -> Iterator[Cluster]:
    """Yield the command with a temporary directory; kill the processes that it has started."""
    cluster = Cluster(tmp_path / "c")
    yield cluster
    if (cluster.directory / "cluster.json").exists():
        cluster("down")
        for each in cluster.status()["brokers"]:
            assert not each["up"]


COMMAND_SECONDS_MAX = 150.0  # four brokers are started one after the other, beside other tests


class Cluster:
    """The command `bmq cluster ... --dir`."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._cli = directory, Cli("")

    def __call__(self, command: str, *arguments: str, code: int = 0) -> Done:
        done = self._cli("cluster", command, "--dir", str(self.directory), *arguments, seconds_max=COMMAND_SECONDS_MAX)
        assert done.code == code, f"{done.err}\n{done.out.decode()}\n{self._last_log_lines()}"
        return done

    def _last_log_lines(self) -> str:
        names = [name for name in ("n1", "n2", "n3") if (self.directory / name).exists()]
        logs = [self._cli("cluster", "logs", name, "-n", "60", "--dir", str(self.directory)).out for name in names]
        return b"\n".join(logs).decode(errors="replace")

    def run_refused(self, command: str, *arguments: str) -> str:
        """Run a command that must fail, in this process; return its error."""
        done = self._cli.run_in_process("cluster", command, "--dir", str(self.directory), *arguments)
        assert done.code == 2, (done.out, done.err)
        return done.err

    def status(self) -> dict[str, object]:
        """Run `bmq cluster status` in this process."""
        done = self._cli.run_in_process("cluster", "status", "--dir", str(self.directory), "--json")
        return json.loads(done.out)  # type: ignore[no-any-return]

    def pids(self) -> dict[str, int]:
        return {each["name"]: each["pid"] for each in self.status()["brokers"]}  # type: ignore[attr-defined]

    def broker(self, name: str) -> dict[str, object]:
        return next(each for each in self.status()["brokers"] if each["name"] == name)  # type: ignore[attr-defined]


@pytest.mark.process
def test_a_cluster_of_three_nodes_and_a_proxy_is_created_killed_and_restarted(bmq: Cluster) -> None:
    shown = bmq("up", "--proxies", "1", "--durability", "none").lines
    assert [line.split()[0] for line in shown] == ["BROKER", "n1", "n2", "n3", "p1", "connect"]
    before = bmq.status()
    assert before["healthy"] and before["durability"] == "none" and before["term"] == 1
    leader = str(before["leader"])
    configurations = {name: (bmq.directory / name / "etc" / "clusters.json").read_bytes() for name in ("n1", "n2", "n3")}
    assert len(set(configurations.values())) == 1
    bmq("kill", leader)
    assert "is down already" in bmq.run_refused("kill", leader)
    assert not bmq.status()["healthy"] and bmq("status", code=1).lines[-1] == f"not healthy: {leader}: down"
    assert "not healthy" in bmq.run_refused("roll") and f"{leader}: down" in bmq.run_refused("roll")
    other = "n1" if leader != "n1" else "n2"
    assert f"{leader}: down; `bmq cluster up" in bmq("restart", other).err  # two of three are enough
    pids = bmq.pids()
    bmq("up")
    after = bmq.status()
    assert after["healthy"] and int(str(after["term"])) > 1
    assert [name for name, pid in bmq.pids().items() if pids[name] != pid] == [leader]  # no other broker was restarted
    rolled = bmq("roll").err
    assert [line.partition(":")[0] for line in rolled.splitlines() if "healthy again" in line][-1] == after["leader"]
    assert bmq.status()["healthy"] and rolled.count("stopped") == rolled.count("started") == 4
    assert b"leader status: ACTIVE" in bmq("logs", "n1", "-n", "1000").out
    assert b"STARTED bmqbrkr" in bmq("logs", "1", "--output").out
    bmq("down")
    assert not any(each["up"] for each in bmq.status()["brokers"])  # type: ignore[attr-defined]
    assert "all brokers are down" in bmq("down").err


@pytest.mark.process
def test_nodes_are_added_replaced_and_removed_while_the_cluster_keeps_its_messages(bmq: Cluster) -> None:
    bmq("up")
    assert Cli(str(bmq.broker("n1")["url"]))("produce", STRONG_QUEUE, "kept").code == 0
    bmq("add-node")
    assert bmq.status()["healthy"] and len(bmq.pids()) == 4
    before = bmq.broker("n2")["url"]
    bmq("replace-node", "n2")
    assert bmq.status()["healthy"] and bmq.broker("n2")["url"] != before
    bmq("remove-node", "n1")
    assert bmq.status()["healthy"] and sorted(bmq.pids()) == ["n2", "n3", "n4"]
    assert Cli(str(bmq.broker("n2")["url"]))("consume", STRONG_QUEUE, "-n", "1").lines == ["kept"]
    assert "no broker 'n1'" in bmq.run_refused("remove-node", "n1")


@pytest.mark.process
def test_a_single_node_keeps_its_data_between_two_runs_of_up(bmq: Cluster) -> None:
    bmq("up", "--nodes", "1")
    address = str(bmq.broker("n1")["url"])
    cli = Cli(address)
    assert cli("produce", QUEUE, "kept").code == 0
    bmq("down")
    bmq("up")
    assert bmq.broker("n1")["url"] == address
    assert cli("consume", QUEUE, "-n", "1").lines == ["kept"]
    (bmq.directory / "domains" / "mine.json").write_text(
        (bmq.directory / "domains" / "bmq.test.mem.priority.json").read_text())  # one place for all brokers
    assert cli("produce", "bmq://mine/q", "x").code == 0
    bmq("stop", "n1")
    assert not bmq.broker("n1")["up"]
    bmq("restart", "n1")
    assert bmq.status()["healthy"]


@pytest.mark.process
def test_a_broker_started_by_another_program_is_detected(bmq: Cluster) -> None:
    """A broker in the directory of the cluster."""
    bmq("up", "--nodes", "1")
    bmq("stop", "n1")
    with subprocess.Popen([Path(sys.executable).parent / "bmqbrkr", "etc"], cwd=bmq.directory / "n1",
                          stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert any(line.startswith(b"STARTED") for line in process.stdout)
        assert bmq.broker("n1")["pid"] == process.pid
        bmq("stop", "n1")
        process.stdout.read()


@pytest.mark.process
def test_a_broker_that_does_not_start_is_reported_with_its_last_log_lines(bmq: Cluster) -> None:
    bmq("up", "--nodes", "1")
    bmq("down")
    clusters = bmq.directory / "n1" / "etc" / "clusters.json"
    clusters.write_text(clusters.read_text().replace('"numPartitions": 4', '"numPartitions": "four"'))
    said = bmq("up", code=3).err
    assert "n1 has ended" in said and "numPartitions" in said and "`bmq cluster up" in said


def test_a_refused_cluster_command_explains_the_remedy(bmq: Cluster) -> None:
    assert "with `bmq cluster up --dir" in bmq.run_refused("status")
    assert "with `bmq cluster up --dir" in bmq.run_refused("kill", "n1")
    assert "65535 is the last one" in bmq.run_refused("up", "--base-port", "65531")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        said = bmq.run_refused("up", "--nodes", "1", "--base-port", str(first))
        assert f"n1 cannot start: another program listens at its port {first}" in said and "Stop that program" in said
    assert "it has n1" in bmq.run_refused("kill", "n7") and "is down already" in bmq.run_refused("stop", "1")
    assert "was created with --nodes 1, not 5: omit the option" in bmq.run_refused("up", "--nodes", "5")
    assert "was created with --elector fast, not original" in bmq.run_refused("up", "--elector", "original")
    assert "--output" in bmq.run_refused("logs", "n1")
    record = bmq.directory / "cluster.json"
    text = record.read_text()
    record.write_text(text.replace('"version": 1', '"version": 2'))
    assert "is of another version" in bmq.run_refused("status")
    record.write_text(text[:-20])
    assert "is damaged" in bmq.run_refused("up")
    record.write_text(text)


def test_a_directory_with_other_files_is_not_used(bmq: Cluster) -> None:
    bmq.directory.mkdir()
    (bmq.directory / "thesis.txt").write_text("mine")
    assert "is not empty, and contains no cluster" in bmq.run_refused("up")
    assert not (bmq.directory / "cluster.json").exists()


def test_concurrent_cluster_commands_exclude_each_other(bmq: Cluster) -> None:
    stopped_cluster(bmq.directory)
    with open(bmq.directory / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "wait until it ends" in bmq.run_refused("down")
        assert bmq.status()["healthy"] is False  # looking needs no lock


def stopped_cluster(directory: Path) -> LocalCluster:
    """Return a cluster without processes."""
    directory.mkdir()
    return LocalCluster.make(directory, ClusterRecord(sample_brokers(1, 0, [1, 2]), "fast", "group"), print)


@pytest.mark.parametrize("elector", ["fast", "original"])
def test_the_generated_configurations_are_valid(tmp_path: Path, elector: str) -> None:
    """Edited files are not overwritten."""
    cluster = LocalCluster.make(tmp_path, ClusterRecord(SAMPLE_CLUSTER, elector, "always"), print)
    cluster.write_missing_files()
    for name in ("n1", "n2", "n3", "p1"):
        assert check(str(tmp_path / name / "etc"))[0] == []
    edited = tmp_path / "n2" / "etc" / "bmqbrkrcfg.json"
    edited.write_text(edited.read_text().replace("always", "group"))
    cluster.write_missing_files()
    assert "always" not in edited.read_text()


def test_a_pid_is_accepted_only_for_a_broker_of_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "bmqbrkr.pid").write_text(f"{os.getpid()}\n")
    assert not is_broker(os.getpid(), tmp_path) and find_pid(tmp_path, os.getpid()) == 0
    assert not send_signal(os.getpid(), tmp_path, signal.SIGKILL)  # otherwise this test would be killed
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "bmqbrkr"]
    other = tmp_path / "other"
    other.mkdir()
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        wait_until_recognizable(process)
        assert is_broker(process.pid, tmp_path) and not is_broker(process.pid, other)
        assert find_pid(tmp_path, process.pid) == process.pid and find_pid(other, process.pid) == 0
        assert not send_signal(process.pid, other, signal.SIGKILL) and process.poll() is None
        assert send_signal(process.pid, tmp_path, signal.SIGKILL)
        process.wait()
        assert not is_broker(process.pid, tmp_path) and not send_signal(process.pid, tmp_path, signal.SIGKILL)


def test_a_cluster_is_healthy_when_all_nodes_are_and_follow_one_leader() -> None:
    brokers = sample_brokers(2, 1, range(1, 7))
    good = {"n1": BrokerView(1, "leader", "n1", "ACTIVE", 4), "n2": BrokerView(2, "follower", "n1", "ACTIVE", 4),
            "p1": BrokerView(3, "proxy")}
    assert problems(brokers, good) == [] and leader_of(brokers, good) == ("n1", 4)
    cases = {
        "n2: down": BrokerView(), "n2 does not answer: gone": BrokerView(2, unreachable_reason="gone"),
        "n2 has no leader": BrokerView(2, "follower"),
        "n2: its leader n1 is PASSIVE": BrokerView(2, "follower", "n1", "PASSIVE", 4),
        "n2: stopping": BrokerView(2, "follower", "n1", "ACTIVE", 4, not_ready_reason="stopping"),
        "the nodes follow different leaders: n1, n2": BrokerView(2, "leader", "n2", "ACTIVE", 3)}
    for text, view in cases.items():
        assert problems(brokers, {**good, "n2": view}) == [text]
    assert leader_of(brokers, {**good, "n2": BrokerView(2, "leader", "n2", "ACTIVE", 5)}) == ("n2", 5)
    assert problems(brokers, {**good, "p1": BrokerView(3, "proxy", not_ready_reason="starting")}) == ["p1: starting"]
