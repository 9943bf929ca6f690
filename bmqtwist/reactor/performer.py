"""What performs: joins one broker to a reactor, its connections, its worker threads and the clock.

From the reactor: the delayed calls of `turn` and `tick`, and what `reactor.tcp` hands on from connections.
From the broker: `loop.performer.Performer`.

However many chunks arrive in one round of the reactor, one turn follows them. Chunks of connections that are not negotiated,
and those that arrive late in a turn, are processed as jobs of the broker's scheduler.
`now` is the monotonic clock. The turn is run from a hook around the reactor's `doIteration`, since a delayed call for each
round would cost more than many a message.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from bmqtwist.errors import LocalError
from bmqtwist.link.authentication import Authenticate, Denied, Outcome, attempt
from bmqtwist.link.pace import REST_BYTES_MAX, SHARE_S, WAIT_S
from bmqtwist.link.session import Session
from bmqtwist.link.states import State
from bmqtwist.reactor.admission import Admission
from bmqtwist.reactor.disk_threads import DiskThreads
from bmqtwist.reactor.epoll_round import OwnRounds, Rounds, rounds_of
from bmqtwist.reactor.loop_lag import LoopLag
from bmqtwist.reactor.tcp import Connection, DialFactory
from bmqtwist.reactor.watchdog import SLOW_S, Watchdog
from bmqtwist.report import INTERNAL_ERROR, LineLimiter, Report

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.security.tls import ClientContext

_NEVER: Final = float("inf")
TURN_INPUT_S: Final = 0.005  # in a turn that has lasted so long, chunks are processed as jobs,
FEW_BYTES: Final = 2048  # except small ones: a round of many sockets takes a while to come to theirs;
LONG_TURN_INPUT_S: Final = 0.05  # these, too, in a turn that has lasted so long
DUMP_MODE = 0o644  # operators look at dumps, not only the user the broker runs as
CONNECT_SECONDS_MAX = 10  # for another node to answer
DISK_THREADS = 4


class ReactorPerformer:
    """One broker on one reactor. `broker` is set by whoever builds both."""

    broker: Broker
    client_context: ClientContext | None = None  # for connections to nodes whose endpoint asks for TLS

    def __init__(self, reactor: Any, report: Report, connections_max: int, auth_threads: tuple[int, int],
                 warn_after_s: float, alarm_after_s: float) -> None:
        self.reactor, self.report = reactor, report
        self._clock: Callable[[], float] = time.monotonic
        self.lag = LoopLag(reactor, report, self._clock, warn_after_s, alarm_after_s)
        self.admission = Admission(reactor, report, connections_max)
        self.watchdog = Watchdog(report)
        least, most = auth_threads
        self._disk = DiskThreads(reactor, DISK_THREADS)
        self._judges = ThreadPool(min(least, max(1, most)), max(1, most), "authentication")
        self._turn_due = False
        self._rounds: Rounds = OwnRounds(reactor)
        self._twisteds_round: Callable[[float | None], object] = reactor.doIteration
        self._tick_call: Any = None  # where rounds do not end in time by themselves
        self._tick_at = _NEVER
        self._resting: deque[tuple[float, Connection]] = deque()  # and when they were looked at
        self._running = False
        self._lines = LineLimiter()  # about TLS that failed

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads and the clock."""
        self._disk.start()
        self._judges.start()
        self._rounds, self._twisteds_round = rounds_of(self.reactor, self._takes_more), self.reactor.doIteration
        self.reactor.doIteration = self._iterate
        self._running = True
        self.watchdog.start()
        self.lag.start()
        self._arm()

    def stop(self) -> None:
        """Stop clock and threads; waits for what runs in them."""
        if self._running:
            self.reactor.doIteration = self._twisteds_round
        self._running = False
        self.watchdog.stop()
        self.lag.stop()
        if self._tick_call is not None and self._tick_call.active():
            self._tick_call.cancel()
        self._judges.stop()
        self._disk.stop()

    # -- turns and ticks --------------------------------------------------------------------------------------------

    def turn_due(self) -> None:
        """A turn at the end of this round of the reactor."""
        self._turn_due = True

    def _iterate(self, delay: float | None) -> None:
        """Rounds of the reactor, each with the turn that is due then, until it has something else to do."""
        rounds = self._rounds
        as_long = rounds.as_long
        while True:
            rounds.run(0 if self._turn_due else self._at_most(delay) if as_long else delay)
            ticks = False
            if as_long:
                now = self._clock()
                ticks = now >= self._tick_at
                if self._resting and now - self._resting[0][0] >= SHARE_S:
                    self._look(now)
            if self._turn_due or ticks:
                self._turn_due = False
                self._take_turn(ticks)
            delay = rounds.more()
            if delay is not None and delay < 0 or not self._running:
                return

    def _takes_more(self) -> bool:
        """Whether there is time for more input in this turn."""
        began = self.watchdog.began
        return began > 0.0 and self._clock() - began <= TURN_INPUT_S

    def _at_most(self, delay: float | None) -> float | None:
        """So long, or until something of ours is due."""
        due = self._tick_at
        if self._resting:
            due = min(due, self._resting[0][0] + WAIT_S)
        if due == _NEVER:
            return delay
        wait = max(0.0, due - self._clock())
        return wait if delay is None else min(wait, delay)

    def _look(self, now: float) -> None:
        """Read from connections that have rested long enough."""
        resting = self._resting
        while resting and now - resting[0][0] >= SHARE_S:
            since, connection = resting.popleft()
            if since != connection.looked_at:  # it was read from meanwhile, and rests anew
                continue
            connection.look()
            if connection.resting:
                self._rests(connection, now)

    def _tick(self) -> None:
        self._tick_call, self._tick_at = None, _NEVER
        self._perform(self.broker.tick)

    def _take_turn(self, ticks: bool) -> None:
        """One turn of the broker, or its tick."""
        now = self._begins()
        try:
            if ticks:
                self.broker.tick(now)
            else:
                self.broker.turn(now)
        except Exception:
            self._slipped(Failure(), "in a turn")
        self._ended()

    def _perform(self, action: Callable[[float], None]) -> None:
        """Call `action(now)`; whatever it does, the clock goes on."""
        now = self._begins()
        try:
            action(now)
        except Exception:
            self._slipped(Failure(), "in a turn")
        self._ended()

    def _begins(self) -> float:
        watchdog, now = self.watchdog, self._clock()
        if not watchdog.began:
            watchdog.began = now
        return now

    def _ended(self) -> None:
        self._arm()
        watchdog, now = self.watchdog, self._clock()
        took = now - watchdog.began
        self.lag.busy += took
        if took > SLOW_S or took > watchdog.longest:
            watchdog.over(took)
        watchdog.began = 0.0

    def _arm(self) -> None:
        deadline = self.broker.next_deadline()
        if self._rounds.as_long:
            self._tick_at = _NEVER if deadline is None else deadline
            return
        if deadline is None or deadline == self._tick_at or not self._running:
            return
        delay = max(0.0, deadline - self._clock())
        if self._tick_call is None:
            self._tick_call = self.reactor.callLater(delay, self._tick)
        else:
            self._tick_call.reset(delay)
        self._tick_at = deadline

    # -- link.tcp.Driver --------------------------------------------------------------------------------------------

    def connected(self, connection: Connection, peer: str, port: int) -> Session | None:
        """A new connection; None refuses it."""
        now = self._clock()
        if not self.admission.admits(self.broker.sessions, peer, connection.descriptor, now):
            return None
        session = self.broker.sessions.connect(peer, now)
        session.transport, session.outgoing = connection, connection.outgoing
        return session

    def received(self, session: Session, data: bytes) -> None:
        """Bytes for a session; a turn follows."""
        now, watchdog = self._clock(), self.watchdog
        self._turn_due = True
        if not watchdog.began:
            watchdog.began = now
        took = now - watchdog.began
        if session.channel.negotiated_at is None or took > TURN_INPUT_S and (
                len(data) > FEW_BYTES or took > LONG_TURN_INPUT_S):
            self.broker.sessions.received(session, data, now, True)
            return
        session.heard_in = watchdog.began
        self.broker.sessions.received(session, data, now)
        if session.unhurried and self._rounds.as_long and len(data) <= REST_BYTES_MAX and not session.has_jobs:
            self._let_rest(session, now)

    def _let_rest(self, session: Session, now: float) -> None:
        connection = session.transport
        if isinstance(connection, Connection) and not connection.resting and connection.rest():
            self._rests(connection, now)

    def _rests(self, connection: Connection, now: float) -> None:
        connection.looked_at = now
        self._resting.append((now, connection))

    def lost(self, session: Session, why: str = "") -> None:
        """The channel of a session is gone. `why`: what is wrong with its TLS."""
        if why and session.channel.negotiated_at is None and self._lines.admits(self._clock()):
            self.report.warn("#TLS '%s': %s", session.peer, why)
        self.broker.sessions.lost(session, self._clock())
        self.turn_due()

    def drained(self, session: Session) -> None:
        """A peer that was behind has taken everything."""
        self.broker.sessions.drained(session)
        self.turn_due()

    def call_later(self, seconds: float, action: Callable[[], None]) -> object:
        """Delay a call."""
        return self.reactor.callLater(seconds, action)

    # -- node.performer.Performer ---------------------------------------------------------------------------------------

    def clock(self) -> float:
        """The monotonic clock."""
        return self._clock()

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run something on a thread."""
        def fell(error: BaseException) -> None:
            if not isinstance(error, OSError):
                self._slipped(Failure(error), "on a thread")
                error = OSError(str(error))
            self._if_running(partial(failed, error))

        self._disk.do(work, partial(self._if_running, done), fell)

    def _if_running(self, action: Callable[[float], None]) -> None:
        if self._running:
            self._perform(action)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Run an authenticator on a thread; it cannot fail, only deny."""
        waiting: Any = deferToThreadPool(self.reactor, self._judges, _judge, session, effect)
        waiting.addErrback(lambda failure: Denied(f"Authentication failed: {failure.type.__name__}", -3))
        waiting.addCallback(self._judged, session, effect.token)
        waiting.addErrback(self._slipped, "after an authentication")

    def _judged(self, outcome: Outcome, session: Session, token: int) -> None:
        self.broker.sessions.judged(session, token, outcome, self._clock())
        self.turn_due()

    def write(self, session: Session, parts: list[bytes]) -> int:
        """Write to the connection; returns the bytes it has not taken yet."""
        outgoing = session.outgoing
        if outgoing is None:
            return 0
        outgoing.answered_at_once, outgoing.sent = session.heard_in == self.watchdog.began, True
        connection = session.transport
        if outgoing.send is None:
            if not isinstance(connection, Connection) or connection.session is None:
                return 0
            session.channel.out_bytes += connection.write(parts)
            return connection.waiting_bytes
        data = b"".join(parts)
        size = len(data)
        session.channel.out_bytes += size
        sent = outgoing.write(data)
        if sent == size or not isinstance(connection, Connection):
            return 0
        connection.write_rest(data, sent)
        return connection.waiting_bytes

    def unread(self, session: Session) -> tuple[int, int]:
        """The bytes the connection has not taken yet, and those it has ever taken that had to wait."""
        connection = session.transport
        return (connection.waiting_bytes, connection.taken_bytes) if isinstance(connection, Connection) else (0, 0)

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        """Connect to another node."""
        def opened(connection: Connection, peer: str, port: int) -> Session:
            session = connected(peer, self._clock())
            session.transport, session.outgoing = connection, connection.outgoing
            self.turn_due()
            return session

        factory = DialFactory(self, opened, lambda reason: self._perform(partial(failed, reason)))
        context = self.client_context
        if not tls:
            self.reactor.connectTCP(host, port, factory, timeout=CONNECT_SECONDS_MAX)
        elif context is not None:
            self.reactor.connectSSL(host, port, factory, context.options(host), timeout=CONNECT_SECONDS_MAX)
        else:
            why = LocalError(f"the endpoint tls://{host}:{port} asks for TLS, and tlsConfig has no certificateAuthority")
            if self._lines.admits(self._clock()):
                self.report.error("#TLS %s", why)
            self.reactor.callLater(0, factory.clientConnectionFailed, None, Failure(why))

    def chance(self) -> float:
        """From the machine's."""
        return random.random()

    def finish(self, session: Session) -> None:
        """Close the connection once all is written."""
        if isinstance(session.transport, Connection):
            session.transport.finish()

    def read(self, session: Session, wanted: bool) -> None:
        """Go on reading, or stop."""
        if isinstance(session.transport, Connection):
            session.transport.read(wanted)

    def dump(self, text: str) -> str:
        """Keep a text in a file of its own."""
        try:
            descriptor, path = tempfile.mkstemp(prefix="")
            os.fchmod(descriptor, DUMP_MODE)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            return f"(not written: {error})"
        return path

    def _slipped(self, failure: Failure, when: str) -> None:
        """A mistake of ours outside of any call that would have told it."""
        self.report.alarm(INTERNAL_ERROR, "Internal error %s: %s", when, failure.getTraceback())


def _judge(session: Session, effect: Authenticate) -> Outcome:
    """On a thread, when its turn has come: the credential of a client that is gone by then is of no interest."""
    if session.state is State.CLOSED:
        return Denied("Authentication failed: the connection is closed.")
    return attempt(effect.authenticator, effect.data, effect.peer)


def listen(reactor: Any, factory: Any, address: str, port: int, context: Any, backlog: int) -> Any:
    """Open a listening socket, with TLS if there is a context; LocalError with a sentence if it cannot be had."""
    from twisted.internet.error import CannotListenError

    try:
        if context is None:
            return reactor.listenTCP(port, factory, backlog=backlog, interface=address)
        return reactor.listenSSL(port, factory, context, backlog=backlog, interface=address)
    except CannotListenError as error:
        raise LocalError(f"Cannot listen at '{address}:{port}': {error.socketError}. Is another broker running?") from None
