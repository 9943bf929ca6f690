"""The broker and everything around it under one virtual clock: connections that slice and delay, a disk that fails.

The composition is that of `kit.memory`; what differs is that nothing happens at once: every chunk, sync and turn is an
event with a moment of its own. A life of the broker ends with a crash; what still happens to a dead one is dropped.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from kit.memory import MemoryWorld

from bmqtwist.errors import LocalError
from bmqtwist.link.authentication import Authenticate, attempt
from bmqtwist.link.session import Session
from bmqtwist.storage.memory import Died
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.rollover import Job

KERNEL_BYTES = 65536  # what a connection takes without anybody reading at the other end
SLICE_BYTES_MAX = 700
DRAIN_SECONDS = 6.0


class Peer:
    """What a connection tells the client at its other end."""

    def take(self, data: bytes) -> None:
        """Bytes from the broker."""

    def cut(self) -> None:
        """The connection is gone."""


class SimLink:
    """One connection with both of its directions."""

    def __init__(self, world: SimWorld, address: str) -> None:
        self._world, self._life = world, world.life
        self.peer = Peer()  # until somebody takes its place
        self.session: Session | None = world.broker.connect(address, world.now)
        self.session.transport = self
        self.open = True  # as far as the client knows
        self._in_at = self._out_at = world.now  # when the last slice under way arrives
        self._flying = 0  # bytes on their way to the client
        self._behind = self._ended = False
        self._reading, self._kept = True, list[bytes]()

    @property
    def current(self) -> bool:
        """Does the broker at the other end still live?"""
        return self._life == self._world.life

    # From the client

    def send(self, data: bytes) -> None:
        """Bytes for the broker, in slices."""
        for piece in self._world.slices(data):
            self._in_at = max(self._in_at, self._world.now + self._world.delay())
            self._world.at(self._in_at, lambda piece=piece: self._arrive(piece))  # type: ignore[misc]

    def drop(self, silently: bool = False) -> None:
        """The client is gone; `silently`: without the broker being told, as when a cable is cut."""
        self.open = False
        if not silently:
            self._world.at(self._world.now + self._world.delay(), self.lose)

    # At the broker

    def _arrive(self, piece: bytes) -> None:
        if not self._reading:
            self._kept.append(piece)
        elif self.session is not None and self.open and self._life == self._world.life:
            self._world.trace("in", piece)
            self._world.broker.received(self.session, piece, self._world.now)
            self._world.turn_due()

    def read(self, wanted: bool) -> None:
        """The broker goes on reading, or stops."""
        self._reading = wanted
        if wanted:
            kept, self._kept = self._kept, []
            for piece in kept:
                self._arrive(piece)

    def write(self, data: bytes) -> int:
        """The broker writes; what the kernel has not taken."""
        for piece in self._world.slices(data):
            self._out_at = max(self._out_at, self._world.now + self._world.delay())
            self._world.at(self._out_at, lambda piece=piece: self._deliver(piece))  # type: ignore[misc]
        self._flying += len(data)
        self._behind = self._behind or self._flying > KERNEL_BYTES
        return max(0, self._flying - KERNEL_BYTES) if self._behind else 0

    def _deliver(self, piece: bytes) -> None:
        if not self.open:
            return
        self._flying -= len(piece)
        if self._behind and not self._flying and self._life == self._world.life:
            self._behind = False
            self.read(True)
            self._world.turn_due()
        self._world.trace("out", piece)
        self.peer.take(piece)

    def finish(self) -> None:
        """The broker closes, after what it has written."""
        if not self._ended:
            self._ended = True
            if self._world.abrupt:
                self.end()
            self._world.at(max(self._out_at, self._world.now), self.end)
            self._world.at(self._world.now + self._world.delay(), self.lose)

    def end(self) -> None:
        """The client learns that the connection is gone."""
        if self.open:
            self.open = False
            self.peer.cut()

    def lose(self) -> None:
        """The broker learns that the connection is gone."""
        session, self.session = self.session, None
        if session is not None and self._life == self._world.life:
            self._world.broker.lost(session, self._world.now)
            self._world.turn_due()


class SimPerformer:
    """node.broker.Performer of one life of the broker."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    def turn_due(self) -> None:
        """A turn, soon."""
        self._world.turn_due()

    def sync(self, partition: Partition, token: int) -> None:
        """A sync in a thread: it may take effect at any moment until it is reported."""
        world = self._world
        failed: list[OSError] = []

        def perform() -> None:
            try:
                partition.sync()
            except OSError as error:
                failed.append(error)

        def report() -> None:
            if failed:
                world.broker.sync_failed(partition, token, failed[0], world.now)
            else:
                world.broker.synced(partition, token, world.now)

        done = world.now + world.sync_seconds()
        world.alive(world.now if world.random.random() < 0.5 else done, perform)
        world.alive(done, report)

    def roll(self, partition: Partition, job: Job) -> None:
        """A job in a thread: it may take effect at any moment until it is reported."""
        world = self._world
        failed: list[OSError] = []

        def perform() -> None:
            try:
                job.run()
            except OSError as error:
                failed.append(error)

        def report() -> None:
            if failed:
                world.broker.roll_failed(partition, job, failed[0], world.now)
            else:
                world.broker.rolled(partition, job, world.now)

        done = world.now + world.sync_seconds()
        world.alive(world.now if world.random.random() < 0.5 else done, perform)
        world.alive(done, report)

    def clock(self) -> float:
        """Nothing takes any time."""
        return self._world.now

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """A judgement that comes later."""
        def judged() -> None:
            outcome = attempt(effect.authenticator, effect.data, effect.peer)
            self._world.broker.judged(session, effect.token, outcome, self._world.now)
            self._world.turn_due()
        self._world.alive(self._world.now + self._world.delay(), judged)

    def write(self, session: Session, parts: list[bytes]) -> int:
        """To the connection."""
        link = session.transport
        return link.write(b"".join(parts)) if isinstance(link, SimLink) and link.session is not None else 0

    def finish(self, session: Session) -> None:
        """Close after what was written."""
        if isinstance(session.transport, SimLink):
            session.transport.finish()

    def read(self, session: Session, wanted: bool) -> None:
        """Let the client feel that it is too fast."""
        if isinstance(session.transport, SimLink):
            self._world.slowed += not wanted
            session.transport.read(wanted)

    def dump(self, text: str) -> str:
        """Keep it."""
        self._world.dumps.append(text)
        return f"dump{len(self._world.dumps)}"


class SimWorld(MemoryWorld):
    """One broker after another over one disk, and the connections of the present one."""

    def __init__(self, root: Path, random: Random, *, app: dict[str, Any], cluster: dict[str, Any]) -> None:
        super().__init__(root, app=app, cluster=cluster, start=False)
        self.random = random
        self.life = 0
        self.up = False
        self.slowed = self.torn = self.died = 0
        self.abrupt = False  # a connection that the broker closes ends at once, with what was on its way
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = count()
        self._turning = False
        self._links: list[SimLink] = []
        self._hash = hashlib.sha256()
        self._written = 0
        self.on_restart: Callable[[bool], None] = lambda power: None

    # -- time

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a moment."""
        heapq.heappush(self._events, (when, next(self._ticket), action))

    def alive(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a moment, if this life of the broker lasts until then."""
        life = self.life
        self.at(when, lambda: action() if self.life == life and self.up else None)

    def play(self, until: float) -> None:
        """Let everything happen up to a moment."""
        while True:
            deadline = self.broker.next_deadline() if self.up else None
            at = min(self._events[0][0] if self._events else until, until if deadline is None else deadline, until)
            self.now = max(self.now, at)
            try:
                if self._events and self._events[0][0] <= self.now and self._events[0][0] <= until:
                    heapq.heappop(self._events)[2]()
                elif deadline is not None and deadline <= until:
                    self.broker.tick(self.now)
                else:
                    return
            except Died:
                self.died += 1
                self.crash_now(power=False)
            self._note()

    def run(self) -> None:
        """Nothing happens but at its moment."""

    def turn_due(self) -> None:
        """A turn at the end of this round of the event loop."""
        if not self._turning and self.up:
            self._turning = True
            self.alive(self.now + self.random.random() * 0.0005, self._turn)

    def _turn(self) -> None:
        self._turning = False
        self.broker.turn(self.now)

    # -- trace

    def trace(self, what: str, data: bytes = b"") -> None:
        """One line of what happened."""
        self._hash.update(b"%s %.9f %d " % (what.encode(), self.now, len(data)))
        self._hash.update(data)

    def _note(self) -> None:
        """What was logged and what was done to the disk since the last look."""
        lines, root = self.report.lines, str(self.root)
        for severity, text in lines[self._told:]:
            self.trace(f"{severity} {text.replace(root, '')}")
            assert self.mistakes or "[INTERNAL_ERROR]" not in text, text
        self._told = len(lines)
        for operation, path in self.disk.log[self._written:]:
            self.trace(f"{operation} {path.replace(root, '')}")
        self._written = len(self.disk.log)

    @property
    def digest(self) -> str:
        """A hash of all that happened."""
        return self._hash.hexdigest()

    # -- chance

    def delay(self) -> float:
        """Seconds a slice takes; seldom long."""
        drawn = self.random.random()
        return 0.02 + drawn * 0.05 if self.random.random() < 0.02 else drawn * 0.002

    def sync_seconds(self) -> float:
        """Seconds a sync takes; seldom long."""
        drawn = self.random.random()
        return 0.1 + drawn * 0.3 if self.random.random() < 0.05 else 0.0005 + drawn * 0.01

    def slices(self, data: bytes) -> list[bytes]:
        """Cut anywhere, often not at all."""
        if self.random.random() < 0.6:
            return [data] if data else []
        pieces, at = [], 0
        while at < len(data):
            size = self.random.randint(1, SLICE_BYTES_MAX)
            pieces.append(data[at:at + size])
            at += size
        return pieces

    # -- life

    def dial(self) -> SimLink | None:
        """A connection; None if nobody listens."""
        if not self.up or not self.broker.serving:
            return None
        self._peers += 1
        link = SimLink(self, f"127.0.0.1:{40000 + self._peers}")
        self._links.append(link)
        return link

    def boot(self) -> None:
        """A new life; it may die while it recovers."""
        self.life += 1
        self._turning = False
        self.trace("boot")
        try:
            self.start()
        except (Died, Exception) as error:  # somebody starts it again
            if not self.mistakes and not isinstance(error, (Died, LocalError, OSError)):
                raise
            self.died += isinstance(error, Died)
            self.crash_now(power=False)
            return
        self.broker.performer = SimPerformer(self)
        self.up = True
        self.turn_due()
        self._note()

    def crash_now(self, power: bool, down: float = 0.2) -> None:
        """kill -9, or a loss of power that tears what was not synced; up again after a while."""
        self.up = False
        self.life += 1
        self.trace("crash")
        for link in self._links:
            self.at(self.now + self.delay(), link.end)
        self._links = []
        if power:
            self.torn += any(node.touched for node in self.disk._names.values())
            self.disk.crash(self.random)
        else:
            self.disk.kill()
        self.mend()
        self.on_restart(power)
        self.at(self.now + down, self.boot)

    def restart_gracefully(self, down: float = 0.2) -> None:
        """The stop of `node.service`, then another start."""
        if not self.up:
            return
        self.mend()
        self.broker.stop(self.now)
        self.alive(self.now + 0.05, lambda: self._stopping(None, down))

    def _stopping(self, drain_until: float | None, down: float) -> None:
        broker = self.broker
        if drain_until is None:
            if broker.shutdown is not None and broker.shutdown.done:
                broker.turn(self.now)
                for session in list(broker.sessions):
                    broker.performer.finish(session)
                drain_until = self.now + DRAIN_SECONDS
        elif not broker.sessions or self.now > drain_until:
            self.assembled.close()
            self.up = False
            self.life += 1
            for link in self._links:
                link.end()
            self._links = []
            self.on_restart(False)
            self.at(self.now + down, self.boot)
            return
        self.alive(self.now + 0.05, lambda: self._stopping(drain_until, down))

    # -- disk

    def fill_disk(self, spare: int) -> None:
        """No space beyond `spare` bytes."""
        self.disk.capacity = self.disk._used() + spare

    def fail_syncs(self) -> None:
        """Every sync fails from now on."""
        self.disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None

    def mend(self) -> None:
        """The disk is as good as new; what it lost is lost."""
        self.disk.capacity, self.disk.stop_after = None, None
        self.disk.fail = lambda operation, path: None
