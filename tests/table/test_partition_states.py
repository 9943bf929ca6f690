"""The states of the writer of a partition: every cell of the table, by a real Partition over a disk that fails."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import count

import pytest
from kit.partition_states import TABLE, Event, State
from kit.storage_kit import DEFAULT, KEY, TINY, WALL, make_message, open_files, start

from bmqtwist.steps import at_once
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.recovery import recover

CELLS = [(state, event) for state in State for event in Event]


class Writer:
    """One Partition, and what can happen to it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.partition, _ = start(self.disk, TINY)
        self.partition.create_queue(KEY, "bmq://d/q", DEFAULT, WALL)
        self.partition.flush(WALL)
        self._token = self.partition.wants_sync() or 0
        assert self._token, "the sync point of the lease wants a sync"
        self._numbers = count()

    def be(self, state: State) -> None:
        """Come into a state, from open."""
        if state is State.CLOSED:
            self.happen(Event.MISTAKE)
        if "full" in state.value:
            self.happen(Event.NO_ROOM)
        if "failing" in state.value:
            self.happen(Event.WRITE_FAILS)
        if "disabled" in state.value:
            self.happen(Event.DISABLE)

    def happen(self, event: Event) -> None:
        """Let it happen; a refusal changes nothing."""
        with suppress(PartitionUnavailable):
            getattr(self, event.name.lower())()

    def activate(self) -> None:
        self.partition.activate(self.partition.lease + 1, WALL)

    def disable(self) -> None:
        self.partition.disable()

    def enable(self) -> None:
        self.partition.enable()

    def no_room(self) -> None:
        """Everything in it is live, so a rollover would free nothing."""
        while True:
            self.partition.append_message(KEY, make_message(next(self._numbers)), WALL)
            self.partition.flush(WALL)

    def purge(self) -> None:
        at_once(self.partition.purge(KEY, None, None, WALL))

    def write_fails(self) -> None:
        self.disk.fail = lambda operation, path: errno.EIO if operation == "write" else None
        self.partition.sync_point(WALL, force=True)

    def written(self) -> None:
        self.disk.fail = lambda operation, path: None
        self.partition.flush(WALL)

    def sync_fails(self) -> None:
        self.partition.sync_failed(self._token, OSError(errno.EIO, "Input/output error"))

    def mistake(self) -> None:
        self.partition.fail()


def state_of(partition: Partition) -> State:
    """By its flags."""
    if partition.broken:
        return State.CLOSED
    reasons = [name for name, flag in (("disabled", partition._disabled), ("full", partition._full),
                                       ("failing", partition._write_failed)) if flag]
    return State(", ".join(reasons) or "open")


def test_the_table_is_total() -> None:
    assert TABLE.keys() == set(State) and all(row.keys() == set(Event) for row in TABLE.values())


@pytest.mark.parametrize("state", State)
def test_records_are_taken_in_the_state_open_alone(state: State) -> None:
    writer = Writer()
    writer.be(state)
    assert state_of(writer.partition) is state
    assert writer.partition.available == (state is State.OPEN)
    if state is State.OPEN:
        writer.partition.append_message(KEY, make_message(1), WALL)
    else:
        with pytest.raises(PartitionUnavailable):
            writer.partition.append_message(KEY, make_message(1 << 20), WALL)


@pytest.mark.parametrize("state, event", CELLS, ids=lambda each: each.name)
def test_an_event_leads_where_the_table_says(state: State, event: Event) -> None:
    writer = Writer()
    writer.be(state)
    writer.happen(event)
    assert state_of(writer.partition) is TABLE[state][event]
    assert writer.partition.available == (TABLE[state][event] is State.OPEN)


def test_it_is_open_once_it_has_become_primary() -> None:
    """A copy that a damaged file set needs first may fail; then it is tried again."""
    disk = MemoryDisk()
    files = open_files(disk, sizes=TINY)
    recovered = recover(files)
    recovered.damaged = True
    partition = Partition(0, 1, files, recovered)
    disk.fail = lambda operation, path: errno.EIO if operation == "create" else None
    with pytest.raises(PartitionUnavailable):
        partition.activate(1, WALL)
    assert partition.lease == 0
    disk.fail = lambda operation, path: None
    partition.activate(1, WALL)
    assert partition.lease == 1 and state_of(partition) is State.OPEN
