"""`bmq storage compare`: two nodes' copies of a partition, record by record, told apart by PSN.

Replicas hold the same records at the same places, so what differs is damage or a mistake. That one copy ends earlier is
not a difference, and neither is what a rollover left out that only one of them has made. Where two copies were not rolled
over at the same record, the sync point that ends the copied records of each is no record of the log: it repeats the PSN of
the last one before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from bmqtwist.storage.journal import Entry, JournalScan
from bmqtwist.storage.layout import RECORD_HEADER
from bmqtwist.storage.records import QUEUE_RECORD_HEADER, QUEUE_RECORD_WORDS_MASK, SEQUENCE_MASK, QueueOp
from bmqtwist.storagetool.datafile import DataError, DataFile
from bmqtwist.storagetool.journalview import (
    JournalOpRecord,
    JournalRecord,
    MessageRecord,
    QueueOpRecord,
    view,
)
from bmqtwist.storagetool.ledgerview import Ledger, plain, queues_of
from bmqtwist.storagetool.setview import ERROR, NOTE, FileFinding, SetView

Psn = tuple[int, int]
LISTED_MAX = 20  # differences of one kind that are told one by one
_PLACES = frozenset({"data_dwords", "qlist_words"})  # differ if only one side was rolled over
_NAMES = {"wall": "timestamp", "guid": "GUID", "crc": "CRC", "data_dwords": "DATA offset in dwords",
          "qlist_words": "QLIST offset in words"}
_END = (1 << 64, 0)  # behind every PSN


class _Side:
    """One copy, read forward."""

    def __init__(self, files: SetView, name: str) -> None:
        self.files, self.name = files, name
        journal, data, _ = files.lengths()
        self.scan = JournalScan(files.read_journal, journal)
        self.data = DataFile(files.read_data, data)
        self._entries: Iterator[Entry] = iter(self.scan)
        self.entry: Entry | None = None
        self.area_end = self._psn_at(self.scan.area_end) if self.scan.marked else (0, 0)
        self.last: Psn = (0, 0)

    def _psn_at(self, offset: int) -> Psn:
        header = RECORD_HEADER.parse(self.files.read_journal(offset, RECORD_HEADER.size))
        return header.lease, header.sequence

    @property
    def psn(self) -> Psn:
        """Of the present record; behind everything at the end."""
        return (self.entry[2], self.entry[1] & SEQUENCE_MASK) if self.entry is not None else _END

    def advance(self, skipped: int | None) -> None:
        """To the next record; that at the offset `skipped` is none."""
        if self.entry is not None:
            self.last = self.psn
        self.entry = next(self._entries, None)
        if self.entry is not None and self.entry[0] == skipped:
            self.entry = next(self._entries, None)

    def qlist_record(self, record: QueueOpRecord) -> bytes:
        """The QLIST record of a CREATION or ADDITION."""
        offset = record.qlist_words * 4
        head = self.files.read_qlist(offset, QUEUE_RECORD_HEADER.size)
        if len(head) < QUEUE_RECORD_HEADER.size:
            return b""
        return self.files.read_qlist(offset, (QUEUE_RECORD_HEADER.unpack(head)[2] & QUEUE_RECORD_WORDS_MASK) << 2)


def compare_sets(left: SetView, right: SetView, names: tuple[str, str]) -> list[FileFinding]:
    """All findings about two file sets of one partition; `names`: what the sides are called."""
    return _Comparison(_Side(left, names[0]), _Side(right, names[1])).run()


class _Comparison:
    """Both sides side by side."""

    def __init__(self, left: _Side, right: _Side) -> None:
        self.left, self.right = left, right
        self.same_layout = left.area_end == right.area_end
        self.differences: list[str] = []
        self.only: dict[str, list[str]] = {left.name: [], right.name: []}
        self.beyond: dict[str, int] = {left.name: 0, right.name: 0}
        self.left_out = self.compared = 0

    def run(self) -> list[FileFinding]:
        """Read to the end of both."""
        left, right = self.left, self.right
        self._advance(left)
        self._advance(right)
        while left.entry is not None or right.entry is not None:
            if left.psn == right.psn:
                self._both(left, right)
                self._advance(left)
                self._advance(right)
            elif left.psn < right.psn:
                self._one(left, right)
                self._advance(left)
            else:
                self._one(right, left)
                self._advance(right)
        return self._findings()

    def _advance(self, side: _Side) -> None:
        side.advance(side.scan.mark if side.scan.marked and not self.same_layout else None)

    def _one(self, side: _Side, other: _Side) -> None:
        if other.entry is None:
            self.beyond[side.name] += 1
        elif side.psn <= other.area_end:
            self.left_out += 1
        else:
            self.only[side.name].append(_text(side.psn))

    def _both(self, left: _Side, right: _Side) -> None:
        assert left.entry is not None and right.entry is not None
        self.compared += 1
        one, two = view(left.entry), view(right.entry)
        changed = _changes(one, two, self.same_layout)
        if changed and not (isinstance(one, JournalOpRecord) and not self.same_layout):
            self.differences.append(f"{one.type_name} {_text(one.psn)} differs in {', '.join(changed)}")
        elif isinstance(one, MessageRecord) and isinstance(two, MessageRecord):
            self._data(one, two)
        elif (isinstance(one, QueueOpRecord) and isinstance(two, QueueOpRecord) and one.qlist_words
              and one.op in (QueueOp.CREATION, QueueOp.ADDITION)
              and left.qlist_record(one) != right.qlist_record(two)):
            self.differences.append(f"the QLIST records of {_text(one.psn)} differ")

    def _data(self, one: MessageRecord, two: MessageRecord) -> None:
        found = []
        for side, record in ((self.left, one), (self.right, two)):
            if not side.data.size:
                return  # told by verify
            try:
                data = side.data.record(record.data_dwords * 8)
                found.append((data.flags, data.schema_wire_id, data.options, data.data))
            except DataError as error:
                self.differences.append(f"message {one.guid.hex().upper()} ({_text(one.psn)}) in {side.name}: {error}")
                return
        if found[0] != found[1]:
            self.differences.append(f"the data of message {one.guid.hex().upper()} ({_text(one.psn)}) differ")

    def _findings(self) -> list[FileFinding]:
        found = [FileFinding(ERROR, text) for text in self.differences[:LISTED_MAX]]
        if len(self.differences) > LISTED_MAX:
            found.append(FileFinding(ERROR, f"and {len(self.differences) - LISTED_MAX} more records differ"))
        for name, psns in self.only.items():
            if psns:
                more = f" and {len(psns) - LISTED_MAX} more" if len(psns) > LISTED_MAX else ""
                listed = ", ".join(psns[:LISTED_MAX])
                found.append(FileFinding(ERROR, f"{len(psns)} record(s) only in {name}: {listed}{more}"))
        for side, other in ((self.left, self.right), (self.right, self.left)):
            if self.beyond[side.name]:
                found.append(FileFinding(NOTE, f"{other.name} ends at {_text(other.last)}, {side.name} goes on for"
                                           f" {self.beyond[side.name]} record(s) to {_text(side.last)}"))
        if self.left_out:
            found.append(FileFinding(NOTE, f"{self.left_out} record(s) were left out by a rollover on one side only"))
        for side in (self.left, self.right):
            if side.scan.damaged:
                found.append(FileFinding(NOTE, f"the journal in {side.name} is damaged: bmq storage verify tells more"))
        found.append(FileFinding(NOTE, f"{self.compared} record(s) are in both"))
        return found


def _text(psn: Psn) -> str:
    return f"{psn[0]}-{psn[1]}"


def _changes(one: JournalRecord, two: JournalRecord, same_layout: bool) -> list[str]:
    """Names of the attributes in which two records differ. Offsets count only if the layouts are the same."""
    if type(one) is not type(two) or one.type != two.type:
        return [f"type ({one.type_name}, {two.type_name})"]
    names = [name for cls in type(one).__mro__ for name in getattr(cls, "__slots__", ())]
    skipped = {"lease", "sequence"} if same_layout else {"lease", "sequence", "offset"} | _PLACES
    return [f"{_NAMES.get(name, name.replace('_', ' '))} ({_shown(getattr(one, name))}, {_shown(getattr(two, name))})"
            for name in sorted(names) if name not in skipped and getattr(one, name) != getattr(two, name)]


def _shown(value: object) -> str:
    return value.hex().upper() if isinstance(value, bytes) else str(value)


def compare_ledgers(left: Ledger, right: Ledger, names: tuple[str, str]) -> list[FileFinding]:
    """All findings about two ledgers: records of one LSN must say the same."""
    sides = [{(entry.lsn, entry.type_name): entry for entry in each.entries} for each in (left, right)]
    found = []
    for key in sides[0].keys() & sides[1].keys():
        if plain(sides[0][key].record.message) != plain(sides[1][key].record.message):
            found.append((key, FileFinding(ERROR, f"{key[1].upper()} {_text(key[0])} differs")))
    result = [finding for _, finding in sorted(found, key=lambda each: each[0])]
    ends = [max((entry.lsn for entry in each.entries), default=(0, 0)) for each in (left, right)]
    begins = [min((entry.lsn for entry in each.entries), default=_END) for each in (left, right)]
    for mine, other in ((0, 1), (1, 0)):
        missing = sorted(key for key in sides[mine].keys() - sides[other].keys()
                         if begins[other] < key[0] < ends[other])
        if missing:
            listed = ", ".join(f"{kind.upper()} {_text(lsn)}" for lsn, kind in missing[:LISTED_MAX])
            snapshots = [lsn for lsn, kind in sides[other] if kind == "snapshot"]
            caught_up = missing[-1][0] < max(snapshots, default=(0, 0))
            result.append(FileFinding(NOTE if caught_up else ERROR,
                                  f"{len(missing)} record(s) only in {names[mine]}: {listed}"
                                  + ("; a later snapshot made up for them" if caught_up else "")))
    if ends[0] != ends[1]:
        behind = 0 if ends[0] < ends[1] else 1
        result.append(FileFinding(NOTE, f"{names[behind]} ends at {_text(ends[behind])}, {names[1 - behind]} at"
                                    f" {_text(ends[1 - behind])}"))
        return result
    states = [{queue.key: queue.info() for queue in queues_of(each.entries).values() if not queue.removed}
              for each in (left, right)]
    result += [FileFinding(ERROR, f"queue {(states[0].get(key) or states[1][key]).uri} is not the same on both sides")
               for key in sorted({*states[0], *states[1]}) if states[0].get(key) != states[1].get(key)]
    return result
