"""Runner of an in-process broker: clock and timers, connections, start, stop and crash, and bridges to event loops.

Connections call `run` after each change, `at`, `record_note` and `remove_connection`. Clients' ends (`aio`, `tx`,
`transport`, `port`) call `connect`, `bridge` and `advance_to_next_timer`. Methods run in the thread of the caller and take
`lock`; the methods that connections call require it. `broker.py` owns the runner; the node itself is in `node.py`, one
connection in `connection.py`.
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
from bmqtwist.testing.connection import ClientEnd, ConnectionContext, TappedConnection
from bmqtwist.testing.events import Note
from bmqtwist.testing.faults import CONNECTION, Fault, Faults
from bmqtwist.testing.node import ImmediateNode
from bmqtwist.testing.recorder import Recorder

_JOURNAL_BYTES, _DATA_BYTES, _QLIST_BYTES = 2 << 20, 96 << 20, 256 << 10  # sizes of storage files; small for a fast start
_HEARTBEATS = {"client": 10, "downstreamBroker": 10, "upstreamBroker": 10, "clusterPeer": 10}  # maxima of missed ones, 3 s
_PORT = 30114  # not opened; the configuration requires a port
_ADVANCE_STEPS_MAX = 1000  # per `advance`; timers within one step fire late, but in order


@dataclass(frozen=True, slots=True)
class EventLoop:
    """Functions of an event loop that an in-process broker uses. `virtual`: the loop's clock is not the machine's."""

    clock: Callable[[], float]
    virtual: bool
    call_soon: Callable[..., object]  # call a function with arguments from the loop
    call_from_thread: Callable[..., object] | None  # the same, thread-safe; None = the loop belongs to one thread
    call_later: Callable[[float, Callable[[], None]], Callable[[], object]]  # after seconds; returns a cancel function
    is_closed: Callable[[], bool] = lambda: False


class LoopBridge:
    """Runs the broker on the event loop of the thread that creates the bridge."""

    def __init__(self, runner: BrokerRunner, loop: EventLoop) -> None:
        self._runner, self._loop, self.is_closed = runner, loop, loop.is_closed
        self._thread = threading.get_ident()
        self._cancel: Callable[[], object] = lambda: None

    def call_soon(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call a function from the loop, unless the loop is closed."""
        local = threading.get_ident() == self._thread or self._loop.call_from_thread is None
        with contextlib.suppress(RuntimeError):
            (self._loop.call_soon if local else self._loop.call_from_thread)(action, *arguments)  # type: ignore[misc]

    def schedule(self, seconds: float | None) -> None:
        """Run the broker after this number of seconds, instead of an earlier schedule; None = never."""
        if threading.get_ident() != self._thread:
            if self._loop.call_from_thread is not None:
                self.call_soon(self.schedule, seconds)
            return
        self._cancel()
        idle = seconds is None or self.is_closed()
        self._cancel = (lambda: None) if idle else self._loop.call_later(max(0.0, seconds or 0.0), self._runner.run)


class LoopEnd:
    """ClientEnd of a client with an event loop, which calls `receive`, `end` and `check_room`."""

    def __init__(self, runner: BrokerRunner, bridge: LoopBridge) -> None:
        self._runner, self._bridge = runner, bridge
        self.connection: TappedConnection | None = None

    def on_data(self, data: bytes) -> None:
        self._bridge.call_soon(self.receive, data)

    def on_lost(self, reason: str) -> None:
        self._bridge.call_soon(self.end, reason)

    def on_room(self) -> None:
        self._bridge.call_soon(self.check_room)

    def receive(self, data: bytes) -> None:
        """Pass received bytes to the client, in its event loop."""

    def end(self, reason: str) -> None:
        """Notify the client of the end of the connection, in its event loop; "" = closed by the broker."""

    def check_room(self) -> None:
        """Pause or resume the client by `waiting_bytes`, in its event loop."""

    def connect(self, name: str) -> None:
        """Connect. Raises ConnectionRefusedError if the broker does not accept the connection."""
        self.connection = self._runner.connect(name, self)

    def send(self, data: bytes) -> None:
        if self.connection is not None:
            with self._runner.lock:
                self.connection.send(data)
            self.check_room()

    def disconnect(self) -> None:
        """Close the connection; `end` is not called."""
        if self.connection is not None:
            with self._runner.lock:
                self.connection.disconnect()

    @property
    def waiting_bytes(self) -> int:
        """Number of sent bytes that a fault delays."""
        return self.connection.waiting_bytes if self.connection is not None else 0


class BrokerRunner:
    """Runs one in-process broker. `clock`: its clock; `table`: its domains; `node`: the node."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock = Clock()
        self.started_at = self.clock()
        self.recorder = Recorder()
        self.faults = Faults(self._fault_ended)
        self.up = False
        self.table = DomainTable()
        self.table.texts.update(sample_domains())
        self.connections: dict[TappedConnection, None] = {}
        self.changed = threading.Condition(self.lock)  # notified after each run
        self.on_change: list[Callable[[], None]] = []  # called after each run
        self._timers = Timers()
        self._bridges: dict[Any, LoopBridge] = {}
        self._names: dict[str, str] = {}
        self._ports = 0  # number of ports used for clients' addresses
        self._running = False
        self.node = ImmediateNode(_default_configuration, lambda _: self.table, observed=False)
        self._context = ConnectionContext(self.node, self.faults, self.recorder, self.started_at, self.run, self.at,
                                          self.name_client, self.remove_connection)
        self.start()

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with self.lock:
            if not self.up:
                self.node.now = self.clock()
                self.node.start()
                self.up = True
                self.record_note("broker started")
                self.run()

    def stop(self) -> None:
        with self.lock:
            if self.up:
                self.record_note("broker stops")
                self.set_node_time()
                self.node.stop()
                self.clock.advance_to(self.node.now)
                self.up = False
                for connection in list(self.connections):
                    connection.abandon("the broker stopped")
                self.run()

    def crash(self) -> None:
        with self.lock:
            if self.up:
                self.record_note("broker crashes")
                self.up = False
                for connection in list(self.connections):
                    connection.abandon("the broker crashed")
                self.node.disk.crash()
                self.run()

    def close(self) -> None:
        """Crash the broker and end all faults and connections."""
        with self.lock:
            self.faults.clear()
            self.crash()
            self._bridges.clear()

    # -- connections ------------------------------------------------------------------------------------------------

    def connect(self, name: str, end: ClientEnd) -> TappedConnection:
        """Connect a client. Raises ConnectionRefusedError if the broker is down or a fault refuses connections. `name`: of
        the connection, for faults and the recorder; "" = client1, client2, ... in the order of their negotiation."""
        with self.lock:
            if not self.up or not self.node.broker.sessions.serving:
                raise ConnectionRefusedError("the broker is down")
            if self.faults.find_fault(CONNECTION, name):
                self.record_note("connection refused by the test", name)
                raise ConnectionRefusedError("refused by the test")
            self.set_node_time()
            self._ports += 1
            connection = TappedConnection(self._context, name, end, 40000 + self._ports % 20000)
            self.connections[connection] = None
            if name:
                self.record_note("connected", name)
            return connection

    def disconnect(self, client: str | None) -> int:
        with self.lock:
            self.set_node_time()
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
                self.clock.advance_to(min(target, max(deadline, self.clock() + step)))
                self._reset_heartbeats()
                self.run()
            self.clock.advance_to(target)
            self._reset_heartbeats()
            self.run()

    def _reset_heartbeats(self) -> None:
        """Reset the missed heartbeats of clients, since their clocks did not advance."""
        for connection in self.connections:
            connection.session.channel.last_received, connection.session.channel.missed_heartbeats = self.clock(), 0

    def advance_to_next_timer(self, seconds: float | None) -> float:
        """Advance the clock to the broker's next deadline, by at most `seconds` and 1 s; return the advance in seconds."""
        with self.lock:
            now, deadline = self.clock(), self.next_deadline()
            passed = max(0.0, min(each for each in (seconds, deadline and deadline - now, 1.0) if each is not None))
            self.clock.advance(passed)
            self.run()
            return passed

    def next_deadline(self) -> float | None:
        """Return the time of the next timer, on the broker's clock; None = no timer."""
        with self.lock:
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
                    self.set_node_time()
                    self._timers.run(self.node.now)
                    if self.up:
                        deadline = self.node.broker.next_deadline()
                        if deadline is not None and deadline <= self.node.now:
                            self.node.broker.tick(self.node.now)
                            self.node.turn_requested = True
                        self.node.run()
                    due = self.next_deadline()
                    if due is None or due > self.node.now:
                        break
            finally:
                self._running = False
            self.changed.notify_all()
            for callback in list(self.on_change):
                callback()
            for key in [key for key, bridge in self._bridges.items() if bridge.is_closed()]:
                del self._bridges[key]
            for bridge in self._bridges.values():
                bridge.schedule(None if due is None else due - self.clock())

    def set_node_time(self) -> None:
        """Set the node's time to the clock's, before a call to the broker."""
        self.node.now = max(self.node.now, self.clock())

    def at(self, when: float, action: Callable[[], None]) -> None:
        """From connections: call a function at a time of the clock."""
        self._timers.at(when, lambda now: action())

    def bridge(self, loop: Any, describe: Callable[[Any], EventLoop]) -> LoopBridge:
        """Return the bridge of an event loop, created at the first call. From then on the broker's clock follows the loop's,
        except a virtual one when it already follows a real one."""
        with self.lock:
            if loop not in self._bridges:
                found = describe(loop)
                if not self.clock.real or not found.virtual:
                    self.clock.follow(found.clock, not found.virtual)
                self._bridges[loop] = LoopBridge(self, found)
            return self._bridges[loop]

    def name_client(self, process: str) -> str:
        """From connections: return the generated name of an unnamed client, by its negotiated process."""
        return self._names.setdefault(process, f"client{len(self._names) + 1}")

    def remove_connection(self, connection: TappedConnection, reason: str) -> None:
        self.connections.pop(connection, None)
        self.record_note(reason, connection.name)

    def record_note(self, what: str, client: str = "") -> None:
        self.recorder.add(Note(time=self.clock() - self.started_at, client=client, what=what))

    def _fault_ended(self, fault: Fault) -> None:
        with self.lock:
            if fault.action == "stall" and not self._running:
                self.set_node_time()
                for connection in list(self.connections):
                    connection.release()
                self.run()


@lru_cache(maxsize=1)
def _default_configuration() -> Configuration:
    storage = PurePosixPath("/memory/storage")
    return configuration(broker_config(storage, _PORT, heartbeats=_HEARTBEATS), clusters_config(
        storage, _PORT, 1, partition={"maxJournalFileSize": _JOURNAL_BYTES, "maxDataFileSize": _DATA_BYTES,
                                      "maxQlistFileSize": _QLIST_BYTES}))
