"""The broker's side of one connection, without the connection: chunks in, chunks out.

    session.receive(chunk, now, wall)      what the socket delivered
    session.take()                         what to write, asked for at the end of the turn
    session.kind.written(behind)           it is written, but for so many bytes
    session.lost(now, wall)                the channel is gone without a disconnect

The parts of a session are `remote` (what the other side says of itself), `channel` (times and counters of the connection),
`frames` (events that are not complete), `outbox` (output of this turn) and `guard` (authentication).

What the connection is used for is its kind: negotiation first (`link/negotiation.py`), then an application, an
administrator or another broker (`link/client.py`, `admin.py`, `peer.py`). Each kind has a table of what it does with which
event in which state (`link/states.py`). Nothing a peer sends raises out of `receive`. What a session asks of the broker is
`SessionContext`; a kind that asks for more has a protocol of its own.

Input that is more than a slice (`SLICE_BYTES`) is processed as a job of the scheduler, one slice each step; the input behind
it waits for the end of that job.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import ClassVar, Final, Protocol, assert_never

from bmqtwist.config.broker import Heartbeats
from bmqtwist.errors import PeerError
from bmqtwist.limits import (
    CONTROL_BYTES_MAX,
    CONTROL_VALUES_MAX,
    NEGOTIATION_BYTES_MAX,
    NEGOTIATION_VALUES_MAX,
    SLICE_BYTES,
    SLICE_EVENT_BYTES,
)
from bmqtwist.link.authentication import Authenticate, Authentication, Close, Drop, Effect, Outcome, Proceed
from bmqtwist.link.newcomers import Newcomers
from bmqtwist.link.outbox import Outbox
from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.states import IGNORED, Handler, Lifecycle, SessionEvent, State, row
from bmqtwist.machine import Cell, TransitionLog, to
from bmqtwist.queue.counters import ClientStats, Counters
from bmqtwist.queue.queue import Handle
from bmqtwist.report import LineLimiter, Report, shown
from bmqtwist.steps import Steps, at_once
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, Encoding, NegotiationMessage, encoding_of
from bmqtwist.wire.fast import HEARTBEAT_RSP, EventType
from bmqtwist.wire.frames import FrameBuffer, Held, Span
from bmqtwist.wire.schema import AuthenticationResponse, ClientIdentity, SdkLanguage

_CLOSED: Final = State.CLOSED  # a member of an enumeration is slow to look up
_CONTROL: Final = int(EventType.CONTROL)
_EVENTS_AT_ONCE: Final = SLICE_BYTES // SLICE_EVENT_BYTES
_CONTROL_BYTES: Final = 8 * SLICE_EVENT_BYTES


class OutputContext(Protocol):
    """When output of a session is written."""

    def flush_later(self, session: Session) -> None:
        """The session has something to write at the end of the turn."""

    def write_now(self) -> None:
        """What is stored so far is written before the output of this turn."""

    def flush_soon(self, session: Session) -> None:
        """The session has something to write that may wait for a moment; `session.lingered` is called then."""

    def share_a_turn(self, session: Session) -> None:
        """The same, and it is called by the first turn after a shorter moment, if there is one."""


class SessionContext(Protocol):
    """The broker as every session sees it."""

    report: Report
    event_bytes_max: int  # of one event
    output_bytes_max: int  # that may wait for a client; 0 = any number
    newcomers: Newcomers  # connections that are not negotiated
    held: Held  # incomplete events of all connections
    serving: bool  # False: stopping, new opens are left for the broker that comes after

    @property
    def now(self) -> float:
        """The moment of this turn, seconds, monotonic."""

    @property
    def output(self) -> OutputContext:
        """Where its output is announced."""

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""

    def start_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        """Process input of the session as a job; while it lasts nothing is read, and `session.has_jobs`. `first`: before the
        other jobs of the session."""

    def add_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        """The same, in a later turn."""

    def cancel_input(self, session: Session) -> None:
        """Drop the jobs of the session."""

    def too_much_held(self) -> None:
        """More than `held.bytes_max` is held of incomplete events: the connection with the most of it is closed."""

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Let an authenticator judge off the reactor's thread; then session.authenticated(...)."""

    def gone(self, session: Session) -> None:
        """The session is closed; forget it."""


class Channel(Counters):
    """Counters and times of the connection itself. Bytes and chunks are totals, as the socket saw them; times are seconds of
    the monotonic clock. `taken`: bytes of the output that the other side has taken; `taken_at`: when it last took some.
    `lost`: the connection is gone, the input before that is not processed yet."""

    __slots__ = ("in_bytes", "out_bytes", "in_chunks", "out_chunks", "connected_at", "negotiated_at", "last_received",
                 "missed_heartbeats", "taken", "taken_at", "lost")
    NAMES: ClassVar[tuple[str, ...]] = ("in_bytes", "out_bytes", "in_chunks", "out_chunks")

    def __init__(self, now: float) -> None:
        self.in_bytes = self.out_bytes = self.in_chunks = self.out_chunks = 0
        self.connected_at = self.last_received = self.taken_at = now
        self.negotiated_at: float | None = None
        self.missed_heartbeats = self.taken = 0
        self.lost = False


class Remote:
    """The other side of a connection, as it introduces itself. `features`: what it can do, by group. `sends_at_once`: it
    waits for no acknowledgement of TCP before it sends more. `session_number`: the broker's count of negotiations."""

    __slots__ = ("identity", "features", "encoding", "sends_at_once", "session_number")

    def __init__(self, identity: ClientIdentity) -> None:
        self.identity = identity
        self.features = {name: values.split(",") for name, _, values in
                         (section.partition(":") for section in identity.features.split(";"))}
        encodings = self.features.get("PROTOCOL_ENCODING", ["BER"])
        self.encoding = Encoding.JSON if "JSON" in encodings and "BER" not in encodings else Encoding.BER
        self.sends_at_once = False
        self.session_number = 0
        identity.process_name, identity.host_name = shown(identity.process_name), shown(identity.host_name)
        identity.user_agent = shown(identity.user_agent)

    @property
    def description(self) -> str:
        """Its name in the log."""
        identity = self.identity
        suffix = f".{identity.session_id}" if identity.session_id != 1 else ""
        return f"{identity.process_name or '?'}:{identity.pid}{suffix}"

    @property
    def is_java(self) -> bool:
        """Java SDKs stall on heartbeats they did not ask for."""
        return self.identity.sdk_language == SdkLanguage.E_JAVA

    @property
    def makes_guids(self) -> bool:
        """Whether its messages come with GUIDs; if not, with correlation ids."""
        return bool(self.identity.guid_info.client_id)


class Session:
    """One connection: its bytes, its state, its kind. `transitions`: of its state."""

    __slots__ = ("context", "peer", "state", "kind", "description", "remote", "guard", "outbox", "stats", "channel",
                 "closing", "waiting", "now", "wall", "transport", "lines", "frames", "transitions", "has_jobs", "heard_in",
                 "unhurried", "holds_acks", "outgoing", "_lingers", "_unflushed", "__weakref__")

    def __init__(self, context: SessionContext, peer: str, guard: Authentication, now: float) -> None:
        self.context, self.peer, self.guard = context, peer, guard
        self.description = peer
        self.remote = Remote(ClientIdentity())
        self.heard_in = 0.0  # the performer's: when the turn began that it was heard in last
        self.unhurried = False  # what it has sent last, and sends next, may be read a moment later
        self.holds_acks = False  # what it sends is not answered at once
        self.transport: object = None  # what performs take(), the performer's
        self.outgoing: Outgoing | None = None  # the same, where it is a socket
        self.outbox = Outbox()
        self.stats = ClientStats()
        self.channel = Channel(now)
        self.closing = False  # close the connection once everything is written
        self.waiting = False  # a flush is due at the end of the turn
        self._lingers = self._unflushed = False  # `lingered` will be called; something is to be written by then
        self.now, self.wall = now, 0
        self.lines = LineLimiter()
        self.state = State.CLOSED  # until it becomes something
        self.kind: SessionKind = GONE
        self.transitions = TransitionLog()
        self.frames = FrameBuffer(min(context.event_bytes_max, NEGOTIATION_BYTES_MAX), context.held)
        self.has_jobs = False  # input that the scheduler has not processed yet; no more is read meanwhile

    # -- from the transport -----------------------------------------------------------------------------------------

    def receive(self, chunk: bytes, now: float, wall: int, later: bool = False) -> None:
        """Process what the socket delivered, or `later` in a job; answers are in the outbox afterwards."""
        self.now, self.wall = now, wall
        if self.state is _CLOSED:
            return
        channel = self.channel
        channel.last_received = now
        channel.missed_heartbeats = 0
        self.unhurried = False
        channel.in_bytes += len(chunk)
        channel.in_chunks += 1
        if channel.negotiated_at is None:
            too_much = self.context.newcomers.received(self, len(chunk))
            if too_much:
                self.close("#SESSION_NEGOTIATION %s: %s", self.peer, too_much)
                return
        if later or self.has_jobs:
            self.context.add_input(self, _read_later(self, chunk))
            return
        try:
            buffer, frames = self.frames.receive(chunk)
        except PeerError as error:
            self.close("#TCP_READ_ERROR %s: %s", self.description, error)
            return
        if len(buffer) > SLICE_BYTES or len(frames) > _EVENTS_AT_ONCE:
            self.context.start_input(self, _walk(self, _slices(self, buffer, frames)))
            return
        for index in range(len(frames)):
            event, specific, start, end = frames[index]
            kind = self.kind
            work = kind.handlers[event](kind, event, buffer, specific, start, end)
            if work is not None:
                self.context.start_input(self, _walk(self, chain(work, _slices(self, buffer, frames[index + 1:]))))
                return
        self.walked()

    def walked(self) -> None:
        """All events of a chunk are dealt with."""
        frames = self.frames
        if frames.error is not None:
            self.close("#TCP_READ_ERROR %s: %s", self.description, frames.error)
        elif self.closing:
            frames.clear()
        elif frames.total.bytes > frames.total.bytes_max:
            self.context.too_much_held()

    def proceed(self) -> None:
        """Continue in a later turn: a peer whose input is being processed is alive."""
        now = self.now = self.channel.last_received = self.context.now
        self.wall = self.context.wall(now)
        self.channel.missed_heartbeats = 0

    def do_first(self, steps: Steps[None]) -> None:
        """Run a job from the next turn on, before all input that waits."""
        self.context.add_input(self, _in_turns(self, steps), True)

    def take(self) -> list[bytes]:
        """What to write now, in order."""
        self.waiting = self._unflushed = False
        self.kind.turn_over()
        data = self.outbox.take()
        self.channel.out_chunks += 1
        return data

    def lost(self, now: float, wall: int) -> None:
        """The channel is gone: everything held goes back, at the cost of a delivery attempt unless we closed it.

        What it brought before is dealt with first.
        """
        self.now, self.wall = now, wall
        if self.has_jobs:
            self.channel.lost = True
            self.context.add_input(self, self._lose())
            return
        self._lost()

    def _lose(self) -> Steps[None]:
        self.proceed()
        try:
            self._lost()
        finally:
            self.context.gone(self)
        yield from ()

    def _lost(self) -> None:
        self.channel.lost = False
        if self.state is not _CLOSED:
            self._leave_state(self.context.serving, "the connection is lost")
        self.guard.closed()
        self._forget()
        self.outbox.take()
        self.context.gone(self)
        self.kind.free()
        self.kind = GONE  # a kind refers to the session: without it, it is freed at once

    def close(self, reason: str, *args: object, crashed: bool = True) -> None:
        """Write what is collected, then close; nothing more is read. Not `crashed`: the other side does not read, and the
        messages that it could not take cost no delivery attempt."""
        if self.state is not _CLOSED:
            self.context.report.warn(reason, *args)
            self._end(crashed and self.context.serving, reason % args if args else reason)

    def leave(self) -> None:
        """The broker goes away: write what is collected, then close, at no cost of a delivery attempt."""
        if self.state is not _CLOSED:
            self._end(False, "the broker goes away")

    def _end(self, crashed: bool, cause: str) -> None:
        self._leave_state(crashed, cause)
        self.guard.closed()
        self.closing = True
        self._forget()
        self.flush()

    def _forget(self) -> None:
        """Free what was kept of the other side's bytes now. An error refers to those that it was raised over."""
        self.frames.clear()
        self.frames.error = None
        if self.has_jobs:
            self.context.cancel_input(self)
        if self.channel.lost:
            self.context.add_input(self, self._lose())
        self.context.newcomers.remove(self)

    def negotiated(self) -> None:
        """It is known who is at the other end: whole events may come."""
        self.channel.negotiated_at = self.now
        self.frames.limit_bytes = self.context.event_bytes_max
        self.context.newcomers.remove(self)

    # -- state ------------------------------------------------------------------------------------------------------

    def become(self, kind: SessionKind, state: State, cause: str) -> None:
        """It is known what the connection is used for: from now on the row `state` of the kind's table answers events."""
        if self.kind is not GONE:
            self.kind.lifecycle.check(self.state, state)
        self.transitions.note(self.now, self.state.name, state.name, cause)
        self.kind, self.state, kind.handlers = kind, state, kind.lifecycle.rows[state]

    def enter(self, state: State, cause: str) -> None:
        """Change state."""
        self.become(self.kind, state, cause)

    def _leave_state(self, crashed: bool, cause: str) -> None:
        self.kind.lifecycle.table[self.state][SessionEvent.ENDED].action(self.kind, crashed)
        self.enter(State.CLOSED, cause)

    def answer_kept(self, events: Iterable[tuple[int, bytes, int, int, int]]) -> None:
        """Deal with events that were kept back, before anything that has come behind them."""
        self.context.start_input(self, _in_turns(self, chain.from_iterable(
            _slices(self, buffer, ((kind, specific, start, end),)) for kind, buffer, specific, start, end in events)), True)

    def introduce(self, identity: ClientIdentity) -> None:
        """The other side has said who it is."""
        self.remote = Remote(identity)
        self.description = self.remote.description

    def authenticated(self, token: int, outcome: Outcome, now: float, wall: int) -> None:
        """An authenticator has judged, on its own time."""
        self.now, self.wall = now, wall
        self._perform(self.guard.done(token, outcome, now))

    def tick(self, now: float, wall: int) -> None:
        """Time has passed: requests and credentials may be over."""
        self.kind.tick(now)
        if self.guard.deadline is not None and now >= self.guard.deadline:
            self.now, self.wall = now, wall
            self._perform(self.guard.tick(now))

    def _perform(self, effects: list[Effect]) -> None:
        """Do what the authentication decided."""
        self.kind.lifecycle.table[self.state][SessionEvent.OUTCOME].action(self.kind, effects)

    def log(self, tag: str, text: str, *args: object, error: bool = False) -> None:
        """Log what is wrong with something that the other side has sent; only a few lines a second."""
        if self.lines.admits(self.now):
            line = f"{tag} {self.description}: {text % args if args else text}"
            (self.context.report.error if error else self.context.report.warn)(line)

    # -- output -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Something is to be written at the end of the turn."""
        if not self.waiting:
            self.context.output.flush_later(self)

    def flush_soon(self) -> None:
        """Something is to be written with whatever comes next, or in a moment."""
        self._unflushed = True
        if not self._lingers:
            self._lingers = True
            self.context.output.flush_soon(self)

    def share_a_turn(self) -> None:
        """Something is to be written with whatever comes next, or in one of the next turns."""
        self._unflushed = True
        if not self._lingers:
            self._lingers = True
            self.context.output.share_a_turn(self)

    def lingered(self, now: float) -> None:
        """The moment is over, or the turn has come."""
        self._lingers = False
        if self._unflushed and self.state is not _CLOSED:
            self.kind.lingered(now)
            self.flush()

    def send(self, message: ControlMessage | NegotiationMessage | AuthenticationMessage,
             encoding: int | None = None) -> None:
        """Queue a schema message behind everything collected so far."""
        self.send_event(control.encode_event(message, self.remote.encoding if encoding is None else encoding))

    def answer(self, r_id: int, choice: str, value: object) -> None:
        """Answer a request, once all that was stored before is written."""
        self.context.output.write_now()
        self.send(ControlMessage(r_id, choice, value))

    def send_event(self, event: bytes) -> None:
        """Queue a whole event behind everything collected so far."""
        self.outbox.event(event)
        self.flush()


def _read_later(session: Session, chunk: bytes) -> Steps[None]:
    """Process a chunk that had to wait."""
    session.proceed()
    try:
        buffer, frames = session.frames.receive(chunk)
    except PeerError as error:
        session.close("#TCP_READ_ERROR %s: %s", session.description, error)
        return
    yield from _walk(session, _slices(session, buffer, frames))


def _in_turns(session: Session, steps: Iterable[None]) -> Steps[None]:
    session.proceed()
    for _ in steps:
        yield
        session.proceed()


def _walk(session: Session, steps: Iterable[None]) -> Steps[None]:
    """Process the events of a chunk."""
    yield from _in_turns(session, steps)
    session.walked()


def _slices(session: Session, buffer: bytes, frames: Iterable[Span]) -> Steps[None]:
    left = SLICE_BYTES
    for event, specific, start, end in frames:
        kind = session.kind
        work = kind.handlers[event](kind, event, buffer, specific, start, end)
        if work is not None:
            yield from work
        left -= end - start + (_CONTROL_BYTES if event == _CONTROL else SLICE_EVENT_BYTES)
        if left < 0:
            left = SLICE_BYTES
            yield


class SessionKind:
    """What a connection is used for. Here is what all kinds have in common."""

    output_bytes_max = 0  # that may wait for a connection that does not take it; 0 = as configured for clients
    unread = "#CLIENT_SEND_FAILURE %s: the client does not read"  # the log record when it is cut off for that
    __slots__ = ("session", "context", "lifecycle", "handles", "handlers", "_unexpected_tag", "__weakref__")

    def __init__(self, session: Session, lifecycle: Lifecycle, unexpected_tag: str = "") -> None:
        self.session, self.context, self.lifecycle = session, session.context, lifecycle
        self._unexpected_tag = unexpected_tag  # of the log record of an event that this kind does not send
        self.handles: dict[int, Handle] = {}  # of queues, by queue id; none but for a client
        self.handlers: list[Handler] = []  # in the state of the session, by event type

    # -- what the session and the broker ask ------------------------------------------------------------------------

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """How many signs of life the other side may owe before the connection counts as dead; 0 = any number."""
        return 0

    @property
    def may_be_slowed(self) -> bool:
        """Whether the broker may stop reading from it while it does not read."""
        return True

    @property
    def is_from_outside(self) -> bool:
        """Whether what flows through it is posted and taken by applications, those behind proxies included."""
        return True

    def ended(self, crashed: bool) -> None:
        """The session is over; `crashed`: without a goodbye."""

    def free(self) -> None:
        """The connection is gone: let go of what refers back to this, so that its memory is free at once."""

    def tick(self, now: float) -> None:
        """Time has passed."""

    def turn_over(self) -> None:
        """The output of a turn is taken."""

    def lingered(self, now: float) -> None:
        """Output that could wait has waited long enough."""

    def written(self, behind: int) -> bool:
        """The output of a turn is written; `behind` bytes are not taken. True: `resume` is due in the next turn."""
        return False

    def resume(self) -> None:
        """What was held back for the sake of the last turn goes on."""

    def drained(self) -> None:
        """The other side has taken all its output."""

    # -- authentication ---------------------------------------------------------------------------------------------

    def on_authentication(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A credential, before the negotiation or again later."""
        session = self.session
        try:
            message = control.decode_authentication(buffer[start:end], encoding_of(specific), NEGOTIATION_VALUES_MAX)
        except PeerError as error:
            self._bad_authentication(error)
            return
        if message.choice != "authenticationRequest":
            self._bad_authentication(f"unexpected message '{message.choice}'")
            return
        session.guard.encoding = encoding_of(specific)
        self.perform(session.guard.request(message.value.mechanism, message.value.data or b"", session.now))

    def _bad_authentication(self, why: object) -> None:
        session = self.session
        if session.channel.negotiated_at is None:
            session.close("#AUTHENTICATION %s: %s", session.description, why)
        else:
            session.context.report.error(f"#CORRUPTED_EVENT {session.description}: failed to decode authentication message: "
                                         f"{why}")

    def perform(self, effects: list[Effect]) -> None:
        """Do what the authentication decided."""
        session = self.session
        for effect in effects:
            match effect:
                case AuthenticationResponse():
                    session.send(AuthenticationMessage("authenticationResponse", effect), session.guard.encoding)
                case Close():
                    session.close("#AUTHENTICATION %s: %s", session.description, effect.reason)
                case Drop():
                    session.context.report.info("%s: %s", session.description, effect.reason)
                case Authenticate():
                    session.context.authenticate(session, effect)
                case Proceed():
                    self.proceed()
                case _:
                    assert_never(effect)

    def proceed(self) -> None:
        """The clientIdentity is accepted: only who negotiates has given one."""

    # -- events that all kinds answer alike -------------------------------------------------------------------------

    def decode_control(self, buffer: bytes, specific: int, start: int, end: int) -> ControlMessage | None:
        """A control message that can be answered; None = told in the log."""
        return at_once(self.decode_slowly(buffer, specific, start, end))

    def decode_slowly(self, buffer: bytes, specific: int, start: int, end: int) -> Steps[ControlMessage | None]:
        """The same in slices."""
        tag = "#CORRUPTED_EVENT"
        try:
            if end - start > CONTROL_BYTES_MAX:
                raise PeerError(f"control message of {end - start} bytes (limit: {CONTROL_BYTES_MAX})")
            message = yield from control.decode_control_slowly(buffer[start:end], encoding_of(specific), CONTROL_VALUES_MAX)
            if message.choice and (message.r_id or 0) >= 0 and (
                    message.r_id is not None or message.choice == "clusterMessage"):
                return message
            tag, why = "#CORRUPTED_CONTROL_MESSAGE", "no request id or no known choice"
        except PeerError as error:
            why = f"failed to decode control message: {error}"
        self.session.log(tag, why, error=True)
        return None

    def on_heartbeat(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Answer a sign of life."""
        self.session.send_event(HEARTBEAT_RSP)

    def on_unexpected(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """An event that this kind does not send."""
        self.session.log(self._unexpected_tag, "event of an unexpected type dropped", error=True)

    def on_invalid_packet(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """An event whose header made no sense."""
        self.session.log("#TCP_INVALID_PACKET", "event with an impossible header dropped", error=True)


def serving(kind: type[SessionKind], own: dict[str, Cell[State]], leaving: bool = True) -> Lifecycle:
    """The table of a kind that serves: the events that all such kinds answer alike, and its `own`. `leaving`: the kind knows
    disconnect."""
    outcome, ended = to(kind.perform, State.CLOSED), to(kind.ended, State.CLOSED)
    rows = {State.SERVING: row(
        to(kind.on_unexpected), INVALID=to(kind.on_invalid_packet), HEARTBEAT_REQ=to(kind.on_heartbeat),
        HEARTBEAT_RSP=IGNORED, AUTHENTICATION=to(kind.on_authentication, State.CLOSED), OUTCOME=outcome, ENDED=ended, **own)}
    if leaving:
        rows[State.LEAVING] = row(IGNORED, OUTCOME=outcome, ENDED=ended)
    return Lifecycle(rows)


class Gone(SessionKind):
    """What a session is used for when its connection is gone, and before it is anything: nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.handles, self.handlers, self.lifecycle = {}, [], Lifecycle({})


GONE = Gone()
