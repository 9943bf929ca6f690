"""Queues that this node has open at upstream nodes: ids there, streams, what consumers here have asked for; and requests
about them that are not answered yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from bmqtwist.cluster.streams import AppStream, Counts, StreamInput, StreamOutput, Subscriptions
from bmqtwist.config.clusters import QueueOperations
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, QueueUri
from bmqtwist.link.extensions import CONFIRM_RECEIPTS, RELAY_EXTENSION
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.upbound import Upbound
from bmqtwist.machine import TransitionLog
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.merge import SubscriptionIds, merge
from bmqtwist.queue.queue import FLAG_READ, FLAG_WRITE, ConsumerSpec, Substream
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.storage.message import Message
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.schema import (
    CloseQueue,
    ConfigureStream,
    ConsumerInfo,
    Expression,
    ExpressionVersion,
    OpenQueue,
    OpenQueueResponse,
    QueueHandleParameters,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)


class Upstream:
    """A node above, as it was chosen once: what is chosen later is another object. `generation`: of the choice, or the
    lease of the primary. `stopping`: it has said that it will go; `tells_receipts`: it says which CONFIRMs are safe."""

    __slots__ = ("peer", "upbound", "generation", "stopping", "tells_receipts")

    def __init__(self, peer: PeerSession, upbound: Upbound, generation: int) -> None:
        self.peer, self.upbound, self.generation, self.stopping = peer, upbound, generation, False
        self.tells_receipts = CONFIRM_RECEIPTS in peer.session.remote.features.get(RELAY_EXTENSION, ())


@dataclass(frozen=True, slots=True)
class WaitingPush:
    """A PUSH whose record is not here yet: for which apps, each with the attempts left. `deadline`: seconds, monotonic."""

    guid: bytes
    targets: list[tuple[str, int | None]]
    late: bool
    deadline: float


class UpstreamQueue:
    """`q_id`: of the queue at the upstream. `relay`: the queue itself, once an open was answered. `retry_s`: as of
    `AppStream`."""

    def __init__(self, uri: QueueUri, q_id: int, retry_s: float) -> None:
        self.uri, self.q_id, self._retry_s = uri, q_id, retry_s
        self.name = uri.canonical
        self.relay: RelayQueue | None = None
        self.upstream: Upstream | None = None
        self.waiting: deque[WaitingPush] = deque()  # in order
        self.streams: dict[str, AppStream] = {}  # by app
        self.ids = SubscriptionIds()
        self.requested: dict[Substream, list[ConsumerSpec]] = {}  # what each consumer has asked for last
        self.story = TransitionLog()
        self._next_sub_id = 1

    def step(self, stream: AppStream, event: StreamInput, now: float) -> list[StreamOutput]:
        """One input of a stream."""
        before = stream.state
        outputs = stream.step(event)
        if stream.state is not before:
            kind = type(event).__name__
            self.story.note(now, before.name, stream.state.name, f"{kind}, appId '{stream.app_id}'", kind)
        return outputs

    def is_above(self, peer: PeerSession) -> bool:
        """Whether what a node says about the queue counts."""
        return self.upstream is not None and self.upstream.peer is peer

    def make_stream(self, app_id: str) -> AppStream:
        """The default app has 0; other ids are given once."""
        sub_id = 0
        if app_id != DEFAULT_APP_ID:
            sub_id, self._next_sub_id = self._next_sub_id, self._next_sub_id + 1
        stream = self.streams[app_id] = AppStream(app_id, sub_id, self._retry_s)
        return stream

    @property
    def idle(self) -> bool:
        """Whether nobody has it open, or is about to."""
        return all(stream.idle for stream in self.streams.values()) and (self.relay is None or not self.relay.handles)

    def counts(self, app_id: str) -> Counts:
        """What clients here have open."""
        relay = self.relay
        if relay is None:
            return Counts()
        app = relay.apps.get(app_id)
        return Counts(app.consumers() if app is not None else 0, relay.writers() if app_id == DEFAULT_APP_ID else 0)

    def merged(self, app_id: str) -> Subscriptions:
        """What all consumers of an app have asked for, as one."""
        app = self.relay.apps.get(app_id) if self.relay is not None else None
        if app is None:
            return ()
        return merge(app_id, [spec for substream in app.substreams for spec in self.requested.get(substream, ())], self.ids)

    def forget_substreams(self) -> None:
        """Consumers that are gone have asked for nothing."""
        for substream in [each for each in self.requested if each not in each.app.substreams]:
            del self.requested[substream]

    def surplus(self, stream: AppStream) -> Counts:
        """What the upstream has beyond what clients here have."""
        return stream.held - self.counts(stream.app_id)

    # -- what is said to the upstream -----------------------------------------------------------------------------------

    def _parameters(self, stream: AppStream, counts: Counts) -> QueueHandleParameters:
        named = stream.app_id != DEFAULT_APP_ID
        uri = f"{self.uri.canonical}?id={stream.app_id}" if named else self.uri.canonical
        return QueueHandleParameters(
            uri, self.q_id, SubQueueIdInfo(stream.sub_id, stream.app_id) if named else None,
            (FLAG_READ if counts.read else 0) | (FLAG_WRITE if counts.write else 0), counts.read, counts.write, 0)

    def open_request(self, stream: AppStream, counts: Counts) -> OpenQueue:
        """Count so many more of an app."""
        return OpenQueue(self._parameters(stream, counts))

    def close_request(self, stream: AppStream, close: Counts) -> CloseQueue:
        """Count so many less. It is never final: the other streams of the queue stay."""
        return CloseQueue(self._parameters(stream, close), False)

    def configure_request(self, stream: AppStream, subscriptions: Subscriptions) -> ConfigureStream:
        """Consume an app so."""
        return ConfigureStream(self.q_id, StreamParameters(stream.app_id, [
            Subscription(each.s_id, Expression(ExpressionVersion(each.expression_version), each.expression), [
                ConsumerInfo(each.max_messages, each.max_bytes, each.priority, each.count)]) for each in subscriptions]))


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


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """One request about a queue: what comes back from `upstream` is given to `answer`, with the number of the request.
    `deadline`: seconds, monotonic."""

    expected: str
    answer: Callable[[object, int], None]
    deadline: float
    upstream: Upstream
    queue: UpstreamQueue


class UpstreamRequests:
    """Those of all connections. One that is not answered in time means that the other side is not to be relied on."""

    def __init__(self) -> None:
        self._next = 1
        self._pending: dict[int, PendingRequest] = {}

    def add(self, expected: str, answer: Callable[[object, int], None], deadline: float, upstream: Upstream,
            queue: UpstreamQueue) -> int:
        """A request is made; its number."""
        number, self._next = self._next, self._next + 1
        self._pending[number] = PendingRequest(expected, answer, deadline, upstream, queue)
        return number

    def answered(self, peer: PeerSession, message: ControlMessage) -> bool:
        """An answer has come; False = to nothing that was asked there. Unknown numbers are of an earlier upstream."""
        number = message.r_id or 0
        asked = self._pending.get(number)
        if asked is None or asked.upstream.peer is not peer or message.choice not in (asked.expected, "status"):
            return False
        del self._pending[number]
        value = message.value
        if message.choice == "status":
            value = Refused(value.category or Category.E_UNKNOWN, value.message, value.code)
        asked.answer(value, number)
        return True

    def overdue(self, now: float) -> list[PendingRequest]:
        """What should have been answered by now, one for each upstream."""
        return list({id(each.upstream): each for each in self._pending.values() if each.deadline <= now}.values())

    def forget(self, queues: Collection[UpstreamQueue]) -> None:
        """The upstream of these queues is gone."""
        gone = frozenset(queues)
        for number in [number for number, each in self._pending.items() if each.queue in gone]:
            del self._pending[number]
