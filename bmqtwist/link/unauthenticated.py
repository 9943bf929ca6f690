"""Limits for unauthenticated connections: connections that have not completed their negotiation.

Each may send NEGOTIATION_BYTES_MAX bytes before its negotiation is complete. Further limits apply to their number, to the
sum of their bytes, to their number per address, and to new connections per second and address.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from bmqtwist.limits import NEGOTIATION_BYTES_MAX


class UnauthenticatedConnection(Protocol):
    """An unauthenticated connection."""

    peer: str  # address and port


class UnauthenticatedConnections:
    """The unauthenticated connections with the bytes that each has sent. A limit of 0 = unlimited."""

    def __init__(self, connections_max: int, bytes_max: int, per_address_max: int = 0,
                 per_address_a_second_max: int = 0) -> None:
        self.connections_max, self.bytes_max = connections_max, bytes_max
        self._per_address_max, self._a_second_max = per_address_max, per_address_a_second_max
        self.bytes = 0  # sum over all connections
        self._sent: dict[UnauthenticatedConnection, int] = {}  # bytes
        self._present = Counter[str]()  # connections by address
        self._second = float("-inf")  # start of the counted second
        self._connected = Counter[str]()  # in the counted second, by address

    def refusal(self, peer: str, now: float) -> str:
        """Return why a new connection from `peer` must be refused; empty = accept it."""
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

    def add(self, session: UnauthenticatedConnection) -> None:
        """Add a new connection."""
        self._sent[session] = 0
        self._present[_address(session.peer)] += 1

    def received(self, session: UnauthenticatedConnection, size: int) -> str:
        """Count `size` received bytes; return the exceeded limit, empty = none."""
        self._sent[session] = sent = self._sent.get(session, 0) + size
        self.bytes += size
        if sent > NEGOTIATION_BYTES_MAX:
            return f"{sent} bytes before the end of the negotiation (limit: {NEGOTIATION_BYTES_MAX})"
        if self.bytes > self.bytes_max:
            return f"{self.bytes} bytes of connections that are not negotiated (limit: {self.bytes_max})"
        return ""

    def remove(self, session: UnauthenticatedConnection) -> None:
        """Remove a connection that is negotiated or lost."""
        sent = self._sent.pop(session, None)
        if sent is None:
            return
        self.bytes -= sent
        address = _address(session.peer)
        self._present[address] -= 1
        if self._present[address] <= 0:  # negative: an outgoing connection was not added
            del self._present[address]


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]
