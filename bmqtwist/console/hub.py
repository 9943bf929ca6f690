"""Subscriptions of WebSocket clients: each receives a snapshot, then numbered patches. Pure.

A document is created once for all its subscribers, a patch once for all subscribers with the same previous document. A
slow subscriber receives nothing until its last message is sent, then one patch to the newest document, so no messages
accumulate. The last document of a disconnected subscriber is stored for RESUME_S, so that it can resume with a patch.
Of the WebSockets and topics, one viewer may use as many as are free, so that some are always left for the next viewer.
`live.py` passes the messages of clients to the hub, `service.py` the documents, every PERIOD_S; patches are made by
`documents.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from bmqtwist.console.access import Refusal
from bmqtwist.console.documents import Document, compact, merge_patch
from bmqtwist.console.topics import ClusterTopic, ElectionsTopic, Topic, topic_of

SUBSCRIPTIONS_MAX = 8  # per WebSocket
SUBSCRIBERS_MAX = 96  # WebSockets; the remaining connections of the listener are for requests
TOPICS_MAX = 64  # different subscribed topics, without the cluster and the elections
RESUME_S = 60.0
RESUMABLE_MAX = 200
ID_MAX = 1 << 53


class Subscriber(Protocol):
    """WebSocket of one subscriber."""

    @property
    def viewer(self) -> str:
        """Name of the user."""

    @property
    def is_busy(self) -> bool:
        """True while sent data is not yet written to the socket."""

    def send(self, text: str) -> None:
        """Send one text message to the WebSocket."""


class TopicSubscription(Struct):
    """Subscription of a WebSocket to a topic. `seen`: the last document sent, None = the first one is not sent yet."""

    ident: int
    topic: Topic
    stream: str
    seq: int = 0
    seen: Document | None = None


class Hub:
    """Subscriptions of one console. `name` returns a new stream name; `on_waiting` is called when a subscriber waits for its
    first document."""

    def __init__(self, name: Callable[[], str], on_waiting: Callable[[], None]) -> None:
        self._name, self._on_waiting = name, on_waiting
        self.subscribers: dict[Subscriber, dict[int, TopicSubscription]] = {}
        self._resumable: OrderedDict[str, tuple[float, TopicSubscription]] = OrderedDict()  # by stream, with time of expiry

    def add(self, subscriber: Subscriber) -> None:
        self.subscribers[subscriber] = {}

    def remove(self, subscriber: Subscriber, now: float) -> None:
        """Remove a subscriber, and store its last documents for RESUME_S."""
        for subscription in self.subscribers.pop(subscriber, {}).values():
            if subscription.seen is not None:
                self._resumable[subscription.stream] = now + RESUME_S, subscription
        while len(self._resumable) > RESUMABLE_MAX or self._resumable and next(iter(self._resumable.values()))[0] < now:
            self._resumable.popitem(last=False)

    def topics(self, viewer: str | None = None) -> list[Topic]:
        """Return the subscribed topics, of all viewers or of one."""
        return list(dict.fromkeys(each.topic for subscriber, subscriptions in self.subscribers.items()
                                  if viewer is None or subscriber.viewer == viewer for each in subscriptions.values()))

    def has_place(self, viewer: str) -> bool:
        """Return whether a viewer may open one more WebSocket: it has fewer than are free."""
        own = sum(each.viewer == viewer for each in self.subscribers)
        return own < SUBSCRIBERS_MAX - len(self.subscribers)

    def on_message(self, subscriber: Subscriber, message: Mapping[str, Any], now: float) -> None:
        """Handle a message of a subscriber: subscribe or unsubscribe; a refusal is its answer."""
        ident = message.get("id", message.get("unsubscribe"))
        try:
            if not isinstance(ident, int) or isinstance(ident, bool) or not 0 <= ident < ID_MAX:
                raise Refusal(400, "A subscription requires an id, a whole number.", "id")
            if "unsubscribe" in message:
                self.subscribers[subscriber].pop(message["unsubscribe"], None)
            elif "subscribe" in message:
                self._subscribe(subscriber, ident, message, now)
            else:
                raise Refusal(400, "A message requires subscribe or unsubscribe.")
        except Refusal as refusal:
            subscriber.send(compact({"id": ident, "error": refusal.reason, "field": refusal.field}))

    def _subscribe(self, subscriber: Subscriber, ident: int, message: Mapping[str, Any], now: float) -> None:
        topic, subscriptions = topic_of(message["subscribe"], message), self.subscribers[subscriber]
        if ident not in subscriptions and len(subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Refusal(400, f"One connection has at most {SUBSCRIPTIONS_MAX} subscriptions.")
        if topic not in self.topics():
            used, own = (sum(not isinstance(each, (ClusterTopic, ElectionsTopic)) for each in self.topics(viewer))
                         for viewer in (None, subscriber.viewer))
            if own >= TOPICS_MAX - used:
                raise Refusal(503, f"You watch {own} different pages of queues; {TOPICS_MAX - used} more are left for all "
                              "users. Close some.")
        subscription = self._resume(message.get("resume"), topic, now)
        if subscription is None:
            subscription = TopicSubscription(ident, topic, self._name())
        subscription.ident = ident
        subscriptions[ident] = subscription
        self._on_waiting()

    def _resume(self, resume: object, topic: Topic, now: float) -> TopicSubscription | None:
        """Return the stored subscription that a client resumes; None = unknown, expired, or of another state."""
        if not isinstance(resume, dict) or not isinstance(resume.get("stream"), str):
            return None
        until, subscription = self._resumable.pop(resume["stream"], (0.0, None))
        if subscription is None or until < now or subscription.topic != topic or subscription.seq != resume.get("seq"):
            return None
        return subscription

    def publish(self, topic: Topic, document: Document) -> None:
        """Send the present document of a topic to all its subscribers."""
        whole = ""
        patches: dict[int, str] = {}  # by id() of the previous document; `kept` prevents the reuse of ids
        kept: list[Document] = []
        for subscriber, subscriptions in list(self.subscribers.items()):
            for subscription in subscriptions.values():
                if subscription.topic != topic or subscriber.is_busy:
                    continue
                if subscription.seen is None:
                    whole = whole or compact(document)
                    subscription.seq, subscription.seen = 1, document
                    subscriber.send(f'{{"id":{subscription.ident},"seq":1,"stream":"{subscription.stream}","snapshot":{whole}}}')
                    continue
                key = id(subscription.seen)
                if key not in patches:
                    kept.append(subscription.seen)
                    changes = merge_patch(subscription.seen, document)
                    patches[key] = compact(changes) if changes else ""
                patch, subscription.seen = patches[key], document
                if patch:
                    subscription.seq += 1
                    subscriber.send(f'{{"id":{subscription.ident},"seq":{subscription.seq},"patch":{patch}}}')

    def refuse(self, topic: Topic, refusal: Refusal) -> None:
        """Send the refusal of a topic to the subscribers that wait for its first document, and remove them."""
        for subscriber, subscriptions in list(self.subscribers.items()):
            for ident, subscription in list(subscriptions.items()):
                if subscription.topic == topic and subscription.seen is None:
                    del subscriptions[ident]
                    subscriber.send(compact({"id": ident, "error": refusal.reason, "field": refusal.field}))
