"""Scripted proxy that treats PUSHes as a proxy of the original broker does.

Its *push stream* holds the messages that arrived in order for any of its apps; each is delivered to all of them at the next
flush. A PUSH in order names the newest message of the stream or a new one. A PUSH that is out of order, by its flag or because
it names an older message of the stream, is delivered to its apps at once: it overtakes their messages in the stream. Used by
`test_original_proxies.py`.
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
