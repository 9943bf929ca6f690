"""Recovery after any operations and with files cut at any record: the recovered state existed before.

A model applies the same operations, one journal record at a time, and stores every state. Cut files must recover to one of
these states; after a loss of power, all released effects must be recovered. Tests `bmqtwist/storage/recovery.py`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.storage_kit import (
    FANOUT,
    WALL,
    entries,
    make_message,
    open_files,
    path_of,
    start,
    state,
)

from bmqtwist.steps import at_once
from bmqtwist.storage.memory import MemoryDisk, ProcessKilled
from bmqtwist.storage.partition import Message, Partition
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.store import FileSizes

SIZES = FileSizes(8000, 1 << 15, 1 << 12)
KEYS = [b"aaaaa", b"bbbbb"]

OPERATION = st.tuples(st.sampled_from(["put", "put", "put", "confirm", "confirm", "delete", "purge", "purge app",
                                       "remove app", "add app", "drop queue", "flush", "sync", "tick", "roll"]),
                      st.integers(0, 1 << 16))


class ModelledPartition:
    """A partition and its model. `states[n]`: outstanding messages after n records; `ends` counts records."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.partition: Partition = start(self.disk, SIZES)[0]
        self.queues: dict[bytes, tuple[list[tuple[str, bytes]], dict[bytes, tuple[Message, list[str]]]]] = {}
        self.states: list[Any] = [{}]
        self.number = 0
        self.promised: list[Message] = []  # synced, not deleted since
        self.flushed = 0

    def note(self) -> None:
        """Note the state after a record."""
        self.states.append({f"bmq://d/{key.decode()}": ([app for app, _ in apps], [
            (guid, list(waiting)) for guid, (_, waiting) in messages.items()])
            for key, (apps, messages) in self.queues.items()})

    def run(self, name: str, value: int) -> None:
        """Run one operation of a queue."""
        key, partition = KEYS[value % 2], self.partition
        if key not in self.queues:
            apps = [FANOUT[0], FANOUT[1]]
            partition.queues.create(key, f"bmq://d/{key.decode()}", apps, WALL)
            self.queues[key] = (list(apps), {})
            self.note()
        apps, messages = self.queues[key]
        some = list(messages.values())[value // 2 % len(messages)] if messages else None
        if name == "put" and apps:
            self.number += 1
            message = make_message(self.number, bytes([self.number % 256]) * (value % 200 + 1), ref_count=len(apps))
            partition.append_message(key, message, WALL)
            messages[message.guid] = (message, [app for app, _ in apps])
            self.note()
        elif name == "confirm" and some and len(some[1]) > 1:
            app = some[1].pop(value % len(some[1]))
            partition.append_confirm(key, dict(apps)[app], some[0], 0, WALL)
            self.note()
        elif name in ("delete", "confirm") and some:
            self.delete(key, some[0])
        elif name == "purge":
            at_once(partition.queues.purge(key, None, None, WALL))
            messages.clear()
            self.note()
        elif name == "purge app" and apps:
            self.remove_expected(key, *apps[value % len(apps)])
        elif name == "remove app" and len(apps) > 1:
            app, app_key = apps[value % len(apps)]
            self.remove_expected(key, app, app_key)
            apps.remove((app, app_key))
            at_once(partition.queues.delete_app(key, app_key, WALL))
            self.note()
        elif name == "add app" and len(apps) < 4:
            self.number += 1
            apps.append((f"app{self.number}", self.number.to_bytes(5, "big")))
            partition.queues.add_apps(key, f"bmq://d/{key.decode()}", apps[-1:], WALL)
            self.note()
        elif name == "drop queue" and not messages:
            partition.queues.delete(key, WALL)
            del self.queues[key]
            self.note()
        elif name in ("flush", "sync"):
            partition.flush(WALL)
            self.flushed = len(self.states) - 1
            if name == "sync":
                partition.sync()
                self.promised = [message for _, messages in self.queues.values() for message, _ in messages.values()]

    def remove_expected(self, key: bytes, app: str, app_key: bytes) -> None:
        _, messages = self.queues[key]
        if not messages:
            return
        at_once(self.partition.queues.purge(key, app_key, next(iter(messages.values()))[0], WALL))
        done = []
        for message, waiting in messages.values():
            if app in waiting:
                waiting.remove(app)
                if not waiting:
                    done.append(message)
        kept = {guid: entry for guid, entry in messages.items() if entry[1]}
        everything = dict(messages)
        messages.clear()
        messages.update(kept)
        self.note()
        messages.clear()
        messages.update(everything)
        for message in done:
            self.delete(key, message)

    def delete(self, key: bytes, message: Message) -> None:
        del self.queues[key][1][message.guid]
        self.partition.append_deletion(key, message, 0, WALL)
        shown = {guid: entry for guid, entry in self.queues[key][1].items() if entry[1]}
        hidden = dict(self.queues[key][1])
        self.queues[key][1].clear()
        self.queues[key][1].update(shown)
        self.note()
        self.queues[key][1].clear()
        self.queues[key][1].update(hidden)


def run_operations(operations: list[tuple[str, int]]) -> ModelledPartition:
    world = ModelledPartition()
    for name, value in operations:
        if name == "tick":
            world.partition.write_sync_point(WALL)
            world.flushed = len(world.states) - 1
        elif name == "roll":
            world.partition.rollover(WALL)
        else:
            world.run(name, value)
    world.run("flush", 0)
    return world


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATION, max_size=60).filter(lambda ops: not any(name == "roll" for name, _ in ops)), st.data())
def test_a_journal_truncated_anywhere_recovers_an_earlier_state(operations: list[tuple[str, int]],
                                                                data: st.DataObject) -> None:
    world = run_operations(operations)
    if any(path.startswith("/a/") for path in world.disk.paths()):
        return  # rolled over: earlier records are in another file
    journal = path_of(world.disk, "journal")
    content = world.disk.content(journal)
    accepted = entries(content)
    end = accepted[-1][0] + 60
    size = data.draw(st.integers(44, end))
    records = sum(1 for entry in accepted if entry[1] >> 60 != 5 and entry[0] + 60 <= size)
    for tail in (b"", bytes(5000)):
        world.disk.put(journal, content[:size] + tail)
        recovered = recover(open_files(world.disk, sizes=SIZES))
        assert state(recovered) == world.states[records]
        assert not recovered.quarantined


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATION, max_size=80), st.integers(0, 400))
def test_a_broker_killed_at_any_write_recovers_an_earlier_state(operations: list[tuple[str, int]], steps: int) -> None:
    world = ModelledPartition()
    world.disk.stop_after = world.disk.steps + steps
    try:
        for name, value in [*operations, ("flush", 0)]:
            if name == "tick":
                world.partition.write_sync_point(WALL)
            elif name == "roll":
                world.partition.rollover(WALL)
            else:
                world.run(name, value)
    except ProcessKilled:
        pass
    world.disk.kill()
    partition, recovered = start(world.disk, SIZES, lease=None)
    found = state(recovered)
    assert found in world.states[world.flushed:] and not recovered.quarantined
    for queue in recovered.queues.values():
        for message in queue.messages.values():
            number = int.from_bytes(message.guid[1:], "big")
            assert partition.payloads.read(message) == bytes([number % 256]) * message.size
    partition.stop(WALL)
    assert state(recover(open_files(world.disk, sizes=SIZES))) == found


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATION, max_size=80), st.one_of(st.none(), st.integers(0, 1000)))
def test_a_loss_of_power_keeps_all_synced_messages(operations: list[tuple[str, int]], seed: int | None) -> None:
    world = run_operations(operations)
    promised = {message.guid: message.payload for message in world.promised if message.live_key >= 0}
    world.disk.crash(None if seed is None else Random(seed))
    partition, recovered = start(world.disk, SIZES, lease=None)
    found = {message.guid: partition.payloads.read(message) for queue in recovered.queues.values()
             for message in queue.messages.values() if message.pending}
    missing = [guid for guid in promised if guid not in found]
    assert not missing
    assert all(found[guid] == payload for guid, payload in promised.items())
    assert not {message.guid for message in recovered.quarantined} & promised.keys()
    if seed is None:
        assert state(recovered) in world.states
    partition.stop(WALL)
    second = recover(open_files(world.disk, sizes=SIZES))
    assert state(second) == state(recovered) and not second.damaged
