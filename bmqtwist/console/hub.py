"""Who watches what, and what each is sent: a snapshot, then numbered patches. Pure.

A document is made once for all that watch it, and so is a patch for all that have seen the same document before. Who is slow
gets nothing until what was sent has left, then one patch to the newest document: nothing queues up. Of who is gone the last
documents are kept for a while, so that he can go on where he was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from bmqtwist.console.access import Refusal
from bmqtwist.console.documents import Document, compact, merge_patch
from bmqtwist.console.topics import ClusterTopic, ElectionsTopic, Topic, topic_of

SUBSCRIPTIONS_MAX = 8  # of one watcher
TOPICS_MAX = 64  # different ones that are watched at a time, without those that all share
RESUME_S = 60.0
RESUMABLE_MAX = 200
ID_MAX = 1 << 53


class Watcher(Protocol):
    """The other side of one WebSocket."""

    @property
    def busy(self) -> bool:
        """Whether what it was sent has not left yet."""

    def send(self, text: str) -> None:
        """Send it one message."""


class Watch(Struct):
    """One subscription. `seen`: the document that the watcher has; None = it waits for its first one."""

    ident: int
    topic: Topic
    stream: str
    seq: int = 0
    seen: Document | None = None


class Hub:
    """All watchers of one console. `name`: makes names of streams; `wanted`: somebody waits for a document."""

    def __init__(self, name: Callable[[], str], wanted: Callable[[], None]) -> None:
        self._name, self._wanted = name, wanted
        self.watchers: dict[Watcher, dict[int, Watch]] = {}
        self._gone: OrderedDict[str, tuple[float, Watch]] = OrderedDict()  # by stream, and until when

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
                raise Refusal(400, "Each subscription has an id, a whole number.", "id")
            if "unsubscribe" in message:
                self.watchers[watcher].pop(message["unsubscribe"], None)
            elif "subscribe" in message:
                self._subscribe(watcher, ident, message, now)
            else:
                raise Refusal(400, "A message has subscribe or unsubscribe.")
        except Refusal as refusal:
            watcher.send(compact({"id": ident, "error": refusal.reason, "field": refusal.field}))

    def _subscribe(self, watcher: Watcher, ident: int, message: Mapping[str, Any], now: float) -> None:
        topic, watches = topic_of(message["subscribe"], message), self.watchers[watcher]
        if ident not in watches and len(watches) >= SUBSCRIPTIONS_MAX:
            raise Refusal(400, f"One connection has at most {SUBSCRIPTIONS_MAX} subscriptions.")
        known = self.topics()
        if topic not in known and sum(not isinstance(each, (ClusterTopic, ElectionsTopic)) for each in known) >= TOPICS_MAX:
            raise Refusal(503, f"{TOPICS_MAX} different pages of queues are watched here already. Try it again later.")
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
        """The document of a topic, as it is now, for all who watch that."""
        whole = ""
        patches: dict[int, str] = {}  # by the document that they start from, all of which live on until the end of this
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
        """There is no document of a topic: say so to those that wait for their first one; they watch it no more."""
        for watcher, watches in list(self.watchers.items()):
            for ident, watch in list(watches.items()):
                if watch.topic == topic and watch.seen is None:
                    del watches[ident]
                    watcher.send(compact({"id": ident, "error": refusal.reason, "field": refusal.field}))
