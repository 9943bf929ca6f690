"""Connections whose negotiation is not done: nobody knows who they are, so little is kept for them.

Each may send NEGOTIATION_BYTES_MAX until it is negotiated; all of them together may be so many and may have sent so
much. One address may have so many of them, and may connect so many times a second.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from bmqtwist.limits import NEGOTIATION_BYTES_MAX


class Newcomer(Protocol):
    """One of them."""

    peer: str  # address and port


class Newcomers:
    """Who has connected and is not negotiated yet, with the bytes that each has sent. A limit of 0 = any number."""

    def __init__(self, connections_max: int, bytes_max: int, per_address_max: int = 0,
                 per_address_a_second_max: int = 0) -> None:
        self.connections_max, self.bytes_max = connections_max, bytes_max
        self._per_address_max, self._a_second_max = per_address_max, per_address_a_second_max
        self.bytes = 0  # sent by all of them
        self._sent: dict[Newcomer, int] = {}
        self._present = Counter[str]()  # of each address
        self._second = float("-inf")  # when the second began that is counted
        self._connected = Counter[str]()  # since then, by address

    def refusal(self, peer: str, now: float) -> str:
        """Why one more connection, from `peer`, is not taken now; empty = it is."""
        address = _address(peer)
        if now - self._second >= 1.0:
            self._second = now
            self._connected.clear()
        self._connected[address] += 1
        if 0 < self._a_second_max < self._connected[address]:
            return f"more than {self._a_second_max} connections a second from one address"
        if 0 < self._per_address_max <= self._present[address]:
            return f"{self._per_address_max} connections of its address are not negotiated"
        if 0 < self.connections_max <= len(self._sent):
            return f"{self.connections_max} connections are not negotiated"
        return ""

    def add(self, session: Newcomer) -> None:
        """Somebody has connected."""
        self._sent[session] = 0
        self._present[_address(session.peer)] += 1

    def received(self, session: Newcomer, size: int) -> str:
        """It has sent `size` bytes more; why that is too much, empty = it is not."""
        self._sent[session] = sent = self._sent.get(session, 0) + size
        self.bytes += size
        if sent > NEGOTIATION_BYTES_MAX:
            return f"{sent} bytes before the end of the negotiation (limit: {NEGOTIATION_BYTES_MAX})"
        if self.bytes > self.bytes_max:
            return f"{self.bytes} bytes of connections that are not negotiated (limit: {self.bytes_max})"
        return ""

    def remove(self, session: Newcomer) -> None:
        """It is negotiated, or gone."""
        sent = self._sent.pop(session, None)
        if sent is None:
            return
        self.bytes -= sent
        address = _address(session.peer)
        self._present[address] -= 1
        if self._present[address] <= 0:  # a connection made from here was not added
            del self._present[address]


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]
