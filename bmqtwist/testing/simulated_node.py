"""Node in simulated time: each received chunk, sync and turn is a scheduled event of the simulation.

A run of the node ends with a kill, a loss of power or a graceful stop; events of an ended run are discarded. Events of a
paused node wait until it resumes. Disk faults are set at the node's `disk` (`storage.memory.MemoryDisk`). Created by
`cluster.py`; the events and their times are in `simulation.py`, nodes without time in `node.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist.alarms import INTERNAL_ERROR
from bmqtwist.config.broker import Configuration
from bmqtwist.config.provider import DomainSource
from bmqtwist.errors import LocalError
from bmqtwist.ids import make_client_id
from bmqtwist.link.authentication import Authenticate, attempt
from bmqtwist.link.session import Session
from bmqtwist.storage.memory import ProcessKilled
from bmqtwist.testing.clock import WALL_S
from bmqtwist.testing.network import ConnectionEnd, ConnectionHandler, Network
from bmqtwist.testing.node import MemoryNode

TURN_SECONDS_MAX = 0.0005  # delay of a turn
DOWN_S = 0.2  # default downtime between two runs
STOP_POLL_S = 0.05
DRAIN_SECONDS_MAX = 6.0  # time for connections to receive their last data in a graceful stop


class SessionReceiver(ConnectionHandler):
    """The broker's end of a connection."""

    def __init__(self, node: SimulatedNode, session: Session, end: ConnectionEnd) -> None:
        self._node, self._session = node, session
        session.transport = end

    def on_data(self, data: bytes) -> None:
        node = self._node
        node.act(lambda: node.broker.sessions.on_received(self._session, data, node.local_now))
        node.request_turn()

    def on_end(self) -> None:
        node = self._node
        node.act(lambda: node.broker.sessions.on_lost(self._session, node.local_now))
        node.request_turn()

    def on_drained(self) -> None:
        self._node.broker.sessions.on_drained(self._session, self._node.local_now)
        self._node.request_turn()


class SimulatedPerformer:
    """`loop.performer.Performer` of one run of a node."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node, self._simulation = node, node.simulation

    def request_turn(self) -> None:
        self._node.request_turn()

    def run_in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run the work at its start or at its end, at random, and report it at its end."""
        node, simulation, errors = self._node, self._simulation, list[OSError]()

        def perform() -> None:
            try:
                work()
            except OSError as error:
                errors.append(error)

        finished = simulation.now + simulation.sync_seconds() + node.disk_delay_s
        node.at(simulation.now if simulation.random.random() < 0.5 else finished, perform)
        node.at(finished, lambda: failed(errors[0], node.local_now) if errors else done(node.local_now))

    def clock(self) -> float:
        return self._simulation.now

    def processor_time(self) -> float:
        return self.clock()

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        node = self._node

        def complete() -> None:
            outcome = attempt(effect.authenticator, effect.data, effect.peer)
            node.broker.sessions.on_authenticated(session, effect.token, outcome, node.local_now)
            node.request_turn()
        node.at(self._simulation.now + self._simulation.delay(), complete)

    def write(self, session: Session, parts: list[bytes | memoryview]) -> int:
        end = session.transport
        return end.send(b"".join(parts)) if isinstance(end, ConnectionEnd) and end.open else 0

    def unsent_output(self, session: Session) -> tuple[int, int]:
        end = session.transport
        return (end.waiting_bytes, end.arrived) if isinstance(end, ConnectionEnd) else (0, 0)

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        """Connect in the simulated network, without TLS."""
        node, address = self._node, f"{host}:{port}"

        def on_dialed(end: ConnectionEnd | None) -> None:
            if end is None:
                failed("Connection refused", node.local_now)
            else:
                node.attach(end, connected(address, node.local_now))
            node.request_turn()
        node.dial(address, on_dialed)

    def chance(self) -> float:
        return self._simulation.random.random()

    def close_when_sent(self, session: Session) -> None:
        if isinstance(session.transport, ConnectionEnd):
            session.transport.finish()

    def set_reading(self, session: Session, wanted: bool) -> None:
        if isinstance(session.transport, ConnectionEnd):
            self._node.stopped_reads += not wanted
            session.transport.read(wanted)

    def write_dump(self, text: str) -> str:
        return self._node.write_dump(text)


class SimulatedNode(MemoryNode):
    """One node of a simulation with its disk and clocks; `boot` starts it.

    `name`: its place in the network; `address`: the address at which it listens. Its monotonic clock is `clock_ahead`
    seconds ahead of the simulation's, its wall clock `wall_ahead` seconds fast. `run_number`: number of the current run; it
    is also incremented at the end of a run. `trace_hidden`: a path that is omitted from the trace, since it differs between
    simulations.
    """

    def __init__(self, network: Network, name: str, address: str, configure: Callable[[], Configuration],
                 domains: Callable[[Configuration], DomainSource], *, clock_ahead: float = 0.0,
                 wall_ahead: float = 0.0) -> None:
        super().__init__(configure, domains, lambda: self.local_now, WALL_S - clock_ahead + wall_ahead,
                         make_client_id(name, 0, 1, 0))
        self.network, self.simulation, self.name, self.address = network, network.simulation, name, address
        self._ahead, self.trace_hidden = clock_ahead, ""
        self.run_number = 0
        self.up = self.paused = False
        self.allow_internal_errors = False  # internal errors of the broker do not fail the simulation
        self.stopped_reads = 0  # times that the broker stopped reading a connection
        self.torn_writes = 0  # writes that were not synced at losses of power
        self.disk_deaths = 0  # ends of the process at a disk fault
        self.on_boot: Callable[[], None] = lambda: None  # called after the recovery
        self.on_restart: Callable[[bool], None] = lambda power: None  # called after the end of a run; True = a loss of power
        self.disk_delay_s = 0.0  # additional duration of disk operations in threads
        self._turning = False
        self._ends: list[ConnectionEnd] = []
        self._deferred: list[Callable[[], None]] = []  # events that became due while the node was paused
        self._lines_recorded = self._steps_recorded = 0
        self.simulation.nodes.append(self)
        network.add(self)

    # -- time -------------------------------------------------------------------------------------------------------

    @property
    def local_now(self) -> float:
        return self.simulation.now + self._ahead

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run an action at a time of the simulation, unless this run has ended; a paused node defers it."""
        run_number = self.run_number

        def run_unless_ended() -> None:
            if self.run_number != run_number or not self.up:
                return
            self._run_or_defer(action)
        self.simulation.at(when, run_unless_ended)

    def act(self, action: Callable[[], None]) -> None:
        try:
            action()
        except ProcessKilled:
            self.disk_deaths += 1
            self.crash(power=False)

    def next_deadline(self) -> float | None:
        if not self.up or self.paused:
            return None
        moment = self.broker.loop.timers.next_at
        return None if moment is None else moment - self._ahead

    def tick(self) -> None:
        """Run the broker's due timers."""
        deadline = self.broker.next_deadline()
        self.act(lambda: self.broker.tick(max(self.local_now, deadline or 0.0)))  # `max`: despite rounding

    def request_turn(self) -> None:
        """Schedule a turn within TURN_SECONDS_MAX."""
        if not self._turning and self.up:
            self._turning = True
            self.at(self.simulation.now + self.simulation.random.random() * TURN_SECONDS_MAX, self._run_turn)

    def _run_turn(self) -> None:
        self._turning = False
        self.broker.turn(self.local_now)

    def jump(self, seconds: float, wall: float = 0.0) -> None:
        """Advance the monotonic clock, as a suspension does, and shift the wall clock with effect from the next start."""
        self._ahead += seconds
        self.clock.wall_offset += wall

    def pause(self) -> None:
        """Pause the process, as a debugger or a swapping host does."""
        self.paused = True
        for end in self._ends:
            end.paused = True

    def resume(self) -> None:
        """Resume the process and run its deferred events."""
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            if self.up:  # an action may end the run
                self.act(action)
        for end in list(self._ends):
            end.resume()

    # -- trace ------------------------------------------------------------------------------------------------------

    def record_events(self) -> None:
        """Add log lines and disk operations since the last call to the trace."""
        lines, steps = self.report.lines, self.disk.log
        if len(lines) == self._lines_recorded and len(steps) == self._steps_recorded:
            return
        for severity, text in lines[self._lines_recorded:] if len(lines) > self._lines_recorded else ():
            self._trace(f"{severity} {text}")
            assert self.allow_internal_errors or f"[{INTERNAL_ERROR.category}]" not in text, text
        for operation, path in steps[self._steps_recorded:] if len(steps) > self._steps_recorded else ():
            self._trace(f"{operation} {path}")
        self._lines_recorded, self._steps_recorded = len(lines), len(steps)

    def _trace(self, what: str) -> None:
        self.simulation.trace(f"{self.name} {what.replace(self.trace_hidden, '') if self.trace_hidden else what}")

    # -- connections ------------------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        return self.up and self.broker.sessions.serving

    def accept(self, end: ConnectionEnd, peer: str) -> None:
        """From the network: accept a connection."""
        def add_session() -> None:
            if end.open:
                self.attach(end, self.broker.sessions.add_accepted(peer, self.local_now))
        self._add_end(end)
        self._run_or_defer(add_session)

    def dial(self, address: str, done: Callable[[ConnectionEnd | None], None]) -> None:
        """Connect to an address and call `done` with the end, None = failed; no call if this run ends before."""
        run_number = self.run_number

        def on_dialed(end: ConnectionEnd | None) -> None:
            if end is not None:
                self._add_end(end)
            if self.run_number == run_number and self.up:
                self._run_or_defer(partial(done, end))
            elif end is not None:
                end.end_process()
        self.network.dial(address, self.name, on_dialed)

    def attach(self, end: ConnectionEnd, session: Session) -> None:
        """Connect an end with a session of the broker."""
        end.handler = SessionReceiver(self, session, end)

    def _add_end(self, end: ConnectionEnd) -> None:
        self._ends = [*(each for each in self._ends if each.open), end]
        end.paused = self.paused

    def _run_or_defer(self, action: Callable[[], None]) -> None:
        if self.paused:
            self._deferred.append(action)
        else:
            self.act(action)

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start a new run; if a disk fault ends it during recovery, it is started again."""
        self.run_number += 1
        self._turning = False
        self._trace("boot")
        try:
            self.open_node(SimulatedPerformer(self))
        except (ProcessKilled, Exception) as error:
            if not self.allow_internal_errors and not isinstance(error, (ProcessKilled, LocalError, OSError)):
                raise
            self.disk_deaths += isinstance(error, ProcessKilled)
            self.crash(power=False)
            return
        self.up = True
        self.on_boot()
        self.request_turn()
        self.record_events()

    def crash(self, power: bool, down: float | None = DOWN_S, silently: bool = False) -> None:
        """Kill the process, or simulate a loss of `power`, which tears unsynced writes. The node restarts after `down`
        seconds, None = by `boot`. `silently`: peers are not notified until the machine is up again."""
        self._trace("crash")
        self._end_run(silently)
        if power:
            self.torn_writes += self.disk.unsynced
            self.disk.crash(self.simulation.random)
        else:
            self.disk.kill()
        self.clear_disk_faults()
        self._schedule_boot(power, down)

    def stop(self, down: float | None = DOWN_S) -> None:
        """Stop gracefully, as `daemon.service` does; restart after `down` seconds, None = by `boot`."""
        if self.up:
            self.clear_disk_faults()
            self.act(lambda: self.broker.stop(self.local_now))
            self.at(self.simulation.now + STOP_POLL_S, lambda: self._continue_stop(None, down))

    def _continue_stop(self, drain_until: float | None, down: float | None) -> None:
        broker, now = self.broker, self.simulation.now
        if drain_until is None:
            if broker.shutdown is not None and broker.shutdown.done:
                broker.turn(self.local_now)
                for session in list(broker.sessions.open):
                    broker.loop.performer.close_when_sent(session)
                drain_until = now + DRAIN_SECONDS_MAX
        elif not broker.sessions.open or now > drain_until:
            self.assembled.close()
            self._end_run()
            self._schedule_boot(False, down)
            return
        self.at(now + STOP_POLL_S, lambda: self._continue_stop(drain_until, down))

    def _end_run(self, silently: bool = False) -> None:
        self.up = self.paused = False
        self.run_number += 1
        ends, self._ends, self._deferred = self._ends, [], []
        for end in ends:
            if end.open:
                end.end_process(silently)

    def _schedule_boot(self, power: bool, down: float | None) -> None:
        self.on_restart(power)
        run_number = self.run_number
        if down is not None:
            self.simulation.at(self.simulation.now + down, lambda: self.boot() if self.run_number == run_number else None)

    # -- disk -------------------------------------------------------------------------------------------------------

    def clear_disk_faults(self) -> None:
        """End all disk faults; lost data stays lost."""
        self.disk.capacity, self.disk.stop_after, self.disk_delay_s = None, None, 0.0
        self.disk.fail = lambda operation, path: None
