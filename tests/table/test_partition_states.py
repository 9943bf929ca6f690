"""Availability of a partition (storage/availability.py): every cell of the table, with a Partition and a failing disk."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import count

import pytest
from kit.storage_kit import DEFAULT, KEY, TINY, WALL, make_message, open_files, start

from bmqtwist.steps import at_once
from bmqtwist.storage.availability import TABLE, WriterEvent, WriterState
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.recovery import recover

CELLS = [(state, event) for state in WriterState for event in WriterEvent]


class Writer:
    """One Partition and its events."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.partition, _ = start(self.disk, TINY)
        self.partition.queues.create(KEY, "bmq://d/q", DEFAULT, WALL)
        self.partition.flush(WALL)
        self._token = self.partition.begin_sync() or 0
        assert self._token, "the sync point of the lease needs a sync"
        self._numbers = count()

    def enter_state(self, state: WriterState) -> None:
        """Bring the partition from open to a state."""
        if state is WriterState.CLOSED:
            self.trigger(WriterEvent.EXCEPTION)
        if "full" in state.value:
            self.trigger(WriterEvent.NO_ROOM)
        if "failing" in state.value:
            self.trigger(WriterEvent.WRITE_FAILS)
        if "disabled" in state.value:
            self.trigger(WriterEvent.DISABLE)

    def trigger(self, event: WriterEvent) -> None:
        """Trigger an event; a refusal changes nothing."""
        with suppress(PartitionUnavailable):
            getattr(self, event.name.lower())()

    def activate(self) -> None:
        self.partition.activate(self.partition.lease + 1, WALL)

    def disable(self) -> None:
        self.partition.disable()

    def enable(self) -> None:
        self.partition.enable()

    def no_room(self) -> None:
        """Fill the partition with live records, so that a rollover would free nothing."""
        while True:
            self.partition.append_message(KEY, make_message(next(self._numbers)), WALL)
            self.partition.flush(WALL)

    def purge(self) -> None:
        """Purge the queue; if that is refused, report the event as the end of an earlier purge does."""
        try:
            at_once(self.partition.queues.purge(KEY, None, None, WALL))
        except PartitionUnavailable:
            self.partition.log.on_event(WriterEvent.PURGE)

    def follow(self) -> None:
        self.partition.log.on_event(WriterEvent.FOLLOW)

    def write_fails(self) -> None:
        self.disk.fail = lambda operation, path: errno.EIO if operation == "write" else None
        self.partition.write_sync_point(WALL, force=True)

    def written(self) -> None:
        self.disk.fail = lambda operation, path: None
        self.partition.flush(WALL)

    def sync_fails(self) -> None:
        self.partition.on_sync_failed(self._token, OSError(errno.EIO, "Input/output error"))

    def exception(self) -> None:
        self.partition.on_exception()


@pytest.mark.parametrize("state", WriterState)
def test_records_are_appended_only_in_the_state_open(state: WriterState) -> None:
    writer = Writer()
    writer.enter_state(state)
    assert writer.partition.log.availability.state is state
    assert writer.partition.available == (state is WriterState.OPEN)
    if state is WriterState.OPEN:
        writer.partition.append_message(KEY, make_message(1), WALL)
    else:
        with pytest.raises(PartitionUnavailable):
            writer.partition.append_message(KEY, make_message(1 << 20), WALL)


@pytest.mark.parametrize("state, event", CELLS, ids=lambda each: each.name)
def test_each_event_leads_to_the_state_in_the_table(state: WriterState, event: WriterEvent) -> None:
    writer = Writer()
    writer.enter_state(state)
    writer.trigger(event)
    after, = TABLE[state][event].after or {state}
    assert writer.partition.log.availability.state is after
    assert writer.partition.available == (after is WriterState.OPEN)
    changes = writer.partition.log.availability.transitions.transitions
    assert state is after or (changes[-1].after, changes[-1].event) == (after.value, event.name)


def test_a_partition_is_open_once_this_node_is_its_primary() -> None:
    """The copy of a damaged file set may fail; the next activation repeats it."""
    disk = MemoryDisk()
    files = open_files(disk, sizes=TINY)
    recovered = recover(files)
    recovered.damaged = True
    partition = Partition(1, files, recovered)
    disk.fail = lambda operation, path: errno.EIO if operation == "create" else None
    with pytest.raises(PartitionUnavailable):
        partition.activate(1, WALL)
    assert partition.lease == 0
    disk.fail = lambda operation, path: None
    partition.activate(1, WALL)
    assert partition.lease == 1 and partition.log.availability.state is WriterState.OPEN
