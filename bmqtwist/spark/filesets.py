"""Journals at given paths, for `storage.py`, with the URIs and appIds of the queue and app keys in them.

`find_journals` finds the journals of files, directories and patterns, and names the keys: from the ledger of the directory,
and from the QLIST file of each set, which has precedence. It raises InputError if there are no journals. `header_problem`
checks the header of a journal with `storage/journal.check_file_header`.
"""

from __future__ import annotations

import glob
import os
from contextlib import closing
from dataclasses import dataclass, field

from bmqtwist.spark.records import default_apps
from bmqtwist.storage.journal import check_file_header
from bmqtwist.storage.ledger_file import read_ledger
from bmqtwist.storage.records import FileType, queue_records
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES, QLIST_HEADER_BYTES
from bmqtwist.storagetool.inputs import InputError, ReadOnlyFile, file_sets, kind_of, ledger_files, set_name
from bmqtwist.storagetool.ledgerview import queues_of

ARCHIVE = "archive"


@dataclass(slots=True)
class Journal:
    """One journal and the files of its set. `queues`: key -> URI; `apps`: queue key and app key -> appId."""

    path: str
    data: str
    qlist: str
    partition: int
    file_set: str
    queues: dict[bytes, str] = field(default_factory=dict)
    apps: dict[bytes, str] = field(default_factory=dict)


def find_journals(paths: tuple[str, ...], include_archive: bool) -> list[Journal]:
    """Return the journals at these paths (files, directories, patterns with an asterisk), by partition and age. Raise
    InputError if there are none."""
    found: dict[str, Journal] = {}
    for path in paths:
        matches = sorted(glob.glob(path)) if "*" in path else [path]
        for match in matches:
            for each in _journals_at(match.rstrip("/") or "/", include_archive):
                found.setdefault(os.path.realpath(each.path), each)
    if not found:
        raise InputError(f"no journal found at {', '.join(paths)}")
    return sorted(found.values(), key=lambda each: (each.partition, each.file_set, each.path))


def _journals_at(path: str, include_archive: bool) -> list[Journal]:
    if not os.path.isdir(path):
        if not path.endswith(".bmq_journal"):
            if not os.path.exists(path):
                raise InputError(f"{path} does not exist")
            raise InputError(f"{path} is a {kind_of(path)} file: name the journal of its set")
        partition, stamp = set_name(path)
        stem = path.removesuffix(".bmq_journal")
        files = {kind: name if os.path.isfile(name := f"{stem}.bmq_{kind}") else "" for kind in ("data", "qlist")}
        journals = [Journal(path, files["data"], files["qlist"], partition, stamp)]
        _set_key_names(journals, os.path.dirname(path) or ".")
        return journals
    directories = [path]
    if include_archive:
        directories += [each for each in (f"{path}/{ARCHIVE}", f"{os.path.dirname(path) or '.'}/{ARCHIVE}")
                        if os.path.isdir(each)]
    journals = [Journal(each.journal, each.data, each.qlist, each.partition_id, each.stamp)
                for directory in directories for each in file_sets(directory) if each.journal]
    _set_key_names(journals, path)
    return journals


def _set_key_names(journals: list[Journal], directory: str) -> None:
    """Set URIs and appIds by key, from the ledger of the directory and from the QLIST of each file set."""
    queues: dict[bytes, str] = {}
    apps: dict[bytes, str] = {}
    for path in ledger_files(directory):
        for key, queue in queues_of(read_ledger(_read_all(path)).entries).items():
            queues[key] = queue.uri
            apps.update({key + app_key: app_id for app_id, app_key in queue.apps.items()})
    for journal in journals:
        own_queues, own_apps = _qlist_names(journal.qlist) if journal.qlist else ({}, {})
        journal.queues = {**queues, **own_queues}
        journal.apps = {**default_apps(journal.queues), **apps, **own_apps}


def _read_all(path: str) -> bytes:
    with closing(ReadOnlyFile(path)) as file:
        return file.read_all()


def _qlist_names(path: str) -> tuple[dict[bytes, str], dict[bytes, str]]:
    records, _, _ = queue_records(_read_all(path), QLIST_HEADER_BYTES)  # keys after a damaged record stay unknown
    return ({key: uri for _, uri, key, _ in records},
            {key + app_key: app_id for _, _, key, listed in records for app_id, app_key in listed})


def header_problem(file: ReadOnlyFile) -> str | None:
    """Return the error in the header of a journal, or None."""
    return check_file_header(file.read(0, JOURNAL_HEADER_BYTES), FileType.JOURNAL, None)
