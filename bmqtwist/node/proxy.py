"""One cluster that this node is a proxy of: which of its nodes is used, and the queues that clients here have open there.

`cluster.upstream` chooses the node, `cluster.streams` says what it is asked for, `queue.relay` is the queue as clients here
see it. Here they are joined to the connections, and the bytes of the upstream to the queues.

    open, configure, close    what clients ask for, counted together and asked of the upstream
    peer_said                 answers, ACKs, messages and announcements of the nodes above
    settle                    after clients came or went: what nobody here has open any more is given back
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bmqtwist.cluster.election_events import Tick
from bmqtwist.cluster.streams import (
    Answered,
    AppStream,
    CallBack,
    CloseAsked,
    ConfigureAsked,
    Counts,
    Down,
    OpenAsked,
    Opened,
    Reopened,
    Retry,
    RetryIn,
    SendClose,
    SendConfigure,
    SendOpen,
    StreamInput,
    StreamOutput,
    StreamState,
    Up,
)
from bmqtwist.cluster.upstream import (
    Announced,
    Connected,
    Disconnected,
    Lost,
    NobodyLeft,
    SelectorInput,
    UpstreamSelector,
    Use,
)
from bmqtwist.errors import Category, PeerError, Refused
from bmqtwist.ids import DEFAULT_APP_ID, QueueUri
from bmqtwist.limits import CONTROL_BYTES_MAX, CONTROL_VALUES_MAX
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.session import Session
from bmqtwist.link.states import State
from bmqtwist.node.domain_settings import relayed_settings, throttle
from bmqtwist.node.downstreams import ANNOUNCES, can_be_asked_to_stop, stop_request
from bmqtwist.node.links import LinkHost, ProxyLinks
from bmqtwist.node.upstream_queue import UpstreamQueue
from bmqtwist.node.upstream_requests import UpstreamRequests
from bmqtwist.node.welcome import RELAY_EXTENSION, RELAY_FEATURES
from bmqtwist.queue.domain import Domain
from bmqtwist.queue.handle import Handle
from bmqtwist.queue.handles import ConsumerSpec, OpenRequest, close_queue, find_substream, subscribe, subscriptions_of
from bmqtwist.queue.mode import mode_of
from bmqtwist.queue.put import Put
from bmqtwist.queue.queue import Queue, QueueContext
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.storage.message import Message
from bmqtwist.wire import options
from bmqtwist.wire.cluster_schema import ClusterMessage, NodeStatus, StopResponse
from bmqtwist.wire.control import ControlMessage, Encoding, decode_control, encode_event, encoding_of
from bmqtwist.wire.events import decode_ack
from bmqtwist.wire.fast import IMPLICIT_PAYLOAD, MESSAGE_PROPERTIES, OUT_OF_ORDER, EventType
from bmqtwist.wire.schema import OpenQueueResponse
from bmqtwist.wire.walk import MessageError, walk_pushes

if TYPE_CHECKING:
    from bmqtwist.config.clusters import ClusterProxyDefinition


LATE_S = 5.0  # that an answer may be late: a node above gives up itself, and says so


class ProxyHost(LinkHost, QueueContext, Protocol):
    """The broker, as far as a proxied cluster needs it."""

    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""


class ProxyCluster:
    """`node.links.LinkUser` and `queue.relay.Uplink` of one cluster. `bytes_max`: of PUTs that wait for an answer."""

    def __init__(self, definition: ClusterProxyDefinition, host: ProxyHost, started: float, bytes_max: int) -> None:
        self.definition, self.name, self._host = definition, definition.name, host
        self.links = ProxyLinks(definition, host)
        self.links.user = self
        self.selector = UpstreamSelector({node.id: node.data_center for node in definition.nodes},
                                         host.configuration.app.host_data_center, host.performer.chance, started)
        self.opened: dict[str, UpstreamQueue] = {}  # by URI
        self.domains: dict[str, Domain] = {}  # by the name clients use; known once a queue of it was opened
        self._by_id: dict[int, UpstreamQueue] = {}
        self._next_id = 0
        self._requests = UpstreamRequests()
        self._throttle = throttle(definition.message_throttle_config)
        self._bytes_max, self._bytes = bytes_max, 0
        self._paused: dict[Session, None] = {}  # not read from, until less waits for an answer
        self._resuming = False  # they are about to be
        self._stopping = False  # the node in use has said that it will go
        self._started = False
        self.stop_awaited: set[int] = set()  # nodes that we have told that we go, and that have not answered

    # -- what clients ask for -------------------------------------------------------------------------------------------

    def open(self, session: Session, uri: QueueUri, request: OpenRequest, answer: Callable[[Queue | Refused], None]) -> None:
        """Count a client in; answered with the queue when the upstream has done so."""
        if not self._started:
            self._started = True
            self.selector.started = self._host.now
            self.links.start(self._host.now)
        opened = self.opened.get(uri.canonical)
        if opened is None:
            opened = self.opened[uri.canonical] = self._by_id[self._next_id] = UpstreamQueue(uri, self._next_id)
            self._next_id += 1
        until = self._host.now + self.definition.queue_operations.open_timeout_ms / 1000
        app_id = request.app_id if request.app_id is not None and request.read_count else DEFAULT_APP_ID
        self._step(opened, self._stream(opened, app_id), OpenAsked(
            Counts(request.read_count, request.write_count), partial(self._open_answered, opened, answer),
            lambda: session.state is not State.CLOSED and self._host.now < until))

    def _stream(self, opened: UpstreamQueue, app_id: str) -> AppStream:
        """The stream of an app; a new one joins in what there is of an upstream."""
        stream = opened.stream(app_id)
        if stream is None:
            stream = opened.make_stream(app_id)
            if self.selector.active is not None:
                self._step(opened, stream, Up(self.selector.generation))
        return stream

    def _open_answered(self, opened: UpstreamQueue, answer: Callable[[Queue | Refused], None], value: object) -> None:
        if isinstance(value, OpenQueueResponse):
            answer(opened.relay or self._make(opened, value))
        else:
            answer(value if isinstance(value, Refused) else Refused(Category.E_UNKNOWN, "The answer makes no sense"))
        self.settle(opened)

    def _make(self, opened: UpstreamQueue, response: OpenQueueResponse) -> RelayQueue:
        """The upstream has said what kind of queue it is."""
        name = opened.uri.qualified_domain
        settings = relayed_settings(mode_of(response.routing_configuration.flags), response.deduplication_time_ms)
        domain = self.domains.get(name)
        if domain is None or domain.settings != settings:
            domain = self.domains[name] = Domain(name, name, self.name, settings, self._throttle)
        queue = opened.relay = RelayQueue(opened.uri.canonical, opened.uri.queue, domain, self._host, self)
        self._stream(opened, DEFAULT_APP_ID)
        for stream in opened.streams.values():
            if stream.state is StreamState.OPEN:
                self._stream_is_open(opened, stream)
        return queue

    def configure(self, handle: Handle, app_id: str, consumers: list[ConsumerSpec],
                  answer: Callable[[Refused | None], None]) -> None:
        """Replace what a consumer has asked for; it is in force here once it is above."""
        try:
            substream = find_substream(handle, app_id)
            subscriptions = subscriptions_of(substream, consumers) if substream is not None else []
        except Refused as refused:
            answer(refused)
            return
        opened = self.opened.get(handle.queue.uri)
        if substream is None or opened is None:
            answer(None)
            return
        before, opened.asked[substream] = opened.asked.get(substream, []), consumers

        def answered(refused: Refused | None) -> None:
            here = substream in substream.app.substreams
            if refused is None:
                if here:
                    subscribe(substream, subscriptions)
            elif here and opened.asked.get(substream) is consumers:
                opened.asked[substream] = before
                self._configure(opened, substream.app_id)
            answer(refused)

        self._configure(opened, substream.app_id, answered)

    def _configure(self, opened: UpstreamQueue, app_id: str, answer: Callable[[Refused | None], None] | None = None) -> None:
        """CallBack the upstream what all consumers of an app have asked for, if that is something else than before."""
        stream, merged = self._stream(opened, app_id), opened.merged(app_id)
        if answer is not None or merged != stream.wanted:
            self._step(opened, stream, ConfigureAsked(merged, answer))

    def close(self, handle: Handle, request: OpenRequest, final: bool, wall: int,
              answer: Callable[[bool | Refused], None]) -> None:
        """Give up counts of a client; answered when the upstream has done so."""
        try:
            gone = close_queue(handle, request, final, wall)
        except Refused as refused:
            answer(refused)
            return
        opened = self.opened.get(handle.queue.uri)
        if opened is None:
            answer(gone)
            return
        left = [1]

        def closed() -> None:
            left[0] -= 1
            if not left[0]:
                answer(gone)

        def counted() -> Callable[[], None]:
            left[0] += 1
            return closed

        self.settle(opened, counted)
        closed()

    def unused(self, queue: RelayQueue) -> None:
        """Handles of a queue are gone, or did not come to be."""
        opened = self.opened.get(queue.uri)
        if opened is not None and opened.relay is queue:
            self.settle(opened)

    def settle(self, opened: UpstreamQueue, counted: Callable[[], Callable[[], None]] | None = None) -> None:
        """Give back what the upstream has for nobody; `counted()`: one more answer is waited for."""
        opened.forget_substreams()
        if opened.relay is not None:
            opened.relay.forget_released()
        for stream in list(opened.streams.values()):
            surplus = opened.surplus(stream)
            if surplus.read:
                self._configure(opened, stream.app_id)
            if surplus:
                self._step(opened, stream, CloseAsked(surplus, counted() if counted is not None else _nobody_waits))
        self._forget_if_idle(opened)

    def _forget_if_idle(self, opened: UpstreamQueue) -> None:
        if opened.idle and self._by_id.pop(opened.q_id, None) is not None:
            del self.opened[opened.uri.canonical]
            if opened.relay is not None:
                opened.relay.forget_all()

    @property
    def queues(self) -> dict[str, RelayQueue]:
        """The queues that clients here have open, by URI."""
        return {uri: opened.relay for uri, opened in self.opened.items() if opened.relay is not None}

    # -- streams --------------------------------------------------------------------------------------------------------

    def _step(self, opened: UpstreamQueue, stream: AppStream, event: StreamInput) -> None:
        self._perform(opened, stream, stream.step(event))

    def _perform(self, opened: UpstreamQueue, stream: AppStream, outputs: list[StreamOutput]) -> None:
        operations = self.definition.queue_operations
        for output in outputs:
            if isinstance(output, SendOpen):
                again = stream.state is StreamState.REOPENING
                self._ask(opened, stream, "openQueue", opened.open_request(stream, output.counts),
                          operations.reopen_timeout_ms if again else operations.open_timeout_ms)
            elif isinstance(output, SendConfigure):
                self._ask(opened, stream, "configureStream", opened.configure_request(stream, output.subscriptions),
                          operations.configure_timeout_ms)
            elif isinstance(output, SendClose):
                self._ask(opened, stream, "closeQueue", opened.close_request(stream, output.counts),
                          operations.close_timeout_ms)
            elif isinstance(output, CallBack):
                output.answer()
            elif isinstance(output, Reopened):
                if opened.relay is not None:
                    opened.relay.confirms_open(stream.app_id)
            elif isinstance(output, Opened):
                self._stream_is_open(opened, stream)
            else:
                self._put_off(opened, stream, output)
        if opened.relay is not None:
            if not stream.counts.read:
                opened.relay.app_closed(stream.app_id)
            if not stream.counts.write and stream.app_id == DEFAULT_APP_ID:
                opened.relay.posts_closed()

    def _ask(self, opened: UpstreamQueue, stream: AppStream, choice: str, value: object, patience_ms: int) -> None:
        active = self._active
        if active is None:
            return  # the loss of the connection is told in this moment
        number = self._requests.add(f"{choice}Response", partial(self._answered, opened, stream),
                                    self._host.now + patience_ms / 1000 + LATE_S)
        active.send(encode_event(ControlMessage(number, choice, value), Encoding.BER))

    def _answered(self, opened: UpstreamQueue, stream: AppStream, value: object) -> None:
        self._step(opened, stream, Answered(value))
        if stream.told == stream.wanted and opened.relay is not None:
            opened.relay.settled(stream.app_id)
        if stream.under_way is None:
            opened.ids.keep(stream.app_id, [each.expression for each in (*stream.told, *stream.wanted)])
        self._forget_if_idle(opened)

    def _stream_is_open(self, opened: UpstreamQueue, stream: AppStream) -> None:
        if opened.relay is None:
            return
        opened.relay.confirms_open(stream.app_id)
        if stream.app_id == DEFAULT_APP_ID and not self._stopping:
            opened.relay.posts_open(self.selector.generation)
            self._host.report.info(f"{opened.uri.canonical}: now has an upstream for subQueueId: {stream.sub_id} with "
                                   f"generation count {self.selector.generation}.")

    def _put_off(self, opened: UpstreamQueue, stream: AppStream, output: RetryIn) -> None:
        refused, most = output.refused, self.definition.queue_operations.reopen_max_attempts
        text = (f"ClusterProxy ({self.name}): queue '{opened.uri.canonical}', appId '{stream.app_id}' is not opened above "
                f"(attempt {output.attempts}): {refused.category.name} {refused.code} {refused.message}; again in "
                f"{output.seconds:g} s")
        if output.attempts == most:
            self._host.report.alarm("QUEUE_REOPEN_FAILURE", text)
        else:
            self._host.report.warn(text)
        generation = self.selector.generation
        self._host.timers.at(self._host.now + output.seconds, partial(self._retry, opened, stream, generation))

    def _retry(self, opened: UpstreamQueue, stream: AppStream, generation: int, now: float) -> None:
        if generation == self.selector.generation and opened.streams.get(stream.app_id) is stream:
            self._step(opened, stream, Retry())

    # -- the upstream ---------------------------------------------------------------------------------------------------

    @property
    def _active(self) -> PeerSession | None:
        node_id = self.selector.active
        return None if node_id is None else self.links.session(node_id)

    def _select(self, event: SelectorInput, now: float) -> None:
        report = self._host.report
        for output in self.selector.step(now, event):
            if isinstance(output, Use):
                report.info(f"ClusterProxy ({self.name}): is healthy and using node '{self.links.name(output.node_id)}' as "
                            f"active.")
                self._use(output.generation)
            elif isinstance(output, Lost):
                report.warn(f"ClusterProxy ({self.name}): node '{self.links.name(output.node_id)}' is lost as active")
                self._lost()
            elif isinstance(output, NobodyLeft):
                report.alarm("CLUSTER_ACTIVE_NODE_UNKNOWN", f"ClusterProxy ({self.name}): none is available; clients wait")
            elif output.moment is not None:
                self._host.timers.at(output.moment, lambda later: self._select(Tick(), later))

    def _use(self, generation: int) -> None:
        self._stopping = False
        for opened in list(self.opened.values()):
            for stream in list(opened.streams.values()):
                self._step(opened, stream, Up(generation))

    def _lost(self) -> None:
        self._requests.forget()
        outputs = []
        for opened in self.opened.values():
            for stream in opened.streams.values():
                if opened.relay is not None:
                    opened.relay.posts_stopped()
                    opened.relay.confirms_stopped(stream.app_id)
                outputs.append((opened, stream, stream.step(Down())))
        for opened, stream, found in outputs:  # nothing may be asked before all streams know
            self._perform(opened, stream, found)
        for opened in list(self.opened.values()):
            self._forget_if_idle(opened)

    def peer_up(self, node_id: int, now: float) -> None:
        """A node is connected."""
        group, member = ANNOUNCES
        peer = self.links.session(node_id)
        announces = peer is not None and member in peer.session.features.get(group, ())
        self._select(Connected(node_id, announces), now)

    def peer_down(self, node_id: int, now: float) -> None:
        """The connection of a node is gone."""
        self.stop_awaited.discard(node_id)
        self._select(Disconnected(node_id), now)

    def peer_said(self, node_id: int, kind: EventType, specific: int, body: bytes, now: float) -> None:
        """An event of a node."""
        if kind is EventType.CONTROL:
            self._control(node_id, specific, body, now)
        elif node_id != self.selector.active:
            return  # left over from when it was in use
        elif kind is EventType.PUSH:
            self._pushes(body, now)
        elif kind is EventType.ACK:
            self._acks(body, now)
        else:
            self._complain(node_id, f"{kind.name} event dropped", now)

    def _complain(self, node_id: int, what: str, now: float) -> None:
        peer = self.links.session(node_id)
        if peer is not None and peer.session.lines.admits(now):
            self._host.report.error(f"#PEER_UNEXPECTED_EVENT ClusterProxy ({self.name}): node '{self.links.name(node_id)}': "
                                    f"{what}")

    def _control(self, node_id: int, specific: int, body: bytes, now: float) -> None:
        try:
            if len(body) > CONTROL_BYTES_MAX:
                raise PeerError(f"control message of {len(body)} bytes (limit: {CONTROL_BYTES_MAX})")
            message = decode_control(body, encoding_of(specific), CONTROL_VALUES_MAX)
        except PeerError as error:
            self._complain(node_id, f"failed to decode control message: {error}", now)
            return
        if message.choice == "clusterMessage":
            self._cluster_message(node_id, message, now)
        elif node_id == self.selector.active and not self._requests.answered(message):
            self._complain(node_id, f"unexpected control message '{message.choice}'", now)

    def _cluster_message(self, node_id: int, message: ControlMessage, now: float) -> None:
        told = message.value
        if told.choice == "nodeStatusAdvisory":
            before = self.selector.statuses[node_id]
            self._host.report.info(f"ClusterProxy ({self.name}): change in connection state with node "
                                   f"'{self.links.name(node_id)}', status: {before.name} -> {told.value.status.name}")
            self._select(Announced(node_id, NodeStatus(told.value.status)), now)
        elif told.choice == "stopResponse":
            self.stop_awaited.discard(node_id)
        elif told.choice == "stopRequest":
            if node_id == self.selector.active:
                self._stop_posting()
            peer = self.links.session(node_id)
            if peer is not None:
                peer.send(encode_event(ControlMessage(message.r_id, "clusterMessage", ClusterMessage(
                    "stopResponse", StopResponse(told.value.cluster_name)))))

    def _stop_posting(self) -> None:
        """The node in use will go: PUTs wait for the next one, CONFIRMs still go to this one."""
        self._stopping = True
        for opened in self.opened.values():
            if opened.relay is not None:
                self._host.report.info(f"{opened.uri.canonical}: buffering PUTs with generation count "
                                       f"{self.selector.generation} because upstream is stopping.")
                opened.relay.posts_stopped()

    def _acks(self, body: bytes, now: float) -> None:
        found, error = decode_ack(body, 0, len(body))
        for ack in found:
            opened = self._by_id.get(ack.queue_id)
            if opened is not None and opened.relay is not None:
                opened.relay.acked(ack.guid, ack.status, now)
        if error is not None and self.selector.active is not None:
            self._complain(self.selector.active, str(error), now)

    def _pushes(self, body: bytes, now: float) -> None:
        wall = self._host.wall(now)
        try:
            for q_id, guid, payload, flags, compression, schema_id, area, _, _ in walk_pushes(body, 0, len(body)):
                opened = self._by_id.get(q_id)
                if opened is None or opened.relay is None:
                    continue  # closed meanwhile: what was on its way goes back above
                message = Message(guid, payload, b"", bool(flags & MESSAGE_PROPERTIES), compression, schema_id, 0, now, wall)
                if flags & IMPLICIT_PAYLOAD:
                    raise PeerError("message without its payload", "PUSH", 0)
                opened.relay.pushed(message, _targets(opened, area), bool(flags & OUT_OF_ORDER))
        except (MessageError, PeerError) as error:
            if self.selector.active is not None:
                self._complain(self.selector.active, str(error), now)

    # -- queue.relay.Uplink ---------------------------------------------------------------------------------------------

    def put(self, queue: RelayQueue, put: Put) -> None:
        """A PUT goes up."""
        active = self._active
        if active is not None and active.upbound is not None:
            active.upbound.put(self.opened[queue.uri].q_id, put.message, not queue.broadcast)
            active.session.flush()

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A CONFIRM goes up."""
        active, opened = self._active, self.opened.get(queue.uri)
        stream = opened.stream(app_id) if opened is not None else None
        if active is not None and active.upbound is not None and opened is not None and stream is not None:
            active.upbound.confirm(opened.q_id, guid, stream.sub_id)
            active.session.flush()

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A REJECT goes up."""
        active, opened = self._active, self.opened.get(queue.uri)
        stream = opened.stream(app_id) if opened is not None else None
        if active is not None and active.upbound is not None and opened is not None and stream is not None:
            active.upbound.reject(opened.q_id, guid, stream.sub_id)
            active.session.flush()

    def give_back(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        """Messages go back up, if the node there takes them, and knows by now what is wanted here."""
        active, opened = self._active, self.opened.get(queue.uri)
        stream = opened.stream(app_id) if opened is not None else None
        if active is None or active.upbound is None or opened is None or stream is None or not _takes_back(active):
            return False
        if stream.state is not StreamState.OPEN or stream.told != stream.wanted:
            return False
        for guid in guids:
            active.upbound.give_back(opened.q_id, guid, stream.sub_id)
        active.session.flush()
        return True

    def keep(self, put: Put) -> None:
        """Beyond the limit whoever posts is not read from."""
        self._bytes += put.message.size + len(put.message.options)
        if self._bytes > self._bytes_max and put.handle is not None:
            session: Session | None = getattr(put.handle.client, "session", None)
            if session is not None:
                self._paused[session] = None
                self._host.performer.read(session, False)

    def let_go(self, put: Put) -> None:
        """Below half of the limit everybody is read from again."""
        self._bytes -= put.message.size + len(put.message.options)
        if self._paused and self._bytes <= self._bytes_max // 2 and not self._resuming:
            self._resuming = True
            self._host.timers.at(self._host.now, self._resume)  # not in the middle of what is done now

    def _resume(self, now: float) -> None:
        self._resuming = False
        if self._bytes > self._bytes_max // 2:
            return
        paused, self._paused = self._paused, {}
        for session in paused:
            if session.state is not State.CLOSED:
                self._host.performer.read(session, True)

    def post_again_at(self, queue: RelayQueue, when: float) -> None:
        """After a while."""
        self._host.timers.at(when, partial(self._post_again, queue))

    def _post_again(self, queue: RelayQueue, now: float) -> None:
        opened = self.opened.get(queue.uri)
        if opened is not None and opened.relay is queue:
            stream = self._stream(opened, DEFAULT_APP_ID)
            ready = stream.state is StreamState.OPEN and self._active is not None and not self._stopping
            queue.post_again(self.selector.generation if ready else 0)

    def stop(self) -> None:
        """The broker goes away: the nodes above are asked to deliver nothing more, and are not dialled any more."""
        self.links.stop()
        for number, node in enumerate(self.definition.nodes, 1):
            peer = self.links.session(node.id)
            if peer is not None and can_be_asked_to_stop(peer):
                self.stop_awaited.add(node.id)
                peer.send(stop_request(number))

    @property
    def unanswered(self) -> int:
        """How many PUTs wait for an answer."""
        return sum(len(queue.pending) for queue in self.queues.values())

    # -- time, end ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Once a second: what has waited too long."""
        for opened in list(self.opened.values()):
            if opened.relay is not None:
                opened.relay.expire(now)
            for stream in opened.streams.values():
                stream.forget_gone()
            self._forget_if_idle(opened)
        overdue, active = self._requests.overdue(now), self._active
        if overdue and active is not None:
            active.session.close("#PEER_TIMEOUT ClusterProxy (%s): %s: no %s in time", self.name, active.session.description,
                                 overdue)


def _takes_back(peer: PeerSession) -> bool:
    return all(feature in peer.session.features.get(RELAY_EXTENSION, ()) for feature in RELAY_FEATURES)


def _targets(opened: UpstreamQueue, area: bytes) -> list[tuple[str, int | None]]:
    """The apps that a PUSH is for, each with the delivery attempts that are left."""
    found: list[tuple[str, int | None]] = []
    apps = opened.ids.apps
    for option in options.decode(area):
        if isinstance(option, options.SubQueueInfos):
            found += [(apps.get(item.id, DEFAULT_APP_ID if not item.id else ""), item.attempts) for item in option.items]
        elif isinstance(option, options.SubQueueIds):
            found += [(apps.get(each, DEFAULT_APP_ID if not each else ""), None) for each in option.ids]
    return found or [(DEFAULT_APP_ID, None)]


def _nobody_waits() -> None:
    """Clients are gone already."""
