"""Queues that this node has open at upstream nodes: queue ids, streams, subscriptions of consumers, and pending requests.

Used by `relays.py`, which sends the requests, and by `messages.py`. Output of a connection is collected in
`link/upstream_batch.py`; rules of requests are in `cluster/streams.py`.
"""

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
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.upstream_batch import UpstreamBatch
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
    """An upstream node during one generation. `generation`: at a proxy a number that grows with each choice of an upstream
    node, at a member the primary's lease; `lease`: the primary's, 0 at a proxy; `stopping`: it has sent a stop request;
    `sends_receipts`: the node reports committed CONFIRMs."""

    __slots__ = ("peer", "batch", "generation", "lease", "stopping", "sends_receipts")

    def __init__(self, peer: PeerSession, batch: UpstreamBatch, generation: int) -> None:
        self.peer, self.batch, self.generation, self.stopping = peer, batch, generation, False
        self.lease = generation if peer.role is PeerRole.MEMBER else 0
        self.sends_receipts = CONFIRM_RECEIPTS in peer.session.remote.features.get(RELAY_EXTENSION, ())


@dataclass(frozen=True, slots=True)
class WaitingPush:
    """A PUSH that waits for its record: apps with their remaining attempts; `late`: a redelivery."""

    guid: bytes
    targets: list[tuple[str, int | None]]
    late: bool


class QueueOwner(Protocol):
    """The relays of a queue's cluster."""

    def configure_app(self, opened: UpstreamQueue, app_id: str,
                      answer: Callable[[Refused | None], None] | None = None) -> None:
        """Send the merged subscriptions of an app's consumers to the upstream."""

    def on_stream_open(self, opened: UpstreamQueue, stream: AppStream) -> None:
        """Send waiting CONFIRMs of an app, and with the default app waiting PUTs: its stream is open."""


class Drain(Protocol):
    """The drain of a queue at a cluster that its domain has left (`moves.py`)."""

    @property
    def apps(self) -> Collection[str]:
        """Apps that still read this cluster."""

    @property
    def flushing(self) -> bool:
        """True while PUTs that were sent to this cluster have no ACK."""

    @property
    def ended(self) -> bool:
        """True once nothing is read from this cluster any more."""

    def awaits(self, guid: bytes) -> bool:
        """Return whether the ACK of this PUT is expected from this cluster."""

    def on_answered(self, guid: bytes) -> None:
        """Handle the ACK or NACK of a PUT."""

    def on_upstream_lost(self) -> None:
        """Handle the loss of the upstream node."""

    def note_pushes(self, targets: Collection[tuple[str, int | None]]) -> None:
        """Note that apps received a message."""


class UpstreamQueue:
    """A queue at its upstream. `q_id`: its id there; `relay`: the queue for clients, once an open was answered; `retry_s`:
    the retry interval of `AppStream`.

    `sources`: where the queue is read, the queue itself unless its domain was moved between clusters: then the drains at
    the clusters that it has left, oldest first, and the queue at its present cluster. `drain`: set at a cluster it has left;
    `is_new`: the present cluster has not answered an open since the move.
    """

    def __init__(self, uri: QueueUri, q_id: int, relays: QueueOwner, retry_s: float) -> None:
        self.uri, self.q_id, self.relays, self._retry_s = uri, q_id, relays, retry_s
        self.name = uri.canonical
        self.relay: RelayQueue | None = None
        self.sources: list[UpstreamQueue] = [self]
        self.drain: Drain | None = None
        self.is_new = False
        self.upstream: Upstream | None = None
        self.waiting_pushes: deque[WaitingPush] = deque()  # in order
        self.waiting_since = 0.0  # time of the first of them, or of the last record that came for one; seconds, monotonic
        self.streams: dict[str, AppStream] = {}  # by app
        self.ids = SubscriptionIds()
        self.requested: dict[Substream, list[ConsumerSpec]] = {}  # last subscriptions of each consumer
        self.transition_log = TransitionLog()
        self._next_sub_id = 1

    def step(self, stream: AppStream, event: StreamInput, now: float) -> list[StreamOutput]:
        """Pass an input to a stream and note its transition."""
        before = stream.state
        outputs = stream.step(event)
        if stream.state is not before:
            kind = type(event).__name__
            self.transition_log.record(now, before.name, stream.state.name, f"{kind}, appId '{stream.app_id}'", kind)
        return outputs

    def is_upstream(self, peer: PeerSession) -> bool:
        """Return whether a peer is the queue's present upstream."""
        return self.upstream is not None and self.upstream.peer is peer

    def make_stream(self, app_id: str) -> AppStream:
        """Create the stream of an app. Its subqueue id is 0 for the default app, else never used before."""
        sub_id = 0
        if app_id != DEFAULT_APP_ID:
            sub_id, self._next_sub_id = self._next_sub_id, self._next_sub_id + 1
        stream = self.streams[app_id] = AppStream(app_id, sub_id, self._retry_s)
        return stream

    @property
    def is_idle(self) -> bool:
        """True if no client has the queue open, no request is pending, and no other cluster is drained."""
        if not all(stream.is_idle for stream in self.streams.values()):
            return False
        if self.drain is not None:
            return self.drain.ended
        return len(self.sources) == 1 and (self.relay is None or not self.relay.handles)

    def source_of(self, app_id: str) -> UpstreamQueue:
        """Return where an app reads: the oldest cluster that is not drained for it yet."""
        return next((each for each in self.sources if each.drain is None or app_id in each.drain.apps), self.sources[-1])

    def reads(self, app_id: str) -> bool:
        """Return whether an app reads here. A broadcast queue, which stores nothing, reads all its sources."""
        if self.relay is not None and self.relay.broadcast:
            return self.drain is None or app_id in self.drain.apps
        return self.source_of(app_id) is self

    @property
    def takes_posts(self) -> bool:
        """True unless the queue's PUTs go to another cluster, or wait for ACKs of the cluster that it has left."""
        return self.drain is None and not any(each.drain is not None and each.drain.flushing for each in self.sources)

    def counts(self, app_id: str) -> Counts:
        """Return the counts that this node's clients have open; at a drained cluster only those still in use."""
        relay, drain = self.relay, self.drain
        if relay is None:
            return Counts()
        app = relay.apps.get(app_id)
        reads = app.reader_count() if app is not None else 0
        writes = relay.writer_count() if app_id == DEFAULT_APP_ID else 0
        if drain is not None:
            return Counts(reads if app_id in drain.apps else 0, writes if drain.flushing else 0)
        return Counts(reads, writes)

    def merged_subscriptions(self, app_id: str) -> Subscriptions:
        """Return the merged subscriptions of all consumers of an app that reads here."""
        app = self.relay.apps.get(app_id) if self.relay is not None and self.reads(app_id) else None
        if app is None:
            return ()
        return merge(app_id, [spec for substream in app.substreams for spec in self.requested.get(substream, ())], self.ids)

    def drop_gone_consumers(self) -> None:
        """Remove the subscriptions of consumers that are gone."""
        for substream in [each for each in self.requested if each not in each.app.substreams]:
            del self.requested[substream]

    def surplus(self, stream: AppStream) -> Counts:
        """Return the counts that the upstream holds beyond those of this node's clients."""
        return stream.accepted_counts - self.counts(stream.app_id)

    # -- requests to the upstream ---------------------------------------------------------------------------------------

    def _parameters(self, stream: AppStream, counts: Counts) -> QueueHandleParameters:
        named = stream.app_id != DEFAULT_APP_ID
        uri = f"{self.uri.canonical}?id={stream.app_id}" if named else self.uri.canonical
        return QueueHandleParameters(
            uri, self.q_id, SubQueueIdInfo(stream.sub_id, stream.app_id) if named else None,
            (FLAG_READ if counts.read else 0) | (FLAG_WRITE if counts.write else 0), counts.read, counts.write, 0)

    def open_request(self, stream: AppStream, counts: Counts) -> OpenQueue:
        """Return a request that adds counts of an app."""
        return OpenQueue(self._parameters(stream, counts))

    def close_request(self, stream: AppStream, close: Counts) -> CloseQueue:
        """Return a request that removes counts; it is never final, since other streams of the queue stay open."""
        return CloseQueue(self._parameters(stream, close), False)

    def configure_request(self, stream: AppStream, subscriptions: Subscriptions) -> ConfigureStream:
        """Return a request that sets the subscriptions of an app."""
        return ConfigureStream(self.q_id, StreamParameters(stream.app_id, [
            Subscription(each.s_id, Expression(ExpressionVersion(each.expression_version), each.expression), [
                ConsumerInfo(each.max_messages, each.max_bytes, each.priority, each.count)]) for each in subscriptions]))


class RelayUser(Protocol):
    """The member or proxy that owns relays. `title`: the cluster's name in logs."""

    name: str
    title: str
    operations: QueueOperations

    def upstream_of(self, uri: str) -> Upstream | None:
        """Return the upstream of a queue."""

    def domain_of(self, uri: QueueUri, response: OpenQueueResponse) -> DomainRules:
        """Return the domain of a queue that was opened at its upstream."""

    def find_stored(self, uri: str, guid: bytes) -> Message | None:
        """Return the message of a PUSH without payload; None if its record has not come yet. Raises PeerError at a proxy."""

    def payload(self, uri: str, guid: bytes) -> bytes:
        """Return the payload of a message delivered while this node was primary; raises PartitionUnavailable."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request about a queue: `answer` receives the response of `upstream` and the request's number. `deadline`: seconds,
    monotonic."""

    expected: str
    answer: Callable[[object, int], None]
    deadline: float
    upstream: Upstream
    queue: UpstreamQueue


class UpstreamRequests:
    """Pending requests of all connections. A request without a response in time ends its connection."""

    def __init__(self) -> None:
        self._next = 1
        self._pending: dict[int, PendingRequest] = {}

    def add(self, expected: str, answer: Callable[[object, int], None], deadline: float, upstream: Upstream,
            queue: UpstreamQueue) -> int:
        """Add a request; return its number."""
        number, self._next = self._next, self._next + 1
        self._pending[number] = PendingRequest(expected, answer, deadline, upstream, queue)
        return number

    def on_response(self, peer: PeerSession, message: ControlMessage, node: str) -> bool:
        """Handle a response; False if it matches no request, such as one of an earlier upstream. `node`: its
        sender."""
        number = message.r_id or 0
        asked = self._pending.get(number)
        if asked is None or asked.upstream.peer is not peer or message.choice not in (asked.expected, "status"):
            return False
        del self._pending[number]
        value = message.value
        if message.choice == "status":
            value = Refused(value.category or Category.E_UNKNOWN, value.message, value.code, node)
        asked.answer(value, number)
        return True

    def overdue(self, now: float) -> list[PendingRequest]:
        """Return overdue requests, one for each upstream."""
        return list({id(each.upstream): each for each in self._pending.values() if each.deadline <= now}.values())

    def drop_of(self, queues: Collection[UpstreamQueue]) -> None:
        """Remove the requests of queues that were detached."""
        gone = frozenset(queues)
        for number in [number for number, each in self._pending.items() if each.queue in gone]:
            del self._pending[number]
