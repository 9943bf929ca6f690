"""Error isolation: an exception injected at every stage of the turn disables only the part that raised it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client, Queue, payloads, refusal
from kit.memory import MemoryWorld

from bmqtwist.admin.executor import AdminExecutor
from bmqtwist.broker.graceful_stop import Stage
from bmqtwist.cli import bmqbrkr
from bmqtwist.daemon.control_pipe import ControlPipe
from bmqtwist.daemon.housekeeping import Housekeeping
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.link.authentication import Denied
from bmqtwist.link.client import ClientSession
from bmqtwist.link.puts import PutReader
from bmqtwist.link.session import Session
from bmqtwist.loop import error_isolation as containment
from bmqtwist.loop.scheduler import STEPS_MAX
from bmqtwist.queue import delivery as delivery_module
from bmqtwist.queue import handles
from bmqtwist.queue.queue import App
from bmqtwist.queue.root import RootQueue
from bmqtwist.report import ListReport
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.rollover import Job, Rollover

A, B = "bmq://d/a", "bmq://d/b"  # in partitions 0 and 1


class Plant:
    """Makes `owner.name` raise when `hit(*arguments)` is true, `times` times."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, hit: Callable[..., bool], times: int = 1) -> None:
        original = getattr(owner, name)
        self.left, self.met = times, 0

        def planted(*arguments: Any, **keywords: Any) -> Any:
            if self.left and hit(*arguments):
                self.left -= 1
                self.met += 1
                raise ZeroDivisionError("planted")
            return original(*arguments, **keywords)

        patch.setattr(owner, name, planted)


@pytest.fixture
def world(tmp_path: Path) -> MemoryWorld:
    """A broker whose INTERNAL_ERROR alarms do not fail the test, with a domain `d`."""
    world = MemoryWorld(tmp_path, app={"heartbeats": {"client": 1000, "downstreamBroker": 0, "upstreamBroker": 0,
                                                      "clusterPeer": 0}})
    world.domain("d")
    world.allow_internal_errors = True
    return world


def pair(world: MemoryWorld) -> tuple[Queue, Queue, Queue, Queue]:
    """Producers and consumers of both queues: (to a, from a, to b, from b)."""
    producers = [world.producer(uri, f"to{uri[-1]}") for uri in (A, B)]
    consumers = [world.consumer(uri, name=f"from{uri[-1]}") for uri in (A, B)]
    assert [world.broker.domains.by_name["d"].queues[name].partition_id for name in "ab"] == [0, 1]
    return producers[0], consumers[0], producers[1], consumers[1]


def named(name: str) -> Callable[..., bool]:
    """Return a condition: the session belongs to this client."""
    return lambda session, *rest: getattr(session, "session", session).remote.identity.process_name == name


def queue_a(queue: Any, *rest: Any) -> bool:
    """True for queue a."""
    return bool(queue.uri == A)


def first_partition(partition: Any, *rest: Any) -> bool:
    """True for partition 0."""
    return bool(partition.partition_id == 0)


def told(world: MemoryWorld, *texts: str) -> None:
    """Assert an alarm with a traceback."""
    alarms = [text for severity, text in world.report.lines if severity == "ALARM" and "[INTERNAL_ERROR]" in text]
    wanted = (*texts, "Traceback", "ZeroDivisionError: planted")
    assert any(all(text in alarm for text in wanted) for alarm in alarms), alarms


def got(world: MemoryWorld, queue: Queue) -> list[bytes]:
    """The payloads that this consumer received since the last call; other clients may be disconnected."""
    world.run()
    return payloads(queue.pushes())


def is_closed(client: Client) -> bool:
    """Return whether the broker closed the connection."""
    client.pump(0)
    client.pump(0)
    return client.link.closed


# -- the stages of the turn


def test_a_partition_that_cannot_flush_is_closed_and_the_other_goes_on(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, from_b = pair(world)
    Plant(monkeypatch, Partition, "flush", first_partition)
    first = to_a.put(b"in doubt")
    to_b.put(b"x")
    assert to_b.next_ack().status == 0 and got(world, from_b) == [b"x"]
    told(world, "Partition [0]")
    assert to_a.status_of(b"refused") == 6 and not [ack for ack in to_a.acks() if ack.guid == first]
    assert to_b.status_of(b"y") == 0
    world.crash_and_start()
    assert world.producer(A).status_of(b"again") == 0


def test_a_message_that_cannot_be_released_costs_the_others_nothing(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, from_a, to_b, from_b = pair(world)
    Plant(monkeypatch, RootQueue, "ready", queue_a)
    to_a.put(b"a1")
    to_a.put(b"a2")
    to_b.put(b"b")
    assert to_a.next_ack().status == to_a.next_ack().status == to_b.next_ack().status == 0
    assert got(world, from_a) == [b"a2"] and got(world, from_b) == [b"b"] and world.stored(A) == 2
    told(world, f"Queue '{A}': release")
    world.crash_and_start()
    assert got(world, world.consumer(A)) == [b"a1", b"a2"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_ack_that_cannot_be_given_closes_its_producer_and_delivers_the_message(world: MemoryWorld, monkeypatch: Any,
                                                                                 in_memory: bool) -> None:
    world.domain("m", in_memory=True)
    uri = "bmq://m/q" if in_memory else A
    clumsy, fine, consumer = world.producer(uri, "clumsy"), world.producer(uri, "fine"), world.consumer(uri)
    Plant(monkeypatch, ClientSession, "ack", named("clumsy"))
    clumsy.put(b"1")
    fine.put(b"2")
    assert fine.next_ack().status == 0 and got(world, consumer) == [b"1", b"2"]
    assert is_closed(clumsy.client) and not is_closed(fine.client)
    told(world, "clumsy:4242")


def test_a_delivery_that_raises_leaves_no_other_queue_behind(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, from_a, to_b, from_b = pair(world)
    Plant(monkeypatch, delivery_module, "deliver", queue_a)
    to_a.put(b"a1")
    to_b.put(b"b1")
    assert got(world, from_b) == [b"b1"] and got(world, from_a) == []
    told(world, f"Queue '{A}': delivery")
    to_b.post(b"b2")
    assert got(world, from_b) == [b"b2"] and got(world, from_a) == [], "nothing new happened to the queue"
    to_a.post(b"a2")
    assert got(world, from_a) == [b"a1", b"a2"]


def test_a_queue_that_fails_again_and_again_is_disabled_with_its_messages_kept(world: MemoryWorld,
                                                                               monkeypatch: Any) -> None:
    to_a, from_a, to_b, from_b = pair(world)
    plant = Plant(monkeypatch, delivery_module, "deliver", queue_a, times=1000)
    for number in range(containment.QUEUE_FAILURES_MAX):
        assert to_a.status_of(b"%d" % number) == 0
    assert plant.met == containment.QUEUE_FAILURES_MAX and to_a.status_of(b"no") == 7
    assert "NOT_READY" in refusal(world.producer, A).category
    to_b.post(b"b")
    assert got(world, from_b) == [b"b"] and world.stored(A) == containment.QUEUE_FAILURES_MAX
    assert [text for _, text in world.report.lines if f"Queue '{A}' is disabled until a restart" in text]
    assert plant.met == containment.QUEUE_FAILURES_MAX, "the disabled queue delivers nothing"
    plant.left = 0
    world.crash_and_start()
    assert len(got(world, world.consumer(A))) == containment.QUEUE_FAILURES_MAX


def test_a_queue_that_fails_now_and_then_is_not_disabled(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, _, _ = pair(world)
    Plant(monkeypatch, delivery_module, "deliver", queue_a, times=3 * containment.QUEUE_FAILURES_MAX)
    for _ in range(3 * containment.QUEUE_FAILURES_MAX):
        assert to_a.status_of(b"x") == 0
        world.advance(containment.QUEUE_FAILURES_S)


def test_a_session_that_cannot_be_pushed_to_is_closed_and_others_get_its_messages(world: MemoryWorld,
                                                                                  monkeypatch: Any) -> None:
    world.consumer(A, name="clumsy", m=1000)
    fine, producer = world.consumer(A, name="fine"), world.producer(A)
    Plant(monkeypatch, ClientSession, "push", named("clumsy"), times=2)
    producer.post_all(b"1", b"2", b"3", b"4")
    assert sorted(got(world, fine)) == [b"1", b"2", b"3", b"4"]
    assert is_closed(world.clients[0]) and not is_closed(fine.client)
    told(world, "clumsy:4242: delivery")
    producer.post(b"5")
    assert got(world, fine) == [b"5"]


def test_a_session_that_raises_is_given_nothing_more_in_its_turn(world: MemoryWorld, monkeypatch: Any) -> None:
    clumsy, producer = world.consumer(A, name="clumsy"), world.producer(A)
    plant = Plant(monkeypatch, ClientSession, "push", named("clumsy"), times=3)
    for payload in (b"1", b"2", b"3"):
        producer.put(payload)
    producer.client.barrier()
    assert is_closed(clumsy.client) and plant.met == 1
    world.clients.remove(clumsy.client)
    assert got(world, world.consumer(A)) == [b"1", b"2", b"3"]


def test_a_post_that_raised_is_no_duplicate_when_it_comes_again(world: MemoryWorld, monkeypatch: Any) -> None:
    Plant(monkeypatch, Partition, "append_message", lambda *arguments: True)
    clumsy, guid = world.producer(A), bytes.fromhex("40000200123456789abc937dbb9a0118")
    clumsy.put(b"x", guid=guid)
    assert is_closed(clumsy.client)
    producer = world.producer(A, "again")
    producer.put(b"x", guid=guid)
    assert producer.next_ack(guid).status == 0 and world.broker.domains.by_name["d"].queues["a"].messages


def test_a_duplicate_whose_post_raised_stays_one(world: MemoryWorld, monkeypatch: Any) -> None:
    guid = bytes.fromhex("40000200123456789abc937dbb9a0118")
    world.producer(A).put(b"x", guid=guid)
    consumer = world.consumer(A)
    consumer.confirm(*consumer.take(1))
    world.producer(A, "next").post(b"y")
    consumer.confirm(*consumer.take(1))
    Plant(monkeypatch, RootQueue, "post", lambda *arguments: True)
    clumsy = world.producer(A, "clumsy")
    clumsy.put(b"x", guid=guid)
    assert is_closed(clumsy.client)
    world.producer(A, "again").put(b"x", guid=guid)
    world.settle()
    assert not world.broker.domains.by_name["d"].queues["a"].messages


def test_a_reader_of_a_broadcast_that_raises_costs_neither_producer_nor_readers(world: MemoryWorld,
                                                                                monkeypatch: Any) -> None:
    world.domain("b", "broadcast", in_memory=True)
    world.consumer("bmq://b/q", name="clumsy")
    fine, producer = world.consumer("bmq://b/q", name="fine"), world.producer("bmq://b/q")
    Plant(monkeypatch, ClientSession, "push", named("clumsy"))
    producer.post_all(b"1", b"2")
    assert got(world, fine) == [b"1", b"2"] and is_closed(world.clients[0]) and not is_closed(producer.client)


@pytest.mark.parametrize("stage", ["take", "write", "finish"])
def test_output_that_cannot_be_had_or_written_ends_its_connection_alone(world: MemoryWorld, monkeypatch: Any,
                                                                        stage: str) -> None:
    clumsy, fine = world.producer(A, "clumsy"), world.producer(B, "fine")
    if stage == "take":
        Plant(monkeypatch, Session, "take", named("clumsy"))
    else:
        Plant(monkeypatch, world.broker.loop.performer, stage, named("clumsy"), times=2 if stage == "finish" else 1)
    if stage == "finish":
        clumsy.client.send(b"\0\0\0\x04nonsense")
    clumsy.put(b"x")
    fine.put(b"y")
    assert fine.next_ack().status == 0
    assert is_closed(clumsy.client) or stage == "finish"
    assert fine.status_of(b"z") == 0
    told(world, "clumsy:4242")


def test_a_failing_close_of_a_failed_session_ends_its_connection_all_the_same(world: MemoryWorld, monkeypatch: Any) -> None:
    clumsy, fine = world.producer(A, "clumsy"), world.producer(B, "fine")
    Plant(monkeypatch, Session, "receive", named("clumsy"))
    Plant(monkeypatch, Session, "close", named("clumsy"))
    clumsy.put(b"x")
    assert fine.status_of(b"y") == 0 and is_closed(clumsy.client)


def test_a_session_that_cannot_be_resumed_is_closed(world: MemoryWorld, monkeypatch: Any) -> None:
    monkeypatch.setattr("bmqtwist.queue.window.TURN_PUSH_BYTES_MAX", 10)
    clumsy, fine, producer = world.consumer(A, name="clumsy"), world.consumer(B, name="fine"), world.producer(A)
    Plant(monkeypatch, ClientSession, "resume", named("clumsy"))
    producer.post(b"x" * 100)
    world.advance(0.1)
    assert is_closed(clumsy.client)
    told(world, "clumsy:4242: resuming")
    world.producer(B).post(b"y" * 100)
    assert len(got(world, fine)) == 1


def test_a_sync_that_cannot_be_started_closes_its_partition(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, _ = pair(world)
    sync = world.broker.clusters["c3"].partitions[0].sync
    Plant(monkeypatch, world.broker.loop, "in_thread", lambda work, *rest: work == sync)
    to_a.put(b"x")
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"z") == 6
    told(world, "Partition [0]: asking for a sync")


@pytest.mark.parametrize("name", ["synced", "sync_point"])
def test_a_partition_that_fails_outside_of_the_turn_is_closed_alone(world: MemoryWorld, monkeypatch: Any,
                                                                    name: str) -> None:
    to_a, _, to_b, _ = pair(world)
    to_a.post(b"x")
    Plant(monkeypatch, Partition, name, first_partition)
    to_a.put(b"y")
    world.advance(2.0)
    assert to_b.status_of(b"z") == 0 and to_a.status_of(b"z") == 6
    told(world, "Partition [0]")


def test_a_failed_sync_that_fails_to_be_noted_closes_the_partition(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, _ = pair(world)
    Plant(monkeypatch, Partition, "sync_failed", first_partition)
    world.broker.storage.sync_failed(world.broker.clusters["c3"].partitions[0], 1, OSError(5, "EIO"), world.now)
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"x") == 6


# -- timers


def test_a_check_of_space_that_raises_skips_no_other_partition(world: MemoryWorld, monkeypatch: Any) -> None:
    checked: list[int] = []
    check = Partition.check_space
    monkeypatch.setattr(Partition, "check_space", lambda partition, wall: (
        checked.append(partition.partition_id), check(partition, wall)))
    Plant(monkeypatch, Partition, "check_space", first_partition, times=2)
    world.advance(41.0)
    assert checked == [1, 1]
    told(world, "Partition [0]: the check of its space")


def test_an_expiry_that_raises_skips_no_other_queue_and_comes_again(world: MemoryWorld, monkeypatch: Any) -> None:
    world.domain("d", messageTtl=5)
    to_a, to_b = world.producer(A), world.producer(B)
    to_a.post(b"x")
    to_b.post(b"x")
    Plant(monkeypatch, RootQueue, "expire", queue_a)
    world.advance(1.0)
    told(world, f"Queue '{A}': expiry")
    world.advance(9.0)
    assert world.stored(A) == world.stored(B) == 0


def test_a_nack_for_want_of_receipts_that_raises_leaves_out_nobody(world: MemoryWorld, monkeypatch: Any) -> None:
    world.domain("s", strong=True, deduplicationTimeMs=1000)
    clumsy, fine = world.producer("bmq://s/q", "clumsy"), world.producer("bmq://s/q", "fine")
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 2")
    Plant(monkeypatch, ClientSession, "ack", named("clumsy"))
    clumsy.put(b"x")
    fine.put(b"y")
    world.advance(3.0)
    assert fine.next_ack().status == 5 and is_closed(clumsy.client) and world.stored("bmq://s/q") == 0


@pytest.mark.parametrize("name", ["_heartbeat", "_check_session"])
def test_a_timer_that_fails_for_one_session_closes_it_alone(world: MemoryWorld, monkeypatch: Any, name: str) -> None:
    clumsy, fine = world.client("clumsy"), world.client("fine")
    asked: list[str] = []
    original = getattr(world.broker.periodic, name)
    monkeypatch.setattr(world.broker.periodic, name, lambda session, now: (
        asked.append(session.remote.identity.process_name), original(session, now)))
    Plant(monkeypatch, world.broker.periodic, name, named("clumsy"))
    world.advance(30.0)
    assert is_closed(clumsy) and "fine" in asked and not is_closed(fine)


def test_an_unused_queue_that_cannot_be_deleted_is_no_reason_to_keep_another(world: MemoryWorld, monkeypatch: Any) -> None:
    for uri in (A, B):
        world.producer(uri).client.kill()
    cluster = world.broker.clusters["c3"]
    Plant(monkeypatch, cluster.changes, "delete_queue", queue_a)
    watch = Housekeeping(world.broker)
    watch._keepalive = {"c3": 0.0}
    watch.collect(world.now + 1.0)
    world.broker.turn(world.now)  # proposes it
    world.run()  # commits it
    assert list(cluster.queues) == [A]
    watch.collect(world.now + 2.0)
    world.broker.turn(world.now)
    world.run()
    assert not cluster.queues
    told(world, f"Queue '{A}': the deletion of an unused queue")


def test_a_timer_that_raises_is_told_and_the_broker_goes_on(world: MemoryWorld) -> None:
    ran: list[float] = []

    def clumsy(now: float) -> None:
        raise ZeroDivisionError("planted")

    world.broker.loop.timers.every(world.now, 1.0, clumsy)
    world.broker.loop.timers.every(world.now, 1.0, ran.append)
    world.advance(3.5)
    assert len(ran) == 3
    told(world, "A timer")


# -- what comes from connections, threads and operators


def test_bytes_that_raise_close_their_session_alone(world: MemoryWorld, monkeypatch: Any) -> None:
    clumsy, fine = world.producer(A, "clumsy"), world.producer(A, "fine")
    Plant(monkeypatch, PutReader, "take", lambda reader, *event: reader._session.description.startswith("clumsy"))
    clumsy.put(b"x")
    fine.put(b"y")
    assert fine.next_ack().status == 0 and is_closed(clumsy.client)
    assert "#INTERNAL_ERROR clumsy:4242: closing" in [text for severity, text in world.report.lines if severity == "WARN"]
    told(world, "clumsy:4242: receiving")


def test_a_queue_that_cannot_let_go_of_a_client_is_disabled_and_its_other_queues_are_freed(world: MemoryWorld,
                                                                                         monkeypatch: Any) -> None:
    to_a, to_b = world.producer(A), world.producer(B)
    client = world.client("both")
    in_a, in_b = client.consume(A), client.consume(B)
    to_a.post(b"a")
    to_b.post(b"b")
    assert len(in_a.take(1)) == len(in_b.take(1)) == 1
    drop = handles.drop_handle
    monkeypatch.setattr("bmqtwist.link.client.drop_handle", lambda handle, crashed, wall: drop(handle, crashed, wall))
    Plant(monkeypatch, __import__("bmqtwist.link.client", fromlist=["x"]), "drop_handle",
          lambda handle, *rest: queue_a(handle.queue))
    client.kill()
    assert got(world, world.consumer(B)) == [b"b"] and to_a.status_of(b"x") == 7 and world.stored(A) == 1
    told(world, f"Queue '{A}': the loss of a client")


def test_a_loss_of_a_connection_that_raises_is_told_and_the_session_forgotten(world: MemoryWorld, monkeypatch: Any) -> None:
    client = world.client("clumsy")
    Plant(monkeypatch, Session, "on_lost", named("clumsy"))
    client.kill()
    assert not world.broker.sessions.open
    told(world, "clumsy:4242: the loss of its connection")


def test_a_judgement_that_raises_closes_its_session(world: MemoryWorld, monkeypatch: Any) -> None:
    Plant(monkeypatch, Session, "authenticated", lambda *arguments: True)
    client = world.connect("clumsy")
    world.broker.sessions.on_authenticated(client.link.session, 1, Denied("no", -1), world.now)  # type: ignore[attr-defined]
    assert is_closed(client)
    world.client("fine")


def test_a_peer_that_caught_up_and_cannot_be_resumed_is_closed(world: MemoryWorld, monkeypatch: Any) -> None:
    client, fine = world.client("clumsy"), world.client("fine")
    Plant(monkeypatch, ClientSession, "on_drained", named("clumsy"))
    for each in (client, fine):
        world.broker.sessions.drained(each.link.session)  # type: ignore[attr-defined]
    assert is_closed(client) and not is_closed(fine)


def test_an_admin_command_that_raises_is_answered(world: MemoryWorld, monkeypatch: Any) -> None:
    Plant(monkeypatch, AdminExecutor, "run", lambda *arguments: True)
    assert world.admin("CLUSTERS LIST") == "Internal error: ZeroDivisionError. See the broker's log.\n"
    assert "c" in world.admin("CLUSTERS LIST")
    told(world, "Command 'CLUSTERS LIST'")


def test_a_command_of_the_control_pipe_that_raises_leaves_the_pipe_open(tmp_path: Path) -> None:
    class Reactor:
        def addReader(self, reader: Any) -> None:
            """Nothing reads by itself here."""

        removeReader = addReader

    def run(command: str, source: str, done: Any) -> None:
        ran.append(command)
        if command == "BAD":
            raise ZeroDivisionError("planted")
        done(AdminAnswer("fine", failed=False))

    ran: list[str] = []
    report = ListReport()
    pipe = ControlPipe(Reactor(), str(tmp_path / "ctl"), str(tmp_path / "hist"), run, report)
    pipe.open()
    writer = os.open(tmp_path / "ctl", os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"CMD BAD\nCMD GOOD\n")
    pipe.doRead()
    os.close(writer)
    pipe.close()
    assert ran == ["BAD", "GOOD"] and any("ZeroDivisionError: planted" in text for text in report.texts("ALARM"))


class NoReactor:
    """Nothing reads by itself here."""

    def addReader(self, reader: Any) -> None:
        """Nothing to do."""

    removeReader = addReader


def test_the_control_pipe_of_a_broker_that_runs_is_not_taken_over(tmp_path: Path) -> None:
    """The pipe of an ended broker is taken over; a pipe that another process created meanwhile is not removed at the end."""
    def pipe() -> ControlPipe:
        return ControlPipe(NoReactor(), str(tmp_path / "ctl"), str(tmp_path / "hist"), lambda command, source: "", report)

    report = ListReport()
    os.mkfifo(tmp_path / "ctl")
    first, second = pipe(), pipe()
    first.open()
    inode = os.stat(tmp_path / "ctl").st_ino
    assert not report.lines
    second.open()
    assert second.fileno() == -1 and "another running broker" in report.texts("WARN")[0]
    second.close()
    assert os.stat(tmp_path / "ctl").st_ino == inode
    os.unlink(tmp_path / "ctl")
    os.mkfifo(tmp_path / "ctl")
    first.close()
    assert (tmp_path / "ctl").exists()


def test_the_pid_file_of_a_broker_that_runs_is_left_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    report, file = ListReport(), tmp_path / bmqbrkr.PID_FILE
    other = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "bmqbrkr"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        file.write_text(f"{other.pid}\n")
        bmqbrkr._write_pid(os.getpid(), report)
        bmqbrkr._remove_pid(os.getpid())
        assert file.read_text() == f"{other.pid}\n" and f"pid {other.pid}" in report.texts("WARN")[0]
    finally:
        other.communicate(b"")
    bmqbrkr._write_pid(os.getpid(), report)
    assert file.read_text() == f"{os.getpid()}\n"
    bmqbrkr._remove_pid(os.getpid())
    assert not file.exists()


def test_alarms_that_cannot_be_put_together_cost_nothing_but_themselves(world: MemoryWorld, monkeypatch: Any) -> None:
    world.domain("p", maxDeliveryAttempts=1, queue_messages=2)
    producer, consumer = world.producer("bmq://p/q"), world.consumer("bmq://p/q")
    monkeypatch.setattr("bmqtwist.queue.describe.poison_alarm", lambda *arguments: 1 // 0)
    monkeypatch.setattr("bmqtwist.queue.describe.apps", lambda *arguments: 1 // 0)
    assert [producer.status_of(b"x") for _ in range(4)][-1] == 1
    world.run()
    consumer.client.kill()
    assert world.stored("bmq://p/q") == 0 and not is_closed(producer.client)


# -- the stop


def test_a_partition_that_cannot_stop_leaves_no_other_open(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, _ = pair(world)
    to_a.post(b"x")
    to_b.post(b"y")
    closed: list[int] = []
    close = FileSets.close
    monkeypatch.setattr(FileSets, "close", lambda files, truncate: (
        closed.append(files.partition_id), close(files, truncate))[1])
    Plant(monkeypatch, Partition, "stop", first_partition)
    world.restart()
    assert closed == [0, 1]
    told(world, "Partition [0]: stop")
    assert got(world, world.consumer(A)) == [b"x"] and got(world, world.consumer(B)) == [b"y"]


def test_a_disk_that_fails_one_partition_at_the_end_does_not_keep_the_other_open(world: MemoryWorld,
                                                                                 monkeypatch: Any) -> None:
    stopped: list[int] = []

    def stop(partition: Partition, wall: int, sync: bool) -> list[Any]:
        stopped.append(partition.partition_id)
        raise OSError(5, "EIO")

    monkeypatch.setattr(Partition, "stop", stop)
    with pytest.raises(OSError, match="EIO"):
        world.broker.close(world.now)
    assert stopped == [0, 1]


def test_a_queue_that_fails_at_the_stop_does_not_keep_the_broker_alive(world: MemoryWorld, monkeypatch: Any) -> None:
    pair(world)
    Plant(monkeypatch, App, "reroute", lambda *arguments: True)
    world.broker.stop(world.now)
    world.advance(1.0)
    assert world.broker.shutdown is not None and world.broker.shutdown.done


def test_messages_that_cannot_be_counted_do_not_keep_the_broker_alive(world: MemoryWorld, monkeypatch: Any) -> None:
    pair(world)

    class Uncountable(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            if world.broker.shutdown is not None:
                raise ZeroDivisionError("planted")
            return super().__iter__()

    world.broker.stop(world.now)
    assert world.broker.shutdown is not None
    world.broker.shutdown._stage = Stage.ANSWERS
    for queue in world.broker.clusters["c3"].queues.values():
        queue.handles = Uncountable(queue.handles)
    world.broker.shutdown._poll(world.now)
    assert world.broker.shutdown.done


def test_a_flood_of_mistakes_is_told_ten_times_a_second(world: MemoryWorld, monkeypatch: Any) -> None:
    Plant(monkeypatch, Session, "receive", lambda *arguments: True, times=100)
    for _ in range(100):
        world.connect().send(b"x")
    world.run()
    assert sum("[INTERNAL_ERROR]" in text for _, text in world.report.lines) == 10


# -- rollovers


@pytest.mark.parametrize("name", ["step", "take_job"])
def test_a_rollover_that_raises_closes_its_partition_alone(world: MemoryWorld, monkeypatch: Any, name: str) -> None:
    to_a, _, to_b, _ = pair(world)
    Plant(monkeypatch, Rollover, name, lambda roll, *rest: first_partition(roll._files))
    for partition in world.broker.clusters["c3"].partitions:
        partition.log.roll_due = True
    to_a.put(b"x")
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"z") == 6
    told(world, "Partition [0]: rolling over")


@pytest.mark.parametrize("name, report", [("done", "_rolled"), ("failed", "_roll_failed")])
def test_the_outcome_of_a_job_that_raises_closes_its_partition_alone(world: MemoryWorld, monkeypatch: Any, name: str,
                                                                     report: str) -> None:
    to_a, _, to_b, _ = pair(world)
    Plant(monkeypatch, Rollover, name, lambda roll, *rest: first_partition(roll._files))
    outcome: list[Any] = [OSError(5, "EIO")] if name == "failed" else []
    getattr(world.broker.storage, report)(world.broker.clusters["c3"].partitions[0], Job(lambda: None), *outcome, world.now)
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"z") == 6
    told(world, "Partition [0]")


def test_a_turn_ends_in_time_while_a_partition_rolls_over(world: MemoryWorld, monkeypatch: Any) -> None:
    """The clock of the performer limits the slices of a turn; if it stands still, STEPS_MAX does."""
    pair(world)
    clock, pace, steps, due = [0.0], [0.0], [0], [0]
    performer = world.broker.loop.performer
    monkeypatch.setattr(performer, "clock", lambda: clock[0])
    monkeypatch.setattr(performer, "turn_due", lambda: due.__setitem__(0, due[0] + 1))

    def step(roll: Rollover, wall: int) -> bool:
        if roll._files.partition_id:
            return False
        steps[0] += 1
        clock[0] += pace[0]
        return True

    monkeypatch.setattr(Rollover, "step", step)
    for took, late, expected in ((0.0, False, STEPS_MAX), (0.002, False, 3), (0.002, True, 4)):
        steps[0] = due[0] = 0
        pace[0] = took
        monkeypatch.setattr(Rollover, "late", late)
        world.broker.clusters["c3"].partitions[0].log.roll_due = True
        world.broker.turn(world.now)
        assert (steps[0], due[0] > 0) == (expected, True), "and another turn is due"
