"""Application data taken apart, put together, and turned into the style that its next reader understands.

| properties | style | what CAT 1 compresses |
|---|---|---|
| none | - | the payload |
| schema id 0 | v1, lengths | area and payload together |
| schema id not 0 | v2, offsets | the payload only |
"""

from __future__ import annotations

from bmqtwist.errors import PeerError
from bmqtwist.limits import DEFLATE_RATIO_MAX, INFLATED_BYTES_MAX
from bmqtwist.wire import properties
from bmqtwist.wire.compression import Inflation, deflate, inflate
from bmqtwist.wire.fast import CAT_NONE, CAT_ZLIB

SCHEMA_ANONYMOUS = 1  # "new style, no schema named": right for every reader


def open_data(data: bytes, has_properties: bool, compression: int, schema_id: int) -> tuple[bytes, bytes]:
    """(properties area, b"" if there is none; inflated payload) of application data as it stands in a message."""
    if compression not in (CAT_NONE, CAT_ZLIB):
        raise PeerError(f"unknown compression {compression}", "CAT")
    if not has_properties:
        return b"", inflate(data) if compression else data
    if schema_id == 0:
        plain = inflate(data) if compression else data
        cut = properties.area_length(plain)
        return plain[:cut], plain[cut:]
    cut = properties.area_length(data)
    return data[:cut], inflate(data[cut:]) if compression else data[cut:]


def close_data(area: bytes, payload: bytes, v2: bool, compress: bool) -> tuple[bytes, int]:
    """(application data, CAT): the reverse of `open_data`; compressed only where that is asked for and worth it."""
    if not compress:
        return area + payload, CAT_NONE
    if v2:
        small, compression = deflate(payload)
        return area + small, compression
    return deflate(area + payload)


def properties_area(data: bytes, compression: int, schema_id: int) -> tuple[bytes, bool]:
    """(area, is it v2?) of a message that has properties, for evaluating subscriptions; the payload is not inflated
    unless the area is inside the same stream."""
    if schema_id == 0 and compression:
        data = inflate(data)
    return data[:properties.area_length(data)], schema_id != 0


def inflation(data: bytes, has_properties: bool, schema_id: int,
              limit_bytes: int = INFLATED_BYTES_MAX) -> Inflation | None:
    """What has to be inflated of a PUT with CAT 1 before it is stored; None = nothing.

    One with v1 properties is stored inflated: `data()` of the inflation, with CAT 0 and a new checksum. Others are stored as
    they came, if that would not be too large for who inflates it: a consumer, or the broker for a reader of v1 properties.
    """
    if has_properties and not schema_id:
        return Inflation(data, limit_bytes, True)
    if len(data) * DEFLATE_RATIO_MAX <= limit_bytes:
        return None
    cut = properties.area_length(data) if has_properties else 0
    return Inflation(memoryview(data)[cut:], limit_bytes - cut, False)


def conversion(data: bytes) -> Inflation:
    """What has to be inflated of a message with v2 properties and CAT 1 for a client that cannot read them: its `data()` go
    with CAT 0 and schema id 0."""
    cut = properties.area_length(data)
    return Inflation(memoryview(data)[cut:], INFLATED_BYTES_MAX, True, properties.to_v1(data[:cut]))


def for_old_reader(data: bytes, has_properties: bool, compression: int, schema_id: int) -> tuple[bytes, int]:
    """(data, CAT) for a client that cannot read v2 properties; the schema id to send with it is 0.

    Messages with properties get the v1 style and are inflated; those without go as they are.
    """
    if not has_properties:
        return data, compression
    if schema_id and compression == CAT_ZLIB:
        made = conversion(data)
        while not made.step():
            pass
        return made.data(), CAT_NONE
    area, payload = open_data(data, True, compression, schema_id)
    return (properties.to_v1(area) if schema_id else area) + payload, CAT_NONE
