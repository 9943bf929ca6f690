"""The simulated network: whoever is somewhere connects to whoever listens at an address.

    place                where somebody is: the name of a node, the address of a client's machine
    connect, dial        a connection from a place to the node at an address; `dial` takes time and can fail late
    ConnectionEnd        what one end does: send, read or not, finish, drop; its `receiver` is told what comes
    cut, heal, slow      what happens to everything that goes from one place to another

Bytes arrive in order, cut anywhere, each slice at a moment of its own. Where a link is cut they wait, as TCP's
retransmissions make them, and so does the news of an end: the other side is half-open until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.testing.simulation import Simulation

KERNEL_BYTES = 65536  # what a connection takes without anybody reading at the other end
CONNECT_SECONDS_MAX = 5.0  # until a dial into a cut link is given up
LOOPBACK = "127.0.0.1"  # where clients are that say nothing else


class Receiver:
    """What is at one end of a connection; by itself it does nothing."""

    def take(self, data: bytes) -> None:
        """Bytes from the other end."""

    def cut(self) -> None:
        """The connection is gone."""

    def drained(self) -> None:
        """The other end, which was behind, has taken everything."""


class ConnectionEnd:
    """One end of a connection, as the process there sees it."""

    other: ConnectionEnd

    def __init__(self, network: Network, place: str) -> None:
        self._network, self._simulation, self.place = network, network.simulation, place
        self.receiver = Receiver()  # until somebody takes its place
        self.open = True  # as far as is known here
        self.asleep = False  # the process here is held up: what comes has to wait
        self._reading = True
        self._kept: list[Callable[[], None]] = []  # what has come while nobody took it
        self._arrives_at = self._simulation.now  # when the last slice under way from here arrives
        self._flying = 0  # bytes on their way from here
        self.arrived = 0  # bytes that have come to the other end
        self._behind = self._finishing = False
        self._vanished = False  # what is on its way from here will not arrive
        self._forgotten = False  # by its machine, which says so when it is asked

    # -- what the process here does ---------------------------------------------------------------------------------

    def send(self, data: bytes) -> int:
        """Bytes for the other end, in slices; how many the kernel has not taken yet."""
        simulation, latency = self._simulation, self._network.latency(self)
        for piece in simulation.slices(data):
            self._arrives_at = max(self._arrives_at, simulation.now + simulation.delay() + latency)
            self._carry(self._arrives_at, lambda piece=piece: self._arrive(piece))  # type: ignore[misc]
        self._flying += len(data)
        self._behind = self._behind or self._flying > KERNEL_BYTES
        return self.waiting

    @property
    def waiting(self) -> int:
        return max(0, self._flying - KERNEL_BYTES) if self._behind else 0

    def read(self, wanted: bool) -> None:
        """Go on reading, or stop: then the other end gets behind."""
        self._reading = wanted
        self._take_kept()

    def finish(self) -> None:
        """Close, after what was sent."""
        if not self._finishing:
            self._finishing = True
            now = self._simulation.now
            if self._network.abrupt:
                self.other.end()
            self._carry(max(self._arrives_at, now + self._network.latency(self)), self.other.end)
            self._simulation.at(now + self._simulation.delay(), self._close)

    def drop(self, silently: bool = False) -> None:
        """Be gone at once, with what is under way; `silently`: nobody tells the other end, as when a cable is pulled."""
        self.open, self._vanished = False, True
        if not silently:
            self._tell_other()

    # -- what happens to the connection -----------------------------------------------------------------------------

    def reset(self) -> None:
        """The connection breaks: both ends learn of it, and nothing that is under way arrives."""
        for end in (self, self.other):
            end._vanished = True
            self._simulation.at(self._simulation.now + self._simulation.delay(), end.end)

    def end(self) -> None:
        if self.asleep:
            self._kept.append(self.end)
        elif self.open:
            self._vanished = True
            self._close()

    def die(self, silently: bool = False) -> None:
        """The process here is dead. What it sent arrives, then its kernel says that it is gone. Where the machine has
        died with it (`silently`), it says so when it is up again and something comes."""
        self.open, self._forgotten = False, silently
        if not silently:
            self._tell_other()

    def wake(self) -> None:
        """The process here goes on after it was held up."""
        self.asleep = False
        self._take_kept()

    def _close(self) -> None:
        if self.open:
            self.open = False
            self.receiver.cut()

    def _tell_other(self) -> None:
        when = self._simulation.now + self._simulation.delay() + self._network.latency(self)
        self._carry(when, self.other.end)

    def _carry(self, when: float, action: Callable[[], None]) -> None:
        self._simulation.at(when, lambda: self._network.carry(self, action))

    def _arrive(self, piece: bytes) -> None:
        there = self.other
        if not there._reading or there.asleep:
            there._kept.append(lambda: self._arrive(piece))
            return
        if self._vanished or not there.open:
            if there._forgotten and self._network.is_up(there.place):
                there._forgotten = False
                there._tell_other()
            return
        self._flying -= len(piece)
        self.arrived += len(piece)
        if self._behind and not self._flying and self.open:
            self._behind = False
            self.read(True)
            self.receiver.drained()
        self._simulation.trace(f"{self.place} to {there.place}", piece)
        there.receiver.take(piece)

    def _take_kept(self) -> None:
        if self._reading and not self.asleep:
            kept, self._kept = self._kept, []
            for action in kept:
                action()


class Listener(Protocol):
    """Who can be connected to: a node."""

    name: str
    address: str
    up: bool

    @property
    def listening(self) -> bool:
        """Does it take connections?"""
        ...

    def accept(self, end: ConnectionEnd, peer: str) -> None:
        """Somebody has connected: `end` is this side of it, `peer` where the other side is."""


class Network:
    """All connections, and the links between places."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.abrupt = False  # a connection that one end closes ends at once, with what is under way
        self._nodes: dict[str, Listener] = {}  # by address
        self._cut: dict[tuple[str, str], list[Callable[[], None]]] = {}  # (from, to) -> what waits for `heal`
        self._slow: dict[tuple[str, str], float] = {}
        self._ports = 40000

    def add(self, node: Listener) -> None:
        self._nodes[node.address] = node

    # -- connections ------------------------------------------------------------------------------------------------

    def connect(self, address: str, place: str = LOOPBACK) -> ConnectionEnd | None:
        """A connection at once, the end of whoever asks for it; None if nobody listens."""
        node = self._nodes.get(address)
        if node is None or not node.listening or self._is_cut(place, node.name):
            return None
        self._ports += 1
        ours, theirs = ConnectionEnd(self, place), ConnectionEnd(self, node.name)
        ours.other, theirs.other = theirs, ours
        node.accept(theirs, f"{place}:{self._ports}")
        return ours

    def dial(self, address: str, place: str, done: Callable[[ConnectionEnd | None], None]) -> None:
        """A connection as it comes about in reality: `done` is told after a while, and late where a link is cut."""
        node = self._nodes.get(address)
        cut = node is not None and self._is_cut(place, node.name)
        wait = CONNECT_SECONDS_MAX if cut else self.simulation.delay()
        self.simulation.at(self.simulation.now + wait, lambda: done(self.connect(address, place)))

    def is_up(self, place: str) -> bool:
        return any(node.name == place and node.up for node in self._nodes.values())

    # -- links ------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str, both: bool = True) -> None:
        """Nothing gets from one place to the other any more, and (`both`) back."""
        for link in ((source, target), (target, source))[:1 + both]:
            self._cut.setdefault(link, [])

    def heal(self, source: str, target: str, both: bool = True) -> None:
        """What was cut is joined again; what waited arrives."""
        for link in ((source, target), (target, source))[:1 + both]:
            for action in self._cut.pop(link, []):
                action()

    def heal_all(self) -> None:
        """Whatever was cut or slow is as before."""
        self._slow.clear()
        for source, target in list(self._cut):
            self.heal(source, target, both=False)

    def slow(self, source: str, target: str, seconds: float) -> None:
        """What goes from one place to the other takes so much longer."""
        self._slow[source, target] = seconds

    def latency(self, end: ConnectionEnd) -> float:
        """From an end: the seconds that what it sends takes longer than usual."""
        return self._slow.get((end.place, end.other.place), 0.0)

    def carry(self, end: ConnectionEnd, action: Callable[[], None]) -> None:
        """From an end: something of it arrives, unless the link is cut."""
        waiting = self._cut.get((end.place, end.other.place))
        if waiting is None:
            action()
        else:
            waiting.append(action)

    def _is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut or (target, source) in self._cut
