"""Readable text of numbers and bytes for alarms, dumps and admin responses.

Called by `queue/meter.py`, `queue/describe.py`, `admin/text.py` and `view/metrics.py`. `report.shown` escapes texts of
clients for the log.

>>> grouped(10000000), pretty_bytes(9), pretty_bytes(10485760000)
('10,000,000', '9  B', '9.77 GB')
"""

from __future__ import annotations

import datetime

_UNITS = ("KB", "MB", "GB", "TB", "PB", "EB")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_ROW = 16  # bytes of one hexdump line
_SHOWN = bytes(code if 0x20 <= code <= 0x7E else 0x2E for code in range(256))


def grouped(number: int) -> str:
    """Return an integer with comma groups."""
    return f"{number:,}"


def pretty_bytes(count: int) -> str:
    """Return a size in bytes: an integer below 1024 (with two blanks), else two decimals in the largest suitable unit."""
    if abs(count) < 1024:
        return f"{count}  B"
    size = count / 1024
    for unit in _UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} {_UNITS[-1]}"


def timestamp_text(wall: float) -> str:
    """Return seconds since the epoch as `21NOV2026_05:23:56.623349+0000`."""
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=round(wall * 1e6))
    return f"{moment:%d}{_MONTHS[moment.month - 1]}{moment:%Y_%H:%M:%S.%f}+0000"


def hexdump(data: bytes | bytearray | memoryview) -> str:
    """Return lines of 16 bytes: decimal offset, four groups of hexadecimal digits, printable characters.

    >>> hexdump(bytes.fromhex("1b000004000118000001000 16b760202".replace(" ", ""))).rstrip()
    '     0:   1B000004 00011800 00010001 6B760202     |............kv..|'
    """
    lines = []
    for offset in range(0, len(data), _ROW):
        row = bytes(data[offset:offset + _ROW])
        digits = row.hex().upper().ljust(2 * _ROW)
        groups = " ".join(digits[at:at + 8] for at in range(0, 2 * _ROW, 8))
        text = row.translate(_SHOWN).decode("ascii").ljust(_ROW)
        lines.append(f"{offset:6d}:   {groups}     |{text}|\n")
    return "".join(lines)
