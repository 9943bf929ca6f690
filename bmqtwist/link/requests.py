"""Queue requests of a client: open, configure, close, disconnect.

Requests of each queue id are answered in order of arrival: in the same turn, or when another node has answered. A request
without an answer ends at its deadline. Later requests of its queue id are pending until then; they start after it, in order.
Queue ids are independent of each other. Later answers to a FINISHED request are ignored.

The effects of a request are in force when its answer is appended to the output, so that the answer precedes every PUSH
that it allows. A disconnect cancels all pending requests, and its answer is the last message. Called by `client.py` for
each control message of a client or downstream broker; `broker/access.py` finds and creates the queues. Requests that
this node sends upstream are in `relay/relays.py`. The numbers of pending requests, closed ids and subscriptions are
limited in `bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, Protocol

from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, InvalidUri, QueueUri, parse_uri
from bmqtwist.limits import CLOSED_IDS_MAX, EARLY_PUT_BYTES_MAX, PENDING_REQUESTS_MAX, SUBSCRIPTIONS_MAX
from bmqtwist.link.session import Session
from bmqtwist.link.states import ConnectionState
from bmqtwist.queue.expression import CompiledExpression, ExpressionError, compile_expression
from bmqtwist.queue.handles import OpenRequest, check_open, open_queue
from bmqtwist.queue.mode import ROUTING_FEATURE, ROUTING_FLAGS, RoutingFlag
from bmqtwist.queue.queue import Client, ConsumerSpec, Handle, Queue
from bmqtwist.wire.cluster_schema import ClusterMessage, StopResponse
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.schema import (
    CloseQueueResponse,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    DisconnectResponse,
    OpenQueueResponse,
    QueueHandleParameters,
    RoutingConfiguration,
    Status,
)
from bmqtwist.wire.text import bracketed


class QueueRequestsContext(Protocol):
    """Services of the broker for sessions of clients.

    Queue requests are answered by one call of `answer`, in this turn or a later one; Refused is never raised. After the
    session has ended or the request has timed out, the answer is dropped.
    """

    def find_queue(self, session: Session, uri: QueueUri, request: OpenRequest,
                   answer: Callable[[Queue | Refused], None]) -> None:
        """Find the queue of an open, and create it if necessary."""

    def configure_queue(self, session: Session, handle: Handle, app_id: str, consumers: list[ConsumerSpec],
                        answer: Callable[[Refused | None], None]) -> None:
        """Replace the subscriptions of one substream; None = done."""

    def close_queue(self, session: Session, handle: Handle, request: OpenRequest, final: bool,
                    answer: Callable[[bool | Refused], None]) -> None:
        """Subtract counts from a handle; True = the handle is closed, False = counts remain."""

    def request_timeout(self, choice: str, domain: str) -> float:
        """Return the timeout of a queue request, seconds."""

    def release_unused(self, queue: Queue) -> None:
        """Report that a handle was closed or not opened; start the idle time of a queue without handles."""

    def isolate_queue(self, queue: Queue, doing: str, error: Exception, disable: bool = False) -> None:
        """Report an unexpected exception of a queue; `disable`: disable the queue."""

    def make_guid(self) -> bytes:
        """Create a GUID for a message of a client that creates none."""

    def count_invalid_put(self, size: int) -> None:
        """Count a PUT of `size` bytes for an unknown queue."""


class RequestClient(Client, Protocol):
    """Session of a client that sends queue requests."""

    def drop_handles(self, crashed: bool) -> None:
        """Drop all handles and cancel all pending requests."""

    def stop_deliveries(self) -> None:
        """Stop deliveries after a stop request of a downstream broker."""

    def post_deferred(self, message: bytes, done: Callable[[], None]) -> None:
        """Post a PUT that was deferred until the open of its queue was answered, then call `done`."""


_COMPILED_AT_ONCE = 64  # expressions, about 50 us each
DEFERRED_PUT = "(put)"  # `QueueRequest.choice` of a PUT deferred until its open is answered; no peer can send it


class Progress(Enum):
    """Progress of a request."""

    WAITING = "pending, after an earlier request of its queue id"
    RUNNING = "its action runs, and may answer it at once"
    AWAITING_ANSWER = "its action has returned, the answer follows in a later turn"
    FINISHED = "answered, timed out, or cancelled"


class QueueRequest:
    """An open, configure or close request, or a PUT deferred until its open is answered."""

    __slots__ = ("r_id", "choice", "value", "q_id", "arrived", "domain", "deadline", "progress", "matchers")

    def __init__(self, r_id: int, choice: str, value: Any, q_id: int, arrived: float) -> None:
        self.r_id, self.choice, self.value, self.q_id = r_id, choice, value, q_id
        self.arrived = arrived  # monotonic seconds, like the deadline
        self.matchers: Mapping[str, CompiledExpression] = {}  # compiled expressions of a configure by text
        self.domain = ""  # of its queue; set by its action
        self.deadline = float("inf")
        self.progress = Progress.WAITING


class PendingRequests:
    """Pending requests of a session, in one queue per queue id.

    `begin(request)` runs the action of a request, `timeout(request)` returns its timeout in seconds, `expire(request)`
    answers it after the timeout; action and expiry both end in `finish(request)`, in this turn or a later one.
    """

    __slots__ = ("count", "_start_request", "_timeout", "_expire", "_lines")

    def __init__(self, begin: Callable[[QueueRequest], None], timeout: Callable[[QueueRequest], float],
                 expire: Callable[[QueueRequest], None]) -> None:
        self._start_request, self._timeout, self._expire = begin, timeout, expire
        self._lines: dict[int, deque[QueueRequest]] = {}
        self.count = 0

    def has_pending(self, q_id: int) -> bool:
        """True if a request of this queue id is pending."""
        return q_id in self._lines

    @property
    def is_full(self) -> bool:
        """True if the limit of pending requests is reached."""
        return self.count >= PENDING_REQUESTS_MAX

    def add(self, request: QueueRequest) -> None:
        """Start a request, or add it after the pending requests of its queue id."""
        line = self._lines.get(request.q_id)
        if line is None:
            self._start(request)
            if request.progress is not Progress.AWAITING_ANSWER:
                return
            line = self._lines[request.q_id] = deque()
            request.deadline = request.arrived + self._timeout(request)
        else:
            last = line[-1]
            request.domain = last.domain
            request.deadline = max(last.deadline, request.arrived + self._timeout(request))  # they finish in order
        line.append(request)
        self.count += 1

    def finish(self, request: QueueRequest, now: float) -> None:
        """Remove an answered or expired request, and start the next one of its queue id."""
        at_once = request.progress is Progress.RUNNING
        request.progress = Progress.FINISHED
        line = self._lines.get(request.q_id)
        if at_once or line is None:
            return
        while line and line[0].progress is Progress.FINISHED:
            line.popleft()
            self.count -= 1
            if line and line[0].deadline > now:
                self._start(line[0])
            elif line:
                line[0].progress = Progress.RUNNING
                self._expire(line[0])
        if not line:
            self._lines.pop(request.q_id, None)

    def _start(self, request: QueueRequest) -> None:
        request.progress = Progress.RUNNING
        self._start_request(request)
        if request.progress is Progress.RUNNING:
            request.progress = Progress.AWAITING_ANSWER

    def tick(self, now: float) -> None:
        """Expire requests whose deadline has passed."""
        for request in [line[0] for line in self._lines.values() if line[0].deadline <= now]:
            self._expire(request)

    def cancel(self) -> None:
        """Cancel all requests at the end of the session."""
        lines, self._lines = self._lines, {}
        self.count = 0
        for line in lines.values():
            for request in line:
                request.progress = Progress.FINISHED
            line.clear()

    def break_cycles(self) -> None:
        """Break the reference cycle with the session."""
        del self._start_request, self._timeout, self._expire


class QueueRequests:
    """Queue requests of one client. `handles`: by queue id; `pending`: requests without an answer; `closed_ids`: closed
    queue ids, which must not appear in an ACK."""

    def __init__(self, client: RequestClient, session: Session, queues: QueueRequestsContext,
                 handles: dict[int, Handle]) -> None:
        self.handles, self._session, self._context, self._queues = handles, session, session.context, queues
        self._client = client
        self.pending = PendingRequests(self._start_request, self._timeout, self._expire)
        self.closed_ids: dict[int, None] = {}
        self.has_changes = False  # queues were opened or closed in this turn
        self._closing_now: set[int] = set()  # queue ids closed in this turn
        self._just_opened: list[tuple[str, float]] = []  # (URI, arrival) of opens answered in this turn
        self._deferred_put_bytes = 0  # of PUTs deferred until their open is answered
        group, member = ROUTING_FEATURE
        self._reports_apps = member in session.remote.features.get(group, ())  # flag unregistered apps in responses

    def break_cycles(self) -> None:
        """Break the reference cycle with the session."""
        self.pending.break_cycles()
        del self._client

    def on_turn_end(self) -> None:
        """Reset the state of one turn, and log the duration of its opens."""
        self.has_changes = False
        self._closing_now.clear()
        for uri, arrived in self._just_opened:
            took_ns = round((self._context.now - arrived) * 1e9)
            self._context.report.info("%s: open queue [queue: '%s'] took: %.2f us (%d nanoseconds)",
                                      self._session.description, uri, took_ns / 1000, took_ns)
        self._just_opened.clear()

    def close_id(self, q_id: int) -> None:
        """Record the final close of a queue id."""
        self.closed_ids[q_id] = None
        if len(self.closed_ids) > CLOSED_IDS_MAX:
            del self.closed_ids[next(iter(self.closed_ids))]

    def handle_slowly(self, message: ControlMessage) -> Iterator[None]:
        """Handle a long control message; compile its expressions in slices first."""
        matchers: dict[str, CompiledExpression] = {}
        if isinstance(message.value, ConfigureStream):
            for number, subscription in enumerate(message.value.stream_parameters.subscriptions[:SUBSCRIPTIONS_MAX]):
                text = subscription.expression.text
                if subscription.expression.version and text and text not in matchers:
                    try:
                        matchers[text] = compile_expression(text)
                    except ExpressionError:  # `handle` reports it
                        break
                if number % _COMPILED_AT_ONCE == 0:
                    yield
        self.handle(message, matchers)

    def handle(self, message: ControlMessage, matchers: Mapping[str, CompiledExpression] | None = None) -> None:
        """Handle a control message. `matchers`: its compiled expressions by text."""
        self._context.report.info("%s: Received control message: %s", self._session.description, bracketed(message))
        r_id, choice, value = message.r_id or 0, message.choice, message.value
        if choice in _QUEUE_REQUESTS:
            q_id = value.q_id if isinstance(value, ConfigureStream | ConfigureQueueStream) else value.handle_parameters.q_id
            request = QueueRequest(r_id, choice, value, q_id, self._session.now)
            request.matchers = matchers or {}
            if self.pending.is_full:
                self._refuse(request, Refused(Category.E_REFUSED,
                                              f"Too many pending requests (limit: {PENDING_REQUESTS_MAX})"))
            else:
                self.pending.add(request)
        elif choice == "disconnect":
            self._client.drop_handles(crashed=False)
            self._session.change_state(ConnectionState.DISCONNECTING, "disconnect")
            self._session.answer(r_id, "disconnectResponse", DisconnectResponse())
        elif choice == "clusterMessage" and value.choice == "stopRequest":
            self._client.stop_deliveries()
            self._session.answer(r_id, "clusterMessage", ClusterMessage.of(StopResponse(value.value.cluster_name)))
        else:
            what = f"cluster message '{value.choice}'" if choice == "clusterMessage" else \
                f"unexpected control message '{choice}'"
            self._context.report.error(f"#CLIENT_IMPROPER_BEHAVIOR {self._session.description}: {what}")

    # -- called by `pending` ------------------------------------------------------------------------------------------

    def _start_request(self, request: QueueRequest) -> None:
        if self._context.now > self._session.now:  # it was pending
            self._session.now, self._session.wall = self._context.now, self._context.wall(self._context.now)
        try:
            _QUEUE_REQUESTS[request.choice][0](self, request)
        except Refused as refused:
            self._refuse(request, refused)

    def _timeout(self, request: QueueRequest) -> float:
        return self._queues.request_timeout(request.choice, request.domain)

    def _expire(self, request: QueueRequest) -> None:
        self._refuse(request, Refused(Category.E_TIMEOUT, "The request was not answered in time"))

    def _refuse(self, request: QueueRequest, refused: Refused) -> None:
        if request.choice == DEFERRED_PUT:  # its open timed out; `_put` answers with a NACK
            self._put(request)
            return
        tag = _QUEUE_REQUESTS[request.choice][1]
        self._context.report.warn(f"{tag} {self._session.description}: {refused.category.name} {refused.code} "
                                  f"{refused.message}{f' (refused by node {refused.node})' if refused.node else ''}")
        self._answer(request, "status", Status(refused.category, refused.code, refused.message))

    def _answer_or_refuse(self, request: QueueRequest, found: object, value: object) -> None:
        """Answer a request with `value`, or refuse it if `found` is Refused; ignored if the request is FINISHED."""
        if request.progress is not Progress.FINISHED:
            if isinstance(found, Refused):
                self._refuse(request, found)
            else:
                self._answer(request, f"{request.choice}Response", value)

    def _answer(self, request: QueueRequest, choice: str, value: object) -> None:
        self._session.answer(request.r_id, choice, value)
        self.pending.finish(request, self._context.now)

    def defer_put(self, q_id: int, message: bytes) -> bool:
        """Defer a PUT message until the open of its queue id is answered. False: the limit is reached."""
        if self.pending.is_full or self._deferred_put_bytes + len(message) > EARLY_PUT_BYTES_MAX:
            return False
        self._deferred_put_bytes += len(message)
        self.pending.add(QueueRequest(0, DEFERRED_PUT, message, q_id, self._session.now))
        return True

    def _put(self, request: QueueRequest) -> None:
        self._deferred_put_bytes -= len(request.value)
        self._client.post_deferred(request.value, lambda: self.pending.finish(request, self._context.now))

    # -- open ---------------------------------------------------------------------------------------------------------

    def _open(self, request: QueueRequest) -> None:
        context = self._context
        if not context.serving:  # no answer: the SDK sends it again to the next broker
            self.pending.finish(request, context.now)
            return
        asked = request.value.handle_parameters
        parameters = _parameters(asked)
        try:
            uri = parse_uri(asked.uri)
        except InvalidUri as error:
            raise Refused(Category.E_REFUSED, str(error)) from None
        check_open(parameters)
        known = self.handles.get(request.q_id)
        if known is not None and known.queue.uri != uri.canonical:
            raise Refused(Category.E_INVALID_ARGUMENT, "queueId is already in use for a different queue", -1)
        request.domain = uri.qualified_domain
        self._queues.find_queue(self._session, uri, parameters, partial(self._found, request, parameters))

    def _found(self, request: QueueRequest, parameters: OpenRequest, found: Queue | Refused) -> None:
        context = self._context
        if isinstance(found, Refused):
            if request.progress is not Progress.FINISHED:
                self._refuse(request, found)
            return
        if request.progress is Progress.FINISHED or not context.serving:
            self._queues.release_unused(found)
            self.pending.finish(request, context.now)
            return
        try:
            opened = open_queue(found, self._client, self.handles.get(request.q_id), parameters)
        except Refused as refused:
            self._refuse(request, refused)
            return
        self.handles[request.q_id] = opened
        self.closed_ids.pop(request.q_id, None)
        self._just_opened.append((found.uri, request.arrived))
        self.has_changes = True
        flags = ROUTING_FLAGS[found.mode]
        app = found.apps.get(parameters.app_id or "")
        if self._reports_apps and app is not None and not app.registered:
            flags |= RoutingFlag.UNREGISTERED_APP
        self._answer(request, "openQueueResponse", OpenQueueResponse(
            request.value, RoutingConfiguration(flags), found.domain.settings.deduplication_ms))

    # -- configure ----------------------------------------------------------------------------------------------------

    def _find_handle(self, request: QueueRequest, closing: str) -> Handle:
        found = self.handles.get(request.q_id)
        if found is None:
            raise Refused(Category.E_UNKNOWN, closing if request.q_id in self._closing_now else "No queue with specified Id")
        request.domain = found.queue.domain.name
        return found

    def _configure_stream(self, request: QueueRequest) -> None:
        parameters = request.value.stream_parameters
        self._configure(request, parameters.app_id, [
            ConsumerSpec(subscription.s_id, subscription.expression.version, subscription.expression.text,
                         consumer.consumer_priority, consumer.consumer_priority_count, consumer.max_unconfirmed_messages,
                         consumer.max_unconfirmed_bytes, request.matchers.get(subscription.expression.text))
            for subscription in parameters.subscriptions for consumer in subscription.consumers])

    def _configure_queue_stream(self, request: QueueRequest) -> None:
        parameters = request.value.stream_parameters
        sub = parameters.sub_id_info
        self._configure(request, sub.app_id if sub else DEFAULT_APP_ID, [
            ConsumerSpec(sub.sub_id if sub else 0, 0, "", parameters.consumer_priority, parameters.consumer_priority_count,
                         parameters.max_unconfirmed_messages, parameters.max_unconfirmed_bytes)])

    def _configure(self, request: QueueRequest, app_id: str, consumers: list[ConsumerSpec]) -> None:
        opened = self._find_handle(request, "Unexpected configureQueue request")
        self._queues.configure_queue(self._session, opened, app_id, consumers, partial(self._configured, request))

    def _configured(self, request: QueueRequest, refused: Refused | None) -> None:
        made = ConfigureStreamResponse if request.choice == "configureStream" else ConfigureQueueStreamResponse
        self._answer_or_refuse(request, refused, made(request.value))

    # -- close --------------------------------------------------------------------------------------------------------

    def _close(self, request: QueueRequest) -> None:
        parameters = _parameters(request.value.handle_parameters)
        if parameters.read_count <= 0 and parameters.write_count <= 0 and parameters.admin_count <= 0:
            raise Refused(Category.E_INVALID_ARGUMENT, "At least one of [read|write|admin]Count must be > 0")
        opened = self._find_handle(request, "Duplicate closeQueue request")
        self._queues.close_queue(self._session, opened, parameters, request.value.is_final,
                                  partial(self._closed, request, opened))

    def _closed(self, request: QueueRequest, handle: Handle, closed: bool | Refused) -> None:
        if closed is True and self.handles.get(request.q_id) is handle:  # also after the request's timeout
            del self.handles[request.q_id]
            self.close_id(request.q_id)
            self._closing_now.add(request.q_id)
            self.has_changes = True
            self._session.outbox.drop_acks(request.q_id)
            self._queues.release_unused(handle.queue)
        self._answer_or_refuse(request, closed, CloseQueueResponse())


_QUEUE_REQUESTS: dict[str, tuple[Callable[[QueueRequests, QueueRequest], None], str]] = {  # action, tag of a failure
    DEFERRED_PUT: (QueueRequests._put, ""),
    "openQueue": (QueueRequests._open, "#CLIENT_OPENQUEUE_FAILURE"),
    "configureStream": (QueueRequests._configure_stream, "#CLIENT_CONFIGUREQUEUE_FAILURE"),
    "configureQueueStream": (QueueRequests._configure_queue_stream, "#CLIENT_CONFIGUREQUEUE_FAILURE"),
    "closeQueue": (QueueRequests._close, "#CLIENT_CLOSEQUEUE_FAILURE"),
}


def is_of_a_client(message: ControlMessage) -> bool:
    """True if a control message of a downstream broker is a queue request, a disconnect or a stop request."""
    return message.choice in _QUEUE_REQUESTS or message.choice == "disconnect" or (
        message.choice == "clusterMessage" and message.value.choice == "stopRequest")


def _parameters(parameters: QueueHandleParameters) -> OpenRequest:
    sub = parameters.sub_id_info
    return OpenRequest(parameters.q_id, sub.sub_id if sub else 0, sub.app_id if sub else None, parameters.flags,
                       parameters.read_count, parameters.write_count, parameters.admin_count)
