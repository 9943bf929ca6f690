"""Which storage files a path means, and what the keys in them stand for."""

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
    """One journal with what lies beside it. `queues`: key -> URI; `apps`: queue key and app key -> appId."""

    path: str
    data: str
    qlist: str
    partition: int
    file_set: str
    queues: dict[bytes, str] = field(default_factory=dict)
    apps: dict[bytes, str] = field(default_factory=dict)


def find(paths: tuple[str, ...], include_archive: bool) -> list[Journal]:
    """The journals that paths mean: files, directories, or patterns with an asterisk; by partition and age. InputError."""
    found: dict[str, Journal] = {}
    for path in paths:
        places = sorted(glob.glob(path)) if "*" in path else [path]
        for place in places:
            for each in _of(place.rstrip("/") or "/", include_archive):
                found.setdefault(os.path.realpath(each.path), each)
    if not found:
        raise InputError(f"no journal is found at {', '.join(paths)}")
    return sorted(found.values(), key=lambda each: (each.partition, each.file_set, each.path))


def _of(place: str, include_archive: bool) -> list[Journal]:
    if not os.path.isdir(place):
        if not place.endswith(".bmq_journal"):
            if not os.path.exists(place):
                raise InputError(f"there is no {place}")
            raise InputError(f"{place} is a {kind_of(place)} file: name the journal beside it")
        partition, stamp = set_name(place)
        stem = place.removesuffix(".bmq_journal")
        beside = {kind: path if os.path.isfile(path := f"{stem}.bmq_{kind}") else "" for kind in ("data", "qlist")}
        journals = [Journal(place, beside["data"], beside["qlist"], partition, stamp)]
        _name(journals, os.path.dirname(place) or ".")
        return journals
    directories = [place]
    if include_archive:
        directories += [each for each in (f"{place}/{ARCHIVE}", f"{os.path.dirname(place) or '.'}/{ARCHIVE}")
                        if os.path.isdir(each)]
    journals = [Journal(each.journal, each.data, each.qlist, each.partition_id, each.stamp)
                for directory in directories for each in file_sets(directory) if each.journal]
    _name(journals, place)
    return journals


def _name(journals: list[Journal], directory: str) -> None:
    """Fill in what keys stand for: from the ledger of the directory, and from each set's QLIST."""
    queues: dict[bytes, str] = {}
    apps: dict[bytes, str] = {}
    for path in ledger_files(directory):
        for key, queue in queues_of(read_ledger(_whole(path)).entries).items():
            queues[key] = queue.uri
            apps.update({key + app_key: app_id for app_id, app_key in queue.apps.items()})
    for journal in journals:
        own_queues, own_apps = _of_qlist(journal.qlist) if journal.qlist else ({}, {})
        journal.queues = {**queues, **own_queues}
        journal.apps = {**default_apps(journal.queues), **apps, **own_apps}


def _whole(path: str) -> bytes:
    with closing(ReadOnlyFile(path)) as file:
        return file.read_all()


def _of_qlist(path: str) -> tuple[dict[bytes, str], dict[bytes, str]]:
    records, _, _ = queue_records(_whole(path), QLIST_HEADER_BYTES)  # behind damage the meaning of a key is unknown
    return ({key: uri for _, uri, key, _ in records},
            {key + app_key: app_id for _, _, key, listed in records for app_id, app_key in listed})


def check(file: ReadOnlyFile) -> str | None:
    """What is wrong with the header of a journal; None if nothing is."""
    return check_file_header(file.read(0, JOURNAL_HEADER_BYTES), FileType.JOURNAL, None)
