"""Limits for unauthenticated connections, that is, connections that have not completed their negotiation.

Each may send NEGOTIATION_BYTES_MAX bytes (`bmqtwist/limits.py`) before its negotiation is complete. Further limits
apply to the sum of their bytes (UNAUTHENTICATED_BYTES_MAX), and, as configured in `config/broker.py: BmqtwistConfig`,
to their number, to their number per address, and to new connections per second and address.

When no place is left, a new connection replaces the oldest silent one of the address with the most, if that has more than
its own address would have: so a party that holds many places loses them to others, and connections that start at the same
time on many machines do not displace each other. Reserved addresses, those of nodes and of `reservedAddresses`, have as
many places of their own, and no limits per address. A network of IPv6 (64 bits) counts as one address. All of them together
write at most LINES_PER_S lines of the log in a second.

`reactor/admission.py` admits connections by these limits, and limits the number of all connections; `session.py` counts the
bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol

from bmqtwist.errors import LocalError
from bmqtwist.limits import NEGOTIATION_BYTES_MAX
from bmqtwist.report import LineLimiter


class UnauthenticatedConnection(Protocol):
    """An unauthenticated connection."""

    peer: str  # address and port


class UnauthenticatedConnections:
    """The unauthenticated connections of one broker, with the bytes that each has sent. A limit of 0 = unlimited.
    `reserved`: addresses and networks."""

    def __init__(self, connections_max: int, bytes_max: int, per_address_max: int = 0,
                 per_address_and_second_max: int = 0, reserved: Iterable[str] = ()) -> None:
        self.connections_max, self.bytes_max = connections_max, bytes_max
        self._per_address_max, self._per_second_max = per_address_max, per_address_and_second_max
        self._networks = parse_networks(reserved)
        self._nodes: set[str] = set()  # addresses of connected nodes
        self.lines = LineLimiter()  # of the log, about all these connections
        self.bytes = 0  # sum over all connections
        self._sent: dict[UnauthenticatedConnection, int] = {}  # bytes
        self._by_address: dict[str, dict[UnauthenticatedConnection, None]] = {}  # oldest first
        self._is_reserved: dict[UnauthenticatedConnection, bool] = {}  # at its beginning
        self._counts = [0, 0]  # of connections without and with reserved address
        self._second_start = float("-inf")
        self._in_second = Counter[str]()  # in the counted second, by address

    def reserve(self, peer: str) -> None:
        """Reserve the address of a node that this one has connected to."""
        self._nodes.add(network_of(address_of(peer)))

    def is_reserved(self, peer: str) -> bool:
        address = address_of(peer)
        if network_of(address) in self._nodes:
            return True
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(found in each for each in self._networks)

    def refusal_reason(self, peer: str, now: float) -> str:
        """Count a new connection from `peer`; return why it is refused, empty = accept it."""
        address = network_of(address_of(peer))
        if now - self._second_start >= 1.0:
            self._second_start = now
            self._in_second.clear()
        self._in_second[address] += 1
        if 0 < self._per_second_max < self._in_second[address] and not self.is_reserved(peer):
            return f"more than {self._per_second_max} connections a second from one address"
        if 0 < self._per_address_max <= len(self._by_address.get(address, ())) and not self.is_reserved(peer):
            return f"{self._per_address_max} unauthenticated connections from one address"
        return ""

    def is_full(self, peer: str) -> bool:
        """Return whether no place is left for a new connection from `peer`."""
        return 0 < self.connections_max <= self._counts[self.is_reserved(peer)]

    def replaced_by(self, peer: str, full: bool = False) -> UnauthenticatedConnection | None:
        """Return the connection that a new one from `peer` replaces; None = the new one is refused. `full`: the whole broker
        is full, so that reserved addresses take the places of others."""
        is_reserved = self.is_reserved(peer)
        flag = is_reserved and not full
        groups = [each for each in self._by_address.values() if self._is_reserved[next(iter(each))] is flag]
        largest, own = max(groups, key=len, default={}), self._by_address.get(network_of(address_of(peer)), {})
        return self._oldest(largest) if len(largest) > (0 if is_reserved and full else len(own) + 1) else None

    def _oldest(self, connections: dict[UnauthenticatedConnection, None]) -> UnauthenticatedConnection:
        """Return the oldest connection that has sent nothing, else the oldest one."""
        return next((each for each in connections if not self._sent[each]), next(iter(connections)))

    def add(self, session: UnauthenticatedConnection) -> None:
        """Add a new connection."""
        self._sent[session] = 0
        is_reserved = self._is_reserved[session] = self.is_reserved(session.peer)
        self._counts[is_reserved] += 1
        self._by_address.setdefault(network_of(address_of(session.peer)), {})[session] = None

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
        self.bytes -= self._sent.pop(session, 0)
        is_reserved = self._is_reserved.pop(session, None)
        if is_reserved is not None:  # an outgoing connection was not added
            self._counts[is_reserved] -= 1
            address = network_of(address_of(session.peer))
            del self._by_address[address][session]
            if not self._by_address[address]:
                del self._by_address[address]


def parse_networks(texts: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    """Return the networks of `reservedAddresses`. Raises LocalError."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            raise LocalError(f'bmqtwist.reservedAddresses: found "{text}", expected an address or a network, as '
                             "10.0.0.0/24") from None
    return found


def address_of(peer: str) -> str:
    """Return the address of a peer without its port."""
    return peer.rpartition(":")[0].strip("[]")


def network_of(address: str) -> str:
    """Return the address to which limits apply: of IPv6 the first 64 bits, which one party has."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
