"""One queue as its consumers and producers see it, wherever its primary is: handles, apps, subscriptions, PUTs.

    storage/state.py StoredQueue    what is stored and who still needs it; fed by records alone, on every replica
    queue/root.py    RootQueue      who gets what next: the engine of the primary
    Queue (here)                    handles, apps, windows: what both the primary and a node on the way to it need
    queue/relay.py RelayQueue       on the way to the primary: `post` and `finish` go upstream

    Queue --handles--> Handle --substreams--> Substream --subscriptions--> Subscription
      |                (one client, one id)   (one consumer of one App)    (one expression with its window)
      +--apps--> App --router--> Router --groups--> Group of Subscriptions

These classes refer to each other, so they are in one module.

Choosing a consumer (`Router`), per app of a queue:
- subscriptions with the same expression text form a group, of which only the highest priority consumes;
- a message is examined group by group, highest priority first; in the first group that matches, the next
  subscription with room gets it; when all of that group are full, other matching groups of the *same* priority are
  tried, lower ones never (no spill-over);
- ASIDE: nothing matched, or the matching groups are full while another examined group has room: go on with the next;
- STOP: every examined group is full, or there is none: the app waits here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from bmqtwist.compiled import mypyc_attr
from bmqtwist.errors import PeerError
from bmqtwist.queue.counters import AckLatency, AppStats, QueueStats
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.expression import Expression
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.returned import Returned
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.report import LineLimiter, Report
from bmqtwist.steps import Steps, at_once
from bmqtwist.storage.gate import Copies, Gated
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.storage.store import BEGINNING_BYTES
from bmqtwist.wire import properties

FLAG_READ: Final = 2
FLAG_WRITE: Final = 4
FLAG_ACK: Final = 8
PRIORITY_INVALID = -(2**31)
ASIDE = "aside"
STOP = "stop"
_NO_COPIES: Final = Copies.NONE  # a member of an enumeration is slow to look up


class Client(Protocol):
    """The session core at the other end of a handle, as far as a queue needs it."""

    description: str
    window: DeliveryWindow
    is_broker: bool  # with clients of its own behind it
    is_member: bool  # such a broker that has the records of the queue itself

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None: ...

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None: ...


class MemberClient(Client, Protocol):
    """A client with `is_member`."""

    def ack_ahead(self, handle: Handle, message: Message, partition_id: int) -> None:
        """A PUT is acknowledged as soon as its record is safe there."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """One consumer of one subscription, as a configure names it."""

    s_id: int
    expression_version: int
    expression: str
    priority: int
    count: int
    max_messages: int
    max_bytes: int
    matcher: Expression | None = None  # the expression, if it is compiled already


class Subscription:
    """One way a consumer asked to be given messages, with its window of unconfirmed ones."""

    __slots__ = ("substream", "spec", "s_id", "matcher", "text", "priority", "count", "max_messages", "max_bytes",
                 "low_messages", "low_bytes", "messages", "bytes", "given", "full", "turns", "window")

    def __init__(self, substream: Substream, spec: ConsumerSpec, matcher: Expression | None) -> None:
        self.spec, self.window = spec, substream.handle.client.window
        self.substream, self.s_id, self.matcher = substream, spec.s_id, matcher
        self.text = "" if matcher is None else matcher.text
        self.priority, self.count = spec.priority, max(1, spec.count)
        self._set_limits(spec.max_messages, spec.max_bytes)
        self.messages = self.bytes = self.turns = 0
        self.given = 0  # messages since it was configured, confirmed ones included
        self.full = spec.max_messages <= 0 or spec.max_bytes <= 0

    def _set_limits(self, max_messages: int, max_bytes: int) -> None:
        """A full consumer goes on when a fifth is free. A broker below us at once: it does so for each of its consumers, and
        what one of them holds may be more than four fifths of all."""
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.low_messages, self.low_bytes = max_messages - 1, max_bytes - 1
        if not self.substream.handle.client.is_broker:
            self.low_messages = min(-(-max_messages * 4 // 5), self.low_messages)  # ceil(0.8 M), yet below full
            self.low_bytes = min(-(-max_bytes * 4 // 5), self.low_bytes)

    def become(self, new: Subscription) -> None:
        """From now on be what was asked for with another one; what is unconfirmed goes on counting against this one."""
        self.spec, self.s_id, self.matcher, self.text = new.spec, new.s_id, new.matcher, new.text
        self.priority, self.count = new.priority, new.count
        self._set_limits(new.max_messages, new.max_bytes)
        self.turns = self.given = 0

    def carry_over(self, messages: int, size: int) -> None:
        """Start with what the substream already holds unconfirmed (a reconfigure takes nothing back)."""
        self.messages, self.bytes = messages, size
        self.full = messages >= self.max_messages or size >= self.max_bytes


class Group:
    """The highest-priority subscriptions of one expression text."""

    __slots__ = ("matcher", "text", "priority", "members")

    def __init__(self, first: Subscription) -> None:
        self.matcher, self.text, self.priority = first.matcher, first.text, first.priority
        self.members: deque[Subscription] = deque((first,))

    def has_room(self) -> bool:
        """Whether any member could take a message now."""
        return any(not member.full and member.window.open for member in self.members)

    def next_with_room(self, excluded: frozenset[Substream] | None = None) -> Subscription | None:
        """The member whose turn it is, skipping full (and excluded) ones; None when nobody has room."""
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
    """The groups of one app, rebuilt whenever a consumer of it opens, configures or closes. `at_members`: there are
    consumers, and all of them are at other nodes that have the records of the queue, too."""

    __slots__ = ("groups", "only", "subscriptions", "at_members")

    def __init__(self, subscriptions: Iterable[Subscription] = ()) -> None:
        self.subscriptions = list(subscriptions)
        self.at_members = bool(self.subscriptions) and all(
            subscription.substream.handle.client.is_member for subscription in self.subscriptions)
        groups: dict[str, Group] = {}
        for subscription in self.subscriptions:
            group = groups.get(subscription.text)
            if group is None or subscription.priority > group.priority:
                groups[subscription.text] = Group(subscription)
            elif subscription.priority == group.priority:
                group.members.append(subscription)
        self.groups = sorted(groups.values(), key=lambda group: (-group.priority, group.text))
        first = self.groups[0] if self.groups else None
        self.only = first if len(self.groups) == 1 and first is not None and first.matcher is None else None

    def choose(self, values: Mapping[str, object], excluded: frozenset[Substream] | None = None) -> Subscription | str:
        """The subscription that gets a message with these property values, or ASIDE, or STOP.

        `excluded` substreams are treated as full (a redelivery that must wait for them).
        """
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
        return ASIDE if room else STOP

    def has_room(self) -> bool:
        """Whether any group could take a message now."""
        return any(group.has_room() for group in self.groups)

    def eligible(self, values: Mapping[str, object]) -> list[Subscription]:
        """Broadcast: of every handle the first subscription that matches; a limit of 0 takes a consumer out."""
        found: dict[object, Subscription] = {}
        for group in self.groups:
            if group.matcher is None or group.matcher.matches(values):
                for member in group.members:
                    if member.max_messages > 0 and member.max_bytes > 0:
                        found.setdefault(member.substream.handle, member)
        return list(found.values())


Unconfirmed = tuple[Message, Subscription, float]  # a message, against which window it counts, when it was pushed


class Substream:
    """One consumer of one app: (handle, subId)."""

    __slots__ = ("handle", "app", "sub_id", "app_id", "read_count", "subscriptions", "counting", "unconfirmed",
                 "redelivered")

    def __init__(self, handle: Handle, app: App, sub_id: int, app_id: str) -> None:
        self.handle, self.app, self.sub_id, self.app_id = handle, app, sub_id, app_id
        self.read_count = 0
        self.subscriptions: list[Subscription] = []
        self.counting: list[Subscription] = []  # these, or those before a pause: what is unconfirmed counts against them
        self.unconfirmed: dict[bytes, Unconfirmed] = {}  # by GUID
        self.redelivered: tuple[bytes, float] | None = None  # the last redelivered message sent here, and when


class Handle:
    """One client's use of one queue under one queue id."""

    __slots__ = ("client", "queue", "q_id", "flags", "read_count", "write_count", "substreams", "closing", "merges",
                 "acks_failed_at")

    def __init__(self, client: Client, queue: Queue, q_id: int) -> None:
        self.client, self.queue, self.q_id = client, queue, q_id
        self.flags = self.read_count = self.write_count = 0
        self.substreams: dict[int, Substream] = {}
        self.closing = False  # the final close was asked for: no ACK, no PUSH any more
        self.merges = False  # several substreams: one PUSH may name several of them
        self.acks_failed_at = float("-inf")  # when a refused PUT of this handle was last logged, monotonic seconds

    def resume(self) -> None:
        """The window of its client is open again: what waited for it is delivered."""
        for substream in self.substreams.values():
            if substream.subscriptions:
                substream.app.recheck_waiting = True
                self.queue.touch()


Place = deque[Message] | dict[bytes, Message]
_NO_CONSUMERS = Router()  # nothing is kept for the sake of consumers that are gone


class App:
    """The state of one appId: its position in the stored messages, and its consumers. A priority or broadcast queue has one,
    `__default`.

    A message an app has not finished with is in exactly one of: `fresh` (not looked at yet), `aside` (no subscription
    matched), `waiting` (the matching ones were full), `again` (both of these, to be looked at again), `redelivery` (came
    back from a lost consumer), or unconfirmed at one of the substreams. `fresh` and `again` may still hold messages that are
    gone; they are skipped when met.
    """

    __slots__ = ("app_id", "key", "ordinal", "bit", "first_order", "registered", "alarmed", "condition", "substreams",
                 "router", "unrouted", "fresh", "again", "aside", "waiting", "redelivery", "stopped_at", "recheck_aside",
                 "recheck_waiting", "stats", "returning", "purged", "lease", "sequence", "_unsorted")

    def __init__(self, app_id: str, key: bytes, ordinal: int, first_order: int = 0) -> None:
        self.app_id = app_id
        self.condition: Expression | None = None  # application subscription: false = this app never sees the message
        self.substreams: list[Substream] = []
        self.router, self.unrouted = _NO_CONSUMERS, False  # and whether consumers have changed since it was made
        self.alarmed = False  # the unregistered-appId alarm was raised for the present consumers
        self.stats = AppStats()
        self.returning = 0  # consumers whose messages come back in slices: until then nothing is delivered
        self.purged = 0  # the messages of an earlier arrival order were purged
        self.lease = self.sequence = 0  # PSN of the newest message that consumers here were given as a new one; 0 = unknown
        self.register(key, ordinal, first_order)

    def register(self, key: bytes, ordinal: int, first_order: int) -> None:
        """Start (again) as an app of the queue that sees the messages of arrival order `first_order` and later."""
        self.key, self.ordinal, self.first_order = key, ordinal, first_order
        self.bit = 1 << ordinal if ordinal >= 0 else 0
        self.registered = ordinal >= 0
        self.fresh: deque[Message] = deque()
        self.again: deque[Message] = deque()
        self.aside: dict[bytes, Message] = {}
        self.waiting: dict[bytes, Message] = {}
        self.redelivery = Returned()
        self.recheck_aside = self.recheck_waiting = self._unsorted = False
        self.stopped_at = b""  # GUID of the message for which nobody had room, as the log was told

    def unregister(self) -> list[Place]:
        """Forget every message; consumers stay connected and get nothing. Where messages were kept."""
        places = self._places()
        self.register(b"", -1, 0)
        return places

    def purge(self, order: int) -> list[Place]:
        """The messages that came before this arrival order are gone; where they were kept."""
        places = self._places()
        self.register(self.key, self.ordinal, self.first_order)
        self.purged = order
        return places

    def overtaken(self, message: Message) -> bool:
        """Whether consumers here were given newer ones before: another primary had meant this one for somebody else."""
        return message.lease > 0 and (message.lease, message.sequence) < (self.lease, self.sequence)

    def follow(self, other: App) -> None:
        """Consumers of the other app are this one's from now on."""
        if (self.lease, self.sequence) < (other.lease, other.sequence):
            self.lease, self.sequence = other.lease, other.sequence

    def _places(self) -> list[Place]:
        return [self.fresh, self.again, self.aside, self.waiting, self.redelivery]

    def routes(self) -> Router:
        """`router` as it is now. It is made when it is looked at, since a thousand consumers may change in one turn."""
        if self.unrouted:
            self.unrouted = False
            self.router = Router(each for substream in self.substreams for each in substream.subscriptions)
        return self.router

    def reroute(self) -> None:
        """Route anew after a consumer changed; everything put aside is looked at again."""
        self.router, self.unrouted = _NO_CONSUMERS, True
        self.recheck_aside = self.recheck_waiting = bool(self.aside or self.waiting or self.again)
        self.stopped_at = b""

    def give_back(self, messages: list[Message]) -> None:
        """Messages of a lost consumer join the redelivery list, in arrival order."""
        for message in messages:
            self.redelivery.add(message)

    def set_aside(self, message: Message) -> None:
        """Keep a message nobody wants now; one that comes late finds its place in `sort_aside`."""
        aside = self.aside
        if aside and aside[next(reversed(aside))].order > message.order:
            self._unsorted = True
        aside[message.guid] = message

    def look_again(self) -> None:
        """Have messages that were put aside looked at again, in the order of their arrival."""
        found = list(self.again)
        if self.recheck_aside:
            found += self.aside.values()
            self.aside, self._unsorted = {}, False
        if self.recheck_waiting:
            found += self.waiting.values()
            self.waiting = {}
        found.sort(key=_order)
        self.again = deque(found)
        self.recheck_aside = self.recheck_waiting = False

    def sort_aside(self) -> None:
        """Put the messages that nobody wants now in the order of their arrival: once a turn, however many came back."""
        if self._unsorted:
            self._unsorted = False
            self.aside = {kept.guid: kept for kept in sorted(self.aside.values(), key=_order)}

    def forget(self, messages: Iterable[Message]) -> None:
        """Messages are gone for this app without having been confirmed by a consumer."""
        for place in (self.aside, self.waiting, self.redelivery):
            if place:
                for message in messages:
                    place.pop(message.guid, None)
        self.trim()

    def trim(self) -> None:
        """Drop what is gone from the heads of `fresh` and `again`, so that they cannot grow without consumers."""
        bit = self.bit
        for place in (self.fresh, self.again):
            while place and not place[0].pending & bit:
                place.popleft()

    def undelivered(self) -> list[Message]:
        """The oldest message of each place where undelivered ones are kept, oldest first (stuck-queue check)."""
        self.trim()
        self.sort_aside()
        heads = [next(iter(place.values())) for place in (self.aside, self.waiting) if place]
        oldest = self.redelivery.first()
        heads += [oldest] if oldest is not None else []
        heads += [place[0] for place in (self.fresh, self.again) if place]
        return sorted(heads, key=_order)

    def put_aside_count(self) -> int:
        """How many messages were passed over because no subscription could take them."""
        return len(self.aside) + len(self.waiting) + len(self.again)

    def consumers(self) -> int:
        """How many readers have the app open (sum of read counts)."""
        return sum(substream.read_count for substream in self.substreams)


def _order(message: Message) -> int:
    return message.order


@mypyc_attr(acyclic=True)
class Put(Gated):
    """One PUT, from its arrival until its acknowledgement: the primary of a queue keeps it at the gate until its records are
    safe; a node on the way to the primary keeps it until the primary has answered.

    handle: whose, None = nobody is to be answered. message: what was posted; `arrived` and `wall` of it are those of the
    PUT. correlation_id: of a client that makes no GUIDs itself. wants_ack: an ACK was asked for. queue: set when it is
    taken. stored: the message is to be delivered, not a duplicate or a message that no app wants. copies: which other
    nodes must have it, too. position: of the newest record that it waits for, see `storage.gate`. ahead: bits of the apps
    whose consumers are given it, and all that came before it, before it is acknowledged. told_ahead: another node may know
    that it is committed before this one does.
    """

    __slots__ = ("handle", "message", "correlation_id", "wants_ack", "queue", "stored", "copies", "ahead", "told_ahead")

    queue: Queue  # that has taken it

    def __init__(self, handle: Handle | None, message: Message, correlation_id: int, wants_ack: bool) -> None:
        self.handle, self.message, self.correlation_id, self.wants_ack = handle, message, correlation_id, wants_ack
        self.stored = self.told_ahead = False
        self.copies = _NO_COPIES
        self.position = self.ahead = 0

    def answer(self, status: int) -> None:
        """Acknowledge it, if that was asked for; a refusal is always told."""
        if self.handle is not None and (self.wants_ack or status):
            self.handle.client.ack(self.handle, self.message.guid, self.correlation_id, status)


class QueueContext(Protocol):
    """What a queue asks of the broker around it."""

    report: Report
    ack_latency: AckLatency  # of all queues

    def touch(self, queue: Queue) -> None:
        """Deliver from this queue at the end of the turn."""

    def touch_next(self, queue: Queue) -> None:
        """Go on with delivering from this queue in the next turn."""

    def wake_at(self, when: float, queue: Queue) -> None:
        """Deliver from this queue again at a moment of the monotonic clock."""

    def hold_until_written(self, put: Put) -> None:
        """A PUT to a queue that lives in memory: released at the end of the turn."""

    def client_failed(self, client: Client, error: Exception) -> None:
        """A client raised when it was spoken to: it is closed when nothing is in the middle of a delivery."""


class Queue(ABC):
    """Who uses a queue, and what was delivered to whom."""

    reach = 1  # to how many apps, or consumers at once, a PUT goes

    def __init__(self, uri: str, name: str, domain: DomainRules, context: QueueContext) -> None:
        self.uri, self.name, self.domain, self.context = uri, name, domain, context
        self.mode, self.in_memory = domain.mode, domain.in_memory
        self.broadcast = domain.mode == QueueMode.BROADCAST
        self.apps: dict[str, App] = {}
        self.active: list[App] = []  # the registered ones
        self.handles: dict[Handle, None] = {}
        self.stats = QueueStats(context.ack_latency)
        self.lines = LineLimiter()
        self.stop_lines = LineLimiter(60.0)  # a queue whose consumers are busy stops behind every message
        self.touched = False
        self.disabled = False  # nothing is taken or delivered: see `disable`; at a primary `lifecycle` says why
        self.idle_since: float | None = None

    # -- what depends on where the queue is led ---------------------------------------------------------------------

    @abstractmethod
    def post(self, put: Put, now: float, wall: int) -> int:
        """Take one PUT; 0 = accepted (the ACK follows later if it is wanted), else the status of the NACK."""

    @abstractmethod
    def release(self, put: Put, now: float) -> None:
        """What a PUT was held back for has come: acknowledge it, hand its message on."""

    @abstractmethod
    def forget_post(self, guid: bytes) -> None:
        """A `post` raised: unless the message is stored, it must be new when it is posted again."""

    @abstractmethod
    def finish(self, app: App, message: Message, wall: int) -> None:
        """A consumer is done with a message of its app."""

    @abstractmethod
    def reject(self, app: App, message: Message, wall: int) -> None:
        """No delivery attempt is left: the app loses the message, the operator is told."""

    @abstractmethod
    def confirm_undelivered(self, substream: Substream, guid: bytes, wall: int) -> None:
        """A node below us is done with a message that it was not given on this connection, but on an earlier one."""

    @abstractmethod
    def attempt_failed(self, app: App, message: Message, wall: int) -> bool:
        """A consumer was lost with a message: take one attempt off. False = it was the last one, the message is rejected."""

    @property
    @abstractmethod
    def has_plenty(self) -> bool:
        """Whether it may hold PLENTY times what it holds: no producer is refused if CONFIRMs count a moment later."""

    @abstractmethod
    def deliver(self, now: float) -> None:
        """Hand out whatever the consumers have room for."""

    @abstractmethod
    def payload(self, message: Message) -> bytes:
        """The application data of a message."""

    def beginning(self, message: Message, size: int = BEGINNING_BYTES) -> bytes:
        """At least so many bytes of it, or all there are."""
        return self.payload(message)

    def holds(self, app: App, message: Message) -> bool:
        """Whether an app still needs a message."""
        return bool(message.pending & app.bit)

    def in_slices(self, work: Steps[Any], doing: str) -> None:
        """Do what may take long: here at once."""
        at_once(work)

    def settle(self) -> bool:
        """Whether its clients use another one from now on: see `RootQueue.move`."""
        return False

    def later(self, act: Callable[[], None]) -> bool:
        """Of a queue that is `disabled`: whether `act` waits until its clients use another one, that of their handles."""
        return False

    # -- consumers --------------------------------------------------------------------------------------------------

    def app_for_reader(self, app_id: str) -> App:
        """The app a consumer named, registered or not."""
        app = self.apps.get(app_id)
        if app is None:
            app = self.apps[app_id] = App(app_id, b"", -1)
        return app

    def forget_app(self, app: App) -> None:
        """An unregistered app whose last consumer left leaves nothing behind."""
        if not app.registered and not app.substreams:
            self.apps.pop(app.app_id, None)

    def confirm(self, substream: Substream, guid: bytes, now: float, wall: int) -> None:
        """A consumer is done with a message; unknown, late and repeated confirms are ignored."""
        if self.disabled and self.later(partial(_again, "confirm", substream, guid, now, wall)):
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
            subscription.full = False  # 80 % of both limits
            substream.app.recheck_waiting = True
            self.touch()
        if substream.redelivered is not None and substream.redelivered[0] == guid:
            substream.redelivered = None
            self.touch()
        app = substream.app
        stats, after = app.stats, now - message.arrived
        stats.confirmed(now - pushed_at, after)
        if stats is not self.stats:
            self.stats.confirmed(now - pushed_at, after)
        self.finish(app, message, wall)

    def rejected(self, substream: Substream, guid: bytes, wall: int) -> None:
        """A node below us has lost a consumer with a message: it goes on trying while attempts are left."""
        if self.disabled and self.later(partial(_again, "rejected", substream, guid, wall)):
            return
        entry = substream.unconfirmed.get(guid)
        if entry is None or self.attempt_failed(substream.app, entry[0], wall):
            return
        self._take_from(substream, guid)

    def returned(self, substream: Substream, guid: bytes) -> None:
        """A node below us has nobody for a message any more: somebody else is given it."""
        if self.disabled and self.later(partial(_again, "returned", substream, guid)):
            return
        if guid in substream.unconfirmed:
            message = self._take_from(substream, guid)
            if self.holds(substream.app, message):
                substream.app.give_back([message])

    def _take_from(self, substream: Substream, guid: bytes) -> Message:
        """A consumer has one of its messages no longer, and room for another one."""
        message, subscription, _ = substream.unconfirmed.pop(guid)
        subscription.carry_over(subscription.messages - 1, subscription.bytes - message.size)
        substream.app.recheck_waiting = True
        self.touch()
        return message

    def values(self, message: Message) -> Mapping[str, object]:
        """The property values of a message, read once; what cannot be read counts as absent."""
        found: Mapping[str, object] | None = message.properties
        if found is None:
            found = {}
            if message.has_properties:
                try:
                    found = self._values(message)
                except (PeerError, PartitionUnavailable, OSError):
                    found = {}
            message.properties = found
        return found

    def _values(self, message: Message) -> Mapping[str, object]:
        data = self.beginning(message)
        if len(data) < (size := properties.announced_length(data)) <= message.size:
            data = self.beginning(message, size)
        return properties.values(data, message.schema_id != 0)

    def attempts_left(self, app: App, message: Message) -> int | None:
        """Remaining delivery attempts of a message for an app; None = unlimited."""
        if not self.domain.max_attempts or message.attempts is None:
            return self.domain.max_attempts or None
        return message.attempts.get(app.ordinal, message.attempts.get(-1, self.domain.max_attempts))

    def answer(self, put: Put, status: int) -> None:
        """Answer a PUT; a client that fails costs no other client anything."""
        try:
            put.answer(status)
        except Exception as error:
            self.context.client_failed(put.handle.client, error)  # type: ignore[union-attr]

    def disable(self, now: float, cause: str) -> None:
        """Take and deliver nothing until a restart."""
        self.disabled = True

    def touch(self) -> None:
        """Deliver at the end of the turn."""
        if not self.touched:
            self.context.touch(self)

    def readers(self) -> int:
        """Sum of the read counts of all clients."""
        return sum(handle.read_count for handle in self.handles)

    def writers(self) -> int:
        """Sum of the write counts of all clients."""
        return sum(handle.write_count for handle in self.handles)


def _again(method: str, substream: Substream, *arguments: object) -> None:
    """What a client has done while its queue was about to be another one."""
    getattr(substream.handle.queue, method)(substream, *arguments)
