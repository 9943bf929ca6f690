"""Protocol core of one connection, without I/O: received chunks in, chunks to write out.

    session.receive(chunk, now, wall)      process a chunk that the socket delivered
    session.take_output()                  return the chunks to write at the end of the turn
    session.kind.on_written(unsent)         report that all but `unsent` bytes of the output are written
    session.on_lost(now, wall)             report that the connection was lost without a disconnect

A session consists of `remote` (the identity of the peer), `channel` (times and counters of the connection), `frames`
(incomplete events), `outbox` (output of this turn) and `authentication`.

The kind of a session is its role: first negotiation (`link/negotiation.py`), then client, administrator or peer broker
(`link/client.py`, `admin.py`, `peer.py`). Each kind has a transition table by state and event type (`link/states.py`).
Invalid input never raises out of `receive`. The broker implements `SessionContext` for sessions; kinds that need more
declare a protocol of their own.

Input above one slice (`SLICE_BYTES`) is processed as a job of the scheduler, one slice per step; later input of the
session is processed after that job. Limits are in `bmqtwist/limits.py`.

Called by `broker/sessions.py`, for chunks that `reactor/tcp.py` has received.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from bmqtwist.link.authentication import Authenticate, Authentication, CloseConnection, DropRequest, Effect, Outcome, Proceed
from bmqtwist.link.outbox import Outbox
from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.states import IGNORED, ConnectionEvent, ConnectionState, Handler, LifecycleTable, row
from bmqtwist.link.unauthenticated import UnauthenticatedConnections
from bmqtwist.machine import Cell, TransitionLog, to
from bmqtwist.queue.counters import ClientStats, Counters
from bmqtwist.queue.queue import Handle
from bmqtwist.report import LineLimiter, Report, shown
from bmqtwist.steps import Steps, at_once
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, Encoding, NegotiationMessage, encoding_of
from bmqtwist.wire.fast import HEARTBEAT_RSP, EventType
from bmqtwist.wire.frames import BufferedBytes, FrameBuffer, Span
from bmqtwist.wire.schema import AuthenticationResponse, ClientIdentity, SdkLanguage

_CLOSED: Final = ConnectionState.CLOSED  # a member of an enumeration is slow to look up
_CONTROL: Final = int(EventType.CONTROL)
_EVENTS_AT_ONCE: Final = SLICE_BYTES // SLICE_EVENT_BYTES
_CONTROL_BYTES: Final = 8 * SLICE_EVENT_BYTES


class OutputContext(Protocol):
    """Scheduler of the sessions' output."""

    def flush_at_turn_end(self, session: Session) -> None:
        """Write the session's output at the end of the turn."""

    def write_records_first(self) -> None:
        """Write the records of this turn to the files before the output of this turn."""

    def flush_soon(self, session: Session) -> None:
        """Call `session.on_flush_due` at the latest after the delay for batched output."""

    def flush_with_turn(self, session: Session) -> None:
        """Call `session.on_flush_due` in the first turn after a shorter delay, at the latest as `flush_soon`."""


class SessionContext(Protocol):
    """Services of the broker for sessions of every kind."""

    report: Report
    event_bytes_max: int  # of one event
    output_bytes_max: int  # limit of unsent output of a client; 0 = unlimited
    unauthenticated: UnauthenticatedConnections  # unauthenticated connections
    incomplete_input: BufferedBytes  # bytes of incomplete events of all connections
    serving: bool  # False: the broker is stopping, and does not answer opens any more

    @property
    def now(self) -> float:
        """Time of this turn, monotonic seconds."""

    @property
    def output(self) -> OutputContext:
        """Scheduler of the sessions' output."""

    def wall(self, now: float) -> int:
        """Convert monotonic seconds to seconds since the epoch."""

    def start_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        """Process input of the session as a job, from this turn on. Until the job ends, `session.has_jobs` is true and its
        socket is not read. `first`: run it before the other jobs of the session."""

    def add_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        """Process input of the session as a job from the next turn on; its socket is not read until the job ends."""

    def cancel_input(self, session: Session) -> None:
        """Drop the jobs of the session."""

    def enforce_input_limit(self) -> None:
        """Close the connection with the largest incomplete event of the party that has the most: the sum exceeds
        `incomplete_input.bytes_max`."""

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Run an authenticator on a worker thread, then call `session.on_authenticated`."""

    def on_closed(self, session: Session) -> None:
        """Remove a closed session."""


class Channel(Counters):
    """Counters and times of one connection. Bytes and chunks are totals at the socket; times are monotonic seconds.
    `drained_bytes`: output sent after it had to wait for the peer; `drained_at`: time of the last check at which this number
    had grown. `lost`: the connection was lost, and input received before is still to be processed."""

    __slots__ = ("in_bytes", "out_bytes", "in_chunks", "out_chunks", "connected_at", "negotiated_at", "last_received",
                 "missed_heartbeats", "drained_bytes", "drained_at", "lost")
    NAMES: ClassVar[tuple[str, ...]] = ("in_bytes", "out_bytes", "in_chunks", "out_chunks")

    def __init__(self, now: float) -> None:
        self.in_bytes = self.out_bytes = self.in_chunks = self.out_chunks = 0
        self.connected_at = self.last_received = self.drained_at = now
        self.negotiated_at: float | None = None
        self.missed_heartbeats = self.drained_bytes = 0
        self.lost = False


class Remote:
    """Identity of the peer, as sent during negotiation. `features`: lists of features by group. `sends_at_once`: the peer
    sends without waiting for TCP acknowledgements. `session_number`: serial number of the negotiation at this broker."""

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
        """Name of the peer in the log."""
        identity = self.identity
        suffix = f".{identity.session_id}" if identity.session_id != 1 else ""
        return f"{identity.process_name or '?'}:{identity.pid}{suffix}"

    @property
    def is_java(self) -> bool:
        """True for Java SDKs, which stall on heartbeat requests."""
        return self.identity.sdk_language == SdkLanguage.E_JAVA

    @property
    def makes_guids(self) -> bool:
        """True if the client creates the GUIDs of its messages; otherwise its PUTs carry correlation ids."""
        return bool(self.identity.guid_info.client_id)


class Session:
    """State machine of one connection. `kind`: its role; `transitions`: its transition history."""

    __slots__ = ("context", "peer", "state", "kind", "description", "remote", "authentication", "outbox", "stats", "channel",
                 "closing", "flush_due", "now", "wall", "transport", "log_limiter", "frames", "transitions", "has_jobs",
                 "input_turn", "pausable", "delays_acks", "outgoing", "_flush_scheduled", "_unflushed", "__weakref__")

    def __init__(self, context: SessionContext, peer: str, authentication: Authentication, now: float) -> None:
        self.context, self.peer, self.authentication = context, peer, authentication
        self.description = peer
        self.remote = Remote(ClientIdentity())
        self.input_turn = 0.0  # of the performer: start of the last turn with input of this session
        self.pausable = False  # a read pause is allowed for its input
        self.delays_acks = False  # ACKs are delayed
        self.transport: object = None  # the performer's connection
        self.outgoing: Outgoing | None = None  # the performer's connection, if it is a socket
        self.outbox = Outbox()
        self.stats = ClientStats()
        self.channel = Channel(now)
        self.closing = False  # the connection closes once all output is written
        self.flush_due = False  # a flush is due at the end of the turn
        self._flush_scheduled = self._unflushed = False  # a call of `on_flush_due` is scheduled; batched output waits for it
        self.now, self.wall = now, 0
        self.log_limiter = LineLimiter()
        self.state = ConnectionState.CLOSED  # until the first call of `set_kind`
        self.kind: SessionKind = NO_KIND
        self.transitions = TransitionLog()
        self.frames = FrameBuffer(min(context.event_bytes_max, NEGOTIATION_BYTES_MAX), context.incomplete_input)
        self.has_jobs = False  # jobs process its input; the socket is not read meanwhile

    # -- from the transport -----------------------------------------------------------------------------------------

    def receive(self, chunk: bytes, now: float, wall: int, later: bool = False) -> None:
        """Process a chunk of input, if `later` as a job; responses go to the outbox."""
        self.now, self.wall = now, wall
        if self.state is _CLOSED:
            return
        channel = self.channel
        channel.last_received = now
        channel.missed_heartbeats = 0
        self.pausable = False
        channel.in_bytes += len(chunk)
        channel.in_chunks += 1
        if channel.negotiated_at is None:
            excess = self.context.unauthenticated.count_received(self, len(chunk))
            if excess:
                self.close("#SESSION_NEGOTIATION %s: %s", self.peer, excess)
                return
        if later or self.has_jobs:
            self.context.add_input(self, _process_later(self, chunk))
            return
        try:
            buffer, frames = self.frames.receive(chunk)
        except PeerError as error:
            self.close("#TCP_READ_ERROR %s: %s", self.description, error)
            return
        if len(buffer) > SLICE_BYTES or len(frames) > _EVENTS_AT_ONCE:
            self.context.start_input(self, process_frames(self, buffer, frames))
            return
        for index in range(len(frames)):
            event, specific, start, end = frames[index]
            kind = self.kind
            work = kind.handlers[event](kind, event, buffer, specific, start, end)
            if work is not None:
                self.context.start_input(self, process_frames(self, buffer, frames[index + 1:], work))
                return
        self.finish_chunk()

    def finish_chunk(self) -> None:
        """Complete a chunk after its last event: close the session if the framing failed."""
        frames = self.frames
        if frames.error is not None:
            self.close("#TCP_READ_ERROR %s: %s", self.description, frames.error)
        elif self.closing:
            frames.clear()
        elif frames.total.bytes > frames.total.bytes_max:
            self.context.enforce_input_limit()

    def update_time(self) -> None:
        """Update the session's time in a later turn of a job; a peer whose input is in progress counts as alive."""
        now = self.now = self.channel.last_received = self.context.now
        self.wall = self.context.wall(now)
        self.channel.missed_heartbeats = 0

    def run_first(self, steps: Steps[None]) -> None:
        """Run a job from the next turn on, before all deferred input."""
        self.context.add_input(self, _in_turns(self, steps), True)

    def take_output(self) -> list[bytes | memoryview]:
        """Return the chunks to write now, in order."""
        self.flush_due = self._unflushed = False
        self.kind.on_turn_end()
        data = self.outbox.take_output()
        self.channel.out_chunks += 1
        return data

    def on_lost(self, now: float, wall: int) -> None:
        """End the session after the connection was lost; input received before is processed first. Each unconfirmed message
        uses one delivery attempt, unless this broker closed the connection."""
        self.now, self.wall = now, wall
        if self.has_jobs:
            self.channel.lost = True
            self.context.add_input(self, self._end_lost_later())
            return
        self._end_lost()

    def _end_lost_later(self) -> Steps[None]:
        self.update_time()
        try:
            self._end_lost()
        finally:
            self.context.on_closed(self)
        yield from ()

    def _end_lost(self) -> None:
        self.channel.lost = False
        if self.state is not _CLOSED:
            self._leave_state(self.context.serving, "the connection is lost")
        self.authentication.close()
        self._free_input()
        self.outbox.take_output()
        self.context.on_closed(self)
        self.kind.break_cycles()
        self.kind = NO_KIND  # breaks the reference cycle between session and kind

    def close(self, reason: str, *args: object, crashed: bool = True) -> None:
        """Log the reason, write the collected output, then close; input is dropped. `crashed`: each unconfirmed message uses
        one delivery attempt."""
        if self.state is not _CLOSED:
            if self.channel.negotiated_at is not None or self.context.unauthenticated.lines.admits(self.now):
                self.context.report.warn(reason, *args)
            self._end(crashed and self.context.serving, reason % args if args else reason)

    def close_for_stop(self) -> None:
        """Close because the broker stops: write the collected output first; no delivery attempt is used."""
        if self.state is not _CLOSED:
            self._end(False, "the broker stops")

    def _end(self, crashed: bool, cause: str) -> None:
        self._leave_state(crashed, cause)
        self.authentication.close()
        self.closing = True
        self._free_input()
        self.flush()

    def _free_input(self) -> None:
        """Free the input buffers and cancel the jobs; an error of the framing refers to its input."""
        self.frames.clear()
        self.frames.error = None
        if self.has_jobs:
            self.context.cancel_input(self)
        if self.channel.lost:
            self.context.add_input(self, self._end_lost_later())
        self.context.unauthenticated.remove(self)

    def on_negotiated(self) -> None:
        """Accept events up to the configured size: the negotiation is complete."""
        self.channel.negotiated_at = self.now
        self.frames.limit_bytes = self.context.event_bytes_max
        self.context.unauthenticated.remove(self)

    # -- state ------------------------------------------------------------------------------------------------------

    def set_kind(self, kind: SessionKind, state: ConnectionState, cause: str) -> None:
        """Set kind and state: row `state` of the kind's transition table handles events from now on."""
        if self.kind is not NO_KIND:
            self.kind.lifecycle.check(self.state, state)
        self.transitions.record(self.now, self.state.name, state.name, cause)
        self.kind, self.state, kind.handlers = kind, state, kind.lifecycle.rows[state]

    def change_state(self, state: ConnectionState, cause: str) -> None:
        """Change the state within the kind."""
        self.set_kind(self.kind, state, cause)

    def _leave_state(self, crashed: bool, cause: str) -> None:
        self.kind.lifecycle.table[self.state][ConnectionEvent.ENDED].action(self.kind, crashed)
        self.change_state(ConnectionState.CLOSED, cause)

    def process_deferred(self, events: Iterable[tuple[int, bytes, int, int, int]]) -> None:
        """Process deferred events, before all later input."""
        self.context.start_input(self, _in_turns(self, _process_events(self, events)), True)

    def set_identity(self, identity: ClientIdentity) -> None:
        """Store the identity that the peer has sent."""
        self.remote = Remote(identity)
        self.description = self.remote.description

    def on_authenticated(self, token: int, outcome: Outcome, now: float, wall: int) -> None:
        """Process the outcome of the authenticator that `SessionContext.authenticate` started."""
        self.now, self.wall = now, wall
        self._perform(self.authentication.on_outcome(token, outcome, now))

    def tick(self, now: float, wall: int) -> None:
        """Expire requests and credentials."""
        self.kind.tick(now)
        if self.authentication.deadline is not None and now >= self.authentication.deadline:
            self.now, self.wall = now, wall
            self._perform(self.authentication.tick(now))

    def _perform(self, effects: list[Effect]) -> None:
        self.kind.lifecycle.table[self.state][ConnectionEvent.OUTCOME].action(self.kind, effects)

    def log(self, tag: str, text: str, *args: object, error: bool = False) -> None:
        """Log invalid input of the peer, limited to a few lines per second: of a session, and of all unauthenticated
        connections together."""
        is_negotiated = self.channel.negotiated_at is not None
        if (self.log_limiter if is_negotiated else self.context.unauthenticated.lines).admits(self.now):
            line = f"{tag} {self.description}: {text % args if args else text}"
            (self.context.report.error if error else self.context.report.warn)(line)

    # -- output -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the output at the end of the turn."""
        if not self.flush_due:
            self.context.output.flush_at_turn_end(self)

    def flush_soon(self) -> None:
        """Write the output with the next flush, at the latest after the delay for batched output."""
        self._unflushed = True
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.context.output.flush_soon(self)

    def flush_with_turn(self) -> None:
        """Write the output with the next flush, at the latest in one of the next turns."""
        self._unflushed = True
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.context.output.flush_with_turn(self)

    def on_flush_due(self, now: float) -> None:
        """Write the batched output: its delay is over."""
        self._flush_scheduled = False
        if self._unflushed and self.state is not _CLOSED:
            self.kind.on_flush_due(now)
            self.flush()

    def send(self, message: ControlMessage | NegotiationMessage | AuthenticationMessage,
             encoding: int | None = None) -> None:
        """Append a schema message to the output."""
        self.send_event(control.encode_event(message, self.remote.encoding if encoding is None else encoding))

    def answer(self, r_id: int, choice: str, value: object) -> None:
        """Append the response to a request; records appended before are written to the files first."""
        self.context.output.write_records_first()
        self.send(ControlMessage(r_id, choice, value))

    def send_event(self, event: bytes) -> None:
        """Append a complete event to the output."""
        self.outbox.event(event)
        self.flush()


def _process_later(session: Session, chunk: bytes) -> Steps[None]:
    session.update_time()
    try:
        buffer, frames = session.frames.receive(chunk)
    except PeerError as error:
        session.close("#TCP_READ_ERROR %s: %s", session.description, error)
        return
    yield from process_frames(session, buffer, frames)


def _in_turns(session: Session, steps: Iterable[None]) -> Steps[None]:
    session.update_time()
    for _ in steps:
        yield
        session.update_time()


def process_frames(session: Session, buffer: bytes, frames: Iterable[Span],
                   work: Steps[None] | None = None) -> Steps[None]:
    """Process events in slices of SLICE_BYTES, after the rest of an event that is in progress."""
    if work is not None:
        yield from _in_turns(session, work)
    else:
        session.update_time()
    left = SLICE_BYTES
    for event, specific, start, end in frames:
        kind = session.kind
        work = kind.handlers[event](kind, event, buffer, specific, start, end)
        if work is not None:
            yield from _in_turns(session, work)
        left -= end - start + (_CONTROL_BYTES if event == _CONTROL else SLICE_EVENT_BYTES)
        if left < 0:
            left = SLICE_BYTES
            yield
            session.update_time()
    session.finish_chunk()


def _process_events(session: Session, events: Iterable[tuple[int, bytes, int, int, int]]) -> Steps[None]:
    for event, buffer, specific, start, end in events:
        kind = session.kind
        work = kind.handlers[event](kind, event, buffer, specific, start, end)
        if work is not None:
            yield from work
        yield


class SessionKind:
    """Role of a connection: base class with the behaviour of all kinds."""

    output_bytes_max = 0  # limit of unsent output; 0 = as configured for clients
    unread_text = "#CLIENT_SEND_FAILURE %s: the client does not read"  # log record when the limit closes the connection
    __slots__ = ("session", "context", "lifecycle", "handles", "handlers", "_unexpected_tag", "__weakref__")

    def __init__(self, session: Session, lifecycle: LifecycleTable, unexpected_tag: str = "") -> None:
        self.session, self.context, self.lifecycle = session, session.context, lifecycle
        self._unexpected_tag = unexpected_tag  # of the log record for event types that this kind does not send
        self.handles: dict[int, Handle] = {}  # by queue id; empty unless the peer uses queues
        self.handlers: list[Handler] = []  # of the session's present state, by event type

    # -- called by the session and the broker -----------------------------------------------------------------------

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """Number of missed heartbeats after which the connection is closed; 0 = unlimited."""
        return 0

    @property
    def may_pause_reading(self) -> bool:
        """True if the broker may stop reading from the peer while the peer does not read."""
        return True

    @property
    def carries_client_traffic(self) -> bool:
        """True if the traffic is that of applications, including applications of proxies."""
        return True

    def on_ended(self, crashed: bool) -> None:
        """Release the resources of a session that ends; `crashed`: without a disconnect."""

    def break_cycles(self) -> None:
        """Break reference cycles after the connection is lost, so that memory is freed at once."""

    def tick(self, now: float) -> None:
        """Expire requests and credentials."""

    def on_turn_end(self) -> None:
        """Reset the state of one turn; called before its output is returned."""

    def on_flush_due(self, now: float) -> None:
        """Prepare batched output whose delay is over."""

    def on_written(self, unsent: int) -> bool:
        """Report the write of a turn's output; `unsent` bytes remain. Return True to request `resume_deliveries` in the next
        turn."""
        return False

    def resume_deliveries(self) -> None:
        """Resume deliveries that the delivery window had stopped."""

    def on_drained(self) -> None:
        """Report that no output remains unsent."""

    # -- authentication ---------------------------------------------------------------------------------------------

    def on_authentication(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle an authentication request, before the negotiation or for renewal."""
        session = self.session
        try:
            message = control.decode_authentication(buffer[start:end], encoding_of(specific), NEGOTIATION_VALUES_MAX)
        except PeerError as error:
            self._bad_authentication(error)
            return
        if message.choice != "authenticationRequest":
            self._bad_authentication(f"unexpected message '{message.choice}'")
            return
        session.authentication.encoding = encoding_of(specific)
        self.perform(session.authentication.on_request(message.value.mechanism, message.value.data or b"", session.now))

    def _bad_authentication(self, why: object) -> None:
        session = self.session
        if session.channel.negotiated_at is None:
            session.close("#AUTHENTICATION %s: %s", session.description, why)
        else:
            session.context.report.error(f"#CORRUPTED_EVENT {session.description}: failed to decode authentication message: "
                                         f"{why}")

    def perform(self, effects: list[Effect]) -> None:
        """Perform the effects of the authentication."""
        session = self.session
        for effect in effects:
            match effect:
                case AuthenticationResponse():
                    session.send(AuthenticationMessage("authenticationResponse", effect), session.authentication.encoding)
                case CloseConnection():
                    session.close("#AUTHENTICATION %s: %s", session.description, effect.reason)
                case DropRequest():
                    session.context.report.info("%s: %s", session.description, effect.reason)
                case Authenticate():
                    session.context.authenticate(session, effect)
                case Proceed():
                    self.proceed()
                case _:
                    assert_never(effect)

    def proceed(self) -> None:
        """Continue the negotiation after its clientIdentity is accepted; other kinds ignore it."""

    # -- events that all kinds handle alike -------------------------------------------------------------------------

    def decode_control(self, buffer: bytes, specific: int, start: int, end: int) -> ControlMessage | None:
        """Decode a control message; None = invalid, and logged."""
        return at_once(self.decode_in_steps(buffer, specific, start, end))

    def decode_in_steps(self, buffer: bytes, specific: int, start: int, end: int) -> Steps[ControlMessage | None]:
        """Decode a control message in slices."""
        tag = "#CORRUPTED_EVENT"
        try:
            if end - start > CONTROL_BYTES_MAX:
                raise PeerError(f"control message of {end - start} bytes (limit: {CONTROL_BYTES_MAX})")
            message = yield from control.decode_control_in_steps(buffer[start:end], encoding_of(specific),
                                                                 CONTROL_VALUES_MAX)
            if message.choice and (message.r_id or 0) >= 0 and (
                    message.r_id is not None or message.choice == "clusterMessage"):
                return message
            tag, why = "#CORRUPTED_CONTROL_MESSAGE", "no request id or no known choice"
        except PeerError as error:
            why = f"failed to decode control message: {error}"
        self.session.log(tag, why, error=True)
        return None

    def on_heartbeat(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Answer a heartbeat request."""
        self.session.send_event(HEARTBEAT_RSP)

    def on_unexpected(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Drop an event of a type that this kind does not send, and log it."""
        self.session.log(self._unexpected_tag, "event of an unexpected type dropped", error=True)

    def on_invalid_packet(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Drop an event with an invalid header, and log it."""
        self.session.log("#TCP_INVALID_PACKET", "event with an impossible header dropped", error=True)


def negotiated_lifecycle(kind: type[SessionKind], own: dict[str, Cell[ConnectionState]],
                         disconnects: bool = True) -> LifecycleTable:
    """Build the transition table of a kind after negotiation: common event types and its `own`. `disconnects`: the kind has
    the state DISCONNECTING."""
    outcome, ended = to(kind.perform, ConnectionState.CLOSED), to(kind.on_ended, ConnectionState.CLOSED)
    rows = {ConnectionState.SERVING: row(
        to(kind.on_unexpected), INVALID=to(kind.on_invalid_packet), HEARTBEAT_REQ=to(kind.on_heartbeat),
        HEARTBEAT_RSP=IGNORED, AUTHENTICATION=to(kind.on_authentication, ConnectionState.CLOSED), OUTCOME=outcome,
        ENDED=ended, **own)}
    if disconnects:
        rows[ConnectionState.DISCONNECTING] = row(IGNORED, OUTCOME=outcome, ENDED=ended)
    return LifecycleTable(rows)


class NoKind(SessionKind):
    """Kind of a session before its first role and after its end."""

    __slots__ = ()

    def __init__(self) -> None:
        self.handles, self.handlers, self.lifecycle = {}, [], LifecycleTable({})


NO_KIND = NoKind()
