"""Stream of one app of a queue at the upstream broker, for all clients of this node. A state machine without sockets.

A node that is not the primary of a queue opens it upstream once for all its clients: with the sums of their counts and with
merged subscriptions (`queue/merge.py`). There is one stream for each app, with at most one request in progress; further
requests are pending, in order. `relay/relays.py` calls `AppStream.step` and performs the outputs.

```
   CLOSED      no upstream: opens are pending, configures and closes are answered at once
   REOPENING   the sums are sent to a new upstream: opens and closes are pending, configures are answered at once
   OPEN        requests are sent upstream one after the other
   BACKING_OFF the reopen was refused, a retry is scheduled: opens are pending, configures and closes are answered at once
```

When the upstream is lost, opens stay pending; configures and closes are answered: the next upstream receives the new sums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import get_args

from bmqtwist.errors import Category, Refused
from bmqtwist.machine import Cell, check, table, to
from bmqtwist.queue.queue import ConsumerSpec

RETRY_S = 0.5  # delay after a temporary refusal; doubles with every refusal
RETRY_SECONDS_MAX = 30.0
UNREGISTERED_QUEUE, NOT_PRIMARY, NODE_IS_STOPPING = -204, -201, -11  # codes of temporary refusals


class StreamState(Enum):
    """State of a stream at the upstream."""

    CLOSED = "there is no upstream"
    REOPENING = "the sums are being opened and configured at a new upstream"
    OPEN = "open, or no client has opened the app"
    BACKING_OFF = "the reopen was refused, a retry is scheduled"


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of readers and writers of a stream."""

    read: int = 0
    write: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.read + other.read, self.write + other.write)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(max(0, self.read - other.read), max(0, self.write - other.write))

    def __bool__(self) -> bool:
        return self.read > 0 or self.write > 0


Subscriptions = tuple[ConsumerSpec, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OpenStream:
    """Add the counts of a client. `answer(value or refusal)` is called once; `is_wanted()`: the client is connected."""

    counts: Counts
    answer: Callable[[object], None]
    is_wanted: Callable[[], bool]


@dataclass(frozen=True, slots=True, eq=False)
class ChangeSubscriptions:
    """Set the merged subscriptions. `answer(None or refusal)` is called once; without `answer` a refusal is retried."""

    subscriptions: Subscriptions
    answer: Callable[[Refused | None], None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CloseStream:
    """Subtract the counts of a client. `answer()` is called once."""

    counts: Counts
    answer: Callable[[], None]


@dataclass(frozen=True, slots=True)
class UpstreamChosen:
    """An upstream was chosen; `generation`: number of the choice."""

    generation: int


@dataclass(frozen=True, slots=True)
class UpstreamLost:
    """The upstream is disconnected, or another one is to be chosen."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The request in progress was answered, with a value or a refusal."""

    value: object


@dataclass(frozen=True, slots=True)
class Retry:
    """The delay of a RetryIn has passed."""


@dataclass(frozen=True, slots=True)
class SendOpen:
    """Send an open request upstream."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class SendConfigure:
    """Send a configure request upstream."""

    subscriptions: Subscriptions


@dataclass(frozen=True, slots=True)
class SendClose:
    """Send a close request upstream."""

    counts: Counts


@dataclass(frozen=True, slots=True, eq=False)
class CallBack:
    """Call `answer`: a client's request is complete."""

    answer: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Reopened:
    """The upstream has reopened the stream, without subscriptions: CONFIRMs may be sent."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The upstream has the whole stream again: PUTs may be sent."""

    generation: int


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Request a `Retry` after `seconds`; `refused`: the reason, `attempts`: refusals in a row."""

    seconds: float
    refused: Refused
    attempts: int


StreamInput = OpenStream | ChangeSubscriptions | CloseStream | UpstreamChosen | UpstreamLost | Answered | Retry
StreamOutput = SendOpen | SendConfigure | SendClose | CallBack | Reopened | Opened | RetryIn
Operation = OpenStream | ChangeSubscriptions | CloseStream


def is_retryable(refused: Refused) -> bool:
    """True if a refusal is due to the present state of the upstream, not to the request."""
    if refused.category in (Category.E_CANCELED, Category.E_NOT_READY):
        return True
    return refused.category is Category.E_REFUSED and refused.code in (UNREGISTERED_QUEUE, NOT_PRIMARY, NODE_IS_STOPPING)


class AppStream:
    """One app of one queue. `counts`, `configured`: counts and subscriptions that the upstream accepted; `wanted`: merged
    subscriptions of the clients; `retry_delay_s`: delay after a refusal that is not temporary, in seconds."""

    def __init__(self, app_id: str, sub_id: int, retry_delay_s: float = RETRY_SECONDS_MAX) -> None:
        self.app_id, self.sub_id, self.retry_delay_s = app_id, sub_id, retry_delay_s
        self.state = StreamState.CLOSED
        self.generation = 0
        self.counts = Counts()
        self.configured: Subscriptions = ()
        self.wanted: Subscriptions = ()
        self.pending: deque[Operation] = deque()
        self.in_progress: Operation | SendOpen | SendConfigure | None = None  # SendOpen and SendConfigure while reopening
        self.sent: Subscriptions = ()  # subscriptions of the configure in progress
        self.is_backing_off = False  # no request is sent before a Retry
        self.refusals = 0  # in a row
        self._out: list[StreamOutput] = []

    @property
    def is_idle(self) -> bool:
        """True if no client has the stream open and no request is pending."""
        return not self.counts and not self.pending and self.in_progress is None

    @property
    def accepted_counts(self) -> Counts:
        """Counts that the upstream has accepted, without those of pending closes."""
        counts = self.counts
        for each in (self.in_progress, *self.pending):
            if isinstance(each, CloseStream):
                counts -= each.counts
        return counts

    def drop_cancelled(self) -> None:
        """Drop pending opens of clients that have disconnected."""
        if self.pending:
            self.pending = deque(each for each in self.pending if not isinstance(each, OpenStream) or each.is_wanted())

    @property
    def is_changing(self) -> bool:
        """True if a request is pending or in progress, or the upstream does not have the wanted subscriptions."""
        return bool(self.pending) or self.in_progress is not None or self.configured != self.wanted

    def take_opens(self) -> list[OpenStream]:
        """Remove and return the opens that have not been sent."""
        opens = [each for each in self.pending if isinstance(each, OpenStream)]
        if opens:
            self.pending = deque(each for each in self.pending if not isinstance(each, OpenStream))
        return opens

    def step(self, event: StreamInput) -> list[StreamOutput]:
        self._out = []
        before, kind = self.state, type(event)
        TABLE[before][kind].action(self, event)
        check(TABLE, before, kind, self.state)
        return self._out

    # -- requests of clients ------------------------------------------------------------------------------------------

    def _enqueue(self, event: Operation) -> None:
        """Add a pending request. If the stream is open, send it unless another one is in progress."""
        if isinstance(event, ChangeSubscriptions):
            self.wanted = event.subscriptions
        self.pending.append(event)
        if self.state is StreamState.OPEN:
            self._send_next()

    def _on_configure(self, event: ChangeSubscriptions) -> None:
        """Store the subscriptions for the next reopen, and answer the client."""
        self.wanted = event.subscriptions
        self._report_configured(event, None)

    def _finish_close(self, event: CloseStream) -> None:
        self.counts -= event.counts
        if not self.counts.read:
            self.configured = ()  # the upstream drops them with the last reader
        self._out.append(CallBack(event.answer))

    # -- the upstream ---------------------------------------------------------------------------------------------------

    def _on_upstream_chosen(self, event: UpstreamChosen) -> None:
        self.generation = event.generation
        self.configured, self.refusals, self.is_backing_off = (), 0, False
        self._reopen()

    def _reopen(self, event: object = None) -> None:
        self.is_backing_off = False
        if self.counts:
            self.state = StreamState.REOPENING
            self._send(SendOpen(self.counts))
        else:
            self._finish_reopen()

    def _send(self, request: SendOpen | SendConfigure) -> None:
        self.in_progress = request
        self._out.append(request)

    def _on_upstream_lost(self, event: UpstreamLost) -> None:
        """Complete closes and configures; keep opens pending."""
        self.state = StreamState.CLOSED
        self.is_backing_off = False
        waiting = [self.in_progress, *self.pending]
        self.in_progress = None
        self.pending.clear()
        for each in waiting:
            if isinstance(each, OpenStream):
                self.pending.append(each)
            elif isinstance(each, CloseStream):
                self._finish_close(each)
            elif isinstance(each, ChangeSubscriptions):
                self._report_configured(each, None)

    def _on_reopen_answered(self, event: Answered) -> None:
        request, self.in_progress = self.in_progress, None
        refused = event.value if isinstance(event.value, Refused) else None
        if isinstance(request, SendOpen):
            if refused is not None:
                self.state = StreamState.BACKING_OFF
                self._schedule_retry(refused)
                return
            self.refusals = 0
            self._out.append(Reopened())
            if self.wanted:
                self._send(SendConfigure(self.wanted))
                return
        elif isinstance(request, SendConfigure):
            if refused is None:
                self.configured = request.subscriptions
            else:  # the upstream has the counts: only the configure is repeated
                self.pending.append(ChangeSubscriptions(self.wanted))
                self._schedule_retry(refused)
        self._finish_reopen()

    def _finish_reopen(self) -> None:
        self.state = StreamState.OPEN
        self._out.append(Opened(self.generation))
        if self.configured != self.wanted and not any(isinstance(each, ChangeSubscriptions) for each in self.pending):
            self.pending.append(ChangeSubscriptions(self.wanted))  # the subscriptions changed meanwhile
        self._send_next()

    def _on_answered(self, event: Answered) -> None:
        request, self.in_progress = self.in_progress, None
        refused = event.value if isinstance(event.value, Refused) else None
        if refused is not None and isinstance(request, OpenStream) and is_retryable(refused):
            self.pending.appendleft(request)
            self._schedule_retry(refused)
            return
        if refused is not None and isinstance(request, ChangeSubscriptions) and (
                request.answer is None or is_retryable(refused)):
            self.pending.append(request)  # other requests go first
            if len(self.pending) == 1:
                self._schedule_retry(refused)
            self._send_next()
            return
        if refused is None:
            self.refusals = 0
        if isinstance(request, OpenStream):
            if refused is None:
                self.counts += request.counts
            self._out.append(CallBack(lambda: request.answer(event.value)))
        elif isinstance(request, CloseStream):
            self._finish_close(request)
        elif isinstance(request, ChangeSubscriptions):
            if refused is None:
                self.configured = self.sent
            self._report_configured(request, refused)
        self._send_next()

    def _on_retry(self, event: Retry) -> None:
        self.is_backing_off = False
        self._send_next()

    def _schedule_retry(self, refused: Refused) -> None:
        self.is_backing_off = True
        seconds = self.retry_delay_s
        if is_retryable(refused):
            seconds = min(RETRY_SECONDS_MAX, RETRY_S * 2.0 ** min(self.refusals, 10))
        self.refusals += 1
        self._out.append(RetryIn(seconds, refused, self.refusals))

    def _send_next(self) -> None:
        """Send the next pending request, unless one is in progress."""
        while self.pending and self.in_progress is None and not self.is_backing_off:
            each = self.pending.popleft()
            if isinstance(each, ChangeSubscriptions):
                if self.wanted == self.configured or not self.counts.read:
                    self._report_configured(each, None)
                    continue
                self.sent = self.wanted
                self._out.append(SendConfigure(self.wanted))
            elif isinstance(each, CloseStream):
                if not self.counts:  # the counts were lost with an earlier upstream
                    self._finish_close(each)
                    continue
                self._out.append(SendClose(each.counts))
            elif each.is_wanted():
                self._out.append(SendOpen(each.counts))
            else:
                continue
            self.in_progress = each

    def _report_configured(self, event: ChangeSubscriptions, refused: Refused | None) -> None:
        answer = event.answer
        if answer is not None:
            self._out.append(CallBack(lambda: answer(refused)))

    def _ignore(self, event: StreamInput) -> None:
        """Ignore a late or repeated event."""


S, A = StreamState, AppStream
_NOT_OPEN: dict[type, Cell[StreamState]] = {
    OpenStream: to(A._enqueue), ChangeSubscriptions: to(A._on_configure), CloseStream: to(A._finish_close),
    UpstreamChosen: to(A._ignore), Answered: to(A._ignore), Retry: to(A._ignore)}
TABLE = table(StreamState, get_args(StreamInput), {
    S.CLOSED: _NOT_OPEN | {UpstreamChosen: to(A._on_upstream_chosen, S.REOPENING, S.OPEN), UpstreamLost: to(A._ignore)},
    S.REOPENING: _NOT_OPEN | {
        CloseStream: to(A._enqueue), Answered: to(A._on_reopen_answered, S.OPEN, S.BACKING_OFF),
        UpstreamLost: to(A._on_upstream_lost, S.CLOSED)},
    S.OPEN: _NOT_OPEN | {
        ChangeSubscriptions: to(A._enqueue), CloseStream: to(A._enqueue), Answered: to(A._on_answered),
        Retry: to(A._on_retry), UpstreamLost: to(A._on_upstream_lost, S.CLOSED)},
    S.BACKING_OFF: _NOT_OPEN | {Retry: to(A._reopen, S.REOPENING, S.OPEN), UpstreamLost: to(A._on_upstream_lost, S.CLOSED)},
})
