"""A node in simulated time: every chunk, sync and turn is an event with a moment of its own, and lives end as they may.

A life ends with a kill, a loss of power or a graceful stop; what still happens to a dead one is dropped. A node that is
paused lives on: what comes waits until it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist.config.broker import Configuration
from bmqtwist.config.provider import DomainSource
from bmqtwist.errors import LocalError
from bmqtwist.ids import make_client_id
from bmqtwist.link.authentication import Authenticate, attempt
from bmqtwist.link.session import Session
from bmqtwist.report import INTERNAL_ERROR
from bmqtwist.storage.memory import Died
from bmqtwist.testing.clock import WALL_S
from bmqtwist.testing.network import ConnectionEnd, Network, Receiver
from bmqtwist.testing.node import MemoryNode

TURN_SECONDS_MAX = 0.0005  # until the turn that is due begins
DOWN_S = 0.2  # between two lives
STOP_POLL_S = 0.05
DRAIN_SECONDS_MAX = 6.0  # of a graceful stop, for connections to take their last bytes


class SessionReceiver(Receiver):
    """The broker's end of a connection."""

    def __init__(self, node: SimulatedNode, session: Session, end: ConnectionEnd) -> None:
        self._node, self._session = node, session
        session.transport = end

    def take(self, data: bytes) -> None:
        node = self._node
        node.act(lambda: node.broker.sessions.received(self._session, data, node.local_now))
        node.turn_due()

    def cut(self) -> None:
        node = self._node
        node.act(lambda: node.broker.sessions.lost(self._session, node.local_now))
        node.turn_due()

    def drained(self) -> None:
        self._node.broker.sessions.drained(self._session)
        self._node.turn_due()


class SimulatedPerformer:
    """node.performer.Performer of one life of a node."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node, self._simulation = node, node.simulation

    def turn_due(self) -> None:
        self._node.turn_due()

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """The work takes effect at any moment until it is reported."""
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

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        node = self._node

        def judged() -> None:
            outcome = attempt(effect.authenticator, effect.data, effect.peer)
            node.broker.sessions.judged(session, effect.token, outcome, node.local_now)
            node.turn_due()
        node.at(self._simulation.now + self._simulation.delay(), judged)

    def write(self, session: Session, parts: list[bytes]) -> int:
        end = session.transport
        return end.send(b"".join(parts)) if isinstance(end, ConnectionEnd) and end.open else 0

    def unread(self, session: Session) -> tuple[int, int]:
        end = session.transport
        return (end.waiting, end.arrived) if isinstance(end, ConnectionEnd) else (0, 0)

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        """In the simulated network, where a node is at the address of its endpoint; it has no TLS."""
        node, address = self._node, f"{host}:{port}"

        def came(end: ConnectionEnd | None) -> None:
            if end is None:
                failed("Connection refused", node.local_now)
            else:
                node.attach(end, connected(address, node.local_now))
            node.turn_due()
        node.dial(address, came)

    def chance(self) -> float:
        return self._simulation.random.random()

    def finish(self, session: Session) -> None:
        if isinstance(session.transport, ConnectionEnd):
            session.transport.finish()

    def read(self, session: Session, wanted: bool) -> None:
        if isinstance(session.transport, ConnectionEnd):
            self._node.slowed += not wanted
            session.transport.read(wanted)

    def dump(self, text: str) -> str:
        return self._node.dump(text)


class SimulatedNode(MemoryNode):
    """One node of a simulation: its disk, its clock, its lives. `boot` it first.

    `name` is its place in the network, `address` what others connect to. Its monotonic clock shows `clock_ahead` seconds
    more than the simulation's, its wall clock `wall_ahead` more than it should. `hidden` is left out of the trace: a
    path that differs from run to run.
    """

    def __init__(self, network: Network, name: str, address: str, configure: Callable[[], Configuration],
                 domains: Callable[[Configuration], DomainSource], *, clock_ahead: float = 0.0,
                 wall_ahead: float = 0.0) -> None:
        super().__init__(configure, domains, lambda: self.local_now, WALL_S - clock_ahead + wall_ahead,
                         make_client_id(name, 0, 1, 0))
        self.network, self.simulation, self.name, self.address = network, network.simulation, name, address
        self._ahead, self.hidden = clock_ahead, ""
        self.life = 0
        self.up = self.paused = False
        self.mistakes = False  # whether its broker may meet mistakes of its own
        self.slowed = self.torn = self.died = 0  # reads that were stopped; losses of power that tore something; deaths
        self.on_boot: Callable[[], None] = lambda: None  # its broker has recovered
        self.on_restart: Callable[[bool], None] = lambda power: None  # a life is over, by a loss of power or otherwise
        self.disk_delay_s = 0.0  # that whatever a thread does with the disk takes longer than usual
        self._turning = False
        self._ends: list[ConnectionEnd] = []
        self._kept: list[Callable[[], None]] = []  # what became due while it was paused
        self._told = self._written = 0
        self.simulation.nodes.append(self)
        network.add(self)

    # -- time -------------------------------------------------------------------------------------------------------

    @property
    def local_now(self) -> float:
        return self.simulation.now + self._ahead

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a moment of the simulation, if this life lasts until then; a paused node does it later."""
        life = self.life

        def due() -> None:
            if self.life != life or not self.up:
                return
            self._when_awake(action)
        self.simulation.at(when, due)

    def act(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Died:
            self.died += 1
            self.crash(power=False)

    def next_deadline(self) -> float | None:
        if not self.up or self.paused:
            return None
        moment = self.broker.loop.timers.next_at
        return None if moment is None else moment - self._ahead

    def tick(self) -> None:
        """The broker's timers; one that is due is due, however its moment was rounded."""
        deadline = self.broker.next_deadline()
        self.act(lambda: self.broker.tick(max(self.local_now, deadline or 0.0)))

    def turn_due(self) -> None:
        """A turn at the end of this round of its event loop."""
        if not self._turning and self.up:
            self._turning = True
            self.at(self.simulation.now + self.simulation.random.random() * TURN_SECONDS_MAX, self._turn)

    def _turn(self) -> None:
        self._turning = False
        self.broker.turn(self.local_now)

    def jump(self, seconds: float, wall: float = 0.0) -> None:
        """Its clocks jump: the monotonic one ahead, as that of a machine that was suspended, the other one anywhere, which
        a broker that runs does not notice."""
        self._ahead += seconds
        self.clock.wall_offset += wall

    def pause(self) -> None:
        """Hold it up, as a debugger or a host that swaps does."""
        self.paused = True
        for end in self._ends:
            end.asleep = True

    def resume(self) -> None:
        """Let it go on; what waited happens now."""
        self.paused = False
        kept, self._kept = self._kept, []
        for action in kept:
            if self.up:  # it may die of one
                self.act(action)
        for end in list(self._ends):
            end.wake()

    # -- trace ------------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Into the trace: what was logged and what was done to the disk since the last call."""
        lines, steps = self.report.lines, self.disk.log
        if len(lines) == self._told and len(steps) == self._written:
            return
        for severity, text in lines[self._told:] if len(lines) > self._told else ():
            self._trace(f"{severity} {text}")
            assert self.mistakes or f"[{INTERNAL_ERROR}]" not in text, text
        for operation, path in steps[self._written:] if len(steps) > self._written else ():
            self._trace(f"{operation} {path}")
        self._told, self._written = len(lines), len(steps)

    def _trace(self, what: str) -> None:
        self.simulation.trace(f"{self.name} {what.replace(self.hidden, '') if self.hidden else what}")

    # -- connections ------------------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        return self.up and self.broker.sessions.serving

    def accept(self, end: ConnectionEnd, peer: str) -> None:
        """From the network: somebody connects."""
        def serve() -> None:
            if end.open:
                self.attach(end, self.broker.sessions.connect(peer, self.local_now))
        self._hold(end)
        self._when_awake(serve)

    def dial(self, address: str, done: Callable[[ConnectionEnd | None], None]) -> None:
        """Connect to whoever listens at an address; None if that fails. Nothing is told if this life ends before."""
        life = self.life

        def told(end: ConnectionEnd | None) -> None:
            if end is not None:
                self._hold(end)
            if self.life == life and self.up:
                self._when_awake(partial(done, end))
            elif end is not None:
                end.die()
        self.network.dial(address, self.name, told)

    def attach(self, end: ConnectionEnd, session: Session) -> None:
        """A session of its broker speaks at this end from now on."""
        end.receiver = SessionReceiver(self, session, end)

    def _hold(self, end: ConnectionEnd) -> None:
        self._ends = [*(each for each in self._ends if each.open), end]
        end.asleep = self.paused

    def _when_awake(self, action: Callable[[], None]) -> None:
        if self.paused:
            self._kept.append(action)
        else:
            self.act(action)

    # -- life -------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """A new life; it may die while it recovers, and is started again then."""
        self.life += 1
        self._turning = False
        self._trace("boot")
        try:
            self.live(SimulatedPerformer(self))
        except (Died, Exception) as error:
            if not self.mistakes and not isinstance(error, (Died, LocalError, OSError)):
                raise
            self.died += isinstance(error, Died)
            self.crash(power=False)
            return
        self.up = True
        self.on_boot()
        self.turn_due()
        self.tell()

    def crash(self, power: bool, down: float | None = DOWN_S, silently: bool = False) -> None:
        """kill -9, or a loss of `power` that tears what was not synced; up again after `down` seconds, None = by `boot`.
        `silently`: nobody learns of it but by silence, or once the machine is back."""
        self._trace("crash")
        self._end_life(silently)
        if power:
            self.torn += self.disk.unsynced
            self.disk.crash(self.simulation.random)
        else:
            self.disk.kill()
        self.mend()
        self._down(power, down)

    def stop(self, down: float | None = DOWN_S) -> None:
        """The stop of `daemon.service`, then another life, if `down` says when."""
        if self.up:
            self.mend()
            self.act(lambda: self.broker.stop(self.local_now))
            self.at(self.simulation.now + STOP_POLL_S, lambda: self._stopping(None, down))

    def _stopping(self, drain_until: float | None, down: float | None) -> None:
        broker, now = self.broker, self.simulation.now
        if drain_until is None:
            if broker.shutdown is not None and broker.shutdown.done:
                broker.turn(self.local_now)
                for session in list(broker.sessions.open):
                    broker.loop.performer.finish(session)
                drain_until = now + DRAIN_SECONDS_MAX
        elif not broker.sessions.open or now > drain_until:
            self.assembled.close()
            self._end_life()
            self._down(False, down)
            return
        self.at(now + STOP_POLL_S, lambda: self._stopping(drain_until, down))

    def _end_life(self, silently: bool = False) -> None:
        self.up = self.paused = False
        self.life += 1
        ends, self._ends, self._kept = self._ends, [], []
        for end in ends:
            if end.open:
                end.die(silently)

    def _down(self, power: bool, down: float | None) -> None:
        self.on_restart(power)
        life = self.life
        if down is not None:
            self.simulation.at(self.simulation.now + down, lambda: self.boot() if self.life == life else None)

    # -- disk -------------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """The disk is as good as new; what it lost is lost."""
        self.disk.capacity, self.disk.stop_after, self.disk_delay_s = None, None, 0.0
        self.disk.fail = lambda operation, path: None
