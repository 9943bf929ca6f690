"""`bmq storage verify` and `bmq storage compare`: whole directories."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from bmqtwist.storage.journal import JournalScan
from bmqtwist.storagetool.compare import compare_ledgers, compare_sets
from bmqtwist.storagetool.inputs import (
    InputError,
    ReadOnlyFile,
    SetFiles,
    Watch,
    file_sets,
    ledger_files,
)
from bmqtwist.storagetool.ledgerview import Ledger, LedgerQueue, open_ledger, queues_of
from bmqtwist.storagetool.setview import ERROR, NOTE, WARNING, FileFinding, JournalSnapshot, ReadableFile, SetView
from bmqtwist.storagetool.verify import verify_set
from bmqtwist.storagetool.verifyledger import leases_of, verify_ledger

Say = Callable[[str], None]


@dataclass(slots=True)
class Target:
    """What is verified together: file sets and at most one ledger. `whole`: a directory; nothing may be missing."""

    name: str
    sets: list[SetFiles]
    ledger: str = ""
    whole: bool = False
    older_ledgers: list[str] = field(default_factory=list)

    def paths(self) -> Iterable[str]:
        """All files."""
        for each in self.sets:
            yield from (path for path in (each.journal, each.data, each.qlist) if path)
        if self.ledger:
            yield self.ledger


@dataclass(frozen=True, slots=True)
class Told:
    """A finding with the file set, file or directory it is about."""

    where: str
    finding: FileFinding


def directory_target(directory: str) -> Target:
    """Everything in a directory."""
    ledgers = ledger_files(directory)
    return Target(directory, file_sets(directory), ledgers[-1] if ledgers else "", True, ledgers[:-1])


def verify(target: Target, with_ledger: bool, watch: Watch | None) -> list[Told]:
    """All findings about a target."""
    with ExitStack() as stack:
        views = [(each, open_set(each, stack, watch)) for each in target.sets]  # journals first: see Snapshot
        return _verify(target, views, with_ledger, watch)


def _verify(target: Target, views: list[tuple[SetFiles, SetView]], with_ledger: bool, watch: Watch | None) -> list[Told]:
    told: list[Told] = []
    ledger = None
    if target.ledger and with_ledger:
        ledger = read_ledger(target.ledger, watch)
        name = os.path.basename(target.ledger)
        told += [Told(name, finding) for finding in verify_ledger(ledger, name)]
    elif target.whole and with_ledger:
        told.append(Told(target.name, FileFinding(WARNING, "there is no cluster state ledger (.bmq_csl)")))
    told += [Told(os.path.basename(path), FileFinding(NOTE, "an older ledger: not looked at"))
             for path in target.older_ledgers]
    queues = queues_of(ledger.entries) if ledger else {}
    leases = leases_of(ledger) if ledger else {}
    for each, view in views:
        told += _verify_one(each, view, queues, ledger, leases)
    told += _missing_sets(target, queues)
    return told


def _verify_one(each: SetFiles, view: SetView, queues: dict[bytes, LedgerQueue], ledger: Ledger | None,
                leases: dict[int, int]) -> list[Told]:
    name = f"bmq_{each.partition_id}.{each.stamp}" if each.stamp else os.path.basename(each.journal)
    number = each.partition_id if each.partition_id >= 0 else None
    known = None
    if number is not None and ledger is not None and ledger.entries:
        known = {key: queue for key, queue in queues.items()
                 if queue.partition_id == number and not queue.removed}
    findings, lease = verify_set(view, known, number)
    if number is not None and leases and lease > leases.get(number, 0):
        findings.append(FileFinding(ERROR, f"the journal has lease {lease}, the ledger knows of"
                                       f" {leases.get(number, 0)} at most"))
    return [Told(name, finding) for finding in findings]


def _missing_sets(target: Target, queues: dict[bytes, LedgerQueue]) -> list[Told]:
    if not target.whole:
        return []
    there = [each.partition_id for each in target.sets if each.journal]
    wanted = {queue.partition_id for queue in queues.values() if not queue.removed}
    told = [Told(target.name, FileFinding(ERROR, f"partition {number} has queues in the ledger, but no journal"))
            for number in sorted(wanted - set(there))]
    told += [Told(target.name, FileFinding(NOTE, f"partition {number} has several file sets: a rollover was interrupted"))
             for number in sorted({number for number in there if there.count(number) > 1})]
    return told


def open_set(each: SetFiles, stack: ExitStack, watch: Watch | None = None) -> SetView:
    """The files of a set, closed with `stack`; the journal as it is now."""
    files: list[ReadableFile | None] = []
    for path in (each.journal, each.data, each.qlist):
        file = ReadOnlyFile(path, watch) if path else None
        if file is not None:
            stack.callback(file.close)
        files.append(JournalSnapshot(file) if file is not None and path == each.journal else file)
    return SetView(*files)


def read_ledger(path: str, watch: Watch | None = None) -> Ledger:
    """A ledger file, read."""
    with closing(ReadOnlyFile(path, watch)) as file:
        return open_ledger(file.read_all())


def compare(left: str, right: str, watch: Watch | None) -> list[Told]:
    """All findings about two directories of two nodes."""
    told: list[Told] = []
    sets = [_current_sets(directory) for directory in (left, right)]
    for partition_id in sorted({*sets[0], *sets[1]}):
        pair = [each.get(partition_id) for each in sets]
        name = f"partition {partition_id}"
        if pair[0] is None or pair[1] is None:
            told.append(Told(name, FileFinding(ERROR, f"only in {left if pair[0] else right}")))
            continue
        with ExitStack() as stack:
            views = [open_set(each, stack, watch) for each in pair if each is not None]
            told += [Told(name, finding) for finding in compare_sets(views[0], views[1], (left, right))]
    ledgers = [ledger_files(directory)[-1:] for directory in (left, right)]
    if ledgers[0] and ledgers[1]:
        read = [read_ledger(each[0], watch) for each in ledgers]
        told += [Told("ledger", finding) for finding in compare_ledgers(read[0], read[1], (left, right))]
    elif ledgers[0] or ledgers[1]:
        told.append(Told("ledger", FileFinding(NOTE, f"only in {left if ledgers[0] else right}")))
    if not sets[0] and not sets[1] and not ledgers[0] and not ledgers[1]:
        raise InputError(f"neither {left} nor {right} holds storage files")
    return told


def _current_sets(directory: str) -> dict[int, SetFiles]:
    """By partition, the set a broker would use: the one that reaches furthest."""
    found: dict[int, tuple[tuple[int, int, bool], SetFiles]] = {}
    for each in file_sets(directory):
        if not each.journal:
            continue
        with ExitStack() as stack:
            view = open_set(SetFiles(each.partition_id, each.stamp, each.journal), stack)
            scan = JournalScan(view.read_journal, view.lengths()[0])
            for _ in scan:
                pass
        reach = scan.lease, scan.sequence, scan.marked
        if each.partition_id not in found or found[each.partition_id][0] <= reach:
            found[each.partition_id] = reach, each
    return {partition_id: each for partition_id, (_, each) in found.items()}


def print_findings(told: list[Told], as_json: str, say: Say, all_good: str) -> bool:
    """Print them, or the sentence `all_good`; True if none is worse than a note."""
    good = all(each.finding.severity == NOTE for each in told)
    if as_json:
        tree = {"Findings": [{"Severity": each.finding.severity, "Where": each.where, "Text": each.finding.text}
                             for each in told], "Good": good}
        say(json.dumps(tree, indent=2 if as_json == "pretty" else None, ensure_ascii=False))
        return good
    for each in told:
        say(f"{each.finding.severity}: {each.where}: {each.finding.text}")
    counts = {severity: sum(each.finding.severity == severity for each in told) for severity in (ERROR, WARNING)}
    say(all_good if good else f"{counts[ERROR]} error(s), {counts[WARNING]} warning(s).")
    return good
