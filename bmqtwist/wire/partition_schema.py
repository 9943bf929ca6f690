# ruff: noqa: RUF009 - the calls in the class bodies are field declarations of fields.py
"""Schema types that only members which know our extensions say to each other about the logs of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bmqtwist.wire.fields import Choice, array, blob, boolean, optional, record, u32, u64


@dataclass(slots=True)
class LeaseEnd:
    """Ours: a lease, and its last sequence number in a log."""

    lease: int = u32(0)
    sequence: int = u64(1)


@dataclass(slots=True)
class PartitionPrepare:
    """Ours: take nothing of an older lease any more."""

    partition_id: int = u32(0)
    lease: int = u32(1)


@dataclass(slots=True)
class PartitionPromise:
    """Ours: this lease is promised, and so is the sender's log."""

    partition_id: int = u32(0)
    lease: int = u32(1)
    last: LeaseEnd = record(2, LeaseEnd)
    base: LeaseEnd = record(3, LeaseEnd)
    leases: list[LeaseEnd] = array(4, LeaseEnd)
    committed: LeaseEnd = record(5, LeaseEnd)
    doubtful: bool = boolean(6)


@dataclass(slots=True)
class PartitionStale:
    """Ours: this lease, which is newer, is promised."""

    partition_id: int = u32(0)
    lease: int = u32(1)


@dataclass(slots=True)
class PartitionPull:
    """Ours: records behind `after`, please; without it, all that is live."""

    partition_id: int = u32(0)
    lease: int = u32(1)
    after: LeaseEnd | None = optional(2, LeaseEnd)


@dataclass(slots=True)
class PartitionImage:
    """Ours: a part of all that is live, as of the record `at`."""

    partition_id: int = u32(0)
    lease: int = u32(1)
    number: int = u32(2)
    at: LeaseEnd = record(3, LeaseEnd)
    final: bool = boolean(4)
    journal: bytes = blob(5)
    data: bytes = blob(6)
    qlist: bytes = blob(7)
    crc: int = u32(8)


@dataclass(slots=True)
class PartitionKeepalive:
    """Ours: is the sender's lease still answered? `previous`: absent while an image is under way."""

    partition_id: int = u32(0)
    lease: int = u32(1)
    previous: LeaseEnd | None = optional(2, LeaseEnd)
    parts: int = u32(3)
    committed: LeaseEnd = record(4, LeaseEnd)
    stamp: int = u64(5)


@dataclass(slots=True)
class PartitionDecline:
    """Ours, for the leader: the sender cannot use the lease that it was given; `able`: it could use one above `used`;
    `successor`: which node is to have the next one, 0 = any."""

    partition_id: int = u32(0)
    lease: int = u32(1)
    able: bool = boolean(2)
    used: int = u32(3)
    successor: int = u32(4)


@dataclass(slots=True)
class PartitionYield:
    """Ours, from the leader: the primary under this lease is to give the partition to another node."""

    partition_id: int = u32(0)
    lease: int = u32(1)
    successor: int = u32(2)


@dataclass(slots=True)
class PartitionLogMessage:
    """Ours: replication of the partitions, but for records and receipts, which are events of their own."""

    CHOICE: ClassVar[Choice] = Choice(0, (
        (0, "prepare", PartitionPrepare),
        (1, "promise", PartitionPromise),
        (2, "stale", PartitionStale),
        (3, "pull", PartitionPull),
        (5, "image", PartitionImage),
        (7, "keepalive", PartitionKeepalive),
        (8, "decline", PartitionDecline),
        (9, "yield", PartitionYield),
    ))
    choice: str = ""
    value: Any = None
