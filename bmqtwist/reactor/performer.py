"""Performer on a Twisted reactor: connects one broker to connections, worker threads and the clock.

One turn follows all chunks that arrive in one round of the reactor. Chunks of unauthenticated connections, and chunks that
arrive late in a turn, are deferred input: jobs of the broker's scheduler. The turn runs in a hook around the reactor's
`doIteration`: a delayed call for each round would cost more than a small message. `now` is in seconds, monotonic.

Budgets of jobs are in `loop/scheduler.py`. The reactor calls `_iterate`; connections (`tcp.py`) call the methods of
`Driver`; the broker calls the methods of `Performer` (`loop/performer.py`). `daemon/service.py` creates it.

docs/architecture.md, "A message's way", shows when this module is called.
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

from bmqtwist import alarms
from bmqtwist.addresses import host_and_port
from bmqtwist.link.authentication import Authenticate, Denied, Outcome, attempt
from bmqtwist.link.batching import BATCH_MAX_S, BATCH_MIN_S, PAUSED_READ_BYTES_MAX
from bmqtwist.link.session import Session
from bmqtwist.link.states import ConnectionState
from bmqtwist.reactor.admission import Admission
from bmqtwist.reactor.dialing import Dial
from bmqtwist.reactor.disk_threads import DiskThreads
from bmqtwist.reactor.epoll_round import ReactorRounds, Rounds, rounds_of
from bmqtwist.reactor.loop_lag import LoopLag
from bmqtwist.reactor.processor_time import ProcessorTime
from bmqtwist.reactor.tcp import Connection
from bmqtwist.reactor.watchdog import SLOW_S, Watchdog
from bmqtwist.report import LineLimiter, Report

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.security.tls import ClientContext

_NEVER: Final = float("inf")
TURN_INPUT_S: Final = 0.005  # duration of a turn after which chunks above FEW_BYTES are deferred
FEW_BYTES: Final = 2048
LONG_TURN_INPUT_S: Final = 0.05  # duration of a turn after which all chunks are deferred
DUMP_MODE = 0o644  # dumps are readable for operators, not only for the user of the broker
CONNECT_SECONDS_MAX = 10  # timeout of an outgoing connection
DISK_THREADS = 4


class ReactorPerformer:
    """One broker on one reactor. `broker` is set after construction (`daemon/service.py`)."""

    broker: Broker
    client_context: ClientContext | None = None  # for connections to nodes whose endpoint requires TLS

    def __init__(self, reactor: Any, report: Report, connections_max: int, auth_threads: tuple[int, int],
                 warn_after_s: float, alarm_after_s: float) -> None:
        self.reactor, self.report = reactor, report
        self._clock: Callable[[], float] = time.monotonic
        self._processor_time = ProcessorTime(time.monotonic, time.thread_time)
        self.lag = LoopLag(reactor, report, self._clock, warn_after_s, alarm_after_s)
        self.admission = Admission(reactor, report, connections_max)
        self.watchdog = Watchdog(report)
        least, most = auth_threads
        self._disk = DiskThreads(reactor, DISK_THREADS)
        self._authenticators = ThreadPool(min(least, max(1, most)), max(1, most), "authentication")
        self._turn_due = False
        self._rounds: Rounds = ReactorRounds(reactor)
        self._original_iteration: Callable[[float | None], object] = reactor.doIteration
        self._tick_call: Any = None  # for reactors without `Rounds.exact_delay`
        self._tick_at = _NEVER
        self._paused: deque[tuple[float, Connection]] = deque()  # in a read pause, with the moment of the last read
        self._running = False
        self._lines = LineLimiter()  # of TLS errors

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads and install the hook of turns."""
        self._disk.start()
        self._authenticators.start()
        self._rounds, self._original_iteration = rounds_of(self.reactor, self._has_time), self.reactor.doIteration
        self.reactor.doIteration = self._iterate
        self._running = True
        self.watchdog.start()
        self.lag.start()
        self._arm()

    def stop(self) -> None:
        """Remove the hook and stop the threads; blocks until their jobs are finished."""
        if self._running:
            self.reactor.doIteration = self._original_iteration
        self._running = False
        self.watchdog.stop()
        self.lag.stop()
        if self._tick_call is not None and self._tick_call.active():
            self._tick_call.cancel()
        self._authenticators.stop()
        self._disk.stop()

    # -- turns and ticks --------------------------------------------------------------------------------------------

    def request_turn(self) -> None:
        """Request a turn at the end of this round of the reactor."""
        self._turn_due = True

    def _iterate(self, delay: float | None) -> None:
        """Run rounds of the reactor, each followed by its turn, until the reactor must run its own loop."""
        rounds = self._rounds
        exact_delay = rounds.exact_delay
        while True:
            rounds.run(0 if self._turn_due else self._limited(delay) if exact_delay else delay)
            ticks = False
            if exact_delay:
                now = self._clock()
                ticks = now >= self._tick_at
                if self._paused and now - self._paused[0][0] >= BATCH_MIN_S:
                    self._poll(now)
            if self._turn_due or ticks:
                self._turn_due = False
                self._take_turn(ticks)
            delay = rounds.next_delay()
            if delay is not None and delay < 0 or not self._running:
                return

    def _has_time(self) -> bool:
        """Return whether this turn has time for more input."""
        began = self.watchdog.began
        return began > 0.0 and self._clock() - began <= TURN_INPUT_S

    def _limited(self, delay: float | None) -> float | None:
        """The delay, limited by the next tick and the next poll of a paused connection."""
        due = self._tick_at
        if self._paused:
            due = min(due, self._paused[0][0] + BATCH_MAX_S)
        if due == _NEVER:
            return delay
        wait = max(0.0, due - self._clock())
        return wait if delay is None else min(wait, delay)

    def _poll(self, now: float) -> None:
        """Read from the connections whose read pause has lasted BATCH_MIN_S since their last read."""
        paused = self._paused
        while paused and now - paused[0][0] >= BATCH_MIN_S:
            since, connection = paused.popleft()
            if since != connection.polled_at:  # it was read meanwhile, and has a newer entry
                continue
            connection.poll()
            if connection.reads_paused:
                self._add_pause(connection, now)

    def _tick(self) -> None:
        self._tick_call, self._tick_at = None, _NEVER
        self._perform(self.broker.tick)

    def _take_turn(self, ticks: bool) -> None:
        """Run one turn of the broker, or its tick."""
        now = self._begin_turn()
        try:
            if ticks:
                self.broker.tick(now)
            else:
                self.broker.turn(now)
        except Exception:
            self._alarm_failure(Failure(), "in a turn")
        self._end_turn()

    def _perform(self, action: Callable[[float], None]) -> None:
        """Call `action(now)`; an exception raises an alarm."""
        now = self._begin_turn()
        try:
            action(now)
        except Exception:
            self._alarm_failure(Failure(), "in a turn")
        self._end_turn()

    def _begin_turn(self) -> float:
        watchdog, now = self.watchdog, self._clock()
        if not watchdog.began:
            watchdog.began = now
        return now

    def _end_turn(self) -> None:
        self._arm()
        watchdog, now = self.watchdog, self._clock()
        took = now - watchdog.began
        self.lag.busy += took
        if took > SLOW_S or took > watchdog.longest:
            watchdog.record_turn(took)
        watchdog.began = 0.0

    def _arm(self) -> None:
        deadline = self.broker.next_deadline()
        if self._rounds.exact_delay:
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

    # -- reactor.tcp.Driver -----------------------------------------------------------------------------------------

    def on_connected(self, connection: Connection, peer: str, port: int) -> Session | None:
        now = self._clock()
        if not self.admission.admits(self.broker.sessions, peer, connection.descriptor, now):
            return None
        session = self.broker.sessions.add_accepted(peer, now)
        session.transport, session.outgoing = connection, connection.outgoing
        return session

    def on_received(self, session: Session, data: bytes) -> None:
        """Process received bytes, at once or as deferred input; a turn follows."""
        now, watchdog = self._clock(), self.watchdog
        self._turn_due = True
        if not watchdog.began:
            watchdog.began = now
        took = now - watchdog.began
        if session.channel.negotiated_at is None or took > TURN_INPUT_S and (
                len(data) > FEW_BYTES or took > LONG_TURN_INPUT_S):
            self.broker.sessions.on_received(session, data, now, True)
            return
        session.input_turn = watchdog.began
        self.broker.sessions.on_received(session, data, now)
        if session.pausable and self._rounds.exact_delay and len(data) <= PAUSED_READ_BYTES_MAX and not session.has_jobs:
            self._pause_reads(session, now)

    def _pause_reads(self, session: Session, now: float) -> None:
        connection = session.transport
        if isinstance(connection, Connection) and not connection.reads_paused and connection.pause_reads():
            self._add_pause(connection, now)

    def _add_pause(self, connection: Connection, now: float) -> None:
        connection.polled_at = now
        self._paused.append((now, connection))

    def on_lost(self, session: Session, why: str = "") -> None:
        if why and session.channel.negotiated_at is None and self._lines.admits(self._clock()):
            self.report.warn("#TLS '%s': %s", session.peer, why)
        self.broker.sessions.on_lost(session, self._clock())
        self.request_turn()

    def on_drained(self, session: Session) -> None:
        self.broker.sessions.on_drained(session, self._clock())
        self.request_turn()

    def call_later(self, seconds: float, action: Callable[[], None]) -> object:
        return self.reactor.callLater(seconds, action)

    # -- loop.performer.Performer -----------------------------------------------------------------------------------

    def clock(self) -> float:
        return self._clock()

    def processor_time(self) -> float:
        return self._processor_time()

    def run_in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` on a disk thread. An exception that is no OSError raises an alarm and is converted to one."""
        def on_error(error: BaseException) -> None:
            if not isinstance(error, OSError):
                self._alarm_failure(Failure(error), "on a thread")
                error = OSError(str(error))
            self._if_running(partial(failed, error))

        self._disk.submit(work, partial(self._if_running, done), on_error)

    def _if_running(self, action: Callable[[float], None]) -> None:
        if self._running:
            self._perform(action)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Run an authenticator on a thread; an exception denies."""
        waiting: Any = deferToThreadPool(self.reactor, self._authenticators, _authenticate, session, effect)
        waiting.addErrback(lambda failure: Denied(f"Authentication failed: {failure.type.__name__}", -3))
        waiting.addCallback(self._on_authenticated, session, effect.token)
        waiting.addErrback(self._alarm_failure, "after an authentication")

    def _on_authenticated(self, outcome: Outcome, session: Session, token: int) -> None:
        self.broker.sessions.on_authenticated(session, token, outcome, self._clock())
        self.request_turn()

    def write(self, session: Session, parts: list[bytes | memoryview]) -> int:
        """Write to the connection; return its unsent bytes."""
        outgoing = session.outgoing
        if outgoing is None:
            return 0
        outgoing.answered_at_once, outgoing.sent = session.input_turn == self.watchdog.began, True
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

    def unsent_output(self, session: Session) -> tuple[int, int]:
        connection = session.transport
        return (connection.waiting_bytes, connection.drained_bytes) if isinstance(connection, Connection) else (0, 0)

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        def opened(connection: Connection, peer: str, port: int) -> Session:
            session = connected(peer, self._clock())
            session.transport, session.outgoing = connection, connection.outgoing
            self.request_turn()
            return session

        def on_failed(reason: str) -> None:
            self._perform(partial(failed, reason))

        context = self.client_context
        if tls and context is None:
            why = f"the endpoint tls://{host_and_port(host, port)} requires TLS, and tlsConfig has no certificateAuthority"
            if self._lines.admits(self._clock()):
                self.report.error("#TLS %s", why)
            self.reactor.callLater(0, on_failed, why)
            return
        Dial(self.reactor, host, port, context.options(host) if tls and context is not None else None, CONNECT_SECONDS_MAX,
             lambda: Connection(self, opened), on_failed).start()

    def chance(self) -> float:
        return random.random()

    def close_when_sent(self, session: Session) -> None:
        if isinstance(session.transport, Connection):
            session.transport.finish()

    def set_reading(self, session: Session, wanted: bool) -> None:
        if isinstance(session.transport, Connection):
            session.transport.read(wanted)

    def write_dump(self, text: str) -> str:
        """Write the text to a new temporary file; return its path, or the error in parentheses."""
        try:
            descriptor, path = tempfile.mkstemp(prefix="")
            os.fchmod(descriptor, DUMP_MODE)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            return f"(not written: {error})"
        return path

    def _alarm_failure(self, failure: Failure, when: str) -> None:
        self.report.alarm(alarms.INTERNAL_ERROR, "Internal error %s: %s", when, failure.getTraceback())


def _authenticate(session: Session, effect: Authenticate) -> Outcome:
    """Run an authenticator, in a thread. If the client has disconnected meanwhile, its credential is not checked."""
    if session.state is ConnectionState.CLOSED:
        return Denied("Authentication failed: the connection is closed.")
    return attempt(effect.authenticator, effect.data, effect.peer)
