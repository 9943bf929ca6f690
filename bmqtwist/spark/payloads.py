"""Payload, properties and checksum result of messages, from the DATA file of their journal.

Called by `storage.py`; journal columns are in `records.py`, one DATA record is decoded by `storagetool/datafile.py`.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from bmqtwist.errors import PeerError
from bmqtwist.spark.messages import STRING_MAP, property_texts
from bmqtwist.spark.records import Block
from bmqtwist.storage.records import COMPRESSION_MASK, RecordType
from bmqtwist.storagetool.datafile import DataError, DataFile, DataRecord
from bmqtwist.wire.application_data import unpack_data
from bmqtwist.wire.properties import decode

# `value`: decompressed payload. `problem`: reason why it is missing.
ARROW_TYPES = {"value": pa.binary(), "size": pa.int32(), "properties": STRING_MAP, "propertyTypes": STRING_MAP,
               "crcGood": pa.bool_(), "problem": pa.string()}


class DataFileReader:
    """Reads a DATA file; path "" if it is missing."""

    def __init__(self, path: str, verify_crc: bool) -> None:
        self._verify, self._map, self._file = verify_crc, None, None
        if path:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                if size:
                    self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
                    self._file = DataFile(self._read, size)
            finally:
                os.close(descriptor)

    def _read(self, offset: int, size: int) -> bytes:
        return self._map[offset:offset + size] if self._map is not None else b""

    def columns(self, rows: Block, wanted: set[str]) -> dict[str, pa.Array]:
        """Return the wanted columns; null in rows of other record types."""
        lists: dict[str, list[Any]] = {name: [None] * len(rows) for name in ARROW_TYPES}
        dwords, crcs = rows.field(RecordType.MESSAGE, "data_dwords"), rows.field(RecordType.MESSAGE, "crc")
        kinds = rows.field(RecordType.MESSAGE, "compression") & COMPRESSION_MASK
        with_properties = bool(wanted & {"properties", "propertyTypes"})
        for at in np.flatnonzero(rows.mask_of(RecordType.MESSAGE)):
            try:
                if self._file is None:
                    raise DataError("the DATA file is missing")
                record = self._file.record(int(dwords[at]) * 8)
                if self._verify:
                    lists["crcGood"][at] = good = crc32c(record.data) == int(crcs[at])
                    if not good:
                        raise DataError("checksum mismatch")
                value, properties = decode_record(record, int(kinds[at]), with_properties)
            except (DataError, PeerError) as error:
                lists["problem"][at] = str(error)
                continue
            lists["value"][at], lists["size"][at] = value, len(value)
            if properties is not None:
                lists["properties"][at], lists["propertyTypes"][at] = properties
        return {name: pa.array(lists[name], kind) for name, kind in ARROW_TYPES.items() if name in wanted}

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None


Texts = tuple[list[tuple[str, str]], list[tuple[str, str]]]


def decode_record(record: DataRecord, compression: int, with_properties: bool) -> tuple[bytes, Texts | None]:
    """Return (payload, properties as texts) of a DATA record; PeerError if they are malformed."""
    area, value = unpack_data(record.data, record.has_properties, compression, record.schema_wire_id)
    if not with_properties:
        return value, None
    return value, property_texts(decode(area, record.schema_wire_id != 0) if area else {})
