"""Data lane of a connection to another broker: data waits here, so that control events overtake it.

The connection is given at most LINK_WRITE_BYTES of data before its kernel has accepted them. Data beyond that waits in the
lane and is sent in FRAGMENT events: their bodies are the bytes of the waiting events, in order. Control events are written
between two fragments; one of more than LINK_WRITE_BYTES is sent as data, and so are the later events that must not overtake
it. The output of a turn that fits is written as it is.

docs/protocol-extensions.md has the table of the events that overtake. `link/outbox.py` fills the lane;
`broker/output.py` empties it. Called only for peers that have announced CONTROL_FIRST. LINK_WRITE_BYTES is in
`bmqtwist/limits.py`, CONTROL_FIRST in `extensions.py`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from bmqtwist.limits import LINK_WRITE_BYTES
from bmqtwist.wire.fast import EventType, event_header

_FRAGMENT: Final = int(EventType.FRAGMENT)


class DataLane:
    """Output of one connection. `open`: false until the response of the negotiation is written, which comes first;
    `control`: control events of this turn; `bytes`: waiting data; `blocked`: output that was written before is unsent;
    `sent_at`: time of the last FRAGMENT event; `holds_control`: a control event is sent as data, and waits."""

    __slots__ = ("open", "control", "bytes", "blocked", "sent_at", "holds_control", "_held_bytes", "_parts")

    def __init__(self, is_open: bool) -> None:
        self.open = is_open
        self.control: list[bytes] = []
        self.bytes = 0
        self.blocked = False
        self.sent_at = float("-inf")
        self.holds_control = False
        self._held_bytes = 0  # waiting data up to the end of the turn of the newest control event among them
        self._parts: deque[bytes | memoryview] = deque()

    def take_output(self, data: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Add the data of a turn, whole events. Return the parts to write now: control events, then data if it may be
        written."""
        self.open = True
        output: list[bytes | memoryview] = []
        output += self.control
        self.control = []
        size = 0
        for part in data:
            size += len(part)
        if not self.bytes and not self.blocked and size <= LINK_WRITE_BYTES:
            output += data
            self.holds_control = False
            return output
        self._parts += data
        self.bytes += size
        if self.holds_control:
            self._held_bytes = self.bytes
        if not self.blocked:
            output += self.next_fragment()
        return output

    def next_fragment(self) -> list[bytes | memoryview]:
        """Remove the next data and return it as the parts of a FRAGMENT event, without copying."""
        parts = self._parts
        size = need = min(self.bytes, LINK_WRITE_BYTES)
        fragment: list[bytes | memoryview] = [event_header(_FRAGMENT, size)]
        self.bytes -= size
        if self.holds_control:
            self._held_bytes -= size
            self.holds_control = self._held_bytes > 0
        while need:
            part = parts.popleft()
            if len(part) > need:
                view = memoryview(part)
                parts.appendleft(view[need:])
                part = view[:need]
            fragment.append(part)
            need -= len(part)
        return fragment
