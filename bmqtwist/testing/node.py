"""Nodes without sockets, files, threads and clock: successive runs of a broker over a disk in memory.

`daemon.assemble` constructs the node; its performer acts synchronously. `run` runs turns until no work is pending: after
it, only an advance of the clock or an event changes the node. `runner.py` runs `ImmediateNode`; `simulated_node.py` adds
simulated time to `MemoryNode`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.broker.broker import Broker
from bmqtwist.config.broker import Configuration
from bmqtwist.config.provider import DomainSource
from bmqtwist.daemon.assemble import Node, assemble
from bmqtwist.link.authentication import Authenticate, attempt
from bmqtwist.link.session import Session
from bmqtwist.loop.performer import Performer
from bmqtwist.peers.handshake import Identity
from bmqtwist.report import ListReport
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.testing.clock import START_S, WALL_S, SimulatedClock
from bmqtwist.versions import OWN

ROUNDS_MAX = 100_000  # limit of turns in one `run`
STOP_SECONDS_MAX = 600.0  # limit of a graceful stop, on the node's clock


class SessionTransport(Protocol):
    """Transport of a session of a node, as the broker uses it."""

    def write(self, data: bytes) -> int:
        """Write data of the broker; return the number of bytes that remain unsent."""
        ...

    def close(self) -> None:
        """Close the connection after the written data."""

    def set_reading(self, wanted: bool) -> None:
        """Resume or stop reading."""


class ImmediatePerformer:
    """`loop.performer.Performer` that performs each call at once, or in the next round of `run`."""

    def __init__(self, node: ImmediateNode) -> None:
        self._node = node

    def request_turn(self) -> None:
        self._node.turn_requested = True

    def clock(self) -> float:
        return self._node.now

    def processor_time(self) -> float:
        return self.clock()

    def run_in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run the work in the next round in which the disk is not stalled."""
        def complete() -> None:
            try:
                work()
            except OSError as error:
                failed(error, self._node.now)
            else:
                done(self._node.now)
        self._node.syncs.append(complete)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        def complete() -> None:
            outcome = attempt(effect.authenticator, effect.data, effect.peer)
            self._node.broker.sessions.on_authenticated(session, effect.token, outcome, self._node.now)
        self._node.next_round.append(complete)

    def write(self, session: Session, parts: list[bytes | memoryview]) -> int:
        data = b"".join(parts)
        transport: SessionTransport | None = session.transport  # type: ignore[assignment]
        return transport.write(data) if transport is not None and data else 0

    def unsent_output(self, session: Session) -> tuple[int, int]:
        """Report no unread output, so that the broker closes no connection that a fault stalls."""
        return 0, 0

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        self._node.next_round.append(lambda: failed("Connection refused", self._node.now))

    def chance(self) -> float:
        return 0.5

    def close_when_sent(self, session: Session) -> None:
        transport: SessionTransport | None = session.transport  # type: ignore[assignment]
        if transport is not None:
            self._node.next_round.append(transport.close)

    def set_reading(self, session: Session, wanted: bool) -> None:
        transport: SessionTransport | None = session.transport  # type: ignore[assignment]
        if transport is not None:
            transport.set_reading(wanted)

    def write_dump(self, text: str) -> str:
        return self._node.write_dump(text)


class MemoryNode:
    """Successive runs of a node over a disk in memory; `report` contains the log of all. `client_id`: 6 bytes, in the GUIDs
    of the first run."""

    assembled: Node  # of the present run
    broker: Broker  # of the present run

    def __init__(self, configure: Callable[[], Configuration], domains: Callable[[Configuration], DomainSource],
                 moment: Callable[[], float], wall_offset: float = WALL_S, client_id: bytes = b"broker") -> None:
        self._configure, self._domains, self._client_id = configure, domains, client_id
        self.disk, self.report = MemoryDisk(), ListReport()
        self.clock = SimulatedClock(moment, wall_offset)
        self.dumps: list[str] = []  # dumped messages
        self._runs = 0
        self.versions = OWN  # from the next run on; other ones simulate another release

    def open_node(self, performer: Performer, observed: bool = True) -> None:
        """Assemble and start a node over the present files. Raises StartFailure. `observed`: as of
        `daemon.assemble.Node.start_statistics`."""
        configuration, now = self._configure(), self.clock.now()
        client_id = (int.from_bytes(self._client_id, "big") + self._runs).to_bytes(6, "big")  # GUIDs differ between runs
        self._runs += 1
        identity = Identity("bmqbrkr", 1, configuration.app.host_name, client_id, now, now + self.clock.wall_offset,
                            self.versions)
        self.assembled = node = assemble(configuration, self._domains(configuration), self.disk, self.clock, performer,
                                         identity, self.report)
        self.broker = node.broker
        node.open()
        if observed:
            node.start_statistics()
        node.start()

    def write_dump(self, text: str) -> str:
        """From a performer: store a dump and return its path."""
        self.dumps.append(text)
        return f"/tmp/dump{len(self.dumps)}"

    def log(self) -> list[str]:
        """Return the log of all runs, each line with its severity, without DEBUG."""
        return [f"{severity} {text}" for severity, text in self.report.lines if severity != "DEBUG"]


class ImmediateNode(MemoryNode):
    """A node that can be stopped, crashed and restarted. The owner sets `now`, in seconds.

    `observed`: collect statistics from the start, else from the first admin command on.
    """

    def __init__(self, configure: Callable[[], Configuration], domains: Callable[[Configuration], DomainSource],
                 observed: bool = True) -> None:
        super().__init__(configure, domains, lambda: self.now)
        self._observed = observed
        self.now = START_S
        self.turn_requested = False
        self.syncs: list[Callable[[], None]] = []  # work of threads, for the next round
        self.next_round: list[Callable[[], None]] = []  # other actions for the next round
        self.disk_stalled = False  # syncs of the disk do not complete

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a broker over the present files and run its recovery."""
        self.turn_requested = self.disk_stalled = False
        self.syncs, self.next_round = [], []
        self.open_node(ImmediatePerformer(self), self._observed)
        self.run()

    def stop(self) -> None:
        """Stop gracefully, advancing the node's clock."""
        self.broker.stop(self.now)
        self.run()
        end = self.now + STOP_SECONDS_MAX
        while self.broker.shutdown is None or not self.broker.shutdown.done:
            if self.now >= end:
                raise AssertionError("the graceful stop does not end")
            self.advance(0.5)
        for session in list(self.broker.sessions.open):
            session.now, session.wall = self.now, self.broker.loop.wall(self.now)
            session.close_for_stop()
        self.run()
        self.assembled.close()

    def crash(self) -> None:
        """Kill the process: written data remains."""
        self.disk.kill()

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run turns until no work is pending."""
        for _ in range(ROUNDS_MAX):
            actions, self.next_round = self.next_round, []
            for action in actions:
                action()
            syncs: list[Callable[[], None]] = []
            if not self.disk_stalled:
                syncs, self.syncs = self.syncs, []
                for complete in syncs:
                    complete()
            if not (self.turn_requested or actions or syncs):
                return
            self.turn_requested = False
            self.broker.turn(self.now)
        raise AssertionError(f"the broker has pending work after {ROUNDS_MAX} turns")

    def advance(self, seconds: float) -> None:
        """Advance the clock, timer by timer."""
        self.run()
        target = self.now + seconds
        while (deadline := self.broker.next_deadline()) is not None and deadline <= target:
            self.now = max(self.now, deadline)
            self.broker.tick(self.now)
            self.turn_requested = True
            self.run()
        self.now = target
        self.turn_requested = True
        self.run()
