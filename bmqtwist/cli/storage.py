"""`bmq storage`: read-only inspection of storage files.

Exit codes: 0 success, 1 requested records are not found, damage is found or directories differ, 2 invalid command line
or unreadable file. Started by `main.py`. This module has the options; records are selected in
`storagetool/selection.py` and printed by the other modules of `storagetool/`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import click

from bmqtwist.cli.exits import EXIT_NOT_ALL, EXIT_USAGE
from bmqtwist.cli.optiongroups import STYLES, JsonCommand, option_group
from bmqtwist.errors import LocalError
from bmqtwist.storage.journal import JournalScan, check_file_header
from bmqtwist.storage.ledger_file import LedgerContents
from bmqtwist.storage.records import FileType
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.storagetool.compare import compare as compare_directories
from bmqtwist.storagetool.datafile import DataFile
from bmqtwist.storagetool.inputs import (
    JOURNAL,
    LEDGER,
    InputError,
    OnRead,
    ReadOnlyFile,
    SetFiles,
    StorageTarget,
    directory_target,
    kind_of,
    ledger_files,
    open_ledger,
    resolve,
    set_name,
    with_siblings,
)
from bmqtwist.storagetool.journalview import records
from bmqtwist.storagetool.ledgerview import TYPES, LedgerPrinter, LedgerQueue, queues_of
from bmqtwist.storagetool.output import make_output
from bmqtwist.storagetool.selection import RECORD_TYPES, RecordRange, RecordSelection
from bmqtwist.storagetool.show import RecordPrinter, Summary, SummaryPrinter, show_qlist
from bmqtwist.storagetool.verify import ERROR, NOTE, WARNING, FileFinding
from bmqtwist.storagetool.verify import verify as verify_target

_PROGRESS_BYTES_MIN = 32 << 20  # smaller files are read without a progress bar


class PsnType(click.ParamType):  # type: ignore[type-arg]
    """Option value `lease-sequence` (journal) or `term-sequence` (ledger), as a pair of numbers."""

    name = "n-n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse a pair of numbers."""
        if isinstance(value, tuple):
            return value
        first, dash, second = str(value).partition("-")
        if not dash or not first.isdecimal() or not second.isdecimal():
            self.fail(f"'{value}' should be two numbers with a dash between them, for instance 2-117", param, ctx)
        return int(first), int(second)


class RecordType(click.Choice):  # type: ignore[type-arg]
    """Type of a journal record; `-r=TYPE` is the same as `-r TYPE`, as with the original tool."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name of the type."""
        return super().convert(str(value).removeprefix("="), param, ctx)


class HexType(click.ParamType):  # type: ignore[type-arg]
    """A fixed number of bytes in hexadecimal digits."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self._size = name, size

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Parse the hexadecimal digits into bytes."""
        if isinstance(value, bytes):
            return value
        try:
            data = bytes.fromhex(value)
        except ValueError:
            data = b""
        if len(data) != self._size:
            self.fail(f"'{value}' should be {2 * self._size} hexadecimal digits", param, ctx)
        return data


PSN, GUID, KEY = PsnType(), HexType("guid", 16), HexType("key", 5)


_json = option_group(
    click.option("--json", "json_mode", type=click.Choice(STYLES),
                 help="JSON instead of text; --json alone is --json line."),
    click.option("--print-mode", type=click.Choice(["human", "json-pretty", "json-line"]),
                 help="Equivalent option of BlazingMQ's tool."),
)
_filters = option_group(
    click.option("--seqnum", multiple=True, type=PSN, help="The record with this number (lease-sequence; in a ledger "
                 "term-sequence). Repeatable; excludes other filters."),
    click.option("--offset", multiple=True, type=click.IntRange(0), help="The record at this offset. Repeatable; excludes "
                 "other filters."),
    click.option("--queue-key", multiple=True, type=KEY, help="Only records of this queue. Repeatable."),
    click.option("--queue-name", multiple=True, help="Only records of the queue with this URI; needs the ledger."),
    click.option("--timestamp-gt", type=click.IntRange(0), help="Only records later than these epoch seconds."),
    click.option("--timestamp-lt", type=click.IntRange(0), help="Only records earlier than these epoch seconds."),
    click.option("--seqnum-gt", type=PSN, help="Only records after this sequence number."),
    click.option("--seqnum-lt", type=PSN, help="Only records before this sequence number."),
    click.option("--offset-gt", type=click.IntRange(0), help="Only records after this offset."),
    click.option("--offset-lt", type=click.IntRange(0), help="Only records before this offset."),
)
_ledger_options = option_group(
    click.option("--csl-record-type", multiple=True, type=click.Choice([*TYPES, "all"]),
                 help="Only ledger records of this type. Repeatable."),
    click.option("--csl-from-begin", is_flag=True, help="Read a ledger from its start, not from its last snapshot."),
    click.option("--summary-queues-limit", default=50, show_default=True, type=click.IntRange(1),
                 help="Maximum number of queues in the summary of a ledger."),
)


@click.group()
def storage() -> None:
    """Inspect storage files: search, check and compare them. The files are never changed."""


@storage.command(cls=JsonCommand)
@click.argument("path", nargs=-1)
@click.option("--journal-path", help="'prefix*' that matches one JOURNAL and at most one DATA file.")
@click.option("--journal-file", help="JOURNAL file.")
@click.option("--data-file", help="DATA file of the JOURNAL, for payloads.")
@click.option("--csl-file", help="Ledger, for queue and app names.")
@click.option("--partition", type=click.IntRange(0), help="Partition of a directory.")
@click.option("-r", "--record-type", multiple=True, type=RecordType([*RECORD_TYPES, "all"]),
              help="Only records of this type. Repeatable.")
@click.option("--guid", multiple=True, type=GUID, help="The message with this GUID. Repeatable; excludes other filters.")
@_filters
@click.option("--outstanding", is_flag=True, help="Only messages that at least one app has not confirmed.")
@click.option("--confirmed", is_flag=True, help="Only messages with a DELETION record.")
@click.option("--partially-confirmed", is_flag=True, help="Only outstanding messages that at least one app has confirmed.")
@click.option("--details", is_flag=True, help="All fields of all records of a message.")
@click.option("--dump-payload", is_flag=True, help="DATA record, properties and payload.")
@click.option("--dump-limit", default=1024, show_default=True, type=click.IntRange(1),
              help="Maximum number of payload bytes to print.")
@click.option("--summary", is_flag=True, help="Count the records instead of printing them.")
@click.option("--min-records-per-queue", default=0, type=click.IntRange(0),
              help="Minimum number of records of a queue in the summary.")
@_ledger_options
@_json
def show(path: tuple[str, ...], journal_path: str | None, journal_file: str | None, data_file: str | None,
         csl_file: str | None, partition: int | None, **options: Any) -> None:
    """Search a JOURNAL. PATH: files, a storage directory, or 'prefix*'.

    \b
    bmq storage show data/storage --partition 0 --outstanding
    bmq storage show bmq_0.20261121_050206.bmq_journal --summary

    With a ledger only, the command is equivalent to `bmq storage ledger`.
    """
    with _exit_on_error():
        named = [name for name in (journal_path, journal_file, data_file, csl_file) if name]
        if journal_path and (journal_file or data_file):
            raise click.UsageError("--journal-path already names the files: leave out --journal-file and --data-file.")
        paths = resolve([*path, *named], partition)
        if csl_file and kind_of(csl_file) != LEDGER or journal_file and kind_of(journal_file) != JOURNAL:
            raise click.UsageError("--journal-file takes a .bmq_journal, --csl-file a .bmq_csl.")
        if paths.journal:
            found = _show_journal(paths, options)
        elif paths.csl:
            _refuse_options(options, ("record_type", "guid", "outstanding", "confirmed", "partially_confirmed",
                                      "dump_payload"), "a ledger")
            found = _show_ledger(paths.csl, options)
        else:
            raise click.UsageError("Name a .bmq_journal, a .bmq_csl, a directory with them, or 'prefix*'.")
    raise SystemExit(0 if found else EXIT_NOT_ALL)


@storage.command(cls=JsonCommand)
@click.argument("path")
@_filters
@_ledger_options
@click.option("--details", is_flag=True, help="Print all fields and the decoded body.")
@click.option("--summary", is_flag=True, help="Count the records and list the queues.")
@_json
def ledger(path: str, **options: Any) -> None:
    """Show the records of a cluster state ledger. PATH: a .bmq_csl file, or a directory, of which the newest is shown."""
    with _exit_on_error():
        paths = resolve([path], None) if path.endswith(".bmq_csl") else SetFiles(csl=_newest_ledger(path))
        found = _show_ledger(paths.csl, options)
    raise SystemExit(0 if found else EXIT_NOT_ALL)


def _newest_ledger(directory: str) -> str:
    found = ledger_files(directory)
    if not found:
        raise InputError(f"{directory} holds no .bmq_csl file")
    return found[-1]


@storage.command(cls=JsonCommand)
@click.argument("path")
@click.option("--partition", type=click.IntRange(0), help="Partition of a directory.")
@_json
def qlist(path: str, partition: int | None, **options: Any) -> None:
    """List the queues and apps of a .bmq_qlist file. PATH: the file, or a directory that contains it."""
    with _exit_on_error():
        found = resolve([path], partition)
        if not found.qlist:
            raise InputError(f"{path} is not a .bmq_qlist file, and contains none")
        with _open_with_progress(found.qlist) as file:
            problem = show_qlist(file, make_output(_write, _json_mode(options)))
        if problem:
            click.echo(f"bmq: {found.qlist}: {problem}", err=True)
    raise SystemExit(EXIT_NOT_ALL if problem else 0)


@storage.command(cls=JsonCommand)
@click.argument("path", nargs=-1, required=True)
@click.option("--csl-file", help="Ledger to compare with, if it is in another directory.")
@click.option("--no-ledger", is_flag=True, help="Do not compare with a ledger: an archive has none.")
@_json
def verify(path: tuple[str, ...], csl_file: str | None, no_ledger: bool, **options: Any) -> None:
    """Check records, references and checksums of all messages. PATH: a storage directory, or the files of a file set."""
    with _exit_on_error():
        target = _open_target(path, csl_file)
        with _progress(list(target.paths())) as on_read:
            findings = verify_target(target, not no_ledger, on_read)
        good = _print_findings(findings, _json_mode(options), "No damage found.")
    raise SystemExit(0 if good else EXIT_NOT_ALL)


@storage.command(cls=JsonCommand)
@click.argument("left", type=click.Path(exists=True, file_okay=False))
@click.argument("right", type=click.Path(exists=True, file_okay=False))
@_json
def compare(left: str, right: str, **options: Any) -> None:
    """Compare the storage directories of two nodes, record by record."""
    with _exit_on_error():
        paths = [each for directory in (left, right) for each in directory_target(directory).paths()]
        with _progress(paths) as on_read:
            findings = compare_directories(left, right, on_read)
        good = _print_findings(findings, _json_mode(options), "The directories are equal, as far as both have records.")
    raise SystemExit(0 if good else EXIT_NOT_ALL)


def _print_findings(findings: list[FileFinding], as_json: str, all_good: str) -> bool:
    """Print the findings, and `all_good` if all of them are notes; return whether they are."""
    good = all(each.severity == NOTE for each in findings)
    if as_json:
        tree = {"Findings": [{"Severity": each.severity, "Where": each.where, "Text": each.text}
                             for each in findings], "Good": good}
        click.echo(json.dumps(tree, indent=2 if as_json == "pretty" else None, ensure_ascii=False))
        return good
    for each in findings:
        click.echo(f"{each.severity}: {each.where}: {each.text}")
    counts = {severity: sum(each.severity == severity for each in findings) for severity in (ERROR, WARNING)}
    click.echo(all_good if good else f"{counts[ERROR]} error(s), {counts[WARNING]} warning(s).")
    return good


def _open_target(paths: tuple[str, ...], csl_file: str | None) -> StorageTarget:
    if len(paths) == 1 and os.path.isdir(paths[0]):
        target = directory_target(paths[0])
        if not target.sets and not target.ledger:
            raise InputError(f"{paths[0]} holds no storage files")
    else:
        found = with_siblings(resolve(paths))
        named = found.journal or found.data or found.qlist
        found.partition_id, found.stamp = set_name(named)
        target = StorageTarget(os.path.dirname(paths[0]) or ".", [found] if named else [], found.csl)
    if csl_file:
        target.ledger = csl_file
    return target


def _show_journal(paths: SetFiles, options: dict[str, Any]) -> bool:
    _refuse_options(options, ("csl_record_type", "csl_from_begin"), "a journal")
    dump, summary = options["dump_payload"], options["summary"]
    if dump and not paths.data:
        raise click.UsageError("--dump-payload needs the DATA file: name it too, or give the directory.")
    ledger_found = _read_ledger(paths.csl) if paths.csl else None
    queues = queues_of(ledger_found.entries) if ledger_found else {}
    selection = _make_selection(options, queues, bool(paths.csl))
    if summary and (selection.status or selection.guids or selection.exact_records or options["details"] or dump):
        raise click.UsageError("--summary counts all records: combine it with record types, queues and ranges only.")
    output = make_output(_write, _json_mode(options), options["details"], options["dump_limit"])
    with _open_with_progress(paths.journal) as journal:
        wrong = check_file_header(journal.read(0, JOURNAL_HEADER_BYTES), FileType.JOURNAL, None)
        if wrong:
            click.echo(f"bmq: {paths.journal}: {wrong}; read as if the header were right", err=True)
        scan = JournalScan(journal.read, journal.size)
        data = ReadOnlyFile(paths.data) if paths.data and (dump or summary) else None
        if summary:
            counted = Summary()
            counted.count(records(scan), selection, scan.mark)
            SummaryPrinter(counted, selection.types, queues, journal.read, data.read if data else None,
                           options["min_records_per_queue"]).print(output)
            found = True
        else:
            payloads = DataFile(data.read, data.size) if data else None
            found = RecordPrinter(selection, queues, output, payloads).run(records(scan))
        if data:
            data.close()
    for problem in scan.problems:
        click.echo(f"bmq: {paths.journal}: {problem}", err=True)
    return found


def _make_selection(options: dict[str, Any], queues: dict[bytes, LedgerQueue], with_ledger: bool) -> RecordSelection:
    statuses = [name for name in ("outstanding", "confirmed", "partially_confirmed") if options[name]]
    if len(statuses) > 1:
        raise click.UsageError(f"Choose one of --{' and --'.join(statuses)}.".replace("_", "-"))
    keys = _queue_keys(options, queues, with_ledger)
    within = _make_range(options)
    _check_exact(options, bool(statuses or keys or within != RecordRange()))
    types = frozenset(options["record_type"])
    if not types:
        types = frozenset(("message",) if statuses or options["guid"] else ("message", "queue-op") if keys
                          else RECORD_TYPES)
    elif "all" in types:
        types = frozenset(RECORD_TYPES)
    return RecordSelection(types, keys, within, statuses[0] if statuses else "", options["guid"], options["seqnum"],
                           options["offset"])


def _queue_keys(options: dict[str, Any], queues: dict[bytes, LedgerQueue], with_ledger: bool) -> frozenset[bytes]:
    keys = set(options["queue_key"])
    for name in options["queue_name"]:
        if not with_ledger:
            raise click.UsageError("--queue-name needs the ledger: name the .bmq_csl file too, or give the directory.")
        named = {key for key, queue in queues.items() if queue.uri == name}
        if not named:
            raise click.UsageError(f"The ledger has no queue {name}.")
        keys |= named
    return frozenset(keys)


def _make_range(options: dict[str, Any]) -> RecordRange:
    bounds = {name: (options[f"{name}_gt"], options[f"{name}_lt"]) for name in ("timestamp", "seqnum", "offset")}
    for name, (low, high) in bounds.items():
        if low is not None and high is not None and low >= high:
            raise click.UsageError(f"The range between --{name}-gt and --{name}-lt is empty.")
    return RecordRange(**bounds)


def _check_exact(options: dict[str, Any], other_filters: bool) -> None:
    exact = [name for name in ("guid", "seqnum", "offset") if options.get(name)]
    if len(exact) > 1 or exact and other_filters:
        raise click.UsageError(f"--{exact[0]} selects single records: leave out the other filters.")


def _refuse_options(options: dict[str, Any], names: tuple[str, ...], of: str) -> None:
    for name in names:
        if options.get(name):
            raise click.UsageError(f"--{name.replace('_', '-')} does not apply to {of}.")


def _show_ledger(path: str, options: dict[str, Any]) -> bool:
    found = _read_ledger(path, report_tail=True)
    known = queues_of(found.entries)
    keys = _queue_keys(options, known, True)
    within = _make_range(options)
    types = frozenset(options["csl_record_type"]) - {"all"} or frozenset(TYPES)
    _check_exact(options, bool(keys or within != RecordRange()))
    selection = RecordSelection(types, keys, within, seqnums=options["seqnum"], offsets=options["offset"])
    if options["summary"] and (options["details"] or selection != RecordSelection(frozenset(TYPES))):
        raise click.UsageError("--summary of a ledger counts all records: leave out --details and the filters.")
    shower = LedgerPrinter(found, selection, options["csl_from_begin"], make_output(_write, _json_mode(options)))
    if not options["summary"]:
        return shower.print_records(options["details"])
    shower.print_summary(options["summary_queues_limit"])
    return True


def _read_ledger(path: str, report_tail: bool = False) -> LedgerContents:
    with _progress([path]) as on_read:
        found = open_ledger(path, on_read)
    if report_tail and found.tail_zeros:
        click.echo(f"bmq: {path}: {found.tail_zeros} zero bytes after the last record, at offset "
                   f"{found.end}: the file is in use, or was left by a crash", err=True)
    if not found.entries:
        click.echo(f"bmq: {path}: no record can be read", err=True)
    for alarm in found.alarms:
        click.echo(f"bmq: {path}: {alarm}", err=True)
    return found


def _json_mode(options: dict[str, Any]) -> str:
    mode: str = options["json_mode"] or (options["print_mode"] or "").removeprefix("json-")
    return "" if mode == "human" else mode


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # the terminal's encoding lacks a character
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


@contextmanager
def _progress(paths: list[str]) -> Iterator[OnRead | None]:
    """Show a progress bar for files of 32 MiB or more if standard error is a terminal."""
    total = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    if total < _PROGRESS_BYTES_MIN or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=total, label="reading", file=sys.stderr) as bar:
        yield bar.update


@contextmanager
def _open_with_progress(path: str) -> Iterator[ReadOnlyFile]:
    with _progress([path]) as on_read, closing(ReadOnlyFile(path, on_read)) as file:
        yield file


@contextmanager
def _exit_on_error() -> Iterator[None]:
    try:
        yield
    except LocalError as error:
        click.echo(f"bmq: {error}", err=True)
        raise SystemExit(EXIT_USAGE) from None
