"""A session without a connection: calls and chunks in, effects and bytes out. Here all parts are made and connected.

    core.start(token, now) .. stop(token, now)      the application: open, configure, close, post, confirm
    core.connected / failed / received / lost       the channel
    core.tick(now), core.deadline()                 the clock
    core.take_effects(), core.take_output()         what to do and what to write, asked for after any of the above

`wake` is called once when there begins to be something to take: an adapter schedules its turn then, and everything that
is posted until that turn leaves in one event. What is done with which input in which state stands in `states.py`.
Nothing a broker sends raises out of `received`. Times are seconds of a monotonic clock, handed in with each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from bmqtwist.sdk._core.connection import Connection
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.deliveries import Deliveries
from bmqtwist.sdk._core.heartbeats import Heartbeats
from bmqtwist.sdk._core.live_counters import LiveCounters
from bmqtwist.sdk._core.negotiation import Negotiation
from bmqtwist.sdk._core.outbox import Outbox
from bmqtwist.sdk._core.posts import Posts
from bmqtwist.sdk._core.queue import Queue, Setting
from bmqtwist.sdk._core.queue_machine import QueueMachine
from bmqtwist.sdk._core.queue_registry import QueueRegistry
from bmqtwist.sdk._core.queue_requests import QueueRequests
from bmqtwist.sdk._core.queue_settings import QueueSettings
from bmqtwist.sdk._core.queues import Queues
from bmqtwist.sdk._core.requests import Requests
from bmqtwist.sdk._core.session_state import Action, SessionState
from bmqtwist.sdk._core.states import Input, State
from bmqtwist.sdk._core.unacked import UnackedPosts
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, QueueOptions, SessionOptions
from bmqtwist.wire import schema


def ignore(*_: object) -> None:
    """Nothing to do."""


def actions(connection: Connection, negotiation: Negotiation, heartbeats: Heartbeats, requests: Requests, posts: Posts,
            deliveries: Deliveries, queues: Queues) -> dict[str, Action]:
    """What the names in `states.SESSION` stand for."""
    return {
        "ignore": ignore,
        "begin": connection.begin, "refuse_start": connection.refuse_start,
        "stop_now": connection.stop_now, "stop_again": connection.stop_again, "drain": connection.drain,
        "retry": connection.retry, "reconnect": connection.reconnect, "finish": connection.finish,
        "ready": connection.ready, "on_unexpected": connection.on_unexpected, "on_ack_draining": connection.on_ack_draining,
        "introduce": negotiation.introduce, "on_authentication": negotiation.on_authentication,
        "on_negotiation": negotiation.on_negotiation, "on_reauthentication": negotiation.on_reauthentication,
        "on_heartbeat": heartbeats.on_request,
        "on_control": requests.on_control,
        "keep": posts.keep, "send_post": posts.send, "refuse_post": posts.refuse, "on_ack": posts.on_ack,
        "on_push": deliveries.on_push, "send_confirm": deliveries.send_confirm,
        "refuse_confirm": deliveries.refuse_confirm,
        "hold": queues.hold, "transmit": queues.transmit, "refuse_request": queues.refuse_request,
        "close_locally": queues.close_locally, "close_remotely": queues.close_remotely,
    }


def timers(connection: Connection, negotiation: Negotiation, heartbeats: Heartbeats,
           posts: Posts) -> dict[str, Callable[[], None]]:
    """Who hears that a timer in `states.TIMERS` is due."""
    return {
        "start": connection.start_due, "attempt": connection.attempt_due, "pause": connection.pause_due,
        "drain": connection.leave, "leave": connection.finish,
        "heartbeat": heartbeats.due, "reauthenticate": negotiation.reauthenticate_due,
        "batch": posts.batch_due, "expiry": posts.expiry_due,
    }


class SessionCore:
    """One session. `identity` says who we are; `make_guid` gives GUIDs; `random` numbers in [0, 1).

    `queues`: by URI; `unacked`: posts on their way. What is done for each message (`post`, `confirm`, ...) is the method
    of its part itself, not a call around it.
    """

    def __init__(self, options: SessionOptions, identity: schema.ClientIdentity, make_guid: Callable[[], bytes], now: float,
                 *, wake: Callable[[], None] = lambda: None, random: Callable[[], float] = lambda: 0.5) -> None:
        self.options: SessionOptions = options
        self._deadlines = deadlines = Deadlines(now)
        self._counters = counters = LiveCounters()
        self.unacked: UnackedPosts = UnackedPosts(options.batch_bytes_max)
        self._outbox = outbox = Outbox(options, self.unacked, deadlines, counters, wake)
        self._state = state = SessionState(deadlines)
        self._posts = posts = Posts(options, make_guid, state, self.unacked, outbox, deadlines, counters)
        self._deliveries = deliveries = Deliveries(options, state, outbox, counters)
        requests = Requests(outbox)
        registry = QueueRegistry()
        queue_requests = QueueRequests(requests, registry, deliveries.routes)
        self._settings = QueueSettings(options, state, registry, queue_requests, outbox, deadlines)
        self._machine = QueueMachine(options, state, registry, queue_requests, self._settings, posts, outbox, deadlines)
        self._queues = Queues(options, state, registry, queue_requests, self._settings, self._machine, outbox, deadlines)
        heartbeats = Heartbeats(state, outbox, deadlines)
        self._connection = Connection(options, state, posts, self.unacked, self._queues, requests, heartbeats, outbox,
                                      deadlines, counters, random)
        negotiation = Negotiation(options, identity, state, self._connection, outbox, deadlines)
        self._timers = timers(self._connection, negotiation, heartbeats, posts)
        state.bind(actions(self._connection, negotiation, heartbeats, requests, posts, deliveries, self._queues))
        self.queues: dict[str, Queue] = registry.by_uri
        self.post: Final = posts.post
        self.has_room: Final = posts.has_room
        self.seal: Final = posts.seal
        self.confirm: Final = deliveries.confirm
        self.consumed: Final = deliveries.consumed
        self.take_effects: Final = outbox.take_effects

    # -- how things stand -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the session is doing."""
        return self._state.state

    @property
    def online(self) -> bool:
        """Is there a connection on which requests can be made?"""
        return self._state.online

    @property
    def attempt(self) -> int:
        """The number of the attempt to connect; what an adapter does for an earlier one is void."""
        return self._connection.attempt

    @property
    def address(self) -> Address:
        """Where the last attempt went."""
        return self._connection.address

    @property
    def blocked(self) -> bool:
        """Has the channel too much to write?"""
        return self._posts.blocked

    def counters(self) -> Counters:
        """What was done so far, and how things stand."""
        return self._counters.snapshot(
            self._state.state.value, len(self.unacked.kept), self.unacked.held_bytes, self._deliveries.untaken,
            sum(queue.is_open for queue in list(self.queues.values())))

    # -- the application --------------------------------------------------------------------------------------------

    def start(self, token: object, now: float) -> None:
        """Connect, and stay connected; `token` is completed once that has worked or failed."""
        self._deadlines.now = now
        self._state.feed(Input.START, token)

    def stop(self, token: object, now: float, drain: bool = True) -> None:
        """Wait for acknowledgements (with `drain`, not longer than the options say), disconnect, never come back."""
        self._deadlines.now = now
        self._state.feed(Input.STOP, token, drain)

    def open(self, uri: str, token: object, now: float, *, read: bool = False, write: bool = False,
             queue_options: QueueOptions | None = None, owner: object = None,
             timeout_s: float | None = None) -> Queue:
        """Open a queue, now or once there is a connection; `token` is completed when that is done."""
        self._deadlines.now = now
        return self._queues.open(uri, token, read=read, write=write, options=queue_options, owner=owner or self,
                                 timeout_s=timeout_s)

    def configure(self, queue: Queue, queue_options: QueueOptions, token: object, now: float,
                  timeout_s: float | None = None) -> None:
        """Change how a queue is read."""
        self._deadlines.now = now
        self._queues.configure(queue, queue_options, token, timeout_s)

    def pause_deliveries(self, queue: Queue, paused: bool, token: object, now: float,
                         timeout_s: float | None = None) -> None:
        """Have no deliveries, or have them again."""
        self._deadlines.now = now
        self._queues.pause(queue, paused, token, timeout_s)

    def give_back(self, message: Message) -> None:
        """A message will not be confirmed: the broker finds out when the queue is closed."""

    def close(self, queue: Queue, token: object, now: float, timeout_s: float | None = None) -> None:
        """Close a queue; without a connection that is done at once."""
        self._deadlines.now = now
        self._queues.close(queue, token, timeout_s)

    def want_room(self) -> None:
        """Somebody waits for a Room effect."""
        self._posts.room_wanted = True

    def set_health(self, healthy: bool, now: float) -> None:
        """The host is well, or is not: queues that mind are suspended or resumed."""
        self._deadlines.now = now
        self._settings.set_health(healthy)

    # -- the channel ------------------------------------------------------------------------------------------------

    def connected(self, attempt: int, now: float) -> None:
        """The channel of an attempt is up."""
        self._deadlines.now = now
        if attempt == self._connection.attempt:
            self._state.feed(Input.CONNECTED)

    def failed(self, attempt: int, reason: str, now: float) -> None:
        """The channel of an attempt did not come up."""
        self._deadlines.now = now
        if attempt == self._connection.attempt:
            self._state.feed(Input.FAILED, reason)

    def received(self, chunk: bytes, now: float) -> None:
        """Bytes from the broker."""
        self._deadlines.now = now
        self._connection.received(chunk)

    def lost(self, attempt: int, reason: str, now: float) -> None:
        """The channel is gone."""
        self._deadlines.now = now
        if attempt == self._connection.attempt:
            self._state.feed(Input.LOST, reason)

    def pause(self, now: float) -> None:
        """The channel has more to write than its high watermark."""
        self._deadlines.now = now
        self._posts.pause()

    def resume(self, now: float) -> None:
        """It is below its low watermark again."""
        self._deadlines.now = now
        self._posts.resume()

    # -- the clock and what comes out -------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When `tick` is due."""
        return self._deadlines.next()

    def tick(self, now: float) -> None:
        """Do what is due."""
        deadlines = self._deadlines
        deadlines.now = now
        while (key := deadlines.expire(now)) is not None:
            if isinstance(key, str):
                self._timers[key]()
                continue
            queue, what = cast("tuple[Queue, str | Setting]", key)
            if isinstance(what, Setting):
                self._settings.due(queue, what)
            else:
                self._machine.due(queue)

    def take_output(self, flush: bool = False) -> list[bytes]:
        """What to write now. A batch of posts that may still wait for its delay stays, unless `flush`."""
        chunks = self._outbox.take_output(flush)
        if chunks and self.unacked.leaving:
            self._posts.sent()
            self._connection.sent()
        return chunks
