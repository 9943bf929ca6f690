"""The queues of one cluster that clients here have open at nodes above: at a proxy all of them, at a member those in
partitions that another node is primary of.

`cluster.streams` says what a node above is asked for, `queue.relay` is the queue as clients here see it. Here they are
joined with the connection of the node above that each queue has: its `Upstream`.

    open, configure, close    what clients ask for, counted together and asked of the upstream
    use, lose                 a queue has an upstream, or has none any more
    answered, acks, pushes    what nodes above say
    settle                    after clients came or went: what nobody here has open any more is given back

`RelayUser` knows what is different: whose a queue is, its domain, and what a PUSH without payload speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, assert_never

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
from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import QueueOperations
from bmqtwist.errors import Category, PeerError, Refused
from bmqtwist.ids import DEFAULT_APP_ID, QueueUri
from bmqtwist.limits import RELAY_WAITING_PUSHES_MAX
from bmqtwist.link.extensions import RELAY_EXTENSION, RETURNED_MESSAGES
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.session import Session
from bmqtwist.link.states import State
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.timers import Timers
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.handles import OpenRequest, close_queue, find_substream, subscribe, subscriptions_of
from bmqtwist.queue.queue import ConsumerSpec, Handle, Put, Queue, QueueContext, Substream
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.requester import Asker
from bmqtwist.relay.upstream_queue import Upstream, UpstreamQueue, WaitingPush
from bmqtwist.relay.upstream_requests import UpstreamRequests
from bmqtwist.storage.message import Message
from bmqtwist.wire import options
from bmqtwist.wire.control import ControlMessage, Encoding, encode_event
from bmqtwist.wire.events import AckMessage, decode_ack
from bmqtwist.wire.fast import IMPLICIT_PAYLOAD, MESSAGE_PROPERTIES, OUT_OF_ORDER
from bmqtwist.wire.schema import OpenQueueResponse, Status
from bmqtwist.wire.text import bracketed
from bmqtwist.wire.walk import MessageError, walk_pushes

LATE_S = 5.0  # that an answer may be late: a node above gives up itself, and says so
RECORD_WAIT_S = 10.0  # that a PUSH may come before the record it speaks of; then the message goes back above
LINGERING_MAX = 32  # CONFIRMs that wait for something else that goes up; who may hold not many more waits for each of them
_WINDOW, _WINDOW_BYTES = 8 * LINGERING_MAX, 1 << 20


class RelayHost(QueueContext, Protocol):
    """The broker, as far as relayed queues need it."""

    configuration: Configuration
    performer: Performer
    timers: Timers
    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""


class RelayUser(Protocol):
    """Who knows the nodes above. `title`: how the cluster is shown to people."""

    name: str
    title: str
    operations: QueueOperations

    def upstream_of(self, uri: str) -> Upstream | None:
        """Where a queue is to be opened."""

    def domain_of(self, uri: QueueUri, response: OpenQueueResponse) -> DomainRules:
        """The domain of a queue that was opened above."""

    def stored(self, uri: str, guid: bytes) -> Message | None:
        """The message that a PUSH without payload speaks of, with its payload; None: it is not here yet. PeerError: none can
        be."""

    def payload(self, uri: str, guid: bytes) -> bytes:
        """The application data of a message that came to its consumer while this node was primary. PartitionUnavailable."""


class Relays:
    """`queue.relay.Uplink` of one cluster."""

    def __init__(self, user: RelayUser, host: RelayHost) -> None:
        self._user, self._host = user, host
        self.opened: dict[str, UpstreamQueue] = {}  # by URI
        self._by_id: dict[int, UpstreamQueue] = {}
        self._next_id = 0
        self._requests = UpstreamRequests()
        self._answering = 0  # the number of the request whose answer is being dealt with
        self._reopening: set[AppStream] = set()  # they are being opened anew
        self._behind: dict[UpstreamQueue, None] = {}  # they have pushes that wait for their records
        self._bytes_max = host.configuration.extension.relay_bytes_max  # of PUTs that wait for an answer
        self._bytes = 0
        self._paused: dict[Session, None] = {}  # not read from, until less waits for an answer
        self._resuming = False  # they are about to be

    # -- what clients ask for -------------------------------------------------------------------------------------------

    def open(self, session: Asker, uri: QueueUri, request: OpenRequest, answer: Callable[[Queue | Refused], None]) -> None:
        """Count a client in; answered with the queue when the upstream has done so."""
        opened = self.opened.get(uri.canonical) or self._add(uri)
        until = self._host.now + self._user.operations.open_timeout_ms / 1000
        app_id = request.app_id if request.app_id is not None and request.read_count else DEFAULT_APP_ID
        self._step(opened, self._stream(opened, app_id), OpenAsked(
            Counts(request.read_count, request.write_count), partial(self._open_answered, opened, answer),
            lambda: session.state is not State.CLOSED and self._host.now < until))

    def _add(self, uri: QueueUri) -> UpstreamQueue:
        opened = self.opened[uri.canonical] = self._by_id[self._next_id] = UpstreamQueue(
            uri, self._next_id, self._user.operations.reopen_retry_interval_ms / 1000)
        opened.upstream = self._user.upstream_of(uri.canonical)
        self._next_id += 1
        return opened

    def _stream(self, opened: UpstreamQueue, app_id: str) -> AppStream:
        """The stream of an app; a new one joins in what there is of an upstream."""
        stream = opened.stream(app_id)
        if stream is None:
            stream = opened.make_stream(app_id)
            if opened.upstream is not None:
                self._step(opened, stream, Up(opened.upstream.generation))
        return stream

    def _open_answered(self, opened: UpstreamQueue, answer: Callable[[Queue | Refused], None], value: object) -> None:
        if isinstance(value, OpenQueueResponse):
            answer(opened.relay or self._make(opened, value))
        elif isinstance(value, Queue):  # it is led here by now
            answer(value)
            return
        else:
            answer(value if isinstance(value, Refused) else Refused(Category.E_UNKNOWN, "The answer makes no sense"))
        self.settle(opened)

    def _make(self, opened: UpstreamQueue, response: OpenQueueResponse) -> RelayQueue:
        """The upstream has said what kind of queue it is."""
        domain = self._user.domain_of(opened.uri, response)
        queue = opened.relay = RelayQueue(opened.name, opened.uri.queue, domain, self._host, self)
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
        """Ask the upstream for what all consumers of an app have asked for, if that is something else than before."""
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
        if opened.idle and self._forget(opened) and opened.relay is not None:
            opened.relay.forget_all()

    def _forget(self, opened: UpstreamQueue) -> bool:
        if self._by_id.pop(opened.q_id, None) is None:
            return False
        del self.opened[opened.name]
        return True

    def take(self, uri: str) -> tuple[RelayQueue | None, list[OpenAsked]]:
        """This node leads a queue now: what clients have of it, and opens that wait."""
        opened = self.opened.get(uri)
        if opened is None:
            return None, []
        self.lose([opened])
        self._forget(opened)
        return opened.relay, [each for stream in opened.streams.values() for each in stream.line
                              if isinstance(each, OpenAsked) and each.alive()]

    def add(self, uri: QueueUri, relay: RelayQueue, asked: dict[Substream, list[ConsumerSpec]]) -> None:
        """This node leads a queue no longer, and clients have it open."""
        opened = self._add(uri)
        opened.relay, opened.asked = relay, asked
        upstream, opened.upstream = opened.upstream, None
        for app_id in {DEFAULT_APP_ID, *relay.apps}:
            stream = opened.make_stream(app_id)
            stream.counts, stream.wanted = opened.counts(app_id), opened.merged(app_id)
        if upstream is not None:
            self.use(opened, upstream)

    @property
    def queues(self) -> dict[str, RelayQueue]:
        """The queues that clients here have open, by URI."""
        return {uri: opened.relay for uri, opened in self.opened.items() if opened.relay is not None}

    # -- streams --------------------------------------------------------------------------------------------------------

    def _step(self, opened: UpstreamQueue, stream: AppStream, event: StreamInput) -> None:
        self._perform(opened, stream, opened.step(stream, event, self._host.now))

    def _perform(self, opened: UpstreamQueue, stream: AppStream, outputs: list[StreamOutput]) -> None:
        operations = self._user.operations
        for output in outputs:
            match output:
                case SendOpen():
                    again = stream.state is StreamState.REOPENING
                    self._ask(opened, stream, "openQueue", opened.open_request(stream, output.counts),
                              operations.reopen_timeout_ms if again else operations.open_timeout_ms)
                case SendConfigure():
                    self._ask(opened, stream, "configureStream", opened.configure_request(stream, output.subscriptions),
                              operations.configure_timeout_ms)
                case SendClose():
                    self._ask(opened, stream, "closeQueue", opened.close_request(stream, output.counts),
                              operations.close_timeout_ms)
                case CallBack():
                    output.answer()
                case Reopened():
                    if opened.relay is not None:
                        opened.relay.confirms_open(stream.app_id)
                case Opened():
                    self._stream_is_open(opened, stream)
                case RetryIn():
                    self._put_off(opened, stream, output)
                case _:
                    assert_never(output)
        if opened.relay is not None:
            if not stream.counts.read:
                opened.relay.app_closed(stream.app_id)
            if not stream.counts.write and stream.app_id == DEFAULT_APP_ID:
                opened.relay.posts_closed()

    def _ask(self, opened: UpstreamQueue, stream: AppStream, choice: str, value: object, patience_ms: int) -> None:
        upstream = opened.upstream
        if upstream is None:
            return  # its loss is told in this moment
        number = self._requests.add(f"{choice}Response", partial(self._answered, opened, stream),
                                    self._host.now + patience_ms / 1000 + LATE_S, upstream, opened)
        message, above = ControlMessage(number, choice, value), upstream.peer.session.description
        upstream.peer.send(encode_event(message, Encoding.BER))
        self._host.report.info(f"{self._user.title}: Sending request to '{above}' [request: {bracketed(message)}]")
        if stream.state is StreamState.REOPENING and choice == "openQueue":
            self._host.report.info(f"{self._user.title}: Sent ReopenQueue request {number} to '{above}'")

    def _answered(self, opened: UpstreamQueue, stream: AppStream, value: object, number: int) -> None:
        self._answering = number
        if isinstance(value, OpenQueueResponse):
            self._host.report.info(f"{self._user.title}: received OpenQueueResponse {number} for '{opened.name}'")
        self._step(opened, stream, Answered(value))
        self._look_whether_restored(stream)
        if stream.told == stream.wanted and opened.relay is not None:
            opened.relay.settled(stream.app_id)
        if stream.under_way is None:
            opened.ids.keep(stream.app_id, [each.expression for each in (*stream.told, *stream.wanted)])
        self._forget_if_idle(opened)

    def _stream_is_open(self, opened: UpstreamQueue, stream: AppStream) -> None:
        upstream = opened.upstream
        if opened.relay is None or upstream is None:
            return
        opened.relay.confirms_open(stream.app_id)
        if stream.app_id == DEFAULT_APP_ID and not upstream.stopping:
            opened.relay.posts_open(upstream.generation)
            self._host.report.info(f"{opened.name}: now has an upstream for subQueueId: {stream.sub_id} with "
                                   f"generation count {upstream.generation}.")

    def _put_off(self, opened: UpstreamQueue, stream: AppStream, output: RetryIn) -> None:
        refused, most = output.refused, self._user.operations.reopen_max_attempts
        response = bracketed(ControlMessage(self._answering, "status", Status(refused.category, refused.code,
                                                                              refused.message)))
        again = "re" if stream.state is StreamState.PUT_OFF else ""
        text = (f"{self._user.title}: queue {again}open-request failed. queue: "
                f"'{opened.name}', appId: '{stream.app_id}', error response: {response}. Attempt number was: "
                f"{output.attempts}. Attempting again after {output.seconds * 1000:.0f} milliseconds")
        if output.attempts == most:
            self._host.report.alarm("QUEUE_REOPEN_FAILURE", text)
        else:
            self._host.report.warn(text)
        self._host.timers.at(self._host.now + output.seconds, partial(self._retry, opened, stream, opened.upstream))

    def _retry(self, opened: UpstreamQueue, stream: AppStream, upstream: Upstream | None, now: float) -> None:
        if upstream is opened.upstream and opened.streams.get(stream.app_id) is stream:
            self._step(opened, stream, Retry())

    # -- the nodes above ------------------------------------------------------------------------------------------------

    def use(self, opened: UpstreamQueue, upstream: Upstream) -> None:
        """A queue has another upstream."""
        opened.upstream = upstream
        for stream in list(opened.streams.values()):
            self._step(opened, stream, Up(upstream.generation))
            if stream.state is StreamState.REOPENING:
                self._reopening.add(stream)

    def _look_whether_restored(self, stream: AppStream) -> None:
        """Whether all queues are open again where there is a node above for them."""
        if stream in self._reopening and stream.state is not StreamState.REOPENING:
            self._reopening.remove(stream)
            if not self._reopening:
                self._host.report.info(f"{self._user.title}: state restored")

    def lose(self, queues: Iterable[UpstreamQueue]) -> None:
        """Queues have none any more."""
        outputs, lost = [], [opened for opened in queues if opened.upstream is not None]
        self._requests.forget(lost)
        self._take_confirms_back(lost)
        for opened in lost:
            opened.upstream = None
            opened.waiting.clear()
            for stream in opened.streams.values():
                if opened.relay is not None:
                    opened.relay.posts_stopped()
                    opened.relay.confirms_stopped(stream.app_id)
                self._reopening.discard(stream)
                outputs.append((opened, stream, opened.step(stream, Down(), self._host.now)))
        for opened, stream, found in outputs:  # nothing may be asked before all streams know
            self._perform(opened, stream, found)
        for opened in lost:
            self._forget_if_idle(opened)

    def _take_confirms_back(self, lost: list[UpstreamQueue]) -> None:
        """Nobody knows what became of CONFIRMs that are not known to be safe."""
        relays = {opened.relay for opened in lost}
        for upbound in {opened.upstream.upbound: None for opened in lost if opened.upstream is not None}:
            for relay, app_id, guid in reversed(upbound.take_back(relays)):
                if isinstance(relay, RelayQueue):
                    relay.confirm_again(app_id, guid)

    def receipt(self, peer: PeerSession, count: int) -> None:
        """A node above has so many CONFIRMs safe."""
        if peer.upbound is not None:
            peer.upbound.receipt(count)

    def stop_posting(self, upstream: Upstream) -> None:
        """A node above will go: PUTs wait for the next one, CONFIRMs still go to this one."""
        upstream.stopping = True
        for opened in self.opened.values():
            if opened.upstream is upstream and opened.relay is not None:
                self._host.report.info(f"{opened.name}: buffering PUTs with generation count "
                                       f"{upstream.generation} because upstream is stopping.")
                opened.relay.posts_stopped()

    def answered(self, peer: PeerSession, message: ControlMessage) -> bool:
        """A node above has answered; False = to nothing that it was asked."""
        return self._requests.answered(peer, message)

    def acks(self, peer: PeerSession, body: bytes, now: float) -> None:
        """ACKs of a node above. PeerError, with those before it taken."""
        found, error = decode_ack(body, 0, len(body))
        self.acked(peer, found, now)
        if error is not None:
            raise error

    def acked(self, peer: PeerSession, acks: list[AckMessage], now: float) -> None:
        """A node above has answered PUTs."""
        for ack in acks:
            opened = self._by_id.get(ack.queue_id)
            if opened is not None and opened.relay is not None and opened.is_above(peer):
                opened.relay.acked(ack.guid, ack.status, now)

    def pushes(self, peer: PeerSession, body: bytes, now: float) -> None:
        """Messages of a node above. PeerError, with those before it taken."""
        wall = self._host.wall(now)
        try:
            for q_id, guid, payload, flags, compression, schema_id, area, _, _ in walk_pushes(body, 0, len(body)):
                opened = self._by_id.get(q_id)
                if opened is None or opened.relay is None or not opened.is_above(peer):
                    continue  # closed meanwhile: what was on its way goes back above
                (targets, lease, sequence), late = _targets(opened, area), bool(flags & OUT_OF_ORDER)
                if not flags & IMPLICIT_PAYLOAD:
                    message = Message(guid, payload, b"", bool(flags & MESSAGE_PROPERTIES), compression, schema_id, 0, now,
                                      wall)
                    message.lease, message.sequence = lease, sequence
                    opened.relay.pushed(message, targets, late)
                    continue
                stored = self._user.stored(opened.name, guid) if not opened.waiting else None
                if stored is not None:
                    opened.relay.pushed(stored, targets, late)
                else:
                    self._wait(opened, peer, WaitingPush(guid, targets, late, now + RECORD_WAIT_S))
        except MessageError as error:
            raise PeerError(str(error)) from None

    # -- messages whose records are not here yet --------------------------------------------------------------------------

    def _wait(self, opened: UpstreamQueue, peer: PeerSession, push: WaitingPush) -> None:
        self._behind[opened] = None
        opened.waiting.append(push)
        if len(opened.waiting) > RELAY_WAITING_PUSHES_MAX:
            opened.waiting.clear()
            peer.session.close("#PEER_IMPROPER_BEHAVIOR %s: too many messages of queue '%s' without their records (limit: "
                               "%d)", peer.session.description, opened.name, RELAY_WAITING_PUSHES_MAX)

    def look_again(self, now: float) -> None:
        """More records are here."""
        for opened in list(self._behind):
            if self.opened.get(opened.name) is opened:
                self._look_again(opened, now)
            if not opened.waiting or self.opened.get(opened.name) is not opened:
                self._behind.pop(opened, None)

    def _look_again(self, opened: UpstreamQueue, now: float) -> None:
        relay = opened.relay
        while relay is not None and opened.waiting:
            push = opened.waiting[0]
            message = self._user.stored(opened.name, push.guid)
            if message is not None:
                relay.pushed(message, push.targets, push.late)
            elif now < push.deadline:
                return
            else:
                for app_id, _ in push.targets:
                    self.give_back(relay, app_id, [push.guid])
            opened.waiting.popleft()

    # -- queue.relay.Uplink ---------------------------------------------------------------------------------------------

    def put(self, queue: RelayQueue, put: Put) -> None:
        """A PUT goes up."""
        upstream = self.opened[queue.uri].upstream
        if upstream is not None:
            upstream.upbound.put(self.opened[queue.uri].q_id, put.message, not queue.broadcast)
            upstream.peer.session.flush()

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A CONFIRM goes up."""
        found = self._found(queue, app_id)
        if found is not None:
            upstream, q_id, stream = found
            upbound = upstream.upbound
            upbound.confirm(q_id, guid, stream.sub_id)
            if upstream.tells_receipts:
                upbound.keep(queue, app_id, guid)
            if upbound.confirms > LINGERING_MAX or _hurries(stream):
                upstream.peer.session.flush()
            else:
                upstream.peer.session.flush_soon()

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A REJECT goes up."""
        found = self._found(queue, app_id)
        if found is not None:
            upstream, q_id, stream = found
            upstream.upbound.reject(q_id, guid, stream.sub_id)
            upstream.peer.session.flush()

    def give_back(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        """Messages go back up, if the node there takes them, and knows by now what is wanted here."""
        found = self._found(queue, app_id)
        if found is None or not _takes_back(found[0].peer):
            return False
        upstream, q_id, stream = found
        if stream.state is not StreamState.OPEN or stream.told != stream.wanted:
            return False
        for guid in guids:
            upstream.upbound.give_back(q_id, guid, stream.sub_id)
        upstream.peer.session.flush()
        return True

    def _found(self, queue: RelayQueue, app_id: str) -> tuple[Upstream, int, AppStream] | None:
        """Where an app of a queue is open: the node, the id of the queue there, the stream."""
        opened = self.opened.get(queue.uri)
        stream = opened.stream(app_id) if opened is not None else None
        if opened is None or opened.upstream is None or stream is None:
            return None
        return opened.upstream, opened.q_id, stream

    def payload(self, queue: RelayQueue, message: Message) -> bytes:
        """Of a message that came without."""
        return self._user.payload(queue.uri, message.guid)

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
            upstream, stream = opened.upstream, self._stream(opened, DEFAULT_APP_ID)
            ready = stream.state is StreamState.OPEN and upstream is not None and not upstream.stopping
            queue.post_again(upstream.generation if ready and upstream is not None else 0)

    @property
    def unanswered(self) -> int:
        """How many PUTs wait for an answer."""
        return sum(len(queue.pending) for queue in self.queues.values())

    # -- time -----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Once a second: what has waited too long."""
        for opened in list(self.opened.values()):
            if opened.relay is not None:
                opened.relay.expire(now)
            if opened.waiting:
                self._look_again(opened, now)
            for stream in opened.streams.values():
                stream.forget_gone()
            self._forget_if_idle(opened)
        for asked in self._requests.overdue(now):
            session = asked.upstream.peer.session
            session.close("#PEER_TIMEOUT %s: %s: no %s in time", self._user.title, session.description, asked.expected)


def _hurries(stream: AppStream) -> bool:
    """Whether its consumers may wait for each CONFIRM."""
    for spec in stream.told:
        if spec.max_messages < _WINDOW or spec.max_bytes < _WINDOW_BYTES:
            return True
    return False


def _takes_back(peer: PeerSession) -> bool:
    return RETURNED_MESSAGES in peer.session.features.get(RELAY_EXTENSION, ())


def _targets(opened: UpstreamQueue, area: bytes) -> tuple[list[tuple[str, int | None]], int, int]:
    """The apps that a PUSH is for, each with the delivery attempts that are left; lease and sequence number of where the
    message is stored, 0 where that is not told."""
    found: list[tuple[str, int | None]] = []
    apps, lease, sequence = opened.ids.apps, 0, 0
    only = options.only_info(area)
    if only is not None:
        number, attempts = only
        return [(apps.get(number, "" if number else DEFAULT_APP_ID), attempts)], 0, 0
    for option in options.decode(area):
        if isinstance(option, options.SubQueueInfos):
            found += [(apps.get(item.id, DEFAULT_APP_ID if not item.id else ""), item.attempts) for item in option.items]
            lease, sequence = option.items[0].lease, option.items[0].sequence
        elif isinstance(option, options.SubQueueIds):
            found += [(apps.get(each, DEFAULT_APP_ID if not each else ""), None) for each in option.ids]
    return found or [(DEFAULT_APP_ID, None)], lease, sequence


def _nobody_waits() -> None:
    """Clients are gone already."""
