"""The file of the metadata ledger: a header, then records until the end or until zeros.

Records have the form in which brokers send them to each other (`wire/cluster_events.py`). Reading never fails: a file
that was torn while its last record was written loses that record, a record damaged in the middle is skipped by looking
for the next one that is whole, and either is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.wire.cluster_events import ClusterStateRecord, encode_cluster_state_record, read_cluster_state_record
from bmqtwist.wire.declare import Layout, number, raw, skip

LOG_ID_BYTES = 5

#  0        1                    6        8                                         n*4
# +--------+--------------------+--------+----------------------------------------+---- ... -----+
# | V | HW | log id             | 0 0    | record header | BER body | pad | CRC   | next record  |
# +--------+--------------------+--------+----------------------------------------+---- ... -----+
#   V: version, 2 bits (1); HW: words of this header, 6 bits
LEDGER_HEADER = Layout(number(version=2, header_words=6), raw(log_id=LOG_ID_BYTES), skip(2))
LEDGER_HEADER_BYTES = LEDGER_HEADER.size
LEDGER_SUFFIX = ".bmq_csl"
DAMAGE_REPORTS_MAX = 16  # damaged places of one file that are told apart

_VERSION = 1
_RECORD_START = re.compile(rb"[\x81-\x84]\0\0\0")  # header words, type; reserved
_NAME = re.compile(r"bmq_csl_\d{8}_\d{6}_([0-9A-F]{10})\.bmq_csl")


@dataclass(slots=True)
class LedgerContents:
    """What a ledger file holds.

    `records`: (offset, record) of all that could be read; `end`: offset behind the last of them, where writing goes
    on; `log_id`: b"" if there is no readable file header; `damaged`: something before `end` could not be read, so the
    file should be replaced; `alarms`: a sentence for each thing that was not as it should be.
    """

    log_id: bytes = b""
    records: list[tuple[int, ClusterStateRecord]] = field(default_factory=list)
    end: int = 0
    damaged: bool = False
    alarms: list[str] = field(default_factory=list)


def pack_ledger_header(log_id: bytes) -> bytes:
    """The first 8 bytes of a file."""
    if len(log_id) != LOG_ID_BYTES or not any(log_id):
        raise LocalError(f"a ledger's log id is {LOG_ID_BYTES} bytes, not all zero; not {log_id.hex()!r}")
    return LEDGER_HEADER.build(version=_VERSION, header_words=LEDGER_HEADER.words, log_id=log_id)


def encode_ledger(log_id: bytes, records: Iterable[ClusterStateRecord]) -> bytes:
    """A whole file."""
    return b"".join((pack_ledger_header(log_id), *map(encode_cluster_state_record, records)))


def read_ledger(data: bytes) -> LedgerContents:
    """Read a whole file; b"" is a file that does not exist yet."""
    found = LedgerContents()
    if not data:
        return found
    pos = LEDGER_HEADER_BYTES
    if len(data) >= LEDGER_HEADER_BYTES:
        header = LEDGER_HEADER.parse(data[:LEDGER_HEADER_BYTES])
        if header.version == _VERSION and header.header_words >= LEDGER_HEADER.words and any(header.log_id):
            found.log_id, pos = header.log_id, header.header_words * 4  # a later version may have a longer header
    if not found.log_id:
        found.damaged = True
        found.alarms.append("the header of the ledger file cannot be read")
    _read_records(data, min(pos, len(data)), found)
    return found


def _read_records(data: bytes, pos: int, found: LedgerContents) -> None:
    places = 0
    while True:
        try:
            record, stop = read_cluster_state_record(data, pos, len(data))
        except PeerError as error:
            following = _next_record(data, pos + 4)
            if following is None:
                break
            found.damaged = True
            places += 1
            if places <= DAMAGE_REPORTS_MAX:
                found.alarms.append(f"{following - pos} bytes of the ledger at offset {pos} cannot be read "
                                    f"({error.reason}) and are skipped")
            pos = following
            continue
        found.records.append((pos, record))
        pos = stop
    found.end = pos
    torn = len(data[pos:].rstrip(b"\0"))
    if torn:
        found.alarms.append(f"the ledger ends with an incomplete record of {torn} bytes at offset {pos}, "
                            "which is cut off")


def _next_record(data: bytes, pos: int) -> int | None:
    """Offset of the first whole record at or after `pos`; records lie on words."""
    for match in _RECORD_START.finditer(data, pos):
        if not match.start() & 3:
            try:
                read_cluster_state_record(data, match.start(), len(data))
            except PeerError:
                continue
            return match.start()
    return None


def ledger_file_name(log_id: bytes, wall: int) -> str:
    """`bmq_csl_<UTC date>_<time>_<log id>.bmq_csl`, for a file begun at `wall` (seconds since the epoch)."""
    return f"bmq_csl_{datetime.fromtimestamp(wall, UTC):%Y%m%d_%H%M%S}_{log_id.hex().upper()}{LEDGER_SUFFIX}"


def parse_ledger_file_name(name: str) -> bytes | None:
    """The log id in a file name, None if it is not the name of a ledger."""
    match = _NAME.fullmatch(name)
    return bytes.fromhex(match.group(1)) if match else None
