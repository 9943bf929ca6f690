"""Situations of a partition machine for each role, and one input of each event for table tests.

Run by `table/test_partition_machine.py`; several machines together are in `partitions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Stop, Tick, TickAt
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.partition_events import (
    Assigned,
    ImageLost,
    LogAdvanced,
    LogFailed,
    LogReady,
    PartitionEvent,
    PartitionInput,
    PartitionOutput,
    PartitionRole,
    PromiseWritten,
    Records,
    ReplicaReceipt,
    ReplicationTiming,
    SendCompleted,
    SendFailed,
    SendMessage,
)
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn, RecordRun
from bmqtwist.storage.records import pack_sync_point
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import ImagePart, Keepalive, Prepare, Promise, Pull, Renewal, Stale

NODE, PRIMARY, OTHER = 1, 2, 3
LEASE = 5
TIMING = ReplicationTiming(10.0, 1.0, 4.0, 13.0)
EMPTY = LogSummary()
OLD = LogSummary((4, 7), NO_PSN, ((4, 7),))
NEW = LogSummary((5, 1), NO_PSN, ((4, 7), (5, 1)))


@dataclass
class FakeLog:
    """A log with a given state."""

    summary: LogSummary = OLD
    written: Psn = (4, 7)
    durable: Psn = (4, 7)
    busy: bool = False
    broken: bool = False

    def can_send_after(self, after: Psn) -> bool:
        """Return whether the records after a PSN are in the log."""
        return self.summary.contains(after)

    def be(self, summary: LogSummary) -> None:
        """Set the content of the log, all of it durable."""
        self.summary, self.written, self.durable = summary, summary.last, summary.last


class Situation:
    """A machine and its log; `now` advances with each input."""

    def __init__(self, log: LogSummary = OLD, promised: int = 4) -> None:
        self.log, self.now = FakeLog(), 100.0
        self.log.be(log)
        self.machine = PartitionMachine(Electorate(NODE, (NODE, PRIMARY, OTHER)), self.log, TIMING, promised, "p")
        self.do(PeerUp(PRIMARY))
        self.do(PeerUp(OTHER))

    def do(self, event: PartitionInput, after: float = 0.1) -> list[PartitionOutput]:
        """Handle one input."""
        self.now += after
        return self.machine.step(self.now, event)

    def output_names(self, event: PartitionInput, after: float = 0.1) -> list[str]:
        """Handle one input; return the names of the outputs, of messages with their receiver."""
        return [f"{type(each.message).__name__} to {each.node_id}" if isinstance(each, SendMessage) else type(each).__name__
                for each in self.do(event, after) if not isinstance(each, TickAt)]


def unknown() -> Situation:
    return Situation()


def stg1() -> Situation:
    found = Situation()
    found.do(Assigned(NODE, LEASE))
    return found


def stg2() -> Situation:
    """The machine has begun its lease; no other node has the first record of the lease yet."""
    found = stg1()
    found.do(PromiseWritten(LEASE))
    found.do(promise(OTHER, LEASE, OLD, NO_PSN))
    found.log.be(NEW)
    found.do(LogAdvanced())
    found.do(SendCompleted(OTHER, (5, 1), 60))
    return found


def pulling() -> Situation:
    """The machine pulls from a node that has more records."""
    found = Situation(EMPTY)
    found.do(Assigned(NODE, LEASE))
    found.do(PromiseWritten(LEASE))
    found.do(promise(OTHER, LEASE, OLD, NO_PSN))
    return found


def healed() -> Situation:
    found = stg2()
    found.do(ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, int(found.now * 1000)))
    return found


def waiting() -> Situation:
    found = Situation()
    found.do(Assigned(PRIMARY, LEASE))
    return found


def healing() -> Situation:
    found = Situation()
    found.do(Prepare(PRIMARY, LEASE))
    found.do(PromiseWritten(LEASE))
    return found


def following() -> Situation:
    found = healing()
    found.do(records())
    found.log.be(NEW)
    found.do(LogAdvanced())
    return found


def stopped() -> Situation:
    found = Situation()
    found.do(Stop())
    return found


SITUATIONS: dict[PartitionRole, Callable[[], Situation]] = dict(zip(
    PartitionRole, (unknown, stg1, stg2, healed, waiting, healing, following, stopped), strict=True))


def journal(*psns: Psn) -> bytes:
    """Encode records with these PSNs."""
    return b"".join(pack_sync_point(sequence, lease, 1, 1, 2, 96, 36) for lease, sequence in psns)  # type: ignore[arg-type]


def records(lease: int = LEASE, previous: Psn = (4, 7), *psns: Psn, sender: int = PRIMARY) -> Records:
    """Create a message with records of a primary; by default the first record of its lease."""
    psns = psns or ((5, 1),)
    return Records(sender, lease, NO_PSN, RecordRun(previous, psns[-1], journal(*psns)))


def promise(sender: int, lease: int, log: LogSummary, committed: Psn, doubt: Doubt = Doubt.NONE) -> Promise:
    """Create a promise of a node with a log."""
    return Promise(sender, lease, log.last, log.base, log.leases, committed, doubt > Doubt.NONE, doubt is Doubt.LOST)


def image(number: int = 0, final: bool = False, lease: int = LEASE, sender: int = PRIMARY) -> ImagePart:
    """Create a part of an image."""
    return ImagePart(sender, lease, number, (5, 3), final)


EVENTS: dict[PartitionEvent, PartitionInput] = {
    PartitionEvent.ASSIGNED_SELF: Assigned(NODE, LEASE + 1),
    PartitionEvent.ASSIGNED_OTHER: Assigned(OTHER, LEASE + 1),
    PartitionEvent.PEER_UP: PeerUp(PRIMARY),
    PartitionEvent.PEER_DOWN: PeerDown(PRIMARY),
    PartitionEvent.PROMISE_WRITTEN: PromiseWritten(LEASE),
    PartitionEvent.LOG_ADVANCED: LogAdvanced(),
    PartitionEvent.LOG_READY: LogReady(),
    PartitionEvent.LOG_FAILED: LogFailed("disk"),
    PartitionEvent.SEND_COMPLETED: SendCompleted(OTHER, (5, 1), 60),
    PartitionEvent.IMAGE_LOST: ImageLost(OTHER),
    PartitionEvent.SEND_FAILED: SendFailed(OTHER, "disk"),
    PartitionEvent.TICK: Tick(),
    PartitionEvent.STOP: Stop(),
    PartitionEvent.PREPARE: Prepare(PRIMARY, LEASE + 1),
    PartitionEvent.PROMISE: promise(PRIMARY, LEASE, OLD, NO_PSN),
    PartitionEvent.STALE: Stale(PRIMARY, LEASE + 1),
    PartitionEvent.PULL: Pull(PRIMARY, LEASE, (4, 2)),
    PartitionEvent.RECORDS: records(LEASE, (5, 1), (5, 2)),
    PartitionEvent.IMAGE_PART: image(),
    PartitionEvent.RECEIPT: ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, 10**9),
    PartitionEvent.KEEPALIVE: Keepalive(PRIMARY, LEASE, (5, 1), 0, NO_PSN, 77),
    PartitionEvent.RENEWAL: Renewal(PRIMARY, LEASE, 77),
}


def older(event: PartitionInput) -> PartitionInput:
    """Return the message with an older lease."""
    return replace(event, lease=LEASE - 1)  # type: ignore[call-arg, arg-type]


def _promised(situation: Situation) -> None:
    situation.do(PromiseWritten(LEASE))
    situation.do(promise(OTHER, LEASE, OLD, NO_PSN))


def _prepared(situation: Situation) -> None:
    situation.do(Prepare(PRIMARY, LEASE))
    situation.do(PromiseWritten(LEASE))


def _filled(situation: Situation) -> None:
    situation.do(records())
    situation.log.be(NEW)
    situation.do(LogAdvanced())


def _committed(situation: Situation) -> None:
    situation.do(ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, int(situation.now * 1000)))


# Situation before, event, role afterwards, and reason.
CHANGES: list[tuple[Callable[[], Situation], Callable[[Situation], object], PartitionRole, str]] = [
    (unknown, lambda each: each.do(Assigned(NODE, LEASE)), PartitionRole.PRIMARY_HEALING_STG1, "appointed"),
    (unknown, lambda each: each.do(Assigned(PRIMARY, LEASE)), PartitionRole.REPLICA_WAITING, "another primary"),
    (stg1, _promised, PartitionRole.PRIMARY_HEALING_STG2, "promises of a quorum"),
    (pulling, lambda each: each.do(PeerDown(OTHER)), PartitionRole.PRIMARY_HEALING_STG1, "pull source lost"),
    (stg2, _committed, PartitionRole.PRIMARY_HEALED, "its lease is committed"),
    (healed, lambda each: each.do(Tick(), TIMING.lease + 1), PartitionRole.PRIMARY_HEALING_STG2, "no quorum"),
    (healed, lambda each: each.do(Stale(PRIMARY, LEASE + 1)), PartitionRole.UNKNOWN, "newer lease promised"),
    (healed, lambda each: each.do(Prepare(PRIMARY, LEASE + 1)), PartitionRole.REPLICA_WAITING, "newer lease requested"),
    (waiting, _prepared, PartitionRole.REPLICA_HEALING, "its promise is durable"),
    (healing, _filled, PartitionRole.REPLICA_HEALED, "it has all records of the primary"),
    (following, lambda each: each.do(PeerDown(PRIMARY)), PartitionRole.REPLICA_WAITING, "the primary is disconnected"),
    (following, lambda each: each.do(Assigned(NODE, LEASE + 1)), PartitionRole.PRIMARY_HEALING_STG1, "appointed"),
]
