"""One broker after another over a disk in memory: no sockets, files, threads or clock of its own.

The node is that of `daemon.assemble`, with a performer that performs at once. `run` lets the broker work until nothing
moves any more; what has not been said by then will not be said by waiting.
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
from bmqtwist.peers.welcome import Identity
from bmqtwist.report import ListReport
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.testing.clock import START_S, WALL_S, SimulatedClock

ROUNDS_MAX = 100_000  # turns without an end are a bug
STOP_SECONDS_MAX = 600.0  # a graceful stop that takes longer is a bug


class SessionTransport(Protocol):
    """The broker's view of a connection: `session.transport` of every session of a node."""

    def arrive(self, data: bytes) -> int:
        """The broker wrote; how many bytes the connection has not taken yet."""
        ...

    def end(self) -> None:
        """The broker closed the connection."""

    def read(self, wanted: bool) -> None:
        """The broker goes on reading, or stops."""


class ImmediatePerformer:
    """node.performer.Performer that performs at once, or as soon as the node lets it."""

    def __init__(self, node: ImmediateNode) -> None:
        self._node = node

    def turn_due(self) -> None:
        self._node.due = True

    def clock(self) -> float:
        return self._node.now

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Done in the next round, unless the disk is stalled."""
        def complete() -> None:
            try:
                work()
            except OSError as error:
                failed(error, self._node.now)
            else:
                done(self._node.now)
        self._node.syncs.append(complete)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        def judged() -> None:
            outcome = attempt(effect.authenticator, effect.data, effect.peer)
            self._node.broker.sessions.judged(session, effect.token, outcome, self._node.now)
        self._node.later.append(judged)

    def write(self, session: Session, parts: list[bytes]) -> int:
        data = b"".join(parts)
        transport: SessionTransport | None = session.transport  # type: ignore[assignment]
        return transport.arrive(data) if transport is not None and data else 0

    def unread(self, session: Session) -> tuple[int, int]:
        """Nobody is cut off here for what a fault holds back."""
        return 0, 0

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        self._node.later.append(lambda: failed("Connection refused", self._node.now))

    def chance(self) -> float:
        return 0.5

    def finish(self, session: Session) -> None:
        transport: SessionTransport | None = session.transport  # type: ignore[assignment]
        if transport is not None:
            self._node.later.append(transport.end)

    def read(self, session: Session, wanted: bool) -> None:
        transport: SessionTransport | None = session.transport  # type: ignore[assignment]
        if transport is not None:
            transport.read(wanted)

    def dump(self, text: str) -> str:
        return self._node.dump(text)


class MemoryNode:
    """One node after another over a disk in memory; `report` is that of all its lives. `client_id`: 6 bytes, of the GUIDs
    that its first life makes."""

    assembled: Node  # the present life
    broker: Broker  # of it

    def __init__(self, configure: Callable[[], Configuration], domains: Callable[[Configuration], DomainSource],
                 moment: Callable[[], float], wall_offset: float = WALL_S, client_id: bytes = b"broker") -> None:
        self._configure, self._domains, self._client_id = configure, domains, client_id
        self.disk, self.report = MemoryDisk(), ListReport()
        self.clock = SimulatedClock(moment, wall_offset)
        self.dumps: list[str] = []  # what the broker kept for a person to look at
        self._lives = 0

    def live(self, performer: Performer, observed: bool = True) -> None:
        """Begin another life over the files as they are. StartFailure if it ends at once. `observed`: as of
        `daemon.assemble.Node.observe`."""
        configuration, now = self._configure(), self.clock.now()
        client_id = (int.from_bytes(self._client_id, "big") + self._lives).to_bytes(6, "big")  # GUIDs are of one life only
        self._lives += 1
        identity = Identity("bmqbrkr", 1, configuration.app.host_name, client_id, now, now + self.clock.wall_offset)
        self.assembled = node = assemble(configuration, self._domains(configuration), self.disk, self.clock, performer,
                                         identity, self.report)
        self.broker = node.broker
        node.open()
        if observed:
            node.observe()
        node.start()

    def dump(self, text: str) -> str:
        """From a performer: keep a text; where."""
        self.dumps.append(text)
        return f"/tmp/dump{len(self.dumps)}"

    def log(self) -> list[str]:
        """The report of all lives, severity before the text, without debugging."""
        return [f"{severity} {text}" for severity, text in self.report.lines if severity != "DEBUG"]


class ImmediateNode(MemoryNode):
    """A broker that can be stopped, crashed and started again. `now` (seconds) is whoever runs it to set.

    `observed`: there are statistics from the start; without it, from the first admin command on.
    """

    def __init__(self, configure: Callable[[], Configuration], domains: Callable[[Configuration], DomainSource],
                 observed: bool = True) -> None:
        super().__init__(configure, domains, lambda: self.now)
        self._observed = observed
        self.now = START_S
        self.due = False  # a turn
        self.syncs: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.stalled = False  # a disk on which no sync completes

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Build a broker over the files as they are and let it recover."""
        self.due = self.stalled = False
        self.syncs, self.later = [], []
        self.live(ImmediatePerformer(self), self._observed)
        self.run()

    def stop(self) -> None:
        """The graceful stop, as long as it takes on the node's clock."""
        self.broker.stop(self.now)
        self.run()
        end = self.now + STOP_SECONDS_MAX
        while self.broker.shutdown is None or not self.broker.shutdown.done:
            if self.now >= end:
                raise AssertionError("the graceful stop does not end")
            self.advance(0.5)
        for session in list(self.broker.sessions.open):
            session.now, session.wall = self.now, self.broker.loop.wall(self.now)
            session.leave()
        self.run()
        self.assembled.close()

    def crash(self) -> None:
        """kill -9: what was written is there, nothing else happens any more."""
        self.disk.kill()

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Let the broker work until nothing moves any more."""
        for _ in range(ROUNDS_MAX):
            later, self.later = self.later, []
            for action in later:
                action()
            syncs: list[Callable[[], None]] = []
            if not self.stalled:
                syncs, self.syncs = self.syncs, []
                for complete in syncs:
                    complete()
            if not (self.due or later or syncs):
                return
            self.due = False
            self.broker.turn(self.now)
        raise AssertionError("the broker does not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        self.run()
        target = self.now + seconds
        while (deadline := self.broker.next_deadline()) is not None and deadline <= target:
            self.now = max(self.now, deadline)
            self.broker.tick(self.now)
            self.due = True
            self.run()
        self.now = target
        self.due = True
        self.run()
