"""Records of the metadata ledger as the tool shows them, and which queues they tell of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from bmqtwist.storage.ledger_format import LedgerContents, read_ledger
from bmqtwist.storagetool.selection import RecordRange
from bmqtwist.wire import layout
from bmqtwist.wire.cluster_events import CLUSTER_STATE_HEADER_BYTES, ClusterStateRecord, LedgerRecordType
from bmqtwist.wire.cluster_schema import (
    AppIdInfo,
    LeaderAdvisory,
    QueueAssignmentAdvisory,
    QueueInfo,
    QueueUnAssignmentAdvisory,
    QueueUpdateAdvisory,
)
from bmqtwist.wire.fields import fields_of

TYPES = ("snapshot", "update", "commit", "ack")


@dataclass(slots=True)
class LedgerEntry:
    """A record with its place: offset in bytes, sizes in words."""

    offset: int
    header_words: int
    advisory_words: int
    record: ClusterStateRecord

    @property
    def lsn(self) -> tuple[int, int]:
        """(elector term, sequence number)."""
        return self.record.term, self.record.sequence_number

    @property
    def type_name(self) -> str:
        """snapshot, update, commit, ack."""
        return self.record.type.name.lower()


@dataclass(slots=True)
class Ledger:
    """A ledger file, read. `tail_zeros`: bytes of zeros behind the last record: a live file, or one left by a crash."""

    contents: LedgerContents
    entries: list[LedgerEntry]
    tail_zeros: int = 0

    @property
    def log_id(self) -> str:
        """Ten hexadecimal digits."""
        return self.contents.log_id.hex().upper()


@dataclass(slots=True)
class LedgerQueue:
    """A queue of the ledger; `apps`: appId -> key, as they are in the end. `removed`: it was unassigned later."""

    uri: str
    key: bytes
    partition_id: int
    apps: dict[str, bytes] = field(default_factory=dict)
    removed: bool = False

    def info(self) -> QueueInfo:
        """As it stands in advisories."""
        apps = [AppIdInfo(app_id, key) for app_id, key in self.apps.items()]
        return QueueInfo(self.uri, self.key, self.partition_id, apps)


def open_ledger(data: bytes) -> Ledger:
    """Read a whole file."""
    contents = read_ledger(data)
    entries = []
    for offset, record in contents.records:
        header = layout.CLUSTER_STATE_HEADER.parse(data[offset:offset + CLUSTER_STATE_HEADER_BYTES])
        entries.append(LedgerEntry(offset, header.header_words, header.body_words, record))
    tail = data[contents.end:]
    return Ledger(contents, entries, len(tail) if tail and not any(tail) else 0)


def since_last_snapshot(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """What counts at a start: the last snapshot and everything behind it; everything if there is none."""
    for position in range(len(entries) - 1, -1, -1):
        if entries[position].record.type is LedgerRecordType.SNAPSHOT:
            return entries[position:]
    return entries


def queues_of(entries: list[LedgerEntry]) -> dict[bytes, LedgerQueue]:
    """Every queue the records tell of, by key, in order of appearance."""
    found: dict[bytes, LedgerQueue] = {}
    for entry in entries:
        value = entry.record.message.value
        if isinstance(value, LeaderAdvisory):
            listed = {queue.key for queue in value.queues}
            for queue in found.values():
                queue.removed = queue.key not in listed
        if isinstance(value, LeaderAdvisory | QueueAssignmentAdvisory):
            for info in value.queues:
                found[info.key] = LedgerQueue(info.uri, info.key, info.partition_id,
                                             {app.app_id: app.app_key for app in info.app_ids})
        elif isinstance(value, QueueUnAssignmentAdvisory):
            for info in value.queues:
                if info.key in found:
                    found[info.key].removed = True
        elif isinstance(value, QueueUpdateAdvisory):
            for update in value.queue_updates:
                if update.key in found:
                    apps = found[update.key].apps
                    for app in update.removed_app_ids:
                        apps.pop(app.app_id, None)
                    apps.update({app.app_id: app.app_key for app in update.added_app_ids})
    return found


def keys_in(record: ClusterStateRecord) -> set[bytes]:
    """Keys of the queues a record speaks of."""
    value = record.message.value
    return {each.key for each in [*getattr(value, "queues", ()), *getattr(value, "queue_updates", ())]}


def plain(value: Any) -> Any:
    """A message as JSON holds it: keys in hexadecimal digits, empty arrays left out."""
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str | int):
        return value
    parts = {each.wire_name: getattr(value, each.attribute) for each in fields_of(value.__class__)}
    tree = {name: plain(part) for name, part in parts.items() if part != [] and part is not None}
    choice = getattr(value, "choice", "")
    return {**tree, choice: plain(value.value)} if choice else tree


def outline(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[int, str]]:
    """A message as indented lines: (depth, text)."""
    head = f"{name} = " if name else ""
    if isinstance(value, bytes):
        yield depth, f"{head}[ {value.hex().upper()} ]"
    elif isinstance(value, str):
        yield depth, f'{head}"{value}"'
    elif isinstance(value, list) or is_dataclass(value):  # a message, a choice in it, or an array
        yield depth, f"{head}["
        for part_name, part in _parts(value):
            yield from outline(part, part_name, depth + 1)
        yield depth, "]"
    else:
        yield depth, f"{head}{value}"


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [("", each) for each in value]
    if isinstance(value, _Chosen):
        return [(value.name, value.value)]
    named = [(each.wire_name, getattr(value, each.attribute)) for each in fields_of(value.__class__)]
    parts = [(name, part) for name, part in named if part is not None]
    choice = getattr(value, "choice", "")
    return [*parts, ("choice", _Chosen(choice, value.value))] if choice else parts


@dataclass(slots=True)
class _Chosen:
    """The member of a choice, named."""

    name: str
    value: Any


@dataclass(slots=True)
class LedgerSelection:
    """Which records of a ledger are wanted. Offsets and LSNs are exact and exclude everything else."""

    types: frozenset[str] = frozenset(TYPES)
    keys: frozenset[bytes] = frozenset()
    offsets: tuple[int, ...] = ()
    lsns: tuple[tuple[int, int], ...] = ()
    range: RecordRange = field(default_factory=RecordRange)

    def wants(self, entry: LedgerEntry) -> bool:
        """Is this record wanted?"""
        if self.offsets or self.lsns:
            return entry.offset in self.offsets or entry.lsn in self.lsns
        if entry.type_name not in self.types or self.keys and not self.keys & keys_in(entry.record):
            return False
        return self.range.holds(entry.record.timestamp, entry.offset, entry.lsn)


def count_types(entries: list[LedgerEntry]) -> tuple[Counter[str], Counter[str]]:
    """Records by type; UPDATEs by the name of their advisory."""
    return (Counter(entry.type_name for entry in entries),
            Counter(entry.record.message.choice for entry in entries if entry.record.type is LedgerRecordType.UPDATE))
