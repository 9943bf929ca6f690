"""The message in a dump file, as a broker writes it for a message that used up its delivery attempts."""

from __future__ import annotations

import re

from bmqtwist.cli.shell.grammar import CommandError
from bmqtwist.errors import PeerError
from bmqtwist.wire import properties
from bmqtwist.wire.properties import Properties

_PROPERTIES, _AREA, _PAYLOAD = "Message Properties:", "Message Properties hexdump:", "Message Payload:"
_DATA = "Application Data:"
_GROUP = re.compile(r"(?:[0-9A-Fa-f]{2}){1,4}")


def parse_dump(text: str) -> tuple[bytes, Properties]:
    """Payload and properties; CommandError for anything else."""
    lines = text.splitlines()
    first = lines[0] if lines else ""
    if first == _DATA:
        return _hex(lines, 1), {}
    if first != _PROPERTIES:
        raise CommandError(f"no dump of a message: it begins with '{_PROPERTIES}' or '{_DATA}'")
    area_at, payload_at = _find(lines, _AREA), _find(lines, _PAYLOAD)
    area = _hex(lines, area_at + 1)
    try:
        return _hex(lines, payload_at + 1), properties.decode(area, False) if area else {}
    except PeerError as error:
        raise CommandError(f"the properties in the dump cannot be read: {error}") from None


def _find(lines: list[str], title: str) -> int:
    try:
        return lines.index(title)
    except ValueError:
        raise CommandError(f"no dump of a message: '{title}' is missing") from None


def _hex(lines: list[str], start: int) -> bytes:
    """The bytes of a hexdump: after one blank line, up to the next. `offset: digits digits ... |text|`"""
    found = bytearray()
    if start < len(lines) and not lines[start].strip():
        start += 1
    for number, line in enumerate(lines[start:], start + 1):
        if not line.strip():
            break
        if line.startswith("(") and line.endswith(" more bytes)"):
            raise CommandError(f"line {number}: the broker left out part of the payload")
        offset, _, rest = line.partition(":")
        groups = rest.partition("|")[0].split()
        if not offset.strip().isdecimal() or not groups or not all(_GROUP.fullmatch(each) for each in groups):
            raise CommandError(f"line {number}: no line of a hexdump")
        found += bytes.fromhex("".join(groups))
    return bytes(found)
