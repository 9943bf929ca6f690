"""Client side of a WebSocket (RFC 6455), as bytes: requests and frames that the tests of the console need.

Used by `unit/console/test_console_live.py` and `integration/test_console_cluster.py`.
"""

from __future__ import annotations

import json
import os
import struct
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


def request(path: str, headers: Mapping[str, str]) -> bytes:
    """Encode the HTTP request that opens a WebSocket."""
    lines = [f"GET {path} HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
             f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}",
             *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """Encode one masked frame, as clients send it."""
    mask, size = os.urandom(4), len(payload)
    head = bytes([0x80 | opcode]) + (bytes([0x80 | size]) if size < 126 else struct.pack(">BH", 0x80 | 126, size)
                                     if size < 1 << 16 else struct.pack(">BQ", 0x80 | 127, size))
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def text_frame(**message: Any) -> bytes:
    """Encode a JSON message as a text frame."""
    return frame(json.dumps(message).encode())


class Frames:
    """Decodes frames from received bytes."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Append received bytes and return the complete frames as (opcode, payload)."""
        self._data += data
        found = []
        while (place := self._payload()) is not None:
            begin, end = place
            found.append((self._data[0] & 15, self._data[begin:end]))
            self._data = self._data[end:]
        return found

    def _payload(self) -> tuple[int, int] | None:
        data = self._data
        if len(data) < 2:
            return None
        size, begin = data[1] & 127, 2
        if size == 126:
            begin = 4
            size = struct.unpack(">H", data[2:4])[0] if len(data) >= 4 else 1 << 62
        elif size == 127:
            begin = 10
            size = struct.unpack(">Q", data[2:10])[0] if len(data) >= 10 else 1 << 62
        return (begin, begin + size) if len(data) >= begin + size else None
