"""`bmq storage ledger`: selects and prints records of the metadata ledger, and the queues in them.

Called by `cli/storage.py`; `cli/tail.py` and the Spark readers find the names of queues with `queues_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.storage.ledger_file import LedgerContents, LedgerEntry
from bmqtwist.storagetool.journalview import Fields, hex_key, timestamp
from bmqtwist.storagetool.output import ToolOutput, aligned, texts
from bmqtwist.storagetool.selection import RecordSelection
from bmqtwist.wire.cluster_schema import (
    AppIdInfo,
    ClusterStateRecord,
    LeaderAdvisory,
    LedgerRecordType,
    QueueAssignmentAdvisory,
    QueueInfo,
    QueueUnAssignmentAdvisory,
    QueueUpdateAdvisory,
)
from bmqtwist.wire.fields import fields_of

TYPES = ("snapshot", "update", "commit", "ack")
_DELIMITER = "=" * 27  # followed by one for each letter of the record's type
_KEY_DEPTH = -2  # of the lines of keys in `outline`
_COLUMN = 21
_UPDATES = ("partitionPrimaryAdvisory", "queueUnAssignmentAdvisory", "queueUpdateAdvisory", "queueAssignmentAdvisory",
            "leaderAdvisory")  # in the order of the output


@dataclass(slots=True)
class LedgerQueue:
    """A queue of the ledger. `apps`: present appId -> key. `removed`: the queue was unassigned."""

    uri: str
    key: bytes
    partition_id: int
    apps: dict[str, bytes] = field(default_factory=dict)
    removed: bool = False

    def info(self) -> QueueInfo:
        """Return the queue as advisories encode it."""
        return QueueInfo(self.uri, self.key, self.partition_id, [AppIdInfo(*app) for app in self.apps.items()])


def since_last_snapshot(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries that a starting broker uses: from the last snapshot on, or all if there is none."""
    for position in range(len(entries) - 1, -1, -1):
        if entries[position].record.type is LedgerRecordType.SNAPSHOT:
            return entries[position:]
    return entries


def queues_of(entries: list[LedgerEntry]) -> dict[bytes, LedgerQueue]:
    """Return every queue of the records by key, in order of appearance."""
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
                                             dict(info.app_ids))
        elif isinstance(value, QueueUnAssignmentAdvisory):
            for info in value.queues:
                if info.key in found:
                    found[info.key].removed = True
        elif isinstance(value, QueueUpdateAdvisory):
            for update in value.queue_updates:
                if update.key in found:
                    apps = found[update.key].apps
                    for app_id, _ in update.removed_app_ids:
                        apps.pop(app_id, None)
                    apps.update(update.added_app_ids)
    return found


def keys_in(record: ClusterStateRecord) -> set[bytes]:
    """Return the keys of the queues in a record."""
    value = record.message.value
    return {each.key for each in [*getattr(value, "queues", ()), *getattr(value, "queue_updates", ())]}


def plain(value: Any) -> Any:
    """Convert a message to JSON values: keys in hexadecimal digits, empty arrays omitted."""
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str | int):
        return value
    tree = {name: plain(part) for name, part in _members(value) if part != []}
    choice = getattr(value, "choice", "")
    return {**tree, choice: plain(value.value)} if choice else tree


def outline(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[int, str]]:
    """Format a message as indented lines: (depth, text). Keys have no indentation, as in the original."""
    head = f"{name} = " if name else ""
    if isinstance(value, bytes):
        yield _KEY_DEPTH, f"{head}[ {value.hex().upper()} ]"
    elif isinstance(value, str):
        yield depth, f'{head}"{value}"'
    elif isinstance(value, int):
        yield depth, f"{head}{value}"
    else:
        yield depth, f"{head}["
        for part_name, part in [("", each) for each in value] if isinstance(value, list) else _members(value):
            yield from outline(part, part_name, depth + 1)
        if choice := getattr(value, "choice", ""):
            yield depth + 1, "choice = ["
            yield from outline(value.value, choice, depth + 2)
            yield depth + 1, "]"
        yield depth, "]"


def _members(value: Any) -> list[tuple[str, Any]]:
    """Return the present members of a message, without its choice."""
    named = [(each.wire_name, getattr(value, each.attribute)) for each in fields_of(value.__class__)]
    return [(name, part) for name, part in named if part is not None]


def wants(selection: RecordSelection, entry: LedgerEntry) -> bool:
    """Return whether a record is selected; the selection holds types of ledger records, and LSNs instead of PSNs."""
    if selection.exact_records:
        return entry.offset in selection.offsets or entry.lsn in selection.seqnums
    if entry.type_name not in selection.types or selection.queue_keys and not selection.queue_keys & keys_in(entry.record):
        return False
    return selection.range.contains(entry.record.timestamp, entry.offset, entry.lsn)


def count_types(entries: list[LedgerEntry]) -> tuple[Counter[str], Counter[str]]:
    """Count records by type, and UPDATEs by the name of their advisory."""
    return (Counter(entry.type_name for entry in entries),
            Counter(entry.record.message.choice for entry in entries if entry.record.type is LedgerRecordType.UPDATE))


@dataclass(slots=True)
class LedgerPrinter:
    """Printer of the records, in short or in detail, or of their counts."""

    ledger: LedgerContents
    selection: RecordSelection
    from_begin: bool
    output: ToolOutput

    @property
    def _entries(self) -> list[LedgerEntry]:
        entries = self.ledger.entries
        return entries if self.from_begin or self.selection.exact_records else since_last_snapshot(entries)

    def print_records(self, details: bool) -> bool:
        """Print the selected records; False if an LSN or offset of the selection was not found."""
        selection, output = self.selection, self.output
        chosen = [entry for entry in self._entries if wants(selection, entry)]
        lsns = {entry.lsn for entry in chosen}
        missing = {"offset": [str(each) for each in selection.offsets if each not in {entry.offset for entry in chosen}],
                   "sequence number": [f"{lsn[0]}-{lsn[1]}" for lsn in selection.seqnums if lsn not in lsns]}
        types = count_types(chosen)[0]
        for entry in chosen:
            output.write_item(self._detailed_text(entry) if details else self._short_text(entry),
                              {**texts(self._fields(entry)), "Record": plain(entry.record.message)})
        for kind in TYPES:
            if kind in selection.types:
                output.write_members(f"{types[kind] or 'No'} {kind} record(s) found.\n",
                                     {f"{kind.capitalize()}Records": str(types[kind])})
        for what, asked in (("offset", selection.offsets), ("sequence number", selection.seqnums)):
            if asked:
                output.write_missing(what, missing[what])
        output.finish()
        return not any(missing.values())

    def _fields(self, entry: LedgerEntry) -> Fields:
        record = entry.record
        return [("RecordType", record.type.name), ("Offset", entry.offset), ("LogId", hex_key(self.ledger.log_id)),
                ("ElectorTerm", record.term), ("SequenceNumber", record.sequence_number),
                ("HeaderWords", entry.header_words), ("LeaderAdvisoryWords", entry.advisory_words),
                ("Timestamp", timestamp(record.timestamp)), ("Epoch", record.timestamp)]

    def _short_text(self, entry: LedgerEntry) -> str:
        record = entry.record
        return (f"[ recordType = {record.type.name} electorTerm = {record.term} sequenceNumber = "
                f"{record.sequence_number} timestamp = {record.timestamp} ][ logId = {hex_key(self.ledger.log_id)} "
                f"offset = {entry.offset} ]\n")

    def _detailed_text(self, entry: LedgerEntry) -> str:
        body = [f"{'  ' * (depth - _KEY_DEPTH)}{text}" for depth, text in outline(entry.record.message)]
        return (f"{_DELIMITER}{'=' * len(entry.record.type.name)}\n\n" + aligned(self._fields(entry), _COLUMN)
                + f"    {'Record':<{_COLUMN}}: " + "\n".join(body) + "\n\n")

    def print_summary(self, limit: int) -> None:
        """Print the number of records of each type, and the present and the removed queues."""
        entries = self._entries
        types, updates = count_types(entries)
        choices: Fields = [(name, updates[name]) for name in _UPDATES if updates[name]]
        present, removed = ([queue for queue in queues_of(entries).values() if queue.removed is gone]
                            for gone in (False, True))
        text, counts = "", dict[str, str]()
        for kind in TYPES:
            named = choices if kind == "update" else []
            text += f"\n{types[kind] or 'No'} {kind} record(s) found{', including:' if named else '.'}\n"
            text += aligned(named) if named else ""
            counts |= {f"{kind.capitalize()}Records": str(types[kind]), **texts(named)}
        self.output.write_members(text, {"Summary": counts})
        self._print_queues("Queues", f"First{limit}Queues" if len(present) > limit else "Queues", present, limit)
        if removed:
            self._print_queues("unassigned Queues", "UnassignedQueues", removed, limit)
        self.output.finish()

    def _print_queues(self, title: str, member: str, queues: list[LedgerQueue], limit: int) -> None:
        infos = [queue.info() for queue in queues[:limit]]
        lines = [f"\n{len(queues)} {title} found:"] if queues else []
        if len(queues) > limit:
            lines.append(f"Only first {limit} queues are displayed.")
        lines += [" ".join(f" {text}" if text.startswith("key") else text for _, text in outline(info)) for info in infos]
        self.output.write_members("".join(f"{line}\n" for line in lines), {member: [plain(info) for info in infos]})
