"""Simulated sessions of the client library: the session core of the SDK over a connection of the simulated network.

A session connects to one of several nodes, and to the next one after a disconnect; it reports PUTs, ACKs and PUSHes to the
`MessageJudge`. A producer posts at random intervals; a consumer confirms each message after a random time. Used by
`faults.py`. Clients of the wire protocol are in `clients.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from kit import codec
from kit.codec import Push

from bmqtwist.errors import AckStatus
from bmqtwist.ids import GuidGenerator
from bmqtwist.sdk._adapters.identity import FEATURES
from bmqtwist.sdk._core.outbox import Close, Completed, Connect, RoomAvailable, WriteLog
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, QueueOptions, SessionOptions
from bmqtwist.sdk.results import Ack, EventKind, Result, SdkError, SessionEvent
from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.network import LOOPBACK, ConnectionEnd, ConnectionHandler
from bmqtwist.wire.schema import ClientIdentity, ClientType, GuidInfo, SdkLanguage
from sim.campaign.messages import APPS
from sim.campaign.world import CampaignWorld

RETRY_S = 0.3  # delay after a refused open
STATUSES = {Result.SUCCESS: 0, Result.LIMIT_MESSAGES: AckStatus.LIMIT_MESSAGES, Result.LIMIT_BYTES: AckStatus.LIMIT_BYTES,
            Result.STORAGE_FAILURE: AckStatus.STORAGE_FAILURE, Result.NOT_READY: AckStatus.NOT_READY}


class SdkSession(ConnectionHandler):
    """A session with one open queue. `places`: names of nodes, in the order of use; `events`: all session events."""

    read, write = False, False

    def __init__(self, world: CampaignWorld, name: str, uri: str, places: list[str]) -> None:
        self.world, self.judge, self.name, self.uri = world, world.message_judge, name, uri
        client_id, self.random = codec.client_id(name), Random(f"{world.schedule.seed}/{name}")
        make_guid = GuidGenerator(client_id, 0).make
        options = SessionOptions(brokers=tuple(Address(place, PORT) for place in places), backoff_first_s=0.05,
                                 backoff_max_s=1.0, attempt_timeout_s=3.0)
        identity = ClientIdentity(
            protocol_version=1, client_type=ClientType.E_TCPCLIENT, process_name=name, pid=1,
            session_id=1, features=FEATURES, sdk_language=SdkLanguage.E_CPP,
            guid_info=GuidInfo(client_id.hex().upper(), 1), user_agent="simulated")
        self.core = SessionCore(options, identity, lambda: make_guid(int(world.now * 1e9)), world.now,
                                on_output=self._request_turn, random=self.random.random)
        self.events: list[EventKind] = []
        self.queue: Queue | None = None  # after the open
        self.end: ConnectionEnd | None = None
        self._scheduled = False
        self._next_tick: float | None = None  # time of the next scheduled `core.tick`
        self._handlers: dict[type, Callable[[Any], None]] = {
            Connect: self._dial, Close: self._close_connection, Completed: self._on_completed, Ack: self.on_ack,
            Message: self.on_message, SessionEvent: self._on_event, WriteLog: lambda line: None,
            RoomAvailable: lambda room: None}
        self.core.start(None, world.now)
        self._open()

    @property
    def place(self) -> str:
        """Name of the node in use."""
        return self.core.address.host

    # -- turns ----------------------------------------------------------------------------------------------------------

    def _request_turn(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.world.at(self.world.now, self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        while effects := self.core.take_effects():
            for effect in effects:
                self._handlers[type(effect)](effect)
        chunks = self.core.take_output(True)
        if chunks and self.end is not None and self.end.open:
            self.end.send(b"".join(chunks))
        due = self.core.next_deadline()
        if due is not None and (self._next_tick is None or due < self._next_tick):
            self._next_tick = due
            self.world.at(due, lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if self._next_tick == due:
            self._next_tick = None
            self.core.tick(self.world.now)
            self._turn()

    # -- the connection ---------------------------------------------------------------------------------------------------

    def _dial(self, effect: Connect) -> None:
        address = f"{effect.address.host}:{effect.address.port}"
        self.world.network.dial(address, LOOPBACK, partial(self._on_dialled, effect.attempt))

    def _on_dialled(self, attempt: int, end: ConnectionEnd | None) -> None:
        if attempt != self.core.attempt:
            if end is not None:
                end.drop()
            return
        if end is None:
            self.core.on_connect_failed(attempt, "refused", self.world.now)
        else:
            self.end, end.handler = end, self
            self.core.on_connected(attempt, self.world.now)
        self._turn()

    def _close_connection(self, effect: Close) -> None:
        end, self.end = self.end, None
        if end is not None:
            end.drop()

    def on_data(self, data: bytes) -> None:
        """From the network: process bytes of the broker."""
        self.core.on_data(data, self.world.now)
        self._turn()

    def on_end(self) -> None:
        """From the network: the connection is closed."""
        self.end = None
        self.core.on_connection_lost(self.core.attempt, "lost", self.world.now)
        self._turn()

    # -- the queue --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.core.open(self.uri, self._on_opened, self.world.now, read=self.read, write=self.write,
                       queue_options=QueueOptions(max_unconfirmed_messages=20))

    def _on_completed(self, completed: Completed) -> None:
        if completed.token is not None:
            completed.token(completed)  # type: ignore[operator]

    def _on_opened(self, completed: Completed) -> None:
        if completed.result is not Result.SUCCESS:
            self.world.at(self.world.now + RETRY_S, self._open)
            return
        self.queue = self.core.queues[self.uri]
        self.on_open()

    def _on_event(self, event: SessionEvent) -> None:
        self.events.append(event.kind)
        if event.kind is EventKind.QUEUE_REOPEN_RESULT and event.result is not Result.SUCCESS:
            self.queue = None
            self.world.at(self.world.now + RETRY_S, self._open)
        self.on_event(event.kind)

    # -- overridden by producers and consumers ------------------------------------------------------------------------------

    def on_open(self) -> None:
        """The queue was opened."""

    def on_event(self, kind: EventKind) -> None:
        """The session reported an event."""

    def on_ack(self, ack: Ack) -> None:
        """Process an ACK."""
        raise AssertionError(f"{self.name} receives {ack}")

    def on_message(self, message: Message[bytes]) -> None:
        """Process a PUSH."""
        raise AssertionError(f"{self.name} receives {message}")


class SdkProducer(SdkSession):
    """Posts every `pause_s` seconds on average while not `paused`. `waits`: GUID -> seconds until its ACK; `refused`: GUIDs
    and results of failed ACKs."""

    write = True

    def __init__(self, world: CampaignWorld, name: str, uri: str, places: list[str], pause_s: float = 0.3) -> None:
        self.paused, self.pause_s = False, pause_s
        self.posted: dict[bytes, float] = {}  # GUID -> time of the PUT
        self.waits: dict[bytes, float] = {}  # GUID -> seconds
        self.refused: list[tuple[bytes, Result]] = []
        super().__init__(world, name, uri, places)
        self._round = 0
        self.start_posting()

    def start_posting(self) -> None:
        """Start to post with the current `pause_s`; a former schedule ends."""
        self._round += 1
        self._schedule_post(self._round)

    def _schedule_post(self, number: int) -> None:
        self.world.at(self.world.now + self.pause_s * 2 * self.random.random(), lambda: self._post_repeatedly(number))

    def _post_repeatedly(self, number: int) -> None:
        if not self.paused and number == self._round:
            self.post()
            self._schedule_post(number)

    def post(self, count: int = 1) -> list[bytes]:
        """Post messages now if the queue is open, and return their GUIDs."""
        guids = []
        for _ in range(count if self.queue is not None and self.queue.is_open else 0):
            payload = f"{self.name} {len(self.posted)} ".encode() + b"x" * self.random.choice((0, 100, 1000))
            guid = self.core.post(self.queue, payload, self.world.now, post=Post(token=self))  # type: ignore[arg-type]
            self.judge.on_put_sent(guid, self.uri, payload)
            self.posted[guid] = self.world.now
            guids.append(guid)
        return guids

    def on_event(self, kind: EventKind) -> None:
        if kind is EventKind.RECONNECTED:
            for guid in self.unanswered:
                self.judge.on_put_resent(guid)

    def on_ack(self, ack: Ack) -> None:
        assert ack.guid not in self.waits, f"{self.name}: a second ACK {ack}"
        self.waits[ack.guid] = self.world.now - self.posted[ack.guid]
        if not ack.ok:
            self.refused.append((ack.guid, ack.status))
        self.judge.on_ack_received(ack.guid, STATUSES.get(ack.status, AckStatus.UNKNOWN))

    @property
    def unanswered(self) -> list[bytes]:
        """GUIDs of PUTs without an ACK."""
        return [guid for guid in self.posted if guid not in self.waits]

    def answered_since(self, moment: float) -> int:
        """Return the number of ACKs received after `moment`."""
        return sum(self.posted[guid] + wait > moment for guid, wait in self.waits.items())


class SdkConsumer(SdkSession):
    """Reads one app and confirms within `slow_s` seconds, None = never. `got`: GUIDs of all deliveries, in order."""

    read = True

    def __init__(self, world: CampaignWorld, name: str, uri: str, places: list[str], app: str = "",
                 slow_s: float | None = 0.05) -> None:
        self.app, self.slow_s = app or APPS[uri][0], slow_s
        self.got: list[bytes] = []
        self.unconfirmed: dict[bytes, Message[bytes]] = {}
        self._lease = 0  # of the primary at which the queue was opened
        self._last: list[tuple[int, int]] = []  # PSNs of new messages, for the judge
        self._received: set[bytes] = set()  # GUIDs, on this connection
        self._queue_uri = uri
        super().__init__(world, name, f"{uri}?id={app}" if app else uri, places)

    def on_open(self) -> None:
        self._lease = self.world.lease_at(self.place, self._queue_uri)

    def on_event(self, kind: EventKind) -> None:
        if kind is EventKind.CONNECTION_LOST:
            self._lease, self._last, self._received = 0, [], set()
            self.unconfirmed.clear()
        elif kind is EventKind.STATE_RESTORED:
            self.on_open()

    def on_message(self, message: Message[bytes]) -> None:
        self.core.on_consumed(1)
        guid = message.guid
        again, lease = guid in self._received, self._lease
        self._received.add(guid)
        self.got.append(guid)
        self.unconfirmed[guid] = message
        push = Push(0, [], guid, message.payload, None, message.redelivered, 0, 0, b"", 0)
        if lease != self.world.lease_at(self.place, self._queue_uri):
            lease = 0
        self.judge.on_push_received(self._queue_uri, self.app, push, lease, self._last, again)
        if self.slow_s is not None:
            self.world.at(self.world.now + self.random.random() * self.slow_s, lambda: self.confirm(guid))

    def confirm(self, guid: bytes) -> None:
        """Confirm a message; without a connection do nothing, because it will be delivered again."""
        message = self.unconfirmed.pop(guid, None)
        if message is not None:
            try:
                self.core.confirm(message)
            except SdkError:
                return

    def confirm_all(self) -> None:
        """Confirm all unconfirmed messages, and later ones within 0.05 s."""
        self.slow_s = 0.05
        for guid in list(self.unconfirmed):
            self.confirm(guid)
