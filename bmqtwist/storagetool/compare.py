"""`bmq storage compare`: compares the copies of partitions at two nodes, record by record, paired by PSN.

Replicas hold the same records at the same offsets, so a difference is damage or an error. An earlier end of one copy is no
difference, nor are records that a rollover of one copy omitted. At a rollover each node writes a sync point of its own
after the copied records, with its own time and the primary that it knows, and with the PSN of the record before. Time and
node of these sync points may differ; if the copies did not roll over at the same record, they are skipped. Called by
`cli/storage.py`; damage within one copy is found by `verify.py`, a running broker's copies are compared by
`view/storage_files.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bmqtwist.storage.journal import Entry, JournalScan
from bmqtwist.storage.layout import RECORD_HEADER
from bmqtwist.storage.ledger_file import LedgerContents
from bmqtwist.storage.psn import Psn
from bmqtwist.storage.records import SEQUENCE_MASK, read_queue_record
from bmqtwist.storage.recovery import join_limited
from bmqtwist.storagetool.datafile import DataError, DataFile
from bmqtwist.storagetool.inputs import InputError, OnRead, SetFiles, SetView, file_sets, ledger_files, open_ledger
from bmqtwist.storagetool.journalview import JOURNAL_OP, MESSAGE, JournalRecord, hex_key
from bmqtwist.storagetool.ledgerview import plain, queues_of
from bmqtwist.storagetool.verify import ERROR, NOTE, FileFinding

LISTED_MAX = 20  # differences of one kind that are listed
_OFFSETS = frozenset({"offset", "data_dwords", "qlist_words"})  # differ if only one side was rolled over
_OWN_FIELDS = frozenset({"wall", "node"})  # of the sync point that each node writes after the copied records
_NAMES = {"wall": "timestamp", "guid": "GUID", "crc": "CRC", "data_dwords": "DATA offset in dwords",
          "qlist_words": "QLIST offset in words"}
_END = (1 << 64, 0)  # above every PSN


class _Side:
    """One copy, read forward. `beyond_end`: number of records after the end of the other copy; `unmatched`: records that
    the other copy lacks before its end."""

    def __init__(self, files: SetView, name: str) -> None:
        self.files, self.name = files, name
        journal, data, _ = files.lengths()
        self.scan = JournalScan(files.read_journal, journal)
        self.data = DataFile(files.read_data, data)
        self._entries: Iterator[Entry] = iter(self.scan)
        self.entry: Entry | None = None
        self.area_end = self.last = (0, 0)
        if self.scan.marked:
            header = RECORD_HEADER.parse(files.read_journal(self.scan.area_end, RECORD_HEADER.size))
            self.area_end = header.lease, header.sequence
        self.beyond_end, self.unmatched = 0, list[str]()

    @property
    def is_at_mark(self) -> bool:
        """True if the present record is the sync point after the copied records."""
        return self.scan.marked and self.entry is not None and self.entry[0] == self.scan.mark

    @property
    def psn(self) -> Psn:
        """PSN of the present record; above all at the end."""
        return (self.entry[2], self.entry[1] & SEQUENCE_MASK) if self.entry is not None else _END

    def advance(self, same_layout: bool) -> None:
        if self.entry is not None:
            self.last = self.psn
        self.entry = next(self._entries, None)
        if self.is_at_mark and not same_layout:
            self.entry = next(self._entries, None)


def compare_sets(left: SetView, right: SetView, names: tuple[str, str]) -> list[FileFinding]:
    """Return all findings about two file sets of one partition; `names`: of the two sides."""
    return _Comparison(_Side(left, names[0]), _Side(right, names[1])).run()


class _Comparison:
    """Comparison of two copies of one partition, read in step by PSN."""

    def __init__(self, left: _Side, right: _Side) -> None:
        self.left, self.right = left, right
        self.same_layout = left.area_end == right.area_end
        self.differences: list[str] = []
        self.omitted = self.compared = 0

    def run(self) -> list[FileFinding]:
        left, right = self.left, self.right
        present: tuple[_Side, ...] = left, right
        while True:
            for side in present:
                side.advance(self.same_layout)
            psn = min(left.psn, right.psn)
            if psn == _END:
                return self._findings()
            present = tuple(side for side in (left, right) if side.psn == psn)
            if len(present) == 2:
                self._compare_pair(left, right)
            else:
                self._add_unpaired(present[0], right if present[0] is left else left)

    def _add_unpaired(self, side: _Side, other: _Side) -> None:
        if other.entry is None:
            side.beyond_end += 1
        elif side.psn <= other.area_end:
            self.omitted += 1
        else:
            side.unmatched.append(_text(side.psn))

    def _compare_pair(self, left: _Side, right: _Side) -> None:
        assert left.entry is not None and right.entry is not None
        self.compared += 1
        one, two = JournalRecord(left.entry), JournalRecord(right.entry)
        both_own = left.is_at_mark and right.is_at_mark
        changed = _changes(one, two, _OWN_FIELDS if both_own else frozenset() if self.same_layout else _OFFSETS)
        if changed and (self.same_layout or one.type != JOURNAL_OP):
            self.differences.append(f"{one.type_name} {_text(one.psn)} differs in {', '.join(changed)}")
        elif one.type == two.type == MESSAGE:
            self._compare_data(one, two)
        elif one.is_listed and two.is_listed and one.qlist_words:
            entries = [read_queue_record(side.files.read_qlist, record.qlist_words * 4)
                      for side, record in ((left, one), (right, two))]
            if entries[0] != entries[1]:
                self.differences.append(f"the QLIST records of {_text(one.psn)} differ")

    def _compare_data(self, one: JournalRecord, two: JournalRecord) -> None:
        found = []
        for side, record in ((self.left, one), (self.right, two)):
            if not side.data.size:
                return  # `verify` reports it
            try:
                data = side.data.record(record.data_dwords * 8)
                found.append((data.flags, data.schema_wire_id, data.options, data.data))
            except DataError as error:
                self.differences.append(f"message {hex_key(one.guid)} ({_text(one.psn)}) in {side.name}: {error}")
                return
        if found[0] != found[1]:
            self.differences.append(f"the data of message {hex_key(one.guid)} ({_text(one.psn)}) differ")

    def _findings(self) -> list[FileFinding]:
        found = [FileFinding(ERROR, text) for text in self.differences[:LISTED_MAX]]
        if len(self.differences) > LISTED_MAX:
            found.append(FileFinding(ERROR, f"and {len(self.differences) - LISTED_MAX} more records differ"))
        for side in (self.left, self.right):
            if side.unmatched:
                found.append(FileFinding(ERROR, f"{len(side.unmatched)} record(s) only in {side.name}:"
                                         f" {join_limited(side.unmatched, LISTED_MAX)}"))
        for side, other in ((self.left, self.right), (self.right, self.left)):
            if side.beyond_end:
                found.append(FileFinding(NOTE, f"{other.name} ends at {_text(other.last)}, {side.name} has"
                                         f" {side.beyond_end} more record(s), up to {_text(side.last)}"))
        if self.omitted:
            found.append(FileFinding(NOTE, f"{self.omitted} record(s) were omitted by a rollover on one side only"))
        for side in (self.left, self.right):
            if side.scan.damaged:
                found.append(FileFinding(NOTE, f"the journal in {side.name} is damaged: run bmq storage verify for details"))
        found.append(FileFinding(NOTE, f"{self.compared} record(s) are in both copies"))
        return found


def _text(psn: Psn) -> str:
    return f"{psn[0]}-{psn[1]}"


def _changes(one: JournalRecord, two: JournalRecord, may_differ: frozenset[str]) -> list[str]:
    """Return the names of the attributes in which two records differ, with both values."""
    if one.type != two.type:
        return [f"type ({one.type_name}, {two.type_name})"]
    skipped = {"lease", "sequence"} | may_differ
    return [f"{_NAMES.get(name, name.replace('_', ' '))} ({_shown(getattr(one, name))}, {_shown(getattr(two, name))})"
            for name in sorted(JournalRecord.__slots__)
            if name not in skipped and getattr(one, name, None) != getattr(two, name, None)]


def _shown(value: object) -> str:
    return value.hex().upper() if isinstance(value, bytes) else str(value)


def compare_ledgers(left: LedgerContents, right: LedgerContents, names: tuple[str, str]) -> list[FileFinding]:
    """Return all findings about two ledgers: records with the same LSN must be equal."""
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
            named = ", ".join(f"{kind.upper()} {_text(lsn)}" for lsn, kind in missing[:LISTED_MAX])
            snapshots = [lsn for lsn, kind in sides[other] if kind == "snapshot"]
            caught_up = missing[-1][0] < max(snapshots, default=(0, 0))
            result.append(FileFinding(NOTE if caught_up else ERROR,
                                  f"{len(missing)} record(s) only in {names[mine]}: {named}"
                                      + ("; a later snapshot covers them" if caught_up else "")))
    if ends[0] != ends[1]:
        shorter = 0 if ends[0] < ends[1] else 1
        result.append(FileFinding(NOTE, f"{names[shorter]} ends at {_text(ends[shorter])}, {names[1 - shorter]} at"
                                    f" {_text(ends[1 - shorter])}"))
        return result
    states = [{queue.key: queue.info() for queue in queues_of(each.entries).values() if not queue.removed}
              for each in (left, right)]
    result += [FileFinding(ERROR, f"queue {(states[0].get(key) or states[1][key]).uri} differs between the two sides")
               for key in sorted({*states[0], *states[1]}) if states[0].get(key) != states[1].get(key)]
    return result


def compare(left: str, right: str, on_read: OnRead | None) -> list[FileFinding]:
    """Return all findings about the storage directories of two nodes."""
    findings: list[FileFinding] = []
    sets = [_current_sets(directory) for directory in (left, right)]
    for partition_id in sorted({*sets[0], *sets[1]}):
        pair = [each.get(partition_id) for each in sets]
        name = f"partition {partition_id}"
        if pair[0] is None or pair[1] is None:
            findings.append(FileFinding(ERROR, f"only in {left if pair[0] else right}", name))
            continue
        with ExitStack() as stack:
            views = [SetView(each, stack, on_read) for each in pair if each is not None]
            findings += [finding._replace(where=name) for finding in compare_sets(views[0], views[1], (left, right))]
    ledgers = [ledger_files(directory)[-1:] for directory in (left, right)]
    if ledgers[0] and ledgers[1]:
        read = [open_ledger(each[0], on_read) for each in ledgers]
        findings += [each._replace(where="ledger") for each in compare_ledgers(read[0], read[1], (left, right))]
    elif ledgers[0] or ledgers[1]:
        findings.append(FileFinding(NOTE, f"only in {left if ledgers[0] else right}", "ledger"))
    if not sets[0] and not sets[1] and not ledgers[0] and not ledgers[1]:
        raise InputError(f"neither {left} nor {right} holds storage files")
    return findings


def _current_sets(directory: str) -> dict[int, SetFiles]:
    """Return the set of each partition that a broker would use: the one with the highest PSN."""
    found: dict[int, tuple[tuple[int, int, bool], SetFiles]] = {}
    for each in file_sets(directory):
        if not each.journal:
            continue
        with ExitStack() as stack:
            view = SetView(SetFiles(journal=each.journal), stack)
            scan = JournalScan(view.read_journal, view.lengths()[0])
            for _ in scan:
                pass
        reach = scan.lease, scan.sequence, scan.marked
        if each.partition_id not in found or found[each.partition_id][0] <= reach:
            found[each.partition_id] = reach, each
    return {partition_id: each for partition_id, (_, each) in found.items()}
