"""Log lines for which other programs wait: when they are written, and their order."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.config import ConfigDirectory
from kit.memory import MemoryWorld
from kit.process import free_port

from bmqtwist.cli.bmqbrkr import PID_FILE, main
from bmqtwist.daemon.control_pipe import ControlPipe
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.report import ListReport


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    return world


def test_a_rollover_is_logged_at_its_start_and_at_its_end(memory: MemoryWorld) -> None:
    """Each partition on its own, at the command."""
    memory.producer().post(b"kept")
    memory.admin("CLUSTERS CLUSTER c3 STORAGE PARTITION -1 ROLLOVER")
    lines = [line for line in memory.log() if "Initiating rollover" in line or "ROLLOVER COMPLETE" in line]
    partitions = len(memory.broker.clusters["c3"].partitions)
    assert len(lines) == 2 * partitions
    for index in range(partitions):
        begin, end = lines[2 * index:2 * index + 2]
        assert f"Partition [{index}]: Initiating rollover: JOURNAL " in begin and "live records" in begin
        assert f"Partition [{index}]: ROLLOVER COMPLETE: JOURNAL " in end


def test_purge_records_are_logged_with_the_app_key(memory: MemoryWorld) -> None:
    memory.domain("f", "fanout")
    memory.producer("bmq://f/q").post(b"1")
    memory.admin("DOMAINS DOMAIN f QUEUE q PURGE foo")
    [line] = memory.logged("Writing PURGE record", "queue 'bmq://f/q'")
    assert "appKey: *" not in line
    memory.admin("DOMAINS DOMAIN f QUEUE q PURGE *")
    assert memory.logged("Writing PURGE record", "appKey: *")


def test_a_new_ledger_file_and_the_deletion_of_a_queue_are_logged(tmp_path: Path) -> None:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    assert not world.logged("Rolling over from log")  # the first file replaces no other
    cluster = world.broker.clusters["c3"]
    cluster.metadata.log.log.max_bytes = 2000
    for number in range(20):
        world.producer(f"bmq://d/q{number}").client.disconnect()
        world.admin("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    assert world.logged("Rolling over from log with logId '") and world.logged("Rolled over to log with logId '")
    assert world.logged("bmq://d/q19", "queueUnAssignmentAdvisory")


def test_a_removed_app_with_a_consumer_is_unauthorized_and_no_virtual_storage(memory: MemoryWorld) -> None:
    """It is listed as unauthorized."""
    memory.domain("f", "fanout", apps=("foo", "bar"))
    memory.producer("bmq://f/q").post(b"1")
    memory.consumer("bmq://f/q", "foo")
    assert "Num virtual storages: 2" in memory.admin("DOMAINS DOMAIN f QUEUE q INTERNALS")
    memory.reconfigure("f", "fanout", apps=("bar",))
    text = memory.admin("DOMAINS DOMAIN f QUEUE q INTERNALS")
    assert "Num virtual storages: 1" in text and "foo: status=unauthorized" in text


def test_a_failed_control_pipe_command_is_logged_as_an_error_with_its_answer(memory: MemoryWorld, tmp_path: Path) -> None:
    """A refused, an unknown and a successful command."""
    report, reader = ListReport(), SimpleNamespace(addReader=lambda pipe: None, removeReader=lambda pipe: None)
    memory.admin("CLUSTERS LIST")
    pipe = ControlPipe(reader, str(tmp_path / "ctl"), str(tmp_path / "hist"), memory.broker.commands.run, report)
    pipe.open()
    writer = os.open(tmp_path / "ctl", os.O_WRONLY | os.O_NONBLOCK)
    for command in ("CLUSTERS CLUSTER c3 STORAGE PARTITION -2 ROLLOVER", "CLUSTERS CLUSTER c3 STORAGE PARTITION -1 SUMMARY",
                    "NONSENSE", "CLUSTERS LIST"):
        os.write(writer, f"CMD {command}\n".encode())
        pipe.doRead()
    os.close(writer)
    pipe.close()
    rollover, summary, nonsense = report.texts("ERROR")
    assert rollover.startswith("Error processing command 'CMD CLUSTERS CLUSTER c3 STORAGE PARTITION -2 ROLLOVER' in ")
    assert rollover.endswith(" [rc: -1]:\nToo low partitionId value: '-2'")
    assert summary.endswith("\nToo low partitionId value: '-1'") and "Unable to decode command" in nonsense
    [done] = report.texts("INFO")
    assert done.startswith("Command 'CMD CLUSTERS LIST' processed successfully in ")


def test_a_control_pipe_command_is_answered_when_its_change_is_committed(
        memory: MemoryWorld, tmp_path: Path) -> None:
    """A program that reads the line may query the result."""
    memory.producer().client.disconnect()
    memory.admin("CLUSTERS LIST")
    answers: list[AdminAnswer] = []
    memory.broker.commands.run("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES", "test", answers.append)
    assert not answers and memory.broker.clusters["c3"].queues
    memory.advance(0.01)
    assert answers == [AdminAnswer("SUCCESS", failed=False)] and not memory.broker.clusters["c3"].queues


class Service:
    """The service that `main` runs; its start records the content of the working directory."""

    identity: Any = SimpleNamespace(host_name="here", client_id=b"\1")

    def __init__(self) -> None:
        self.on_opened = lambda: None
        self.found: list[str] = []

    def startService(self) -> None:
        assert not os.path.exists(PID_FILE)
        self.on_opened()
        self.found.append(Path(PID_FILE).read_text(encoding="ascii"))

    def reload(self) -> None: ...

    def stopService(self) -> None: ...


def test_the_pid_file_is_complete_before_the_start_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that reads the line may read the file; the directory contains no other file."""
    ConfigDirectory(tmp_path, free_port()).write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    before = set(os.listdir())
    reactor = SimpleNamespace(callWhenRunning=lambda *arguments: None, addSystemEventTrigger=lambda *arguments: None,
                              run=lambda: None)
    service = Service()
    assert main(["etc"], reactor, lambda *arguments: service) == 0
    assert service.found == [f"{os.getpid()}\n"]
    assert not {name for name in set(os.listdir()) - before if "pid" in name}




@pytest.mark.parametrize("late", [0.05, 0.2, 0.3, 0.45])
def test_a_stuck_queue_raises_its_alarm_exactly_when_max_idle_time_has_passed(memory: MemoryWorld, late: float) -> None:
    """At any moment between two regular checks; also after a change of maxIdleTime."""
    memory.domain("s", maxIdleTime=1)
    producer = memory.producer("bmq://s/q")
    memory.advance(late)
    producer.post(b"1")
    memory.reconfigure("s", maxIdleTime=3)
    memory.advance(2.9)
    assert not memory.alarms("QUEUE_STUCK")
    memory.advance(0.15)
    assert len(memory.alarms("QUEUE_STUCK")) == 1
