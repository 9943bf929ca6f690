"""Cluster of one node: assignment, recovery, dormancy without a domain file, and deletion of queues."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.client import refusal
from kit.memory import MemoryWorld

from bmqtwist.daemon.assemble import StartFailure
from bmqtwist.ids import parse_uri
from bmqtwist.link.admin import AdminSession
from bmqtwist.queue.handles import OpenRequest
from bmqtwist.storage.journal import UNFINISHED_TEXT
from bmqtwist.storage.memory import ProcessKilled
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.storage.records import RECORD_BYTES
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    return world



def test_each_start_increments_the_lease_of_every_partition(memory: MemoryWorld) -> None:
    leases = []
    for _ in range(3):
        leases.append([partition.lease for partition in memory.broker.clusters["c3"].partitions])
        memory.crash_and_start()
    assert all(later > earlier for first, second in zip(leases, leases[1:], strict=False)
               for earlier, later in zip(first, second, strict=True))


def test_queues_are_spread_over_partitions_and_keep_them_over_a_restart(memory: MemoryWorld) -> None:
    for name in "abcd":
        memory.producer(f"bmq://d/{name}").post(name.encode())
    where = {uri: (queue.partition_id, queue.key) for uri, queue in memory.broker.clusters["c3"].queues.items()}
    assert {partition for partition, _ in where.values()} == {0, 1} and len(set(where.values())) == 4
    memory.restart()
    assert {uri: (queue.partition_id, queue.key) for uri, queue in memory.broker.clusters["c3"].queues.items()} == where


def test_a_queue_without_domain_file_is_dormant_and_keeps_its_messages(memory: MemoryWorld) -> None:
    memory.producer().post(b"kept")
    (memory.config.etc / "domains" / "d.json").unlink()
    memory.restart()
    assert list(memory.broker.clusters["c3"].dormant) == ["bmq://d/q"] and memory.alarms("DOMAIN")
    assert refusal(memory.client().open, "bmq://d/q", read=1).category == "E_UNKNOWN"
    memory.restart()
    memory.domain("d")
    consumer = memory.consumer()
    assert memory.new_payloads(consumer) == [b"kept"] and not memory.broker.clusters["c3"].dormant


@pytest.mark.parametrize(("before", "after"), [
    ({"mode": "priority"}, {"mode": "fanout", "apps": ("foo",)}),
    ({"mode": "fanout", "apps": ("foo",)}, {"mode": "priority"}),
    ({"mode": "priority"}, {"mode": "broadcast", "in_memory": True}), ({"mode": "priority"}, {"in_memory": True})])
def test_a_mode_changed_while_the_broker_was_stopped_is_refused_without_loss(
        memory: MemoryWorld, before: dict[str, Any], after: dict[str, Any]) -> None:
    """As at run time. The domain is served again when its file is restored; other domains are served meanwhile."""
    uri = "bmq://m/q?id=foo" if before["mode"] == "fanout" else "bmq://m/q"
    memory.domain("m", **before)
    memory.producer("bmq://m/q").post(b"kept")
    memory.domain("m", **after)
    memory.restart()
    [alarm] = memory.alarms("DOMAIN")
    assert "'bmq://m/q' was stored as" in alarm and "DOMAINS REMOVE" in alarm and "1 message(s)" in alarm
    assert refusal(memory.client().open, "bmq://m/q", write=1).category == "E_REFUSED"
    assert "was changed while stopped" in memory.admin("DOMAINS RECONFIGURE m")
    memory.producer("bmq://d/q").post(b"served")
    memory.restart()
    memory.domain("m", **before)
    assert memory.admin("DOMAINS RECONFIGURE m") == "SUCCESS"
    consumer = memory.consumer("bmq://m/q", "foo") if "?" in uri else memory.consumer(uri)
    assert memory.new_payloads(consumer) == [b"kept"]


def test_a_domain_may_change_its_mode_after_its_queues_were_removed(memory: MemoryWorld) -> None:
    """The procedure that the text of the refusal names."""
    memory.domain("m")
    memory.producer("bmq://m/q").client.disconnect()
    memory.admin("DOMAINS REMOVE m")
    assert memory.logged("Unassigned queue: [ uri = bmq://m/q")
    assert memory.admin("DOMAINS REMOVE m FINALIZE") == "SUCCESS"
    memory.domain("m", "fanout", apps=("foo",))
    memory.restart()
    memory.producer("bmq://m/q").post(b"1")
    assert memory.new_payloads(memory.consumer("bmq://m/q", "foo")) == [b"1"]


def test_an_open_refused_by_an_unavailable_partition_creates_no_queue(memory: MemoryWorld) -> None:
    partitions = memory.broker.clusters["c3"].partitions
    for partition in partitions:
        partition.disable()
    assert refusal(memory.client().open, "bmq://d/q", write=1).category == "E_UNKNOWN"
    assert not memory.broker.clusters["c3"].metadata.state.queues and not memory.broker.clusters["c3"].queues
    for partition in partitions:
        partition.enable()
    memory.producer().post()


def test_apps_changed_in_the_domain_file_are_applied_at_the_restart(memory: MemoryWorld) -> None:
    memory.domain("f", "fanout", apps=("foo", "bar"))
    memory.producer("bmq://f/q").post(b"1")
    memory.domain("f", "fanout", apps=("bar", "new"))
    memory.restart()
    bar, new, foo = (memory.consumer("bmq://f/q", app) for app in ("bar", "new", "foo"))
    memory.producer("bmq://f/q").post(b"2")
    assert (memory.new_payloads(bar), memory.new_payloads(new), memory.new_payloads(foo)) == ([b"1", b"2"], [b"2"], [])
    assert memory.logged("Unregistered appId 'foo'") and memory.logged("Registered appId 'new'")


def test_a_deleted_queue_is_removed_from_metadata_and_partition(memory: MemoryWorld) -> None:
    memory.producer().client.disconnect()
    owner = memory.broker.clusters["c3"]
    owner.changes.delete_queue(owner.queues["bmq://d/q"], 1)
    memory.restart()
    assert not memory.broker.clusters["c3"].metadata.state.queues and not memory.broker.clusters["c3"].dormant


def test_the_number_of_queues_of_a_domain_is_limited_with_a_high_watermark_alarm(memory: MemoryWorld) -> None:
    memory.domain("few", maxQueues=5)
    client = memory.client()
    for number in range(5):
        client.open(f"bmq://few/{number}", write=1)
    assert len(memory.alarms("DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK")) == 1
    refused = refusal(client.open, "bmq://few/5", write=1)
    assert (refused.category, refused.message) == ("E_REFUSED", "maximum number of queues reached")
    assert memory.alarms("DOMAIN_QUEUE_LIMIT_FULL")


def test_a_record_that_cannot_be_written_is_logged(memory: MemoryWorld) -> None:
    owner = memory.broker.clusters["c3"]

    def append() -> None:
        raise PartitionUnavailable("it is full")

    owner.try_append(append)
    assert memory.logged("Cluster (c3): it is full")


def test_a_restart_does_not_change_the_deduplication_time(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(name="p"), memory.consumer()
    guid = producer.post(b"x")
    consumer.confirm(*consumer.take(1))
    memory.wait_idle()
    memory.crash_and_start()
    producer = memory.producer(name="p")
    producer.post(b"x", guid=guid)
    assert memory.stored() == 0
    memory.advance(400)
    producer.post(b"x", guid=guid)
    assert memory.stored() == 1


def test_messages_stored_while_the_clock_was_ahead_do_not_stop_expiry(memory: MemoryWorld) -> None:
    """They expire together with the next message."""
    memory.domain("t", messageTtl=100)
    memory.clock.wall_offset += 86400
    memory.restart()
    for number in range(5):
        memory.producer("bmq://t/q").post(b"%d" % number)
    memory.clock.wall_offset -= 86400
    memory.restart()
    memory.producer("bmq://t/q").post(b"later")
    memory.restart()
    memory.advance(90)
    assert memory.stored("bmq://t/q") == 6
    memory.restart()
    memory.advance(20)
    assert memory.stored("bmq://t/q") == 0


def test_a_start_with_too_few_partitions_is_refused_with_the_needed_number(memory: MemoryWorld) -> None:
    for name in "abcd":
        memory.producer(f"bmq://d/{name}").post(name.encode())
    memory._drop_clients()
    memory.stop()
    partition = memory.config.clusters["myClusters"][0]["partitionConfig"]
    partition["numPartitions"] = 1
    memory.config.write()
    with pytest.raises(StartFailure, match=r"numPartitions is 1, but 2 queue\(s\).*Set numPartitions to 2 or more"):
        memory.start()
    partition["numPartitions"] = 2
    memory.config.write()
    memory.start()
    assert memory.new_payloads(memory.consumer("bmq://d/a")) == [b"a"]


def test_a_broker_stopped_on_a_full_disk_starts_again_without_loss(memory: MemoryWorld) -> None:
    """As after kill -9: the next start needs no space and loses no message."""
    memory.producer().post(b"kept")
    memory.wait_idle()
    memory.disk.fail = lambda operation, path: (
        errno.ENOSPC if operation in ("create", "write") and not path.endswith(".bmq_csl") else None)
    memory._drop_clients()
    memory.stop()
    memory.start()
    assert not memory.alarms("RECOVERY") and memory.alarms("FILE_IO")
    memory.disk.fail = lambda operation, path: None
    memory.advance(2)
    assert memory.new_payloads(memory.consumer()) == [b"kept"]


def test_a_start_that_fails_at_recovery_logs_the_alarms_of_the_partitions(memory: MemoryWorld) -> None:
    memory.producer().post(b"kept")
    memory._drop_clients()
    memory.stop()
    journal = max((path for path in memory.disk.paths() if path.endswith("bmq_journal")),
                  key=lambda path: len(memory.disk.content(path)))
    memory.disk.flip(journal, JOURNAL_HEADER_BYTES + 2 * RECORD_BYTES - 1)  # the end mark of its second record
    memory.disk.fail = lambda operation, path: errno.ENOSPC if operation == "create" else None
    with pytest.raises(StartFailure, match="see its alarms"):
        memory.start()
    assert memory.alarms("ROLLOVER")


# -- a process killed between its writes to the metadata and to the partition ---------------------------------------------


def is_killed_after(memory: MemoryWorld, operations: int, action: Callable[[], object]) -> bool:
    """Kill the process before the disk operation with this number; return whether it was reached."""
    memory.disk.stop_after = memory.disk.steps + operations
    try:
        action()
        memory.run()
    except ProcessKilled:
        return True
    finally:
        memory.disk.stop_after = None
    return False


def problem_lines(memory: MemoryWorld) -> list[str]:
    """Lines that an operator has to inspect, except about the bytes of an interrupted write."""
    return [line for line in memory.log() if line.startswith(("ALARM", "PANIC", "ERROR")) and UNFINISHED_TEXT not in line]


def app_ids(memory: MemoryWorld, uri: str) -> tuple[list[str], list[str]]:
    """The apps of a queue according to the metadata and according to its records."""
    cluster = memory.broker.clusters["c3"]
    return list(cluster.metadata.state.queues[uri].apps), [app.app_id for app in cluster.queues[uri].active]


@pytest.mark.parametrize("operations", range(8))
def test_a_change_of_apps_interrupted_by_a_crash_is_completed_at_the_next_start(memory: MemoryWorld,
                                                                                operations: int) -> None:
    """After each interruption metadata and partition agree, and later starts report no problem."""
    memory.domain("f", "fanout", apps=("foo", "bar"))
    memory.producer("bmq://f/q").post(b"1")
    memory.wait_idle()
    memory.domain("f", "fanout", apps=("bar", "new"))
    if not is_killed_after(memory, operations, lambda: memory.broker.commands.run_at_once("DOMAINS RECONFIGURE f", "test")):
        assert operations > 3
    for _ in range(3):
        before = len(problem_lines(memory))
        memory.crash_and_start()
        memory.advance(2)
        assert problem_lines(memory)[before:] == []
        assert app_ids(memory, "bmq://f/q") == (["bar", "new"], ["bar", "new"])
    assert len(memory.logged("Registered appId 'new'")) <= 2  # a start completes it once
    bar, new, foo = (memory.consumer("bmq://f/q", app) for app in ("bar", "new", "foo"))
    memory.producer("bmq://f/q").post(b"2")
    assert (memory.new_payloads(bar), memory.new_payloads(new), memory.new_payloads(foo)) == ([b"1", b"2"], [b"2"], [])


@pytest.mark.parametrize("operations", range(6))
def test_a_queue_creation_interrupted_by_a_crash_is_completed_or_undone(memory: MemoryWorld, operations: int) -> None:
    """Metadata and partition name the same queue, in either order of their writes."""
    memory.producer("bmq://d/other")
    memory.wait_idle()

    def create() -> None:
        domain = memory.broker.domains.get_or_load("d")
        memory.broker.clusters["c3"].changes.create_queue(domain, "bmq://d/q", memory.now, 1, lambda queue: None)
        memory.turn_requested = True

    assert is_killed_after(memory, operations, create) or operations > 3
    memory.crash_and_start()
    memory.advance(2)
    memory.crash_and_start()
    assert not problem_lines(memory)
    memory.producer().post(b"1")
    memory.restart()
    assert memory.new_payloads(memory.consumer()) == [b"1"] and not problem_lines(memory)


@pytest.mark.parametrize("operations", range(6))
def test_a_queue_deletion_interrupted_by_a_crash_is_completed_or_undone(memory: MemoryWorld, operations: int) -> None:
    """A queue that exists only in the partition is deleted there, once."""
    memory.producer().client.disconnect()
    memory.wait_idle()

    def delete() -> None:
        cluster = memory.broker.clusters["c3"]
        cluster.changes.delete_queue(cluster.queues["bmq://d/q"], 1)
        memory.turn_requested = True

    assert is_killed_after(memory, operations, delete) or operations > 2
    memory.crash_and_start()
    memory.advance(2)
    known = len(problem_lines(memory))
    memory.crash_and_start()
    assert len(problem_lines(memory)) == known <= 1
    memory.producer().post(b"1")
    memory.crash_and_start()
    assert memory.new_payloads(memory.consumer()) == [b"1"] and len(problem_lines(memory)) == known


# -- while a change waits for the disk ------------------------------------------------------------------------------


def test_two_opens_create_one_queue_and_are_answered_when_its_metadata_is_durable(memory: MemoryWorld) -> None:
    """The open is answered only when a loss of power cannot undo the creation."""
    cluster, domain = memory.broker.clusters["c3"], memory.broker.domains.get_or_load("d")
    found: list[object] = []
    with memory.storage_stalled():
        for _ in range(2):
            cluster.changes.create_queue(domain, "bmq://d/q", memory.now, 1, found.append)
        memory.turn_requested = True
        memory.run()
        assert not found and not cluster.queues and cluster.changes.queue_count("d") == 1
    assert len(found) == 2 and found[0] is found[1] is cluster.queues["bmq://d/q"]
    assert len(cluster.metadata.state.queues) == 1


def test_metadata_changes_of_one_turn_share_one_write_and_sync(memory: MemoryWorld) -> None:
    """Group commit: changes during a write are part of the next write."""
    cluster, domain = memory.broker.clusters["c3"], memory.broker.domains.get_or_load("d")
    before = len(memory.disk.log)
    for number in range(50):
        cluster.changes.create_queue(domain, f"bmq://d/{number}", memory.now, 1, lambda queue: None)
    memory.turn_requested = True
    memory.run()
    done = [operation for operation, path in memory.disk.log[before:] if path.endswith(".bmq_csl")]
    assert done == ["write", "sync"] and len(cluster.queues) == 50


def test_creating_a_queue_that_is_being_deleted_makes_a_new_queue(memory: MemoryWorld) -> None:
    """The new queue has its own key and is created after the deletion."""
    memory.producer().client.disconnect()
    cluster, found = memory.broker.clusters["c3"], list[object]()
    old = cluster.queues["bmq://d/q"]
    with memory.storage_stalled():
        cluster.changes.delete_queue(old, 1)
        cluster.changes.delete_queue(old, 1)
        assert cluster.changes.is_changing(old)
        cluster.changes.create_queue(memory.broker.domains.get_or_load("d"), old.uri, memory.now, 1, found.append)
        memory.turn_requested = True
    new = cluster.queues["bmq://d/q"]
    assert found == [new] and new is not old and new.key != old.key
    memory.producer().post(b"1")
    memory.restart()
    assert memory.new_payloads(memory.consumer()) == [b"1"] and not problem_lines(memory)


def test_a_client_that_opens_a_queue_being_deleted_gets_a_new_queue(memory: MemoryWorld) -> None:
    """The client does not get the queue that is being deleted."""
    memory.producer().client.disconnect()
    memory.client()
    cluster, found = memory.broker.clusters["c3"], list[object]()
    old = cluster.queues["bmq://d/q"]
    (session,) = memory.broker.sessions.open
    with memory.storage_stalled():
        cluster.changes.delete_queue(old, 1)
        memory.broker.queues.find_queue(session, parse_uri(old.uri), OpenRequest(0, 0, None, 4, 0, 1, 0), found.append)
        memory.turn_requested = True
        memory.run()
        assert not found and old.domain.opening == 1
    assert found == [cluster.queues[old.uri]] and found[0] is not old and old.domain.opening == 0


def test_an_admin_command_is_answered_when_its_metadata_change_is_committed(memory: MemoryWorld,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages posted after the answer go to the new app; a command without a change is answered at once."""
    memory.domain("f", "fanout", apps=("foo",))
    memory.producer("bmq://f/q")
    memory.client("admin")
    memory.domain("f", "fanout", apps=("foo", "new"))
    (session,) = [each for each in memory.broker.sessions.open if not each.kind.handles]
    answers: list[int] = []
    monkeypatch.setattr(AdminSession, "answer", lambda admin, r_id, text: answers.append(r_id))
    with memory.storage_stalled():
        memory.broker.commands.run_admin(AdminSession(session, memory.broker.commands), 1, "DOMAINS RECONFIGURE f")
        memory.broker.commands.run_admin(AdminSession(session, memory.broker.commands), 2, "DOMAINS RECONFIGURE f")
        memory.run()
        assert answers == [2] and app_ids(memory, "bmq://f/q") == (["foo"], ["foo"])
    assert answers == [2, 1] and app_ids(memory, "bmq://f/q") == (["foo", "new"], ["foo", "new"])


def test_an_open_is_refused_when_the_metadata_cannot_be_written(memory: MemoryWorld) -> None:
    """The next change begins a new file."""
    memory.producer()
    memory.disk.fail = lambda operation, path: errno.EIO if path.endswith(".bmq_csl") else None
    refused = refusal(memory.client().open, "bmq://d/new", write=1)
    assert refused.category == "E_UNKNOWN" and "the metadata ledger cannot be written" in refused.message
    memory.disk.fail = lambda operation, path: None
    memory.producer("bmq://d/new").post(b"1")
    memory.restart()
    assert memory.new_payloads(memory.consumer("bmq://d/new")) == [b"1"] and len(memory.alarms("CLUSTER")) == 1
