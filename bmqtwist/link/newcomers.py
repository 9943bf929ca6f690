"""Connections whose negotiation is not done: nobody knows who they are, so little is kept for them.

Each may send NEGOTIATION_BYTES_MAX until it is negotiated; all of them together may be so many and may have sent so
much. Events that are not whole yet, of these connections and of all others, are counted by `Held`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmqtwist.limits import NEGOTIATION_BYTES_MAX

if TYPE_CHECKING:
    from bmqtwist.link.session import Session


class Newcomers:
    """Who has connected and is not negotiated yet, with the bytes that each has sent. `connections_max` 0 = any number."""

    def __init__(self, connections_max: int, bytes_max: int) -> None:
        self.connections_max, self.bytes_max = connections_max, bytes_max
        self.bytes = 0  # sent by all of them
        self._sent: dict[Session, int] = {}

    @property
    def full(self) -> bool:
        """Whether no other one is taken now."""
        return 0 < self.connections_max <= len(self._sent)

    def add(self, session: Session) -> None:
        """Somebody has connected."""
        self._sent[session] = 0

    def received(self, session: Session, size: int) -> str:
        """It has sent `size` bytes more; why that is too much, empty = it is not."""
        self._sent[session] = sent = self._sent.get(session, 0) + size
        self.bytes += size
        if sent > NEGOTIATION_BYTES_MAX:
            return f"{sent} bytes before the end of the negotiation (limit: {NEGOTIATION_BYTES_MAX})"
        if self.bytes > self.bytes_max:
            return f"{self.bytes} bytes of connections that are not negotiated (limit: {self.bytes_max})"
        return ""

    def remove(self, session: Session) -> None:
        """It is negotiated, or gone."""
        self.bytes -= self._sent.pop(session, 0)
