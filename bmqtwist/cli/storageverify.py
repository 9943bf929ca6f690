"""`bmq storage verify` and `bmq storage compare`: whole directories."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.ledger_file import LedgerContents, read_ledger
from bmqtwist.storagetool.compare import compare_ledgers, compare_sets
from bmqtwist.storagetool.inputs import (
    InputError,
    ReadOnlyFile,
    SetFiles,
    SetView,
    Watch,
    file_sets,
    ledger_files,
)
from bmqtwist.storagetool.ledgerview import LedgerQueue, queues_of
from bmqtwist.storagetool.verify import ERROR, NOTE, WARNING, FileFinding, leases_of, verify_ledger, verify_set

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


def directory_target(directory: str) -> Target:
    """Everything in a directory."""
    ledgers = ledger_files(directory)
    return Target(directory, file_sets(directory), ledgers[-1] if ledgers else "", True, ledgers[:-1])


def verify(target: Target, with_ledger: bool, watch: Watch | None) -> list[FileFinding]:
    """All findings about a target."""
    with ExitStack() as stack:
        views = [(each, SetView(each, stack, watch)) for each in target.sets]  # journals first: see JournalSnapshot
        return _verify(target, views, with_ledger, watch)


def _verify(target: Target, views: list[tuple[SetFiles, SetView]], with_ledger: bool,
            watch: Watch | None) -> list[FileFinding]:
    told: list[FileFinding] = []
    ledger = None
    if target.ledger and with_ledger:
        ledger = open_ledger(target.ledger, watch)
        name = os.path.basename(target.ledger)
        told += [finding._replace(where=name) for finding in verify_ledger(ledger, name)]
    elif target.whole and with_ledger:
        told.append(FileFinding(WARNING, "there is no cluster state ledger (.bmq_csl)", target.name))
    told += [FileFinding(NOTE, "an older ledger: not looked at", os.path.basename(path)) for path in target.older_ledgers]
    queues = queues_of(ledger.entries) if ledger else {}
    leases = leases_of(ledger) if ledger else {}
    for each, view in views:
        told += _verify_one(each, view, queues, ledger, leases)
    told += _missing_sets(target, queues)
    return told


def _verify_one(each: SetFiles, view: SetView, queues: dict[bytes, LedgerQueue], ledger: LedgerContents | None,
                leases: dict[int, int]) -> list[FileFinding]:
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
    return [finding._replace(where=name) for finding in findings]


def _missing_sets(target: Target, queues: dict[bytes, LedgerQueue]) -> list[FileFinding]:
    if not target.whole:
        return []
    there = [each.partition_id for each in target.sets if each.journal]
    wanted = {queue.partition_id for queue in queues.values() if not queue.removed}
    return [FileFinding(ERROR, f"partition {number} has queues in the ledger, but no journal", target.name)
            for number in sorted(wanted - set(there))] + [
        FileFinding(NOTE, f"partition {number} has several file sets: a rollover was interrupted", target.name)
        for number in sorted({number for number in there if there.count(number) > 1})]


def open_ledger(path: str, watch: Watch | None = None) -> LedgerContents:
    """A ledger file, read."""
    with closing(ReadOnlyFile(path, watch)) as file:
        return read_ledger(file.read_all())


def compare(left: str, right: str, watch: Watch | None) -> list[FileFinding]:
    """All findings about two directories of two nodes."""
    told: list[FileFinding] = []
    sets = [_current_sets(directory) for directory in (left, right)]
    for partition_id in sorted({*sets[0], *sets[1]}):
        pair = [each.get(partition_id) for each in sets]
        name = f"partition {partition_id}"
        if pair[0] is None or pair[1] is None:
            told.append(FileFinding(ERROR, f"only in {left if pair[0] else right}", name))
            continue
        with ExitStack() as stack:
            views = [SetView(each, stack, watch) for each in pair if each is not None]
            told += [finding._replace(where=name) for finding in compare_sets(views[0], views[1], (left, right))]
    ledgers = [ledger_files(directory)[-1:] for directory in (left, right)]
    if ledgers[0] and ledgers[1]:
        read = [open_ledger(each[0], watch) for each in ledgers]
        told += [each._replace(where="ledger") for each in compare_ledgers(read[0], read[1], (left, right))]
    elif ledgers[0] or ledgers[1]:
        told.append(FileFinding(NOTE, f"only in {left if ledgers[0] else right}", "ledger"))
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
            view = SetView(SetFiles(journal=each.journal), stack)
            scan = JournalScan(view.read_journal, view.lengths()[0])
            for _ in scan:
                pass
        reach = scan.lease, scan.sequence, scan.marked
        if each.partition_id not in found or found[each.partition_id][0] <= reach:
            found[each.partition_id] = reach, each
    return {partition_id: each for partition_id, (_, each) in found.items()}


def print_findings(told: list[FileFinding], as_json: str, say: Say, all_good: str) -> bool:
    """Print them, or the sentence `all_good`; True if none is worse than a note."""
    good = all(each.severity == NOTE for each in told)
    if as_json:
        tree = {"Findings": [{"Severity": each.severity, "Where": each.where, "Text": each.text}
                             for each in told], "Good": good}
        say(json.dumps(tree, indent=2 if as_json == "pretty" else None, ensure_ascii=False))
        return good
    for each in told:
        say(f"{each.severity}: {each.where}: {each.text}")
    counts = {severity: sum(each.severity == severity for each in told) for severity in (ERROR, WARNING)}
    say(all_good if good else f"{counts[ERROR]} error(s), {counts[WARNING]} warning(s).")
    return good
