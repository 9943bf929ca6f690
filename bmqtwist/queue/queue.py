"""Queue state common to primaries and relays: handles, apps, subscriptions, PUTs.

    storage/state.py StoredQueue    stored messages and the apps that need them, at every replica; changed by records only
    queue/root.py    RootQueue      the queue at its primary: storage, deduplication, quotas, delivery
    queue/relay.py   RelayQueue     the queue at other nodes: forwards PUTs and CONFIRMs upstream
    Queue (here)                    base class of both: handles, apps, windows of unconfirmed messages

    Queue --handles--> Handle --substreams--> Substream --subscriptions--> Subscription
      |                (one client, one id)   (one consumer of one App)    (one expression with its window)
      +--apps--> App --router--> Router --groups--> Group of Subscriptions

Routing of a message to a consumer (`Router`), per app of a queue:
- subscriptions with the same expression text form a group; only its subscriptions with the highest priority consume;
- groups are examined from the highest priority down; in the first group that matches, the next subscription with room
  receives the message; if that group is full, other matching groups of the *same* priority are examined, lower
  priorities never (no spill-over);
- PUT_ASIDE: no group matched, or the matching groups are full while another examined group has room: the message is put
  aside, and delivery continues with the next message;
- STOP: every examined group is full, or there is no group: the app stops before this message.

Sessions (`link/puts.py`, `link/client.py`) call `post` and `confirm`; `handles.py` opens and configures handles.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

from bmqtwist.compiled import mypyc_attr
from bmqtwist.errors import PeerError
from bmqtwist.queue.counters import AckLatency, AppStats, QueueStats
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.expression import CompiledExpression
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.redelivery_list import RedeliveryList
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.report import LineLimiter, Report
from bmqtwist.steps import Steps, at_once
from bmqtwist.storage.gate import Copies, Gated
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable, PayloadDamaged
from bmqtwist.storage.store import BEGINNING_BYTES
from bmqtwist.wire import properties

FLAG_READ: Final = 2
FLAG_WRITE: Final = 4
FLAG_ACK: Final = 8
PRIORITY_INVALID = -(2**31)
PUT_ASIDE = "aside"
STOP = "stop"
_NO_COPIES: Final = Copies.NONE  # a member of an enumeration is slow to look up


class Client(Protocol):
    """A session that uses queues."""

    description: str
    window: DeliveryWindow
    is_broker: bool  # a downstream broker
    resumes_at_once: bool  # a downstream broker whose full subscriptions receive a message for each CONFIRM
    is_member: bool  # a downstream broker that is a replica of the queue's partition

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None: ...

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None: ...


class MemberClient(Client, Protocol):
    """A client with `is_member`, which accepts early acknowledgements if it `can_store` the records."""

    can_store: bool

    def ack_early(self, handle: Handle, message: Message, partition_id: int) -> None:
        """Send an early acknowledgement, which the member releases once its own copy of the record is durable."""


class BrokerClient(Client, Protocol):
    """A client with `is_broker`."""

    def advise_quota(self, handle: Handle, ample: bool) -> None:
        """Report whether the downstream broker may delay the CONFIRMs of a handle."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """One consumer of one subscription in a configure request."""

    s_id: int
    expression_version: int
    expression: str
    priority: int
    count: int
    max_messages: int
    max_bytes: int
    matcher: CompiledExpression | None = None  # the compiled expression, if compiled before


class ConsumerSubscription:
    """A consumer's subscription, with counts of its unconfirmed messages. `delivered`: number of
    messages delivered since it was configured."""

    __slots__ = ("substream", "spec", "s_id", "matcher", "text", "priority", "count", "max_messages", "max_bytes",
                 "low_messages", "low_bytes", "messages", "bytes", "delivered", "full", "turns", "window")

    def __init__(self, substream: Substream, spec: ConsumerSpec, matcher: CompiledExpression | None) -> None:
        self.spec, self.window = spec, substream.handle.client.window
        self.substream, self.s_id, self.matcher = substream, spec.s_id, matcher
        self.text = "" if matcher is None else matcher.text
        self.priority, self.count = spec.priority, max(1, spec.count)
        self._set_limits(spec.max_messages, spec.max_bytes)
        self.messages = self.bytes = self.turns = 0
        self.delivered = 0
        self.full = spec.max_messages <= 0 or spec.max_bytes <= 0

    def _set_limits(self, max_messages: int, max_bytes: int) -> None:
        """Set the limits of unconfirmed messages. A full subscription resumes at 80 % of both limits; one of a downstream
        broker of this kind as soon as it is below them, because it applies the 80 % to each of its consumers. In an
        original proxy, messages for a full subscription would remain if its consumer has a second one."""
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.low_messages, self.low_bytes = max_messages - 1, max_bytes - 1
        if not self.substream.handle.client.resumes_at_once:
            self.low_messages = min(-(-max_messages * 4 // 5), self.low_messages)  # ceil(0.8 M), yet below full
            self.low_bytes = min(-(-max_bytes * 4 // 5), self.low_bytes)

    def copy_parameters(self, new: ConsumerSubscription) -> None:
        """Copy the parameters of a new subscription; the counts of unconfirmed messages stay."""
        self.spec, self.s_id, self.matcher, self.text = new.spec, new.s_id, new.matcher, new.text
        self.priority, self.count = new.priority, new.count
        self._set_limits(new.max_messages, new.max_bytes)
        self.turns = self.delivered = 0

    def set_unconfirmed(self, messages: int, size: int) -> None:
        """Set the counts of unconfirmed messages and bytes."""
        self.messages, self.bytes = messages, size
        self.full = messages >= self.max_messages or size >= self.max_bytes


class Group:
    """The highest-priority subscriptions of one expression text."""

    __slots__ = ("matcher", "text", "priority", "members")

    def __init__(self, first: ConsumerSubscription) -> None:
        self.matcher, self.text, self.priority = first.matcher, first.text, first.priority
        self.members: deque[ConsumerSubscription] = deque((first,))

    def has_room(self) -> bool:
        """True if a subscription of the group can receive a message now."""
        return any(not member.full and member.window.open for member in self.members)

    def next_with_room(self, excluded: frozenset[Substream] | None = None) -> ConsumerSubscription | None:
        """Return the next subscription in weighted round-robin order, without full and excluded ones; None = all full."""
        members = self.members
        for _ in range(len(members)):
            head = members[0]
            if not head.full and head.window.open and (excluded is None or head.substream not in excluded):
                head.turns += 1
                if head.turns >= head.count:
                    head.turns = 0
                    members.rotate(-1)
                return head
            head.turns = 0
            members.rotate(-1)
        return None


class Router:
    """Routing table of one app, rebuilt after a consumer opens, configures or closes. `at_members`: the app has consumers,
    and all of them are clients of other members, which have copies of the records. `merges`: the handle of a consumer
    merges PUSHes of this app with those of other apps."""

    __slots__ = ("groups", "only_group", "subscriptions", "at_members", "merges")

    def __init__(self, subscriptions: Iterable[ConsumerSubscription] = ()) -> None:
        self.subscriptions = list(subscriptions)
        self.at_members = bool(self.subscriptions) and all(
            subscription.substream.handle.client.is_member for subscription in self.subscriptions)
        self.merges = any(subscription.substream.handle.merges for subscription in self.subscriptions)
        groups: dict[str, Group] = {}
        for subscription in self.subscriptions:
            group = groups.get(subscription.text)
            if group is None or subscription.priority > group.priority:
                groups[subscription.text] = Group(subscription)
            elif subscription.priority == group.priority:
                group.members.append(subscription)
        self.groups = sorted(groups.values(), key=lambda group: (-group.priority, group.text))
        first = self.groups[0] if self.groups else None
        self.only_group = first if len(self.groups) == 1 and first is not None and first.matcher is None else None

    def choose(self, values: Mapping[str, object],
               excluded: frozenset[Substream] | None = None) -> ConsumerSubscription | str:
        """Return the subscription that receives a message with these property values, or PUT_ASIDE, or STOP. `excluded`
        substreams count as full: a redelivery to them is delayed."""
        matched: int | None = None
        room = False
        for group in self.groups:
            if matched is not None and group.priority < matched:
                break
            if group.matcher is None or group.matcher.matches(values):
                chosen = group.next_with_room(excluded)
                if chosen is not None:
                    return chosen
                matched = group.priority
            elif not room:
                room = group.has_room()
        return PUT_ASIDE if room else STOP

    def has_room(self) -> bool:
        """True if a group can receive a message now."""
        return any(group.has_room() for group in self.groups)

    def eligible_subscriptions(self, values: Mapping[str, object]) -> list[ConsumerSubscription]:
        """Return the first matching subscription of each handle (broadcast); those with a limit of 0 are left out."""
        found: dict[object, ConsumerSubscription] = {}
        for group in self.groups:
            if group.matcher is None or group.matcher.matches(values):
                for member in group.members:
                    if member.max_messages > 0 and member.max_bytes > 0:
                        found.setdefault(member.substream.handle, member)
        return list(found.values())


Unconfirmed = tuple[Message, ConsumerSubscription, float]  # message, subscription that it counts against, time of its PUSH


class Substream:
    """The part of a handle that belongs to one app, identified by its subId: a consumer."""

    __slots__ = ("handle", "app", "sub_id", "app_id", "read_count", "subscriptions", "counted_subscriptions", "unconfirmed",
                 "redelivered")

    def __init__(self, handle: Handle, app: App, sub_id: int, app_id: str) -> None:
        self.handle, self.app, self.sub_id, self.app_id = handle, app, sub_id, app_id
        self.read_count = 0
        self.subscriptions: list[ConsumerSubscription] = []
        self.counted_subscriptions: list[ConsumerSubscription] = []  # with counts; kept when `subscriptions` is empty
        self.unconfirmed: dict[bytes, Unconfirmed] = {}  # by GUID
        self.redelivered: tuple[bytes, float] | None = None  # GUID and time of the last redelivery


class Handle:
    """A client's use of a queue, identified by a queue id. `closing`: after its final close it receives no ACK or PUSH.
    `merges`: one PUSH may name several substreams."""

    __slots__ = ("client", "queue", "q_id", "flags", "read_count", "write_count", "substreams", "closing", "merges",
                 "acks_failed_at", "delays_confirms", "pushed_order")

    def __init__(self, client: Client, queue: Queue, q_id: int) -> None:
        self.client, self.queue, self.q_id = client, queue, q_id
        self.flags = self.read_count = self.write_count = 0
        self.substreams: dict[int, Substream] = {}
        self.closing = self.merges = False
        self.delays_confirms = False  # the downstream broker may delay CONFIRMs
        self.pushed_order = -1  # arrival order of the newest message that an original proxy has received for any app
        self.acks_failed_at = float("-inf")  # time of the last log record of a NACK, monotonic seconds

    def resume(self) -> None:
        """Resume delivery after the client's delivery window has opened."""
        for substream in self.substreams.values():
            if substream.subscriptions:
                substream.app.recheck_waiting = True
                self.queue.request_delivery()


MessageList = deque[Message] | dict[bytes, Message]
_NO_CONSUMERS = Router()  # frees the subscriptions of closed consumers


class App:
    """State of one app of a queue: its undelivered messages and its consumers. A priority or broadcast queue has one app,
    `__default`.

    Each pending message of an app is in exactly one list: `new_messages` (not examined yet), `put_aside` (no subscription
    matched), `waiting` (the matching subscriptions were full), `rechecks` (messages of the last two to be examined again),
    `redelivery` (returned by a lost consumer), or `unconfirmed` of a substream. `new_messages` and `rechecks` may also
    contain messages that were removed from the queue; delivery skips them.
    """

    __slots__ = ("app_id", "key", "ordinal", "bit", "first_order", "registered", "alarmed", "condition", "substreams",
                 "router", "router_outdated", "new_messages", "rechecks", "put_aside", "waiting", "redelivery", "stopped_at",
                 "recheck_put_aside", "recheck_waiting", "stats", "pending_returns", "purged_before", "lease", "sequence",
                 "_unsorted")

    def __init__(self, app_id: str, key: bytes, ordinal: int, first_order: int = 0) -> None:
        self.app_id = app_id
        self.condition: CompiledExpression | None = None  # application subscription: the app receives matching messages only
        self.substreams: list[Substream] = []
        self.router, self.router_outdated = _NO_CONSUMERS, False  # outdated: consumers have changed since it was built
        self.alarmed = False  # the unregistered-appId alarm was raised for the present consumers
        self.stats = AppStats()
        self.pending_returns = 0  # lost consumers whose messages are returned in slices; nothing is delivered meanwhile
        self.purged_before = 0  # messages with a lower arrival order are purged
        self.lease = self.sequence = 0  # PSN of the newest message first delivered here; 0 = unknown
        self.register(key, ordinal, first_order)

    def register(self, key: bytes, ordinal: int, first_order: int) -> None:
        """Reset as an app that receives messages from arrival order `first_order` on; `ordinal` -1 = unregistered."""
        self.key, self.ordinal, self.first_order = key, ordinal, first_order
        self.bit = 1 << ordinal if ordinal >= 0 else 0
        self.registered = ordinal >= 0
        self.new_messages: deque[Message] = deque()
        self.rechecks: deque[Message] = deque()
        self.put_aside: dict[bytes, Message] = {}
        self.waiting: dict[bytes, Message] = {}
        self.redelivery = RedeliveryList()
        self.recheck_put_aside = self.recheck_waiting = self._unsorted = False
        self.stopped_at = b""  # GUID of the message before which delivery stopped, as logged

    def unregister(self) -> list[MessageList]:
        """Unregister; consumers stay connected and receive nothing. Return the message lists of the app."""
        places = self._message_lists()
        self.register(b"", -1, 0)
        return places

    def purge(self, order: int) -> list[MessageList]:
        """Drop all messages before this arrival order. Return the message lists of the app."""
        places = self._message_lists()
        self.register(self.key, self.ordinal, self.first_order)
        self.purged_before = order
        return places

    def is_late(self, message: Message) -> bool:
        """True if consumers here received newer messages before: an earlier primary had sent this one to another node."""
        return message.lease > 0 and (message.lease, message.sequence) < (self.lease, self.sequence)

    def inherit_delivered_psn(self, other: App) -> None:
        """Take over the newest delivered PSN of an app whose consumers move to this one."""
        if (self.lease, self.sequence) < (other.lease, other.sequence):
            self.lease, self.sequence = other.lease, other.sequence

    def _message_lists(self) -> list[MessageList]:
        return [self.new_messages, self.rechecks, self.put_aside, self.waiting, self.redelivery]

    def current_router(self) -> Router:
        """Return the router, rebuilt at most once after any number of changes in a turn."""
        if self.router_outdated:
            self.router_outdated = False
            self.router = Router(each for substream in self.substreams for each in substream.subscriptions)
        return self.router

    def invalidate_router(self) -> None:
        """Invalidate the router after a consumer changed, and examine the put-aside list again."""
        self.router, self.router_outdated = _NO_CONSUMERS, True
        self.recheck_put_aside = self.recheck_waiting = bool(self.put_aside or self.waiting or self.rechecks)
        self.stopped_at = b""

    def add_redeliveries(self, messages: list[Message]) -> None:
        """Add messages of a lost consumer to the redelivery list."""
        for message in messages:
            self.redelivery.add(message)

    def add_put_aside(self, message: Message) -> None:
        """Put a message aside that no subscription matches; `sort_put_aside` restores the order."""
        put_aside = self.put_aside
        if put_aside and put_aside[next(reversed(put_aside))].order > message.order:
            self._unsorted = True
        put_aside[message.guid] = message

    def collect_rechecks(self) -> None:
        """Move messages to examine again from `put_aside` and `waiting` to `rechecks`, in order of arrival."""
        found = list(self.rechecks)
        if self.recheck_put_aside:
            found += self.put_aside.values()
            self.put_aside, self._unsorted = {}, False
        if self.recheck_waiting:
            found += self.waiting.values()
            self.waiting = {}
        found.sort(key=_order)
        self.rechecks = deque(found)
        self.recheck_put_aside = self.recheck_waiting = False

    def sort_put_aside(self) -> None:
        """Restore the order of arrival in `put_aside`; called at most once per turn."""
        if self._unsorted:
            self._unsorted = False
            self.put_aside = {kept.guid: kept for kept in sorted(self.put_aside.values(), key=_order)}

    def drop_removed(self, messages: Iterable[Message]) -> None:
        """Drop messages that were removed without a consumer's CONFIRM."""
        for place in (self.put_aside, self.waiting, self.redelivery):
            if place:
                for message in messages:
                    place.pop(message.guid, None)
        self.trim()

    def trim(self) -> None:
        """Drop removed messages from the heads of `new_messages` and `rechecks`; without consumers only this shortens
        them."""
        bit = self.bit
        for place in (self.new_messages, self.rechecks):
            while place and not place[0].pending & bit:
                place.popleft()

    def oldest_undelivered(self) -> list[Message]:
        """Return the oldest undelivered message of each list, oldest first (stuck-queue check)."""
        self.trim()
        self.sort_put_aside()
        heads = [next(iter(place.values())) for place in (self.put_aside, self.waiting) if place]
        oldest = self.redelivery.first()
        heads += [oldest] if oldest is not None else []
        heads += [place[0] for place in (self.new_messages, self.rechecks) if place]
        return sorted(heads, key=_order)

    def put_aside_count(self) -> int:
        """Number of messages that no subscription could receive when they were examined."""
        return len(self.put_aside) + len(self.waiting) + len(self.rechecks)

    def reader_count(self) -> int:
        """Number of readers of the app (sum of read counts)."""
        return sum(substream.read_count for substream in self.substreams)


def _order(message: Message) -> int:
    return message.order


@mypyc_attr(acyclic=True)
class Put(Gated):
    """A PUT between its arrival and its ACK. A primary keeps it at the durability gate until its records are durable or
    committed; a relay keeps it until the primary has answered.

    handle: of the producer; None = no answer is sent. message: the posted message; its `arrived` and `wall` are those of
    the PUT. correlation_id: of a client that creates no GUIDs. wants_ack: the producer requested an ACK. queue: the queue
    that accepted it. stored: deliver the message (false: a duplicate, or no app accepts it). copies: copies at other nodes
    required before the ACK. position: of its newest record, see `storage.gate`. early_apps: bits of the apps that receive
    this and all earlier messages before the ACK. acknowledged_early: an early acknowledgement or delivery was sent; another
    node may know of the commit first.
    """

    __slots__ = ("handle", "message", "correlation_id", "wants_ack", "queue", "stored", "copies", "early_apps",
                 "acknowledged_early")

    queue: Queue

    def __init__(self, handle: Handle | None, message: Message, correlation_id: int, wants_ack: bool) -> None:
        self.handle, self.message, self.correlation_id, self.wants_ack = handle, message, correlation_id, wants_ack
        self.stored = self.acknowledged_early = False
        self.copies = _NO_COPIES
        self.position = self.early_apps = 0

    def answer(self, status: int) -> None:
        """Send the ACK if it was requested; a NACK is always sent."""
        if self.handle is not None and (self.wants_ack or status):
            self.handle.client.ack(self.handle, self.message.guid, self.correlation_id, status)


class QueueContext(Protocol):
    """Services of the broker for queues."""

    report: Report
    ack_latency: AckLatency  # of all queues

    def request_delivery(self, queue: Queue) -> None:
        """Deliver from this queue at the end of the turn."""

    def request_delivery_next_turn(self, queue: Queue) -> None:
        """Continue delivering from this queue in the next turn."""

    def deliver_at(self, when: float, queue: Queue) -> None:
        """Deliver from this queue at `when`, monotonic seconds."""

    def hold_until_written(self, put: Put) -> None:
        """Release a PUT to a queue in memory at the end of the turn."""

    def client_failed(self, client: Client, error: Exception) -> None:
        """Close a client whose session raised, once no delivery is in progress."""


class Queue(ABC):
    """Base of `RootQueue` and `RelayQueue`: handles, apps and consumers of one queue."""

    receiver_count = 1  # number of apps, or of broadcast consumers, that receive a PUT

    def __init__(self, uri: str, name: str, domain: DomainRules, context: QueueContext) -> None:
        self.uri, self.name, self.domain, self.context = uri, name, domain, context
        self.mode, self.in_memory = domain.mode, domain.in_memory
        self.broadcast = domain.mode == QueueMode.BROADCAST
        self.apps: dict[str, App] = {}
        self.active: list[App] = []  # registered apps
        self.handles: dict[Handle, None] = {}
        self.stats = QueueStats(context.ack_latency)
        self.lines = LineLimiter()
        self.stop_lines = LineLimiter(60.0)  # a queue whose consumers are often full stops after every message
        self.delivery_requested = False
        self.disabled = False  # neither accepts nor delivers messages; at a primary, `lifecycle` has the cause
        self.lease = 0  # of the primary, 0 = unknown; messages of lower leases may have been delivered by an earlier primary
        self.idle_since: float | None = None

    # -- different at primaries and relays --------------------------------------------------------------------------

    @abstractmethod
    def post(self, put: Put, now: float, wall: int) -> int:
        """Accept a PUT; 0 = accepted (an ACK follows if requested), else the status of the NACK."""

    @abstractmethod
    def release(self, put: Put, now: float) -> None:
        """Acknowledge a PUT and deliver its message: the durability gate has released it."""

    @abstractmethod
    def undo_post(self, guid: bytes) -> None:
        """Undo the deduplication entry of a `post` that raised before the message was stored."""

    @abstractmethod
    def finish_message(self, app: App, message: Message, wall: int) -> None:
        """Confirm a message for an app."""

    @abstractmethod
    def reject(self, app: App, message: Message, wall: int) -> None:
        """Remove a poison message from an app: no delivery attempt is left."""

    @abstractmethod
    def confirm_undelivered(self, substream: Substream, guid: bytes, wall: int) -> None:
        """Confirm a message that a downstream broker received on an earlier connection."""

    @abstractmethod
    def count_failed_attempt(self, app: App, message: Message, wall: int) -> bool:
        """Count a delivery attempt of a message whose consumer was lost. False: none is left, the message is rejected."""

    @property
    @abstractmethod
    def has_ample_quota(self) -> bool:
        """True if delayed CONFIRMs cannot cause NACKs (`meter.py`)."""

    def end_confirm_delays(self) -> None:
        """Notify the downstream brokers that delay CONFIRMs, if the free quota is not ample."""
        if not self.has_ample_quota:
            for handle in self.handles:
                if handle.delays_confirms:
                    cast(BrokerClient, handle.client).advise_quota(handle, False)

    @abstractmethod
    def deliver(self, now: float) -> None:
        """Deliver messages to consumers with room."""

    @abstractmethod
    def payload(self, message: Message) -> bytes:
        """Return the application data of a message."""

    def payload_beginning(self, message: Message, size: int = BEGINNING_BYTES) -> bytes:
        """Return at least the first `size` bytes of the application data, or all."""
        return self.payload(message)

    def is_pending(self, app: App, message: Message) -> bool:
        """True if the message is pending for the app."""
        return bool(message.pending & app.bit)

    def run_in_slices(self, work: Steps[Any], doing: str) -> None:
        """Run work that may take long; primaries run it as a job."""
        at_once(work)

    def complete_conversion(self) -> bool:
        """Complete a pending conversion (`RootQueue.begin_conversion`). True if the handles now use another queue object."""
        return False

    def defer_action(self, act: Callable[[], None]) -> bool:
        """Defer `act` until the handles use another queue object. False: no conversion is pending."""
        return False

    # -- consumers --------------------------------------------------------------------------------------------------

    def app_for_reader(self, app_id: str) -> App:
        """Return the app of a consumer, registered or not."""
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = App(app_id, b"", -1)
        return app

    def drop_unused_app(self, app: App) -> None:
        """Remove an unregistered app without consumers."""
        if not app.registered and not app.substreams:
            self.apps.pop(app.app_id, None)

    def confirm(self, substream: Substream, guid: bytes, now: float, wall: int) -> None:
        """Process a CONFIRM; unknown, late and repeated ones are ignored."""
        if self.disabled and self.defer_action(partial(_call_deferred, "confirm", substream, guid, now, wall)):
            return
        unconfirmed = substream.unconfirmed
        entry = unconfirmed.get(guid)
        if entry is None:
            if substream.handle.client.is_broker:
                self.confirm_undelivered(substream, guid, wall)
            return
        del unconfirmed[guid]
        message, subscription, pushed_at = entry
        messages = subscription.messages = subscription.messages - 1
        held = subscription.bytes = subscription.bytes - message.size
        if subscription.full and messages <= subscription.low_messages and held <= subscription.low_bytes:
            subscription.full = False
            substream.app.recheck_waiting = True
            self.request_delivery()
        if substream.redelivered is not None and substream.redelivered[0] == guid:
            substream.redelivered = None
            self.request_delivery()
        app = substream.app
        stats, after = app.stats, now - message.arrived
        stats.count_confirm(now - pushed_at, after)
        if stats is not self.stats:
            self.stats.count_confirm(now - pushed_at, after)
        self.finish_message(app, message, wall)

    def on_reject(self, substream: Substream, guid: bytes, wall: int) -> None:
        """Process a REJECT: a downstream broker has lost a consumer with a message, and retries while attempts are left."""
        if self.disabled and self.defer_action(partial(_call_deferred, "on_reject", substream, guid, wall)):
            return
        entry = substream.unconfirmed.get(guid)
        if entry is None or self.count_failed_attempt(substream.app, entry[0], wall):
            return
        self.take_back(substream, guid)

    def on_return(self, substream: Substream, guid: bytes) -> None:
        """Take back a message that a downstream broker has no consumer for, and redeliver it."""
        if self.disabled and self.defer_action(partial(_call_deferred, "on_return", substream, guid)):
            return
        if guid in substream.unconfirmed:
            message = self.take_back(substream, guid)
            if self.is_pending(substream.app, message):
                substream.app.add_redeliveries([message])

    def take_back(self, substream: Substream, guid: bytes) -> Message:
        """Return the credit of an unconfirmed message; the caller redelivers or removes it."""
        message, subscription, _ = substream.unconfirmed.pop(guid)
        subscription.set_unconfirmed(subscription.messages - 1, subscription.bytes - message.size)
        substream.app.recheck_waiting = True
        self.request_delivery()
        return message

    def values(self, message: Message) -> Mapping[str, object]:
        """Return the property values of a message, read once; unreadable properties count as absent."""
        found: Mapping[str, object] | None = message.properties
        if found is None:
            found = {}
            if message.has_properties:
                try:
                    found = self._values(message)
                except PayloadDamaged:  # until its repair, see `queue.root.route_again`
                    return {}
                except (PeerError, PartitionUnavailable, OSError):
                    found = {}
            message.properties = found
        return found

    def _values(self, message: Message) -> Mapping[str, object]:
        data = self.payload_beginning(message)
        if len(data) < (size := properties.announced_length(data)) <= message.size:
            data = self.payload_beginning(message, size)
        return properties.values(data, message.schema_id != 0)

    def attempts_left(self, app: App, message: Message) -> int | None:
        """Return the remaining delivery attempts of a message for an app, at most the domain's `max_attempts`; None =
        unlimited."""
        if not self.domain.max_attempts or message.attempts is None:
            return self.domain.max_attempts or None
        return message.attempts.get(app.ordinal, message.attempts.get(-1, self.domain.max_attempts))

    def answer(self, put: Put, status: int) -> None:
        """Answer a PUT; an error in the client's session closes that session only."""
        try:
            put.answer(status)
        except Exception as error:
            self.context.client_failed(put.handle.client, error)  # type: ignore[union-attr]

    def disable(self, now: float, cause: str) -> None:
        """Accept and deliver nothing until a restart."""
        self.disabled = True

    def request_delivery(self) -> None:
        """Deliver at the end of the turn."""
        if not self.delivery_requested:
            self.context.request_delivery(self)

    def reader_count(self) -> int:
        """Sum of the read counts of all clients."""
        return sum(handle.read_count for handle in self.handles)

    def writer_count(self) -> int:
        """Sum of the write counts of all clients."""
        return sum(handle.write_count for handle in self.handles)


def _call_deferred(method: str, substream: Substream, *arguments: object) -> None:
    getattr(substream.handle.queue, method)(substream, *arguments)
