"""The ground that a session core stands on: its parts, its effects, its output, its clock."""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING

from bmqtwist.errors import PeerError
from bmqtwist.limits import EVENT_BYTES_MAX
from bmqtwist.sdk.backoff import Backoff
from bmqtwist.sdk.counters import Tally
from bmqtwist.sdk.deadlines import Deadlines
from bmqtwist.sdk.effects import Note
from bmqtwist.sdk.options import Address, SessionOptions, Subscription
from bmqtwist.sdk.puts import Put, Puts
from bmqtwist.sdk.queues import Job, Queue
from bmqtwist.sdk.results import EventKind, Result, SessionEvent
from bmqtwist.sdk.states import SESSION, SESSION_TIMERS, TIMERS, Input, State
from bmqtwist.wire import control, schema
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage
from bmqtwist.wire.fast import EventType, items_event
from bmqtwist.wire.frames import FrameBuffer

_INPUTS = {EventType.CONTROL: Input.CONTROL, EventType.AUTHENTICATION: Input.AUTHENTICATION,
           EventType.PUSH: Input.PUSH, EventType.ACK: Input.ACK, EventType.HEARTBEAT_REQ: Input.HEARTBEAT_REQ}


class Ground:
    """State, effects, output. What is done with which input is bound anew with each change of state."""

    options: SessionOptions
    identity: schema.ClientIdentity
    make_guid: Callable[[], bytes]
    now: float
    dropped: int
    healthy: bool
    has_configure_stream: bool
    v2_properties: bool
    blocked: bool
    room_wanted: bool
    untaken: int
    attempt: int
    state: State
    wake: Callable[[], None]

    def __init__(self, session_options: SessionOptions, identity: schema.ClientIdentity,
                 make_guid: Callable[[], bytes], now: float, wake: Callable[[], None],
                 random: Callable[[], float]) -> None:
        self.options, self.identity, self.make_guid, self.now = session_options, identity, make_guid, now
        self.wake = wake
        self.deadlines: Deadlines = Deadlines()
        self.puts: Puts = Puts(session_options.batch_bytes_max)
        self.queues: dict[str, Queue] = {}  # by URI
        self.routes: dict[int, tuple[Queue, Subscription]] = {}  # by queue id << 32 | id in a PUSH
        self.healthy = True
        self.has_configure_stream = self.v2_properties = False
        self.blocked = False  # the channel is above its high watermark
        self.room_wanted = False  # somebody waits for a Room effect
        self.untaken = 0  # messages given to the front and not reported as consumed
        self.tally: Tally = Tally()
        self.dropped = 0  # events and messages from the broker that made no sense
        self._slow = False
        self._told: set[Result] = set()  # kinds of failed posts that the log has heard of since the last connection
        self._backoff = Backoff(session_options.brokers, session_options.backoff_first_s,
                                session_options.backoff_max_s, random)
        self._effects: list[object] = []
        self._out: list[bytes] = []
        self._confirms: list[bytes] = []
        self._woken = False
        self.attempt = 0
        self.address: Address = session_options.brokers[0]  # of the last attempt
        self._frames = FrameBuffer(EVENT_BYTES_MAX)
        self._requests: dict[int, tuple[Queue | None, str | Job, str]] = {}
        self._next_r_id = 1
        self._restoring: set[Queue] = set()
        self._resuming: set[Queue] = set()
        self._health_pending = False
        self._was_connected = False
        self._refusals = 0
        self._start_token: object = None
        self._stop_tokens: list[object] = []
        self._received = False
        self._silent = 0
        self._heartbeat_s = 0.0
        self._missed_max = 0
        self._enter(State.IDLE)

    # -- state ------------------------------------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        self.state = state
        self._row = {what: getattr(self, "_" + name) for what, name in SESSION[state].items()}
        other = self._row[Input.OTHER]
        self._by_type = [other] * 64
        for kind, what in _INPUTS.items():
            self._by_type[kind] = self._row[what]
        self._post = self._row[Input.POST]
        self._confirm = self._row[Input.CONFIRM]
        for timer in SESSION_TIMERS - TIMERS[state]:
            self.deadlines.clear(timer)

    @property
    def online(self) -> bool:
        """Is there a connection on which requests can be made?"""
        return self.state is State.READY or self.state is State.RESTORING

    def _ignore(self, *_: object) -> None:
        """Nothing to do."""

    def effect(self, effect: object) -> None:
        """Add an effect."""
        self._effects.append(effect)
        if not self._woken:
            self._woken = True
            self.wake()

    def _has_output(self) -> None:
        if not self._woken:
            self._woken = True
            self.wake()

    def event(self, kind: EventKind, result: Result = Result.SUCCESS, message: str = "",
              queue: Queue | None = None) -> None:
        """Tell the application."""
        self.tally.event(kind)
        self.effect(SessionEvent(kind, result, message, queue))

    def take_effects(self) -> list[object]:
        """What to do now, in order."""
        effects, self._effects = self._effects, []
        self._woken = False
        return effects

    def take_output(self, flush: bool = False) -> list[bytes]:
        """What to write now. A batch that may still wait for its delay stays, unless `flush`."""
        if self.puts.batch_bytes and (flush or self._batch_ready()):
            self._out.extend(self.puts.cut())
            self.deadlines.clear("batch")
        if self._confirms:
            self._cut_confirms()
        self._woken = bool(self._effects)
        if not self._out:
            return []
        out, self._out = self._out, []
        self.tally.bytes_out += sum(map(len, out))
        taken = self.puts.taken()
        if taken:
            self.tally.unasked += len(taken)
            for put in taken:
                self._settle(put, Result.SUCCESS, True)
            self._give_room()
            self._answered()
        return out

    def _batch_ready(self) -> bool:
        delay = self.options.batch_delay_s
        if not delay or self.puts.batch_bytes >= self.options.batch_bytes_max:
            return True
        return "batch" not in self.deadlines

    def _cut(self) -> None:
        """Everything collected leaves before what is sent next."""
        if self.puts.batch_bytes:
            self._out.extend(self.puts.cut())
            self.deadlines.clear("batch")
        if self._confirms:
            self._cut_confirms()

    def _cut_confirms(self) -> None:
        confirms, self._confirms = self._confirms, []
        self.tally.confirms += len(confirms)
        self._out.append(items_event(EventType.CONFIRM, confirms))

    def note(self, level: int, text: str) -> None:
        """Something for the log; `level` as in `logging`."""
        self.effect(Note(level, text))

    def _send(self, message: ControlMessage | NegotiationMessage | AuthenticationMessage) -> None:
        self._cut()
        self._out.append(control.encode_event(message, self.options.encoding))
        self._has_output()

    def _nonsense(self, error: PeerError) -> None:
        self.dropped += 1
        self.note(WARNING, f"from the broker: {error}")
        self.event(EventKind.ERROR, message=str(error))

    def _settle(self, put: Put, result: Result, only_group: bool = False) -> None:
        """Tell whoever waits for a post what became of it."""

    def _answered(self) -> None:
        """Posts were answered."""

    def _give_room(self) -> None:
        """There may be room for posts again."""
