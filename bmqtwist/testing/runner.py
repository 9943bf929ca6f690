"""What runs an in-process broker: its clock and timers, its connections, its lives, and who is to be woken.

From connections: `run` after each change, `at`, `note`, `forget`. From their clients' ends (`aio`, `tx`, `transport`,
`port`): `connect`, the wakers of event loops, `jump`. Everything is done with `lock` held, in whoever's thread it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from bmqtwist.config.broker import Configuration
from bmqtwist.loop.loop import Timers
from bmqtwist.testing.clock import Clock
from bmqtwist.testing.config import DomainTable, broker_config, clusters_config, configuration, sample_domains
from bmqtwist.testing.connection import ClientEnd, Surroundings, TappedConnection
from bmqtwist.testing.events import Note
from bmqtwist.testing.faults import CONNECTION, Fault, Faults
from bmqtwist.testing.node import ImmediateNode
from bmqtwist.testing.recorder import Recorder

_JOURNAL_BYTES, _DATA_BYTES, _QLIST_BYTES = 2 << 20, 96 << 20, 256 << 10  # of storage files; small ones start quickly
_HEARTBEATS = {"client": 10, "downstreamBroker": 10, "upstreamBroker": 10, "clusterPeer": 10}  # missed, of 3 s each
_PORT = 30114  # nobody listens there; it only has to be named
_ADVANCE_STEPS_MAX = 1000  # of one jump of the clock: housekeeping may come late, but in order


@dataclass(frozen=True, slots=True)
class EventLoop:
    """The functions of an event loop that a broker in this process uses. `virtual`: its time is not the machine's."""

    clock: Callable[[], float]
    virtual: bool
    soon: Callable[..., object]  # call a function with arguments from the loop
    from_thread: Callable[..., object] | None  # the same from another thread; None = the loop belongs to one thread
    later: Callable[[float, Callable[[], None]], Callable[[], object]]  # call it after seconds; what cancels that
    over: Callable[[], bool] = lambda: False  # closed


class Waker:
    """Runs the broker on an event loop of the thread that makes it."""

    def __init__(self, runner: BrokerRunner, loop: EventLoop) -> None:
        self._runner, self._loop, self.over = runner, loop, loop.over
        self._thread = threading.get_ident()
        self._cancel: Callable[[], object] = lambda: None

    def soon(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call it from the loop, unless that is closed."""
        here = threading.get_ident() == self._thread or self._loop.from_thread is None
        with contextlib.suppress(RuntimeError):
            (self._loop.soon if here else self._loop.from_thread)(action, *arguments)  # type: ignore[misc]

    def arm(self, seconds: float | None) -> None:
        """Run the broker after so many seconds; None = there is nothing to do."""
        if threading.get_ident() != self._thread:
            if self._loop.from_thread is not None:
                self.soon(self.arm, seconds)
            return
        self._cancel()
        idle = seconds is None or self.over()
        self._cancel = (lambda: None) if idle else self._loop.later(max(0.0, seconds or 0.0), self._runner.run)


class LoopEnd:
    """The end of a client with an event loop (a ClientEnd): news of the connection is handed to `took`, `ended` and
    `check_room` by the loop."""

    def __init__(self, runner: BrokerRunner, waker: Waker) -> None:
        self._runner, self._waker = runner, waker
        self.connection: TappedConnection | None = None

    def data(self, data: bytes) -> None:
        self._waker.soon(self.took, data)

    def lost(self, reason: str) -> None:
        self._waker.soon(self.ended, reason)

    def room(self) -> None:
        self._waker.soon(self.check_room)

    def took(self, data: bytes) -> None:
        """Bytes have come."""

    def ended(self, reason: str) -> None:
        """The connection is gone; "" = the broker closed it."""

    def check_room(self) -> None:
        """The size of `waiting` may have changed."""

    def connect(self, name: str) -> None:
        """Connect; ConnectionRefusedError."""
        self.connection = self._runner.connect(name, self)

    def send(self, data: bytes) -> None:
        if self.connection is not None:
            with self._runner.lock:
                self.connection.send(data)
            self.check_room()

    def hang_up(self) -> None:
        """Close; the loop calls `ended`."""
        if self.connection is not None:
            with self._runner.lock:
                self.connection.close()

    @property
    def waiting(self) -> int:
        """Bytes that a fault holds back."""
        return self.connection.waiting_bytes if self.connection is not None else 0


class BrokerRunner:
    """One broker's surroundings."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock = Clock()
        self.began = self.clock()
        self.recorder = Recorder()
        self.faults = Faults(self._fault_ended)
        self.up = False
        self.table = DomainTable()
        self.table.texts.update(sample_domains())
        self.connections: dict[TappedConnection, None] = {}
        self.changed = threading.Condition(self.lock)  # notified after each run
        self.waiters: list[Callable[[], None]] = []  # called after each run
        self._timers = Timers()
        self._wakers: dict[Any, Waker] = {}
        self._names: dict[str, str] = {}
        self._ports = 0  # of clients' addresses
        self._running = False
        self.node = ImmediateNode(_default_configuration, lambda _: self.table, observed=False)
        self._around = Surroundings(self.node, self.faults, self.recorder, self.began, self.run, self.at, self.name_of,
                                    self.forget)
        self.start()

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with self.lock:
            if not self.up:
                self.node.now = self.clock()
                self.node.start()
                self.up = True
                self.note("broker started")
                self.run()

    def stop(self) -> None:
        with self.lock:
            if self.up:
                self.note("broker stops")
                self.touch()
                self.node.stop()
                self.clock.reach(self.node.now)
                self.up = False
                for connection in list(self.connections):
                    connection.abandon("the broker stopped")
                self.run()

    def crash(self) -> None:
        with self.lock:
            if self.up:
                self.note("broker crashes")
                self.up = False
                for connection in list(self.connections):
                    connection.abandon("the broker crashed")
                self.node.disk.crash()
                self.run()

    def close(self) -> None:
        """The end of all lives and connections."""
        with self.lock:
            self.faults.clear()
            self.crash()
            self._wakers.clear()

    # -- connections ------------------------------------------------------------------------------------------------

    def connect(self, name: str, end: ClientEnd) -> TappedConnection:
        """A connection; whoever has an event loop of his own hands in a ClientEnd. ConnectionRefusedError if the broker is
        down or a fault says so. `name` is what faults and the recorder call it; "" = client1, client2, ... in the order of
        their first negotiation."""
        with self.lock:
            if not self.up or not self.node.broker.sessions.serving:
                raise ConnectionRefusedError("the broker is down")
            if self.faults.first(CONNECTION, name):
                self.note("connection refused by the test", name)
                raise ConnectionRefusedError("refused by the test")
            self.touch()
            self._ports += 1
            connection = TappedConnection(self._around, name, end, 40000 + self._ports % 20000)
            self.connections[connection] = None
            if name:
                self.note("connected", name)
            return connection

    def disconnect(self, client: str | None) -> int:
        with self.lock:
            self.touch()
            connections = [connection for connection in self.connections if client in (None, connection.name)]
            for connection in connections:
                connection.cut("cut by the test")
            self.run()
            return len(connections)

    # -- time -------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        with self.lock:
            step = seconds / _ADVANCE_STEPS_MAX
            target = self.clock() + seconds
            while (deadline := self.next_deadline()) is not None and deadline < target:
                self.clock.reach(min(target, max(deadline, self.clock() + step)))
                self._nobody_is_silent()
                self.run()
            self.clock.reach(target)
            self._nobody_is_silent()
            self.run()

    def _nobody_is_silent(self) -> None:
        """Clients that could not know that time has passed are not missing a heartbeat."""
        for connection in self.connections:
            connection.session.channel.last_received, connection.session.channel.missed_heartbeats = self.clock(), 0

    def jump(self, seconds: float | None) -> float:
        """Let the clock jump to when the broker has something to do next, at most so many seconds; how many."""
        with self.lock:
            now, deadline = self.clock(), self.next_deadline()
            passed = max(0.0, min(each for each in (seconds, deadline and deadline - now, 1.0) if each is not None))
            self.clock.advance(passed)
            self.run()
            return passed

    def next_deadline(self) -> float | None:
        """When there is something to do next, on the broker's clock."""
        moments = [self._timers.next_at, self.node.broker.next_deadline() if self.up else None]
        return min((moment for moment in moments if moment is not None), default=None)

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with self.lock:
            if self._running:
                return
            self._running = True
            try:
                while True:
                    self.touch()
                    self._timers.run(self.node.now)
                    if self.up:
                        deadline = self.node.broker.next_deadline()
                        if deadline is not None and deadline <= self.node.now:
                            self.node.broker.tick(self.node.now)
                            self.node.due = True
                        self.node.run()
                    due = self.next_deadline()
                    if due is None or due > self.node.now:
                        break
            finally:
                self._running = False
            self.changed.notify_all()
            for wake in list(self.waiters):
                wake()
            for key in [key for key, waker in self._wakers.items() if waker.over()]:
                del self._wakers[key]
            for waker in self._wakers.values():
                waker.arm(None if due is None else due - self.clock())

    def touch(self) -> None:
        """Tell the broker what time it is, before it is asked something."""
        self.node.now = max(self.node.now, self.clock())

    def at(self, when: float, action: Callable[[], None]) -> None:
        """From connections: call it at a moment of the clock."""
        self._timers.at(when, lambda now: action())

    def waker(self, loop: Any, describe: Callable[[Any], EventLoop]) -> Waker:
        """The waker of an event loop, made at the first call; the broker's clock follows that of the loop from then on, but
        not a virtual one once it follows a real one."""
        with self.lock:
            if loop not in self._wakers:
                found = describe(loop)
                if not self.clock.real or not found.virtual:
                    self.clock.follow(found.clock, not found.virtual)
                self._wakers[loop] = Waker(self, found)
            return self._wakers[loop]

    def name_of(self, process: str) -> str:
        """From connections: the name of a client that was given none, by how it introduces itself."""
        return self._names.setdefault(process, f"client{len(self._names) + 1}")

    def forget(self, connection: TappedConnection, reason: str) -> None:
        self.connections.pop(connection, None)
        self.note(reason, connection.name)

    def note(self, what: str, client: str = "") -> None:
        self.recorder.add(Note(time=self.clock() - self.began, client=client, what=what))

    def _fault_ended(self, fault: Fault) -> None:
        with self.lock:
            if fault.action == "stall" and not self._running:
                self.touch()
                for connection in list(self.connections):
                    connection.release()
                self.run()


@lru_cache(maxsize=1)
def _default_configuration() -> Configuration:
    storage = PurePosixPath("/memory/storage")
    return configuration(broker_config(storage, _PORT, heartbeats=_HEARTBEATS), clusters_config(
        storage, _PORT, 1, partition={"maxJournalFileSize": _JOURNAL_BYTES, "maxDataFileSize": _DATA_BYTES,
                                      "maxQlistFileSize": _QLIST_BYTES}))
