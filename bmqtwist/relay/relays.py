"""Queues of one cluster that this node's clients have open at upstream nodes.

At a proxy these are all queues, at a member the queues of partitions with another primary.

`cluster.streams` decides on requests to the upstream node, `queue.relay` is the queue that the node's clients use. This
module connects both with the queue's upstream connection (`Upstream`).

    open, configure, close   requests of clients, aggregated into requests to the upstream
    attach, detach           queues get an upstream, or lose it, in slices (`loop.scheduler`)
    on_receipt               responses and confirm receipts of upstream nodes; `incoming`: their messages and ACKs
    uplink                   PUTs and CONFIRMs of clients
    release_surplus          close at the upstream the handles that clients have closed

Members and proxies differ in a queue's upstream, its domain and the payloads of PUSHes; `RelayUser` (`upstream_queue.py`)
is the interface to both. Called by `broker/access.py` for requests of clients, by `proxy.py` and `member/member_relays.py`
for the upstream. Timeouts are configured (`config/clusters.py: QueueOperations`), limits are in `bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, assert_never

from bmqtwist import alarms
from bmqtwist.cluster.streams import (
    Answered,
    AppStream,
    CallBack,
    ChangeSubscriptions,
    CloseStream,
    Counts,
    Opened,
    OpenStream,
    Reopened,
    Retry,
    RetryIn,
    SendClose,
    SendConfigure,
    SendOpen,
    StreamInput,
    StreamOutput,
    StreamState,
    UpstreamChosen,
    UpstreamLost,
)
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, QueueUri
from bmqtwist.limits import MOVED_AT_ONCE, MOVED_QUEUE, REOPENING_MAX
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.states import ConnectionState
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.queue.handles import OpenRequest, close_queue, find_substream, make_subscriptions, set_subscriptions
from bmqtwist.queue.queue import ConsumerSpec, Handle, Queue, QueueContext, Substream
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.messages import RelayIncoming, RelayUplink
from bmqtwist.relay.upstream_queue import RelayUser, Upstream, UpstreamQueue, UpstreamRequests
from bmqtwist.steps import Steps
from bmqtwist.wire.control import ControlMessage, Encoding, encode_event
from bmqtwist.wire.schema import OpenQueueResponse, Status
from bmqtwist.wire.text import bracketed

RESPONSE_MARGIN_S = 5.0  # added to the timeout of a request: the upstream node reports its own timeout first


class Authenticated(Protocol):
    """The authentication state of a requester."""

    @property
    def principal(self) -> str:
        """The principal for authorization."""

    @property
    def owner(self) -> str:
        """Party to which limits charge it."""


class Requester(Protocol):
    """The client of an open: a `link.session.Session` or a `broker.local_producer.LocalProducer`."""

    @property
    def authentication(self) -> Authenticated:
        """Its authentication state."""

    @property
    def kind(self) -> object:
        """The kind of the session, if it is a session."""

    @property
    def state(self) -> ConnectionState:
        """CLOSED: the answer is dropped."""

    @property
    def wall(self) -> int:
        """Wall clock of this turn, seconds since the epoch."""


class Relays:
    """Relays of one cluster. `uplink`: messages to upstream nodes; `incoming`: messages from them; `bytes_max`: limit of the
    PUTs that wait for ACKs, in bytes."""

    def __init__(self, user: RelayUser, loop: Loop, context: QueueContext, bytes_max: int) -> None:
        self._user, self._loop, self._context = user, loop, context
        self.opened: dict[str, UpstreamQueue] = {}  # by URI
        self.leaving: dict[UpstreamQueue, None] = {}  # queues that are open at another cluster now and drained here
        self._by_id: dict[int, UpstreamQueue] = {}
        self._next_id = 0
        self.requests = UpstreamRequests()
        self._answering = 0  # number of the request whose response is being processed
        self._reopening: set[AppStream] = set()  # reopen requests without a response
        self._to_attach: deque[tuple[Upstream, UpstreamQueue]] = deque()  # queues that wait for their slice
        self._to_attach_job = object()
        self.failed = partial(loop.isolation.alarm, f"{user.title}: queues get another upstream")
        self._detaching: dict[UpstreamQueue, None] = {}  # detached queues whose streams wait for their `UpstreamLost`
        self.uplink = RelayUplink(self.opened, user, loop, bytes_max)
        self.incoming = RelayIncoming(self._by_id, self.uplink, user, loop)

    # -- requests of clients --------------------------------------------------------------------------------------------

    def open(self, session: Requester, uri: QueueUri, request: OpenRequest,
             answer: Callable[[Queue | Refused], None]) -> None:
        """Open a queue for a client; `answer` receives the queue after the upstream's response."""
        opened = self.opened.get(uri.canonical) or self._register(uri)
        until = self._loop.now + self._user.operations.open_timeout_ms / 1000
        app_id = request.app_id if request.app_id is not None and request.read_count else DEFAULT_APP_ID
        self.step(opened, self.stream_of(opened, app_id), OpenStream(
            Counts(request.read_count, request.write_count), partial(self._on_open_response, opened, answer),
            lambda: session.state is not ConnectionState.CLOSED and self._loop.now < until))

    def _register(self, uri: QueueUri) -> UpstreamQueue:
        closing = self.opened.get(uri.canonical)
        if closing is not None:
            self.leaving[closing] = None
        opened = self.opened[uri.canonical] = self._by_id[self._next_id] = UpstreamQueue(
            uri, self._next_id, self, self._user.operations.reopen_retry_interval_ms / 1000)
        opened.upstream = self._user.upstream_of(uri.canonical)
        self._next_id += 1
        return opened

    def stream_of(self, opened: UpstreamQueue, app_id: str) -> AppStream:
        """Return the stream of an app; a new stream uses the queue's present upstream."""
        stream = opened.streams.get(app_id)
        if stream is None:
            stream = opened.make_stream(app_id)
            if opened.upstream is not None:
                self.step(opened, stream, UpstreamChosen(opened.upstream.generation))
        return stream

    def _on_open_response(self, opened: UpstreamQueue, answer: Callable[[Queue | Refused], None], value: object) -> None:
        if isinstance(value, OpenQueueResponse):
            answer(opened.relay or self._create_relay(opened, value))
        elif isinstance(value, Queue):  # this node has become primary
            answer(value)
            return
        else:
            answer(value if isinstance(value, Refused) else Refused(
                Category.E_UNKNOWN, "The upstream node sent an unexpected response"))
        self.release_surplus(opened)

    def _create_relay(self, opened: UpstreamQueue, response: OpenQueueResponse) -> RelayQueue:
        """Create the relay after the upstream's first response."""
        domain = self._user.domain_of(opened.uri, response)
        queue = opened.relay = RelayQueue(opened.name, opened.uri.queue, domain, self._context, self.uplink)
        self.stream_of(opened, DEFAULT_APP_ID)
        for stream in opened.streams.values():
            if stream.state is StreamState.OPEN:
                self.on_stream_open(opened, stream)
        return queue

    def configure(self, handle: Handle, app_id: str, consumers: list[ConsumerSpec],
                  answer: Callable[[Refused | None], None]) -> None:
        """Replace a consumer's subscriptions; they apply here after the upstream's response."""
        try:
            substream = find_substream(handle, app_id)
            subscriptions = make_subscriptions(substream, consumers) if substream is not None else []
        except Refused as refused:
            answer(refused)
            return
        opened = self.opened.get(handle.queue.uri)
        if substream is None or opened is None:
            answer(None)
            return
        before, opened.requested[substream] = opened.requested.get(substream, []), consumers
        source = opened.source_of(substream.app_id)

        def answered(refused: Refused | None) -> None:
            here = substream in substream.app.substreams
            if refused is None:
                if here:
                    set_subscriptions(substream, subscriptions)
            elif here and opened.requested.get(substream) is consumers:
                opened.requested[substream] = before
                source.relays.configure_app(source, substream.app_id)
            answer(refused)

        source.relays.configure_app(source, substream.app_id, answered)

    def configure_app(self, opened: UpstreamQueue, app_id: str,
                      answer: Callable[[Refused | None], None] | None = None) -> None:
        """Send the merged subscriptions of an app's consumers to the upstream, if they differ or `answer` is given."""
        stream, merged = self.stream_of(opened, app_id), opened.merged_subscriptions(app_id)
        if answer is not None or merged != stream.wanted:
            self.step(opened, stream, ChangeSubscriptions(merged, answer))

    def close(self, handle: Handle, request: OpenRequest, final: bool, wall: int,
              answer: Callable[[bool | Refused], None]) -> None:
        """Close counts of a handle; `answer` is called after the upstream's response."""
        try:
            gone = close_queue(handle, request, final, wall)
        except Refused as refused:
            answer(refused)
            return
        opened = self.opened.get(handle.queue.uri)
        if opened is None:
            answer(gone)
            return
        unanswered = [1]  # close requests, and this call

        def on_closed() -> None:
            unanswered[0] -= 1
            if not unanswered[0]:
                answer(gone)

        def add_request() -> Callable[[], None]:
            unanswered[0] += 1
            return on_closed

        self.release_surplus(opened, add_request)
        on_closed()

    def release_unused(self, queue: RelayQueue) -> None:
        """Release a queue's surplus after handles were dropped or an open failed."""
        opened = self.opened.get(queue.uri)
        if opened is not None and opened.relay is queue:
            self.release_surplus(opened)

    def release_surplus(self, opened: UpstreamQueue, add_request: Callable[[], Callable[[], None]] | None = None) -> None:
        """Close at the upstream the handles that no client has open; `add_request()` returns the callback of one more
        close request."""
        opened.drop_gone_consumers()
        if opened.relay is not None:
            opened.relay.detach_closed_handles()
        for stream in list(opened.streams.values()):
            surplus = opened.surplus(stream)
            if surplus.read:
                self.configure_app(opened, stream.app_id)
            if surplus:
                on_closed = add_request() if add_request is not None else _ignore_response
                self.step(opened, stream, CloseStream(surplus, on_closed))
        self._unregister_if_idle(opened)

    def _unregister_if_idle(self, opened: UpstreamQueue) -> None:
        if opened.is_idle and self._unregister(opened) and opened.relay is not None and opened.drain is None:
            opened.relay.drop_all()

    def _unregister(self, opened: UpstreamQueue) -> bool:
        if self._by_id.pop(opened.q_id, None) is None:
            return False
        if opened in self.leaving:
            del self.leaving[opened]
        else:
            del self.opened[opened.name]
        return True

    def remove(self, uri: str) -> tuple[RelayQueue | None, list[OpenStream]]:
        """Remove a queue of which this node is primary now; return its relay and pending opens."""
        opened = self.opened.get(uri)
        if opened is None:
            return None, []
        self.detach([opened])
        self._finish_detach(opened)
        self._unregister(opened)
        return opened.relay, [each for stream in opened.streams.values() for each in stream.pending
                              if isinstance(each, OpenStream) and each.is_wanted()]

    def add(self, uri: QueueUri, relay: RelayQueue, requested: dict[Substream, list[ConsumerSpec]],
            sources: list[UpstreamQueue] | None = None) -> None:
        """Add the relay of a queue that clients have open and whose primary was this node or, with the `sources` that are
        read before this one, was in another cluster."""
        opened = self._register(uri)
        if sources is not None:
            sources.append(opened)
            opened.sources, opened.is_new = sources, True
        opened.relay, opened.requested = relay, requested
        upstream, opened.upstream = opened.upstream, None
        for app_id in {DEFAULT_APP_ID, *relay.apps}:
            stream = opened.make_stream(app_id)
            stream.counts, stream.wanted = opened.counts(app_id), opened.merged_subscriptions(app_id)
        if upstream is not None:
            self._to_attach.append((upstream, opened))
            self._attach_more()

    @property
    def queues(self) -> dict[str, RelayQueue]:
        """The relays that clients have open, by URI."""
        return {uri: opened.relay for uri, opened in self.opened.items() if opened.relay is not None}

    # -- streams --------------------------------------------------------------------------------------------------------

    def step(self, opened: UpstreamQueue, stream: AppStream, event: StreamInput) -> None:
        self._perform(opened, stream, opened.step(stream, event, self._loop.now))

    def _perform(self, opened: UpstreamQueue, stream: AppStream, outputs: list[StreamOutput]) -> None:
        operations = self._user.operations
        for output in outputs:
            match output:
                case SendOpen():
                    again = stream.state is StreamState.REOPENING
                    self._send_request(opened, stream, "openQueue", opened.open_request(stream, output.counts),
                                       operations.reopen_timeout_ms if again else operations.open_timeout_ms)
                case SendConfigure():
                    request = opened.configure_request(stream, output.subscriptions)
                    self._send_request(opened, stream, "configureStream", request, operations.configure_timeout_ms)
                case SendClose():
                    self._send_request(opened, stream, "closeQueue", opened.close_request(stream, output.counts),
                                       operations.close_timeout_ms)
                case CallBack():
                    output.answer()
                case Reopened():
                    if opened.relay is not None and opened.reads(stream.app_id):
                        opened.relay.resume_confirms(stream.app_id)
                case Opened():
                    self.on_stream_open(opened, stream)
                case RetryIn():
                    self._retry_later(opened, stream, output)
                case _:
                    assert_never(output)
        if opened.relay is not None:
            if not stream.counts.read and opened.source_of(stream.app_id) is opened:
                opened.relay.on_app_closed(stream.app_id)
            if not stream.counts.write and stream.app_id == DEFAULT_APP_ID and opened.drain is None:
                opened.relay.drop_closed_posts()

    def _send_request(self, opened: UpstreamQueue, stream: AppStream, choice: str, value: object, timeout_ms: int) -> None:
        upstream = opened.upstream
        if upstream is None:
            return  # it is being detached
        number = self.requests.add(f"{choice}Response", partial(self._on_response, opened, stream),
                                    self._loop.now + timeout_ms / 1000 + RESPONSE_MARGIN_S, upstream, opened)
        message, above = ControlMessage(number, choice, value), upstream.peer.session.description
        upstream.peer.send(encode_event(message, Encoding.BER))
        self._loop.report.info(f"{self._user.title}: Sending request to '{above}' [request: {bracketed(message)}]")
        if stream.state is StreamState.REOPENING and choice == "openQueue":
            self._loop.report.info(f"{self._user.title}: Sent ReopenQueue request {number} to '{above}'")

    def _on_response(self, opened: UpstreamQueue, stream: AppStream, value: object, number: int) -> None:
        self._answering = number
        if isinstance(value, OpenQueueResponse):
            self._loop.report.info(f"{self._user.title}: received OpenQueueResponse {number} for '{opened.name}'")
            value = _adopt_domain(self._user, opened, value)
        self.step(opened, stream, Answered(value))
        self._check_restored(stream)
        if stream.configured == stream.wanted and opened.relay is not None:
            opened.relay.on_parameters_confirmed(stream.app_id)
        if stream.in_progress is None:
            opened.ids.retain_only(stream.app_id, [each.expression for each in (*stream.configured, *stream.wanted)])
        self._unregister_if_idle(opened)

    def on_stream_open(self, opened: UpstreamQueue, stream: AppStream) -> None:
        """Send waiting CONFIRMs of an app, and with the default app waiting PUTs: its stream is open."""
        upstream = opened.upstream
        if opened.relay is None or upstream is None:
            return
        opened.relay.lease = upstream.lease
        if opened.reads(stream.app_id):
            opened.relay.resume_confirms(stream.app_id)
        if stream.app_id == DEFAULT_APP_ID and not upstream.stopping and opened.takes_posts:
            opened.relay.resume_posts(upstream.generation)
            self._loop.report.info(f"{opened.name}: now has an upstream for subQueueId: {stream.sub_id} with "
                                   f"generation count {upstream.generation}.")

    def _retry_later(self, opened: UpstreamQueue, stream: AppStream, output: RetryIn) -> None:
        refused, most = output.refused, self._user.operations.reopen_max_attempts
        response = bracketed(ControlMessage(self._answering, "status", Status(refused.category, refused.code,
                                                                              refused.message)))
        again = "re" if stream.state is StreamState.BACKING_OFF else ""
        text = (f"{self._user.title}: queue {again}open-request failed. queue: "
                f"'{opened.name}', appId: '{stream.app_id}', error response: {response}. Attempt number was: "
                f"{output.attempts}. Attempting again after {output.seconds * 1000:.0f} milliseconds")
        if output.attempts == most:
            self._loop.report.alarm(alarms.QUEUE_REOPEN_FAILURE, text)
        else:
            self._loop.report.warn(text)
        self._loop.timers.at(self._loop.now + output.seconds, partial(self._retry, opened, stream, opened.upstream))

    def _retry(self, opened: UpstreamQueue, stream: AppStream, upstream: Upstream | None, now: float) -> None:
        if upstream is opened.upstream and opened.streams.get(stream.app_id) is stream:
            self.step(opened, stream, Retry())

    # -- upstream nodes -------------------------------------------------------------------------------------------------

    def attach(self, upstream: Upstream) -> None:
        """Attach the queues of an upstream: they open there in slices."""
        upstream_of = self._user.upstream_of
        self._to_attach.extend((upstream, opened) for opened in (*self.opened.values(), *self.leaving)
                            if opened.upstream is None and upstream_of(opened.name) is upstream)
        self._attach_more()

    def _attach_more(self) -> None:
        """Limit unanswered reopen requests to REOPENING_MAX: heartbeats queue after them at the upstream."""
        scheduler = self._loop.scheduler
        if self._to_attach and len(self._reopening) <= REOPENING_MAX // 2 and not scheduler.has_job(
                Priority.ACTIVATION, self._to_attach_job):
            scheduler.start(Priority.ACTIVATION, self._to_attach_job, self._attach_in_slices(), self.failed)

    def _attach_in_slices(self) -> Steps[None]:
        used = 0
        while self._to_attach and len(self._reopening) < REOPENING_MAX:
            try:
                self._attach(*self._to_attach.popleft())
            except Exception as error:  # the other queues continue
                self.failed(error)
            used += MOVED_QUEUE
            if not used % MOVED_AT_ONCE:
                yield

    def _attach(self, upstream: Upstream, opened: UpstreamQueue) -> None:
        if opened.upstream is not None or self._user.upstream_of(opened.name) is not upstream:
            return  # replaced meanwhile
        self._finish_detach(opened)
        opened.upstream = upstream
        for stream in list(opened.streams.values()):
            self.step(opened, stream, UpstreamChosen(upstream.generation))
            if stream.state is StreamState.REOPENING:
                self._reopening.add(stream)

    def _in_slices(self, queues: list[UpstreamQueue], act: Callable[[UpstreamQueue], None]) -> None:
        if queues:
            self._loop.scheduler.start(Priority.ACTIVATION, self, act_in_steps(queues, act, self.failed), self.failed)

    def _check_restored(self, stream: AppStream) -> None:
        """Log when all reopen requests are answered, and send more of them."""
        if stream in self._reopening and stream.state is not StreamState.REOPENING:
            self._reopening.remove(stream)
            if not self._reopening and not self._to_attach:
                self._loop.report.info(f"{self._user.title}: state restored")
            self._attach_more()

    def detach(self, queues: Iterable[UpstreamQueue]) -> None:
        """Detach queues from their upstream: PUTs and CONFIRMs wait at once, their streams are notified in slices. Requests
        made meanwhile wait in the streams."""
        lost = [opened for opened in queues if opened.upstream is not None]
        self.requests.drop_of(lost)
        self._requeue_confirms(lost)
        for opened in lost:
            opened.upstream = None
            opened.waiting_pushes.clear()
            self._detaching[opened] = None
            if opened.relay is not None:
                if opened.drain is None:
                    opened.relay.suspend_posts()
                opened.relay.open_apps -= {app_id for app_id in opened.relay.open_apps if opened.reads(app_id)}
                opened.relay.suspended = opened.drain is None or not opened.drain.ended
                opened.relay.ample_quota = False
            if opened.drain is not None:
                opened.drain.on_upstream_lost()
        self._in_slices(lost, self._finish_detach)

    def _finish_detach(self, opened: UpstreamQueue) -> None:
        """Notify the streams of a detached queue; ignored if done."""
        if opened not in self._detaching:
            return
        del self._detaching[opened]
        if opened.relay is not None:
            opened.relay.suspended = False
            opened.relay.end_confirm_delays()
        outputs = []
        for stream in opened.streams.values():
            if opened.relay is not None and opened.reads(stream.app_id):
                opened.relay.suspend_confirms(stream.app_id)
            self._reopening.discard(stream)
            outputs.append((stream, opened.step(stream, UpstreamLost(), self._loop.now)))
        if opened.relay is not None and len(opened.sources) > 1:
            opened.relay.request_delivery()  # messages of another cluster have waited
        for stream, found in outputs:
            self._perform(opened, stream, found)
        self._unregister_if_idle(opened)

    def _requeue_confirms(self, lost: list[UpstreamQueue]) -> None:
        """Take back CONFIRMs without a receipt: the next upstream receives them again."""
        relays = {opened.relay for opened in lost}
        for batch in {opened.upstream.batch: None for opened in lost if opened.upstream is not None}:
            for relay, app_id, guid in reversed(batch.take_unreceipted(relays)):
                if isinstance(relay, RelayQueue):
                    relay.requeue_confirm(app_id, guid)

    def on_receipt(self, peer: PeerSession, count: int) -> None:
        """Handle a receipt: the upstream has committed `count` CONFIRMs."""
        if peer.upstream_batch is not None:
            peer.upstream_batch.on_receipt(count)

    def stop_posting(self, upstream: Upstream) -> None:
        """Handle a stop request of an upstream: PUTs wait for the next upstream, CONFIRMs still go to this one."""
        upstream.stopping = True
        stopped = [opened for opened in self.opened.values() if opened.upstream is upstream and opened.relay is not None]
        for opened in stopped:
            if opened.relay is not None:
                opened.relay.suspend_posts()
        self._in_slices(stopped, lambda opened: self._loop.report.info(
            f"{opened.name}: buffering PUTs with generation count {upstream.generation} because upstream is stopping."))

    # -- timeouts -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Expire waiting messages, opens and requests; called once a second."""
        for opened in list(self.opened.values()):
            if opened.relay is not None:
                opened.relay.expire(now)
            if opened.waiting_pushes:
                self.incoming.deliver_waiting(opened, now)
            for stream in opened.streams.values():
                stream.drop_cancelled()
            self._unregister_if_idle(opened)
        for request in self.requests.overdue(now):
            session = request.upstream.peer.session
            session.close("#PEER_TIMEOUT %s: %s: no %s in time", self._user.title, session.description, request.expected)


def act_in_steps(queues: list[UpstreamQueue], act: Callable[[UpstreamQueue], None],
                 failed: Callable[[Exception], None]) -> Steps[None]:
    """Call `act` for each queue, in steps; `failed` receives exceptions."""
    for number, opened in enumerate(queues, 1):
        try:
            act(opened)
        except Exception as error:  # the other queues continue
            failed(error)
        if not number * MOVED_QUEUE % MOVED_AT_ONCE:
            yield


def _adopt_domain(user: RelayUser, opened: UpstreamQueue, response: OpenQueueResponse) -> OpenQueueResponse | Refused:
    """Take over the domain of a moved queue as the new upstream describes it, unless the queue's mode would change."""
    if opened.relay is None or not opened.is_new:
        return response
    domain = user.domain_of(opened.uri, response)
    if domain.mode != opened.relay.mode:
        return Refused(Category.E_UNKNOWN, f"Mode {domain.mode} of the domain differs from that of the open queue, "
                                           f"{opened.relay.mode}: correct the domain, or close the queue at all clients")
    opened.relay.domain, opened.is_new = domain, False
    return response


def _ignore_response() -> None:
    """Ignore the response: the clients have closed."""
