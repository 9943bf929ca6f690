"""Subscriptions of WebSocket clients: each receives a snapshot, then numbered patches. Pure.

A document is created once for all its subscribers, a patch once for all subscribers with the same previous document. A slow
subscriber receives nothing until its last message is sent, then one patch to the newest document, so no messages accumulate.
The last document of a disconnected subscriber is stored for RESUME_S, so that it can resume with a patch.
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
TOPICS_MAX = 64  # different subscribed topics, without the cluster and the elections
RESUME_S = 60.0
RESUMABLE_MAX = 200
ID_MAX = 1 << 53


class Watcher(Protocol):
    """WebSocket of one subscriber."""

    @property
    def busy(self) -> bool:
        """True while sent data is not yet written to the socket."""

    def send(self, text: str) -> None:
        """Send one message."""


class Watch(Struct):
    """Subscription. `seen`: the last document sent; None = the subscriber waits for the first one."""

    ident: int
    topic: Topic
    stream: str
    seq: int = 0
    seen: Document | None = None


class Hub:
    """Subscriptions of one console. `name` returns a new stream name; `wanted` is called when a subscriber waits for its
    first document."""

    def __init__(self, name: Callable[[], str], wanted: Callable[[], None]) -> None:
        self._name, self._wanted = name, wanted
        self.watchers: dict[Watcher, dict[int, Watch]] = {}
        self._gone: OrderedDict[str, tuple[float, Watch]] = OrderedDict()  # by stream, with time of expiry

    def join(self, watcher: Watcher) -> None:
        self.watchers[watcher] = {}

    def leave(self, watcher: Watcher, now: float) -> None:
        for watch in self.watchers.pop(watcher, {}).values():
            if watch.seen is not None:
                self._gone[watch.stream] = now + RESUME_S, watch
        while len(self._gone) > RESUMABLE_MAX or self._gone and next(iter(self._gone.values()))[0] < now:
            self._gone.popitem(last=False)

    def topics(self) -> list[Topic]:
        return list(dict.fromkeys(watch.topic for watches in self.watchers.values() for watch in watches.values()))

    def received(self, watcher: Watcher, message: Mapping[str, Any], now: float) -> None:
        ident = message.get("id", message.get("unsubscribe"))
        try:
            if not isinstance(ident, int) or isinstance(ident, bool) or not 0 <= ident < ID_MAX:
                raise Refusal(400, "A subscription requires an id, a whole number.", "id")
            if "unsubscribe" in message:
                self.watchers[watcher].pop(message["unsubscribe"], None)
            elif "subscribe" in message:
                self._subscribe(watcher, ident, message, now)
            else:
                raise Refusal(400, "A message requires subscribe or unsubscribe.")
        except Refusal as refusal:
            watcher.send(compact({"id": ident, "error": refusal.reason, "field": refusal.field}))

    def _subscribe(self, watcher: Watcher, ident: int, message: Mapping[str, Any], now: float) -> None:
        topic, watches = topic_of(message["subscribe"], message), self.watchers[watcher]
        if ident not in watches and len(watches) >= SUBSCRIPTIONS_MAX:
            raise Refusal(400, f"One connection has at most {SUBSCRIPTIONS_MAX} subscriptions.")
        known = self.topics()
        if topic not in known and sum(not isinstance(each, (ClusterTopic, ElectionsTopic)) for each in known) >= TOPICS_MAX:
            raise Refusal(503, f"{TOPICS_MAX} different pages of queues are already subscribed. Try again later.")
        watch = self._resumed(message.get("resume"), topic, now)
        if watch is None:
            watch = Watch(ident, topic, self._name())
        watch.ident = ident
        watches[ident] = watch
        self._wanted()

    def _resumed(self, resume: object, topic: Topic, now: float) -> Watch | None:
        if not isinstance(resume, dict) or not isinstance(resume.get("stream"), str):
            return None
        until, watch = self._gone.pop(resume["stream"], (0.0, None))
        if watch is None or until < now or watch.topic != topic or watch.seq != resume.get("seq"):
            return None
        return watch

    def publish(self, topic: Topic, document: Document) -> None:
        """Send the present document of a topic to all its subscribers."""
        whole = ""
        patches: dict[int, str] = {}  # by id() of the previous document; `kept` prevents the reuse of ids
        kept: list[Document] = []
        for watcher, watches in list(self.watchers.items()):
            for watch in watches.values():
                if watch.topic != topic or watcher.busy:
                    continue
                if watch.seen is None:
                    whole = whole or compact(document)
                    watch.seq, watch.seen = 1, document
                    watcher.send(f'{{"id":{watch.ident},"seq":1,"stream":"{watch.stream}","snapshot":{whole}}}')
                    continue
                key = id(watch.seen)
                if key not in patches:
                    kept.append(watch.seen)
                    changes = merge_patch(watch.seen, document)
                    patches[key] = compact(changes) if changes else ""
                patch, watch.seen = patches[key], document
                if patch:
                    watch.seq += 1
                    watcher.send(f'{{"id":{watch.ident},"seq":{watch.seq},"patch":{patch}}}')

    def fail(self, topic: Topic, refusal: Refusal) -> None:
        """Send the refusal of a topic to the subscribers that wait for its first document, and remove them."""
        for watcher, watches in list(self.watchers.items()):
            for ident, watch in list(watches.items()):
                if watch.topic == topic and watch.seen is None:
                    del watches[ident]
                    watcher.send(compact({"id": ident, "error": refusal.reason, "field": refusal.field}))
