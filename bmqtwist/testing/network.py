"""Simulated network: connections between clients and nodes, with delays and link faults.

    place                the host of an end: the name of a node, or the address of a client's machine
    connect, dial        connect from a place to the node at an address; `dial` takes time and can fail late
    ConnectionEnd        one end: send, read, finish, drop; its `handler` handles received data
    cut, heal, slow, limit    faults of the link from one place to another

Data arrives in order, split at random positions, each slice with its own delay. On a cut link, data and the end of
connections wait until it is healed, as with TCP retransmission: the other end is half-open until then. A limited link sends
the data of all its connections one packet after the other, in the order in which it was written. `cluster.py` creates the
network; clients connect with `simulated_pump.py`, nodes with `simulated_node.py`. `faults.py` has faults of single events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.testing.simulation import Simulation

KERNEL_BYTES = 65536  # capacity of the kernel's buffers of a connection whose other end does not read
PACKET_SECONDS_MAX = 0.01  # duration of a packet on a limited link
CONNECT_SECONDS_MAX = 5.0  # timeout of a dial into a cut link
LOOPBACK = "127.0.0.1"  # default place of clients


class ConnectionHandler:
    """Handler of one end's events; the base class ignores them."""

    def on_data(self, data: bytes) -> None:
        """Handle data from the other end."""

    def on_end(self) -> None:
        """Handle the end of the connection."""

    def on_drained(self) -> None:
        """Handle the end of a congestion: the kernel's buffers hold all sent data that has not arrived."""


class ConnectionEnd:
    """One end of a connection, as its process sees it."""

    other: ConnectionEnd

    def __init__(self, network: Network, place: str) -> None:
        self._network, self._simulation, self.place = network, network.simulation, place
        self.handler = ConnectionHandler()  # replaced by the owner
        self.open = True  # False after this end was notified of the end
        self.paused = False  # the process is paused: arriving events wait
        self._reading = True
        self._deferred: list[Callable[[], None]] = []  # events that arrived while the end was paused or did not read
        self._arrives_at = self._simulation.now  # arrival time of the last slice sent from here
        self._in_flight = 0  # bytes sent from here that have not arrived
        self.arrived = 0  # bytes sent from here that have arrived
        self._congested = self._finishing = False
        self._discarding = False  # data in flight from here is discarded
        self._must_reset = False  # the machine restarted: it answers data with a reset

    # -- calls of the process ---------------------------------------------------------------------------------------

    def send(self, data: bytes) -> int:
        """Send data in slices; return the number of bytes that exceed the kernel's buffers."""
        simulation = self._simulation
        for piece in self._network.split(self, data):
            sent_at = self._network.transmit(self, len(piece))
            self._arrives_at = max(self._arrives_at, sent_at + simulation.delay() + self._network.latency(self))
            self._schedule_at_other_end(self._arrives_at, lambda piece=piece: self._arrive(piece))  # type: ignore[misc]
        self._in_flight += len(data)
        self._congested = self._congested or self._in_flight > KERNEL_BYTES
        return self.waiting_bytes

    @property
    def waiting_bytes(self) -> int:
        return max(0, self._in_flight - KERNEL_BYTES) if self._congested else 0

    def read(self, wanted: bool) -> None:
        """Resume or stop reading; without reading, the other end becomes congested."""
        self._reading = wanted
        self._process_deferred()

    def finish(self) -> None:
        """Close after the sent data has arrived."""
        if not self._finishing:
            self._finishing = True
            now = self._simulation.now
            if self._network.abrupt:
                self.other.end()
            self._schedule_at_other_end(max(self._arrives_at, now + self._network.latency(self)), self.other.end)
            self._simulation.at(now + self._simulation.delay(), self._close)

    def drop(self, silently: bool = False) -> None:
        """Abort and discard data in flight. `silently`: the other end is not notified, as with a pulled cable."""
        self.open, self._discarding = False, True
        if not silently:
            self._end_other()

    # -- events of the connection -----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Break the connection: data in flight is discarded, and both ends are notified."""
        for end in (self, self.other):
            end._discarding = True
            self._simulation.at(self._simulation.now + self._simulation.delay(), end.end)

    def end(self) -> None:
        if self.paused:
            self._deferred.append(self.end)
        elif self.open:
            self._discarding = True
            self._close()

    def end_process(self, silently: bool = False) -> None:
        """End the process of this end: sent data arrives, then its kernel closes the connection. `silently`: its machine
        fails, too, and resets the connection when it receives data after its restart."""
        self.open, self._must_reset = False, silently
        if not silently:
            self._end_other()

    def resume(self) -> None:
        """Continue a paused process."""
        self.paused = False
        self._process_deferred()

    def _close(self) -> None:
        if self.open:
            self.open = False
            self.handler.on_end()

    def _end_other(self) -> None:
        when = self._simulation.now + self._simulation.delay() + self._network.latency(self)
        self._schedule_at_other_end(when, self.other.end)

    def _schedule_at_other_end(self, when: float, action: Callable[[], None]) -> None:
        self._simulation.at(when, lambda: self._network.deliver_or_defer(self, action))

    def _arrive(self, piece: bytes) -> None:
        there = self.other
        if not there._reading or there.paused:
            there._deferred.append(lambda: self._arrive(piece))
            return
        if self._discarding or not there.open:
            if there._must_reset and self._network.is_up(there.place):
                there._must_reset = False
                there._end_other()
            return
        self._in_flight -= len(piece)
        self.arrived += len(piece)
        if self._congested and self._in_flight <= KERNEL_BYTES and self.open:
            self._congested = False
            self.read(True)
            self.handler.on_drained()
        self._simulation.trace(f"{self.place} to {there.place}", piece)
        there.handler.on_data(piece)

    def _process_deferred(self) -> None:
        if self._reading and not self.paused:
            deferred, self._deferred = self._deferred, []
            for action in deferred:
                action()


class NetworkNode(Protocol):
    """A node that listens at an address."""

    name: str
    address: str
    up: bool

    @property
    def listening(self) -> bool:
        """True if the node accepts connections."""
        ...

    def accept(self, end: ConnectionEnd, peer: str) -> None:
        """Accept a connection: `end` is the node's end, `peer` the address of the other one."""


class Network:
    """Connections, and the links between places."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.abrupt = False  # a close ends both ends at once and discards data in flight
        self._nodes: dict[str, NetworkNode] = {}  # by address
        self._cut: dict[tuple[str, str], list[Callable[[], None]]] = {}  # (from, to) -> events that wait for `heal`
        self._slow: dict[tuple[str, str], tuple[float, float]] = {}  # (from, to) -> additional delay and its jitter, seconds
        self._limits: dict[tuple[str, str], int] = {}  # (from, to) -> bytes per second
        self._free_at: dict[tuple[str, str], float] = {}  # (from, to) -> time at which a limited link has sent everything
        self._ports = 40000

    def add(self, node: NetworkNode) -> None:
        self._nodes[node.address] = node

    # -- connections ------------------------------------------------------------------------------------------------

    def connect(self, address: str, place: str = LOOPBACK) -> ConnectionEnd | None:
        """Connect at once and return the caller's end; None if no node listens, or the link is cut."""
        node = self._nodes.get(address)
        if node is None or not node.listening or self._is_cut(place, node.name):
            return None
        self._ports += 1
        ours, theirs = ConnectionEnd(self, place), ConnectionEnd(self, node.name)
        ours.other, theirs.other = theirs, ours
        node.accept(theirs, f"{place}:{self._ports}")
        return ours

    def dial(self, address: str, place: str, done: Callable[[ConnectionEnd | None], None]) -> None:
        """Connect with a delay and call `done` with the caller's end or None; on a cut link after CONNECT_SECONDS_MAX."""
        node = self._nodes.get(address)
        cut = node is not None and self._is_cut(place, node.name)
        wait = CONNECT_SECONDS_MAX if cut else self.simulation.delay()
        self.simulation.at(self.simulation.now + wait, lambda: done(self.connect(address, place)))

    def is_up(self, place: str) -> bool:
        return any(node.name == place and node.up for node in self._nodes.values())

    # -- links ------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str, both: bool = True) -> None:
        """Cut the link from one place to another, and (`both`) back."""
        for link in ((source, target), (target, source))[:1 + both]:
            self._cut.setdefault(link, [])

    def heal(self, source: str, target: str, both: bool = True) -> None:
        """Restore a cut link and deliver the waiting events."""
        for link in ((source, target), (target, source))[:1 + both]:
            for action in self._cut.pop(link, []):
                action()

    def heal_all(self) -> None:
        """Restore all cut, slow and limited links."""
        self._slow.clear()
        self._limits.clear()
        for source, target in list(self._cut):
            self.heal(source, target, both=False)

    def slow(self, source: str, target: str, seconds: float, jitter: float = 0.0) -> None:
        """Delay data from one place to another by additional seconds, each packet by up to `jitter` more or less."""
        self._slow[source, target] = seconds, jitter

    def limit(self, source: str, target: str, bytes_per_second: int = 0, both: bool = True) -> None:
        """Limit the bandwidth from one place to another, and (`both`) back; 0 = unlimited. Data already sent keeps its time
        of arrival."""
        for link in ((source, target), (target, source))[:1 + both]:
            self._limits.pop(link, None)
            if bytes_per_second:
                self._limits[link] = bytes_per_second

    def latency(self, end: ConnectionEnd) -> float:
        """From an end: the additional delay of its next packet, in seconds."""
        seconds, jitter = self._slow.get((end.place, end.other.place), (0.0, 0.0))
        return seconds + jitter * (2 * self.simulation.random.random() - 1) if jitter else seconds

    def split(self, end: ConnectionEnd, data: bytes) -> list[bytes]:
        """From an end: the packets of its data; on a limited link each takes PACKET_SECONDS_MAX at most."""
        limit = self._limits.get((end.place, end.other.place))
        if limit is None:
            return self.simulation.split_randomly(data)
        size = max(1, int(limit * PACKET_SECONDS_MAX))
        return [data[at:at + size] for at in range(0, len(data), size)]

    def transmit(self, end: ConnectionEnd, size: int) -> float:
        """From an end: the time at which a packet of `size` bytes has left its place."""
        link, now = (end.place, end.other.place), self.simulation.now
        limit = self._limits.get(link)
        if limit is None:
            return now
        self._free_at[link] = max(now, self._free_at.get(link, 0.0)) + size / limit
        return self._free_at[link]

    def deliver_or_defer(self, end: ConnectionEnd, action: Callable[[], None]) -> None:
        """From an end: run the arrival of data or of a close, or defer it while the link is cut."""
        waiting = self._cut.get((end.place, end.other.place))
        if waiting is None:
            action()
        else:
            waiting.append(action)

    def _is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut or (target, source) in self._cut
