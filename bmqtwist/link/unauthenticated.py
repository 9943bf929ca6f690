"""Limits for unauthenticated connections, that is, connections that have not completed their negotiation.

Each may send NEGOTIATION_BYTES_MAX bytes (`bmqtwist/limits.py`) before its negotiation is complete. Further limits
apply to the sum of their bytes (UNAUTHENTICATED_BYTES_MAX), and, as configured in `config/broker.py: BmqtwistConfig`,
to their number, to their number per address, and to new connections per second and address. `broker/sessions.py` admits
connections by them, `session.py` counts the bytes. The number of all connections is limited in `reactor/admission.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from bmqtwist.limits import NEGOTIATION_BYTES_MAX


class UnauthenticatedConnection(Protocol):
    """An unauthenticated connection."""

    peer: str  # address and port


class UnauthenticatedConnections:
    """The unauthenticated connections of one broker, with the bytes that each has sent. A limit of 0 = unlimited."""

    def __init__(self, connections_max: int, bytes_max: int, per_address_max: int = 0,
                 per_address_and_second_max: int = 0) -> None:
        self.connections_max, self.bytes_max = connections_max, bytes_max
        self._per_address_max, self._per_second_max = per_address_max, per_address_and_second_max
        self.bytes = 0  # sum over all connections
        self._sent: dict[UnauthenticatedConnection, int] = {}  # bytes
        self._by_address = Counter[str]()  # connections by address
        self._second_start = float("-inf")
        self._in_second = Counter[str]()  # in the counted second, by address

    def refusal_reason(self, peer: str, now: float) -> str:
        """Count a new connection from `peer`; return why it is refused, empty = accept it."""
        address = _address(peer)
        if now - self._second_start >= 1.0:
            self._second_start = now
            self._in_second.clear()
        self._in_second[address] += 1
        if 0 < self._per_second_max < self._in_second[address]:
            return f"more than {self._per_second_max} connections a second from one address"
        if 0 < self._per_address_max <= self._by_address[address]:
            return f"{self._per_address_max} unauthenticated connections from one address"
        if 0 < self.connections_max <= len(self._sent):
            return f"{self.connections_max} unauthenticated connections"
        return ""

    def add(self, session: UnauthenticatedConnection) -> None:
        """Add a new connection."""
        self._sent[session] = 0
        self._by_address[_address(session.peer)] += 1

    def count_received(self, session: UnauthenticatedConnection, size: int) -> str:
        """Count `size` received bytes; return the exceeded limit, empty = none."""
        self._sent[session] = sent = self._sent.get(session, 0) + size
        self.bytes += size
        if sent > NEGOTIATION_BYTES_MAX:
            return f"{sent} bytes before the end of the negotiation (limit: {NEGOTIATION_BYTES_MAX})"
        if self.bytes > self.bytes_max:
            return f"{self.bytes} bytes from unauthenticated connections (limit: {self.bytes_max})"
        return ""

    def remove(self, session: UnauthenticatedConnection) -> None:
        """Remove a connection that is negotiated or lost."""
        sent = self._sent.pop(session, None)
        if sent is None:
            return
        self.bytes -= sent
        address = _address(session.peer)
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:  # negative: an outgoing connection was not added
            del self._by_address[address]


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]
