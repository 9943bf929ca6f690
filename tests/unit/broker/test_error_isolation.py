"""Error isolation: an exception injected at every stage of the turn disables only the part that raised it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
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
from bmqtwist.loop import error_isolation
from bmqtwist.loop.scheduler import STEPS_MAX
from bmqtwist.queue import delivery as delivery_module
from bmqtwist.queue import handles
from bmqtwist.queue.queue import App
from bmqtwist.queue.root import RootQueue
from bmqtwist.report import ListReport
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.rollover import Rollover, RolloverJob

A, B = "bmq://d/a", "bmq://d/b"  # in partitions 0 and 1


class InjectedError:
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


def is_client(name: str) -> Callable[..., bool]:
    """Return a condition: the session belongs to this client."""
    return lambda session, *rest: getattr(session, "session", session).remote.identity.process_name == name


def is_queue_a(queue: Any, *rest: Any) -> bool:
    """True for queue a."""
    return bool(queue.uri == A)


def is_first_partition(partition: Any, *rest: Any) -> bool:
    """True for partition 0."""
    return bool(partition.partition_id == 0)


def assert_alarm(world: MemoryWorld, *texts: str) -> None:
    """Assert an alarm with a traceback."""
    alarms = [text for severity, text in world.report.lines if severity == "ALARM" and "[INTERNAL_ERROR]" in text]
    wanted = (*texts, "Traceback", "ZeroDivisionError: planted")
    assert any(all(text in alarm for text in wanted) for alarm in alarms), alarms


def received(world: MemoryWorld, queue: Queue) -> list[bytes]:
    """The payloads that this consumer received since the last call; other clients may be disconnected."""
    world.run()
    return payloads(queue.pushes())


def is_closed(client: Client) -> bool:
    """Return whether the broker closed the connection."""
    client.pump(0)
    client.pump(0)
    return client.link.closed


# -- the stages of the turn


def test_an_error_in_flush_closes_only_its_partition(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, from_b = pair(world)
    InjectedError(monkeypatch, Partition, "flush", is_first_partition)
    first = to_a.put(b"in doubt")
    to_b.put(b"x")
    assert to_b.next_ack().status == 0 and received(world, from_b) == [b"x"]
    assert_alarm(world, "Partition [0]")
    assert to_a.status_of(b"refused") == 6 and not [ack for ack in to_a.acks() if ack.guid == first]
    assert to_b.status_of(b"y") == 0
    world.crash_and_start()
    assert world.producer(A).status_of(b"again") == 0


def test_an_error_at_the_release_of_a_message_delays_only_that_message(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, from_a, to_b, from_b = pair(world)
    InjectedError(monkeypatch, RootQueue, "add_to_apps", is_queue_a)
    to_a.put(b"a1")
    to_a.put(b"a2")
    to_b.put(b"b")
    assert to_a.next_ack().status == to_a.next_ack().status == to_b.next_ack().status == 0
    assert received(world, from_a) == [b"a2"] and received(world, from_b) == [b"b"] and world.stored(A) == 2
    assert_alarm(world, f"Queue '{A}': release")
    world.crash_and_start()
    assert received(world, world.consumer(A)) == [b"a1", b"a2"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_error_in_ack_closes_the_producer_and_the_message_is_delivered(world: MemoryWorld, monkeypatch: Any,
                                                                          in_memory: bool) -> None:
    world.domain("m", in_memory=True)
    uri = "bmq://m/q" if in_memory else A
    failing, fine, consumer = world.producer(uri, "failing"), world.producer(uri, "fine"), world.consumer(uri)
    InjectedError(monkeypatch, ClientSession, "ack", is_client("failing"))
    failing.put(b"1")
    fine.put(b"2")
    assert fine.next_ack().status == 0 and received(world, consumer) == [b"1", b"2"]
    assert is_closed(failing.client) and not is_closed(fine.client)
    assert_alarm(world, "failing:4242")


def test_an_error_in_delivery_does_not_delay_other_queues(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, from_a, to_b, from_b = pair(world)
    InjectedError(monkeypatch, delivery_module, "deliver", is_queue_a)
    to_a.put(b"a1")
    to_b.put(b"b1")
    assert received(world, from_b) == [b"b1"] and received(world, from_a) == []
    assert_alarm(world, f"Queue '{A}': delivery")
    to_b.post(b"b2")
    assert received(world, from_b) == [b"b2"] and received(world, from_a) == [], "the queue has no new message"
    to_a.post(b"a2")
    assert received(world, from_a) == [b"a1", b"a2"]


def test_a_queue_with_repeated_errors_is_disabled_and_keeps_its_messages(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, from_a, to_b, from_b = pair(world)
    injected = InjectedError(monkeypatch, delivery_module, "deliver", is_queue_a, times=1000)
    for number in range(error_isolation.QUEUE_FAILURES_MAX):
        assert to_a.status_of(b"%d" % number) == 0
    assert injected.met == error_isolation.QUEUE_FAILURES_MAX and to_a.status_of(b"no") == 7
    assert "NOT_READY" in refusal(world.producer, A).category
    to_b.post(b"b")
    assert received(world, from_b) == [b"b"] and world.stored(A) == error_isolation.QUEUE_FAILURES_MAX
    assert [text for _, text in world.report.lines if f"Queue '{A}' is disabled until a restart" in text]
    assert injected.met == error_isolation.QUEUE_FAILURES_MAX, "a disabled queue does not deliver"
    injected.left = 0
    world.crash_and_start()
    assert len(received(world, world.consumer(A))) == error_isolation.QUEUE_FAILURES_MAX


def test_a_queue_with_rare_errors_is_not_disabled(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, _, _ = pair(world)
    InjectedError(monkeypatch, delivery_module, "deliver", is_queue_a, times=3 * error_isolation.QUEUE_FAILURES_MAX)
    for _ in range(3 * error_isolation.QUEUE_FAILURES_MAX):
        assert to_a.status_of(b"x") == 0
        world.advance(error_isolation.QUEUE_FAILURES_S)


def test_an_error_in_push_closes_the_session_and_its_messages_go_to_other_consumers(world: MemoryWorld,
                                                                                    monkeypatch: Any) -> None:
    world.consumer(A, name="failing", m=1000)
    fine, producer = world.consumer(A, name="fine"), world.producer(A)
    InjectedError(monkeypatch, ClientSession, "push", is_client("failing"), times=2)
    producer.post_all(b"1", b"2", b"3", b"4")
    assert sorted(received(world, fine)) == [b"1", b"2", b"3", b"4"]
    assert is_closed(world.clients[0]) and not is_closed(fine.client)
    assert_alarm(world, "failing:4242: delivery")
    producer.post(b"5")
    assert received(world, fine) == [b"5"]


def test_a_session_receives_no_further_push_in_the_turn_of_its_error(world: MemoryWorld, monkeypatch: Any) -> None:
    failing, producer = world.consumer(A, name="failing"), world.producer(A)
    injected = InjectedError(monkeypatch, ClientSession, "push", is_client("failing"), times=3)
    for payload in (b"1", b"2", b"3"):
        producer.put(payload)
    producer.client.barrier()
    assert is_closed(failing.client) and injected.met == 1
    world.clients.remove(failing.client)
    assert received(world, world.consumer(A)) == [b"1", b"2", b"3"]


def test_a_put_that_failed_with_an_error_may_be_posted_again(world: MemoryWorld, monkeypatch: Any) -> None:
    InjectedError(monkeypatch, Partition, "append_message", lambda *arguments: True)
    failing, guid = world.producer(A), bytes.fromhex("40000200123456789abc937dbb9a0118")
    failing.put(b"x", guid=guid)
    assert is_closed(failing.client)
    producer = world.producer(A, "again")
    producer.put(b"x", guid=guid)
    assert producer.next_ack(guid).status == 0 and world.broker.domains.by_name["d"].queues["a"].messages


def test_a_duplicate_put_stays_a_duplicate_after_an_error(world: MemoryWorld, monkeypatch: Any) -> None:
    guid = bytes.fromhex("40000200123456789abc937dbb9a0118")
    world.producer(A).put(b"x", guid=guid)
    consumer = world.consumer(A)
    consumer.confirm(*consumer.take(1))
    world.producer(A, "next").post(b"y")
    consumer.confirm(*consumer.take(1))
    InjectedError(monkeypatch, RootQueue, "post", lambda *arguments: True)
    failing = world.producer(A, "failing")
    failing.put(b"x", guid=guid)
    assert is_closed(failing.client)
    world.producer(A, "again").put(b"x", guid=guid)
    world.wait_idle()
    assert not world.broker.domains.by_name["d"].queues["a"].messages


def test_an_error_in_a_broadcast_push_closes_only_its_consumer(world: MemoryWorld, monkeypatch: Any) -> None:
    world.domain("b", "broadcast", in_memory=True)
    world.consumer("bmq://b/q", name="failing")
    fine, producer = world.consumer("bmq://b/q", name="fine"), world.producer("bmq://b/q")
    InjectedError(monkeypatch, ClientSession, "push", is_client("failing"))
    producer.post_all(b"1", b"2")
    assert received(world, fine) == [b"1", b"2"] and is_closed(world.clients[0]) and not is_closed(producer.client)


@pytest.mark.parametrize("stage", ["take", "write", "close_when_sent"])
def test_an_error_in_output_closes_only_its_connection(world: MemoryWorld, monkeypatch: Any, stage: str) -> None:
    failing, fine = world.producer(A, "failing"), world.producer(B, "fine")
    if stage == "take":
        InjectedError(monkeypatch, Session, "take_output", is_client("failing"))
    else:
        times = 2 if stage == "close_when_sent" else 1
        InjectedError(monkeypatch, world.broker.loop.performer, stage, is_client("failing"), times)
    if stage == "close_when_sent":
        failing.client.send(b"\0\0\0\x04nonsense")
    failing.put(b"x")
    fine.put(b"y")
    assert fine.next_ack().status == 0
    assert is_closed(failing.client) or stage == "close_when_sent"
    assert fine.status_of(b"z") == 0
    assert_alarm(world, "failing:4242")


def test_a_second_error_while_a_failed_session_closes_still_closes_it(world: MemoryWorld, monkeypatch: Any) -> None:
    failing, fine = world.producer(A, "failing"), world.producer(B, "fine")
    InjectedError(monkeypatch, Session, "receive", is_client("failing"))
    InjectedError(monkeypatch, Session, "close", is_client("failing"))
    failing.put(b"x")
    assert fine.status_of(b"y") == 0 and is_closed(failing.client)


def test_an_error_in_resume_closes_the_session(world: MemoryWorld, monkeypatch: Any) -> None:
    monkeypatch.setattr("bmqtwist.queue.window.TURN_PUSH_BYTES_MAX", 10)
    failing, fine, producer = world.consumer(A, name="failing"), world.consumer(B, name="fine"), world.producer(A)
    InjectedError(monkeypatch, ClientSession, "resume_deliveries", is_client("failing"))
    producer.post(b"x" * 100)
    world.advance(0.1)
    assert is_closed(failing.client)
    assert_alarm(world, "failing:4242: resuming")
    world.producer(B).post(b"y" * 100)
    assert len(received(world, fine)) == 1


def test_an_error_at_the_start_of_a_sync_closes_its_partition(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, _ = pair(world)
    sync = world.broker.clusters["c3"].partitions[0].sync
    InjectedError(monkeypatch, world.broker.loop, "run_in_thread", lambda work, *rest: work == sync)
    to_a.put(b"x")
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"z") == 6
    assert_alarm(world, "Partition [0]: asking for a sync")


@pytest.mark.parametrize("name", ["on_synced", "write_sync_point"])
def test_an_error_in_periodic_work_closes_only_its_partition(world: MemoryWorld, monkeypatch: Any, name: str) -> None:
    to_a, _, to_b, _ = pair(world)
    to_a.post(b"x")
    InjectedError(monkeypatch, Partition, name, is_first_partition)
    to_a.put(b"y")
    world.advance(2.0)
    assert to_b.status_of(b"z") == 0 and to_a.status_of(b"z") == 6
    assert_alarm(world, "Partition [0]")


def test_an_error_while_handling_a_failed_sync_closes_the_partition(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, _ = pair(world)
    InjectedError(monkeypatch, Partition, "on_sync_failed", is_first_partition)
    world.broker.storage.on_sync_failed(world.broker.clusters["c3"].partitions[0], 1, OSError(5, "EIO"), world.now)
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"x") == 6


# -- timers


def test_an_error_in_the_check_of_space_skips_no_other_partition(world: MemoryWorld, monkeypatch: Any) -> None:
    checked: list[int] = []
    check = Partition.check_space
    monkeypatch.setattr(Partition, "check_space", lambda partition, wall: (
        checked.append(partition.partition_id), check(partition, wall)))
    InjectedError(monkeypatch, Partition, "check_space", is_first_partition, times=2)
    world.advance(41.0)
    assert checked == [1, 1]
    assert_alarm(world, "Partition [0]: the check of its space")


def test_an_error_in_expiry_skips_no_other_queue_and_is_retried(world: MemoryWorld, monkeypatch: Any) -> None:
    world.domain("d", messageTtl=5)
    to_a, to_b = world.producer(A), world.producer(B)
    to_a.post(b"x")
    to_b.post(b"x")
    InjectedError(monkeypatch, RootQueue, "expire", is_queue_a)
    world.advance(1.0)
    assert_alarm(world, f"Queue '{A}': expiry")
    world.advance(9.0)
    assert world.stored(A) == world.stored(B) == 0


def test_an_error_in_a_nack_without_receipts_skips_no_other_producer(world: MemoryWorld, monkeypatch: Any) -> None:
    world.domain("s", strong=True, deduplicationTimeMs=1000)
    failing, fine = world.producer("bmq://s/q", "failing"), world.producer("bmq://s/q", "fine")
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 2")
    InjectedError(monkeypatch, ClientSession, "ack", is_client("failing"))
    failing.put(b"x")
    fine.put(b"y")
    world.advance(3.0)
    assert fine.next_ack().status == 5 and is_closed(failing.client) and world.stored("bmq://s/q") == 0


@pytest.mark.parametrize("name", ["_heartbeat", "_check_session"])
def test_an_error_in_a_session_timer_closes_only_that_session(world: MemoryWorld, monkeypatch: Any, name: str) -> None:
    failing, fine = world.client("failing"), world.client("fine")
    called: list[str] = []
    original = getattr(world.broker.periodic, name)
    monkeypatch.setattr(world.broker.periodic, name, lambda session, now: (
        called.append(session.remote.identity.process_name), original(session, now)))
    InjectedError(monkeypatch, world.broker.periodic, name, is_client("failing"))
    world.advance(30.0)
    assert is_closed(failing) and "fine" in called and not is_closed(fine)


def test_an_error_while_deleting_an_unused_queue_skips_no_other_queue(world: MemoryWorld, monkeypatch: Any) -> None:
    for uri in (A, B):
        world.producer(uri).client.kill()
    cluster = world.broker.clusters["c3"]
    InjectedError(monkeypatch, cluster.changes, "delete_queue", is_queue_a)
    watch = Housekeeping(world.broker)
    watch._keepalive = {"c3": 0.0}
    watch.delete_unused_queues(world.now + 1.0)
    world.broker.turn(world.now)  # proposes it
    world.run()  # commits it
    assert list(cluster.queues) == [A]
    watch.delete_unused_queues(world.now + 2.0)
    world.broker.turn(world.now)
    world.run()
    assert not cluster.queues
    assert_alarm(world, f"Queue '{A}': the deletion of an unused queue")


def test_an_error_in_a_timer_raises_an_alarm_and_other_timers_run(world: MemoryWorld) -> None:
    ran: list[float] = []

    def failing(now: float) -> None:
        raise ZeroDivisionError("planted")

    world.broker.loop.timers.every(world.now, 1.0, failing)
    world.broker.loop.timers.every(world.now, 1.0, ran.append)
    world.advance(3.5)
    assert len(ran) == 3
    assert_alarm(world, "A timer")


# -- what comes from connections, threads and operators


def test_an_error_while_receiving_closes_only_that_session(world: MemoryWorld, monkeypatch: Any) -> None:
    failing, fine = world.producer(A, "failing"), world.producer(A, "fine")
    InjectedError(monkeypatch, PutReader, "read", lambda reader, *event: reader._session.description.startswith("failing"))
    failing.put(b"x")
    fine.put(b"y")
    assert fine.next_ack().status == 0 and is_closed(failing.client)
    assert "#INTERNAL_ERROR failing:4242: closing" in [text for severity, text in world.report.lines if severity == "WARN"]
    assert_alarm(world, "failing:4242: receiving")


def test_an_error_in_dropping_a_handle_disables_its_queue_and_frees_the_others(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, to_b = world.producer(A), world.producer(B)
    client = world.client("both")
    in_a, in_b = client.consume(A), client.consume(B)
    to_a.post(b"a")
    to_b.post(b"b")
    assert len(in_a.take(1)) == len(in_b.take(1)) == 1
    drop = handles.drop_handle
    monkeypatch.setattr("bmqtwist.link.client.drop_handle", lambda handle, crashed, wall: drop(handle, crashed, wall))
    InjectedError(monkeypatch, __import__("bmqtwist.link.client", fromlist=["x"]), "drop_handle",
                  lambda handle, *rest: is_queue_a(handle.queue))
    client.kill()
    assert received(world, world.consumer(B)) == [b"b"] and to_a.status_of(b"x") == 7 and world.stored(A) == 1
    assert_alarm(world, f"Queue '{A}': the loss of a client")


def test_an_error_at_the_loss_of_a_connection_raises_an_alarm_and_removes_the_session(world: MemoryWorld,
                                                                                      monkeypatch: Any) -> None:
    client = world.client("failing")
    InjectedError(monkeypatch, Session, "on_lost", is_client("failing"))
    client.kill()
    assert not world.broker.sessions.open
    assert_alarm(world, "failing:4242: the loss of its connection")


def test_an_error_in_the_result_of_an_authentication_closes_its_session(world: MemoryWorld, monkeypatch: Any) -> None:
    InjectedError(monkeypatch, Session, "on_authenticated", lambda *arguments: True)
    client = world.connect("failing")
    world.broker.sessions.on_authenticated(client.link.session, 1, Denied("no", -1), world.now)  # type: ignore[attr-defined]
    assert is_closed(client)
    world.client("fine")


def test_an_error_in_on_drained_closes_only_that_session(world: MemoryWorld, monkeypatch: Any) -> None:
    client, fine = world.client("failing"), world.client("fine")
    InjectedError(monkeypatch, ClientSession, "on_drained", is_client("failing"))
    for each in (client, fine):
        world.broker.sessions.on_drained(each.link.session, world.now)  # type: ignore[attr-defined]
    assert is_closed(client) and not is_closed(fine)


def test_every_call_from_a_connection_sets_the_time_of_the_loop(world: MemoryWorld) -> None:
    """Timers and deliveries that it causes use the present time, not that of the last turn."""
    session, sessions = world.client("client").link.session, world.broker.sessions  # type: ignore[attr-defined]
    now = world.now
    for number, call in enumerate((partial(sessions.on_received, session, b""), partial(sessions.on_drained, session),
                                   partial(sessions.on_authenticated, session, 1, Denied("no", -1)),
                                   partial(sessions.on_lost, session)), 1):
        call(now + number)
        assert world.broker.loop.now == now + number


def test_an_admin_command_with_an_error_is_answered(world: MemoryWorld, monkeypatch: Any) -> None:
    InjectedError(monkeypatch, AdminExecutor, "run", lambda *arguments: True)
    assert world.admin("CLUSTERS LIST") == "Internal error: ZeroDivisionError. See the broker's log.\n"
    assert "c" in world.admin("CLUSTERS LIST")
    assert_alarm(world, "Command 'CLUSTERS LIST'")


def test_an_error_in_a_control_pipe_command_leaves_the_pipe_open(tmp_path: Path) -> None:
    class Reactor:
        def addReader(self, reader: Any) -> None:
            """The test reads itself."""

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


class FakeReactor:
    """The test reads itself."""

    def addReader(self, reader: Any) -> None:
        """Nothing to do."""

    removeReader = addReader


def test_the_control_pipe_of_a_running_broker_is_not_taken_over(tmp_path: Path) -> None:
    """The pipe of an ended broker is taken over; a pipe that another process created meanwhile is not removed at the end."""
    def pipe() -> ControlPipe:
        return ControlPipe(FakeReactor(), str(tmp_path / "ctl"), str(tmp_path / "hist"), lambda command, source: "", report)

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


def test_the_pid_file_of_a_running_broker_is_not_changed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    report, file = ListReport(), tmp_path / bmqbrkr.PID_FILE
    other = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "bmqbrkr"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        file.write_text(f"{other.pid}\n")
        bmqbrkr._write_pid(bmqbrkr.PID_FILE, os.getpid(), report)
        bmqbrkr._remove_pid(bmqbrkr.PID_FILE, os.getpid())
        assert file.read_text() == f"{other.pid}\n" and f"pid {other.pid}" in report.texts("WARN")[0]
    finally:
        other.communicate(b"")
    bmqbrkr._write_pid(bmqbrkr.PID_FILE, os.getpid(), report)
    assert file.read_text() == f"{os.getpid()}\n"
    bmqbrkr._remove_pid(bmqbrkr.PID_FILE, os.getpid())
    assert not file.exists()


def test_an_error_in_composing_an_alarm_text_affects_no_message(world: MemoryWorld, monkeypatch: Any) -> None:
    world.domain("p", maxDeliveryAttempts=1, queue_messages=2)
    producer, consumer = world.producer("bmq://p/q"), world.consumer("bmq://p/q")
    monkeypatch.setattr("bmqtwist.queue.describe.poison_alarm", lambda *arguments: 1 // 0)
    monkeypatch.setattr("bmqtwist.queue.describe.describe_apps", lambda *arguments: 1 // 0)
    assert [producer.status_of(b"x") for _ in range(4)][-1] == 1
    world.run()
    consumer.client.kill()
    assert world.stored("bmq://p/q") == 0 and not is_closed(producer.client)


# -- the stop


def test_an_error_in_the_stop_of_a_partition_does_not_keep_another_open(world: MemoryWorld, monkeypatch: Any) -> None:
    to_a, _, to_b, _ = pair(world)
    to_a.post(b"x")
    to_b.post(b"y")
    closed: list[int] = []
    close = FileSets.close
    monkeypatch.setattr(FileSets, "close", lambda files, truncate: (
        closed.append(files.partition_id), close(files, truncate))[1])
    InjectedError(monkeypatch, Partition, "stop", is_first_partition)
    world.restart()
    assert closed == [0, 1]
    assert_alarm(world, "Partition [0]: stop")
    assert received(world, world.consumer(A)) == [b"x"] and received(world, world.consumer(B)) == [b"y"]


def test_a_disk_error_at_the_stop_of_a_partition_does_not_keep_another_open(world: MemoryWorld, monkeypatch: Any) -> None:
    stopped: list[int] = []

    def stop(partition: Partition, wall: int, sync: bool) -> list[Any]:
        stopped.append(partition.partition_id)
        raise OSError(5, "EIO")

    monkeypatch.setattr(Partition, "stop", stop)
    with pytest.raises(OSError, match="EIO"):
        world.broker.close(world.now)
    assert stopped == [0, 1]


def test_an_error_in_a_queue_does_not_block_the_graceful_stop(world: MemoryWorld, monkeypatch: Any) -> None:
    pair(world)
    InjectedError(monkeypatch, App, "invalidate_router", lambda *arguments: True)
    world.broker.stop(world.now)
    world.advance(1.0)
    assert world.broker.shutdown is not None and world.broker.shutdown.done


def test_an_error_in_counting_unconfirmed_messages_does_not_block_the_graceful_stop(world: MemoryWorld,
                                                                                    monkeypatch: Any) -> None:
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


def test_internal_error_alarms_are_limited_to_ten_per_second(world: MemoryWorld, monkeypatch: Any) -> None:
    InjectedError(monkeypatch, Session, "receive", lambda *arguments: True, times=100)
    for _ in range(100):
        world.connect().send(b"x")
    world.run()
    assert sum("[INTERNAL_ERROR]" in text for _, text in world.report.lines) == 10


# -- rollovers


@pytest.mark.parametrize("name", ["step", "take_job"])
def test_an_error_in_a_rollover_closes_only_its_partition(world: MemoryWorld, monkeypatch: Any, name: str) -> None:
    to_a, _, to_b, _ = pair(world)
    InjectedError(monkeypatch, Rollover, name, lambda roll, *rest: is_first_partition(roll._files))
    for partition in world.broker.clusters["c3"].partitions:
        partition.log.roll_due = True
    to_a.put(b"x")
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"z") == 6
    assert_alarm(world, "Partition [0]: rolling over")


@pytest.mark.parametrize("name, report", [("on_job_done", "_on_job_done"), ("on_job_failed", "_on_job_failed")])
def test_an_error_in_the_outcome_of_a_rollover_job_closes_only_its_partition(world: MemoryWorld, monkeypatch: Any, name: str,
                                                                             report: str) -> None:
    to_a, _, to_b, _ = pair(world)
    InjectedError(monkeypatch, Rollover, name, lambda roll, *rest: is_first_partition(roll._files))
    outcome: list[Any] = [OSError(5, "EIO")] if name == "on_job_failed" else []
    partition = world.broker.clusters["c3"].partitions[0]
    getattr(world.broker.storage, report)(partition, RolloverJob(lambda: None), *outcome, world.now)
    assert to_b.status_of(b"y") == 0 and to_a.status_of(b"z") == 6
    assert_alarm(world, "Partition [0]")


def test_a_turn_is_limited_in_time_and_steps_during_a_rollover(world: MemoryWorld, monkeypatch: Any) -> None:
    """The clock of the performer limits the slices of a turn; if it stands still, STEPS_MAX does."""
    pair(world)
    clock, step_seconds, steps, due = [0.0], [0.0], [0], [0]
    performer = world.broker.loop.performer
    monkeypatch.setattr(performer, "clock", lambda: clock[0])
    monkeypatch.setattr(performer, "request_turn", lambda: due.__setitem__(0, due[0] + 1))

    def step(roll: Rollover, wall: int) -> bool:
        if roll._files.partition_id:
            return False
        steps[0] += 1
        clock[0] += step_seconds[0]
        return True

    monkeypatch.setattr(Rollover, "step", step)
    for took, late, expected in ((0.0, False, STEPS_MAX), (0.002, False, 3), (0.002, True, 4)):
        steps[0] = due[0] = 0
        step_seconds[0] = took
        monkeypatch.setattr(Rollover, "is_late", late)
        world.broker.clusters["c3"].partitions[0].log.roll_due = True
        world.broker.turn(world.now)
        assert (steps[0], due[0] > 0) == (expected, True), "and another turn is due"


def test_the_pid_file_is_not_written_through_a_link_of_another_user(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    report, victim = ListReport(), tmp_path / "victim"
    victim.write_text("precious")
    for name in (f"{bmqbrkr.PID_FILE}.new", bmqbrkr.PID_FILE):
        os.symlink(victim, name)
    bmqbrkr._write_pid(bmqbrkr.PID_FILE, os.getpid(), report)
    assert victim.read_text() == "precious" and not os.path.islink(bmqbrkr.PID_FILE)
    assert Path(bmqbrkr.PID_FILE).read_text() == f"{os.getpid()}\n" and not report.lines
