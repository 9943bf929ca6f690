"""Scripted proxy that treats PUSHes as a proxy of the original broker does.

Its *push stream* holds the messages that arrived in order for any of its apps; each is delivered to all of them at the
next flush. A PUSH in order names the newest message of the stream or a new one. A PUSH that is out of order, by its flag or
because it names an older message of the stream, is delivered to its apps at once: it overtakes their messages in the stream.
Used by `test_original_proxies.py`.
"""

from __future__ import annotations

from kit import data_events as events

from bmqtwist.wire import options
from bmqtwist.wire.fast import OUT_OF_ORDER
from bmqtwist.wire.schema import (
    ConfigureStream,
    ConsumerInfo,
    Expression,
    ExpressionVersion,
    OpenQueue,
    QueueHandleParameters,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)
from sim.cluster import SimulatedCluster
from sim.downstreams import ScriptedBroker

FEATURES = ("PROTOCOL_ENCODING:BER,JSON;HA:GRACEFUL_SHUTDOWN,GRACEFUL_SHUTDOWN_V2,BROADCAST_TO_PROXIES;"
            "MPS:MESSAGE_PROPERTIES_EX")
Q_ID = 0


class OriginalProxy(ScriptedBroker):
    """A proxy with one fanout queue. `delivered`: payloads by app, in order of delivery; `misplaced`: number of PUSHes
    without the flag that name an older message of the stream; `pushes`: all PUSHes; `flushes`: it flushes after each PUSH
    event."""

    def __init__(self, world: SimulatedCluster, name: str, flushes: bool = True) -> None:
        super().__init__(world, name, FEATURES)
        self.flushes = flushes
        self.delivered: dict[str, list[bytes]] = {}
        self.unconfirmed: dict[str, list[bytes]] = {}  # GUIDs by app, in order of delivery
        self.misplaced = 0
        self.pushes: list[events.PushMessage] = []
        self._apps: dict[int, str] = {}  # by subscription id
        self._sub_ids: dict[str, int] = {}
        self._stream: dict[bytes, tuple[bytes, list[str]]] = {}  # GUID -> payload, apps

    def open(self, uri: str, app: str, window: int, texts: tuple[str, ...] = ("",)) -> None:
        """Open an app of the queue, with one subscription for each expression."""
        sub_id = self._sub_ids[app] = len(self._sub_ids) + 1
        self.delivered[app], self.unconfirmed[app] = [], []
        handle = QueueHandleParameters(f"{uri}?id={app}", Q_ID, SubQueueIdInfo(sub_id, app), 2, 1, 0, 0)
        assert self.request("openQueue", OpenQueue(handle)).choice == "openQueueResponse"
        subscriptions = []
        for text in texts:
            s_id = len(self._apps) + 1
            self._apps[s_id] = app
            version = ExpressionVersion.E_VERSION_1 if text else ExpressionVersion.E_UNDEFINED
            subscriptions.append(Subscription(s_id, Expression(version, text), [ConsumerInfo(window, 1 << 30, 0, 1)]))
        wanted = ConfigureStream(Q_ID, StreamParameters(app, subscriptions))
        assert self.request("configureStream", wanted).choice == "configureStreamResponse"

    def on_pushes(self, pushes: list[events.PushMessage]) -> None:
        for push in pushes:
            self.pushes.append(push)
            apps = [self._apps[item.id] for option in options.decode(push.options)
                    if isinstance(option, options.SubQueueInfos) for item in option.items]
            late = bool(push.flags & OUT_OF_ORDER)
            if not late and push.guid in self._stream and push.guid != next(reversed(self._stream)):
                self.misplaced += 1
                late = True
            if late:
                for app in apps:
                    self._deliver(app, push.guid, push.data)
            else:
                self._stream.setdefault(push.guid, (push.data, []))[1].extend(apps)
        if self.flushes:
            self.flush()

    def flush(self) -> None:
        """Deliver the stream."""
        stream, self._stream = self._stream, {}
        for guid, (payload, apps) in stream.items():
            for app in apps:
                self._deliver(app, guid, payload)

    def _deliver(self, app: str, guid: bytes, payload: bytes) -> None:
        self.delivered[app].append(payload)
        self.unconfirmed[app].append(guid)

    def confirm(self, app: str, count: int) -> None:
        """Confirm the oldest delivered messages of an app."""
        guids, self.unconfirmed[app] = self.unconfirmed[app][:count], self.unconfirmed[app][count:]
        if guids:
            self.link.send(events.encode_confirm([events.ConfirmMessage(Q_ID, guid, self._sub_ids[app]) for guid in guids]))


class TwoSubscriptions(ScriptedBroker):
    """A proxy of the original kind whose consumer has two subscriptions, by the parity of the property `a`.

    A full subscription resumes at 80 % of its limit; until then the proxy keeps its messages in the put-aside list. When the
    other subscription resumes, the proxy evaluates that list; a message whose subscription is still full matches none, and
    the proxy never evaluates it again.
    """

    def __init__(self, world: SimulatedCluster, name: str, uri: str, window: int) -> None:
        super().__init__(world, name, FEATURES)
        self.delivered = 0
        self.held: list[list[bytes]] = [[], []]  # unconfirmed GUIDs of the consumer, by subscription
        self._window, self._full, self._open = window, [False, False], [True, True]
        self._aside: dict[bytes, int] = {}
        self._forgotten: set[bytes] = set()
        assert self.request("openQueue", OpenQueue(QueueHandleParameters(uri, Q_ID, None, 2, 1, 0, 0))).choice == (
            "openQueueResponse")
        wanted = [Subscription(number + 1, Expression(ExpressionVersion.E_VERSION_1, f"a == {number}"),
                               [ConsumerInfo(window, 1 << 30, 0, 1)]) for number in (0, 1)]
        assert self.request("configureStream", ConfigureStream(Q_ID, StreamParameters("__default", wanted))).choice == (
            "configureStreamResponse")

    def on_pushes(self, pushes: list[events.PushMessage]) -> None:
        for push in pushes:
            [number] = [item.id - 1 for option in options.decode(push.options)
                        if isinstance(option, options.SubQueueInfos) for item in option.items]
            if self._choose(push.guid, number) is not None:
                self._aside[push.guid] = number

    def _choose(self, guid: bytes, number: int) -> str | None:
        """Deliver a message; else return why not."""
        if self._open[number]:
            if not self._full[number]:
                self.held[number].append(guid)
                self.delivered += 1
                self._full[number] = len(self.held[number]) >= self._window
                return None
            self._open[number] = False
            return "no capacity"
        return "no subscription" if self._open[1 - number] else "no capacity of all"

    def confirm(self, number: int, count: int) -> None:
        """Confirm messages of one subscription."""
        for _ in range(min(count, len(self.held[number]))):
            guid = self.held[number].pop(0)
            self.link.send(events.encode_confirm([events.ConfirmMessage(Q_ID, guid, 0)]))
            if self._full[number] and len(self.held[number]) <= -(-self._window * 4 // 5):
                self._full[number], self._open[number] = False, True
                self._examine()

    def _examine(self) -> None:
        for guid, number in list(self._aside.items()):
            if guid in self._forgotten:
                continue
            why = self._choose(guid, number)
            if why is None:
                del self._aside[guid]
            elif why == "no subscription":
                self._forgotten.add(guid)
            elif why == "no capacity of all":
                return
