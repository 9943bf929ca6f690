"""Session core without I/O: calls and chunks in, effects and bytes out. This module constructs and connects the parts;
`SESSION` is the table of actions by state and input.

    core.start(token, now) .. stop(token, now)      the application: open, configure, close, post, confirm
    core.on_connected, .on_connect_failed, .on_data, .on_connection_lost    the channel
    core.tick(now), core.next_deadline()            the clock
    core.take_effects(), core.take_output()         effects to perform and bytes to write, after any of these calls

`on_output` is called once when effects or bytes become available; the adapter then schedules its turn, and all posts until
that turn are sent in one event. `on_data` never raises. Times are seconds of a monotonic clock, passed with each call. The
adapters in `_adapters/` call the core; its parts are `connection.py`, `queue_machine.py`, `posts.py` and `deliveries.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from bmqtwist.machine import Cell, table, to
from bmqtwist.sdk._core.connection import Connection, Heartbeats, Negotiation
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.deliveries import Deliveries
from bmqtwist.sdk._core.outbox import Outbox, SharedParts
from bmqtwist.sdk._core.posts import Post, Posts
from bmqtwist.sdk._core.queue import ConfigureRequest, Queue, QueueRegistry
from bmqtwist.sdk._core.queue_configuration import QueueConfiguration
from bmqtwist.sdk._core.queue_machine import QueueMachine, Queues
from bmqtwist.sdk._core.requests import Requests
from bmqtwist.sdk._core.states import CurrentState, Input, State, ignore
from bmqtwist.sdk.counters import Counters, LiveCounters
from bmqtwist.sdk.options import Address, SessionOptions
from bmqtwist.wire import schema

_S, _I = State, Input
Cells = Mapping[Input, Cell[State]]
_RETRY = (_S.WAITING, _S.CONNECTING, _S.STOPPED)  # next attempt after a pause or at once; or the start failed
_UNEXPECTED: Cells = dict.fromkeys((_I.CONTROL, _I.PUSH, _I.ACK), to(Connection.on_unexpected, *_RETRY))
_COMMON: Cells = {**dict.fromkeys(Input, to(ignore)), _I.START: to(Connection.refuse_start)}
_DOWN: Cells = {  # not connected, or not negotiated yet
    **_COMMON, _I.STOP: to(Connection.stop_now, _S.STOPPED), _I.REQUEST: to(Queues.accept_offline),
    _I.CLOSE: to(Queues.close_locally), _I.POST: to(Posts.store), _I.CONFIRM: to(Deliveries.refuse_confirm),
    _I.EXPIRY_DUE: to(Posts.on_expiry_due), _I.START_DUE: to(Connection.on_start_due, _S.STOPPED)}
_ATTEMPT: Cells = {**_DOWN, _I.ATTEMPT_DUE: to(Connection.on_attempt_due, *_RETRY)}
_NEGOTIATION: Cells = {**_ATTEMPT, _I.HEARTBEAT_REQ: to(Heartbeats.on_request), _I.LOST: to(Connection.retry, *_RETRY)}
_ONLINE: Cells = {
    **_COMMON, _I.STOP: to(Connection.start_drain, _S.DRAINING, _S.DISCONNECTING),
    _I.LOST: to(Connection.reconnect, _S.WAITING),
    _I.CONTROL: to(Requests.on_control, _S.READY, _S.WAITING), _I.AUTHENTICATION: to(Negotiation.on_reauthentication),
    _I.PUSH: to(Deliveries.on_push), _I.ACK: to(Posts.on_ack), _I.HEARTBEAT_REQ: to(Heartbeats.on_request),
    _I.REQUEST: to(Queues.accept_online), _I.CLOSE: to(Queues.close_remotely), _I.POST: to(Posts.send),
    _I.CONFIRM: to(Deliveries.send_confirm), _I.HEARTBEAT_DUE: to(Heartbeats.on_due, _S.WAITING),
    _I.REAUTHENTICATE_DUE: to(Negotiation.on_reauthenticate_due), _I.BATCH_DUE: to(Posts.on_batch_due)}
_ENDING: Cells = {
    **_COMMON, _I.STOP: to(Connection.on_repeated_stop), _I.REQUEST: to(Queues.refuse_request),
    _I.CLOSE: to(Queues.close_locally), _I.POST: to(Posts.refuse_post), _I.CONFIRM: to(Deliveries.refuse_confirm)}
_DISCONNECTING: Cells = {
    **_ENDING, _I.LOST: to(Connection.end_session, _S.STOPPED), _I.CONTROL: to(Requests.on_control, _S.STOPPED),
    _I.HEARTBEAT_REQ: to(Heartbeats.on_request)}

_ROWS: dict[State, Cells] = {
    _S.IDLE: {**_DOWN, _I.START: to(Connection.start, _S.CONNECTING), _I.START_DUE: to(ignore), _I.EXPIRY_DUE: to(ignore)},
    _S.WAITING: {**_DOWN, _I.PAUSE_DUE: to(Connection.connect, _S.CONNECTING)},
    _S.CONNECTING: {**_ATTEMPT, _I.FAILED: to(Connection.retry, *_RETRY),
                    _I.CONNECTED: to(Negotiation.start, _S.AUTHENTICATING, _S.NEGOTIATING, *_RETRY)},
    _S.AUTHENTICATING: {**_NEGOTIATION, **_UNEXPECTED,
                        _I.AUTHENTICATION: to(Negotiation.on_authentication, _S.NEGOTIATING, *_RETRY)},
    _S.NEGOTIATING: {**_NEGOTIATION, **_UNEXPECTED,
                     _I.CONTROL: to(Negotiation.on_negotiation, _S.RESTORING, _S.READY, *_RETRY),
                     _I.REAUTHENTICATE_DUE: to(Negotiation.on_reauthenticate_due)},
    _S.RESTORING: {**_ONLINE, _I.POST: to(Posts.store), _I.CLOSE: to(Queues.close_remotely, _S.READY),
                   _I.RESTORED: to(Connection.enter_ready, _S.READY), _I.EXPIRY_DUE: to(Posts.on_expiry_due)},
    _S.READY: _ONLINE,
    _S.DRAINING: {**_DISCONNECTING, _I.AUTHENTICATION: to(Negotiation.on_reauthentication),
                  _I.ACK: to(Connection.on_ack_draining, _S.DISCONNECTING),
                  _I.SENT: to(Connection.on_sent, _S.DISCONNECTING),
                  _I.CONFIRM: to(Deliveries.send_confirm), _I.HEARTBEAT_DUE: to(Heartbeats.on_due, _S.STOPPED),
                  _I.REAUTHENTICATE_DUE: to(Negotiation.on_reauthenticate_due), _I.BATCH_DUE: to(Posts.on_batch_due),
                  _I.DRAIN_DUE: to(Connection.send_disconnect, _S.DISCONNECTING)},
    _S.DISCONNECTING: {**_DISCONNECTING, _I.ACK: to(Posts.on_ack),
                       _I.DISCONNECT_DUE: to(Connection.end_session, _S.STOPPED)},
    _S.STOPPED: _ENDING,
}
SESSION = table(State, Input, _ROWS)


class SessionCore:
    """One session. `identity` is sent in the negotiation; `make_guid` returns GUIDs, `random` numbers in [0, 1).

    `queues`: by URI; `unacked`: posts without an outcome, by GUID. Calls that concern one part (`open`, `post`, `confirm`,
    ...) are bound methods of that part.
    """

    def __init__(self, options: SessionOptions, identity: schema.ClientIdentity, make_guid: Callable[[], bytes], now: float,
                 *, on_output: Callable[[], None] = lambda: None, random: Callable[[], float] = lambda: 0.5) -> None:
        self.options: SessionOptions = options
        self._deadlines = deadlines = Deadlines(now)
        self._counters = counters = LiveCounters()
        self._state = state = CurrentState(deadlines)
        self._outbox = outbox = Outbox(options, deadlines, counters, on_output)
        shared = SharedParts(options, state, outbox, deadlines, counters)
        self._posts = posts = Posts(shared, make_guid)
        self._deliveries = deliveries = Deliveries(shared)
        requests, heartbeats = Requests(outbox, QueueRegistry(), deliveries.routes), Heartbeats(shared)
        self._configuration = QueueConfiguration(shared, requests)
        self._machine = QueueMachine(shared, requests, self._configuration, posts)
        self._queues = queues = Queues(shared, self._machine, deliveries)
        self._connection = Connection(shared, posts, queues, requests, heartbeats, random)
        negotiation = Negotiation(shared, identity, self._connection)
        state.bind(SESSION, self._connection, negotiation, heartbeats, requests, posts, deliveries, queues)
        self.queues: dict[str, Queue] = queues.registry.by_uri
        self.unacked: dict[bytes, Post] = posts.unacked
        self.open: Final = queues.open
        self.configure: Final = queues.configure
        self.pause_deliveries: Final = queues.pause
        self.close: Final = queues.close
        self.post: Final = posts.post
        self.has_room: Final = posts.has_room
        self.seal: Final = posts.seal
        self.confirm: Final = deliveries.confirm
        self.on_consumed: Final = deliveries.on_consumed
        self.take_effects: Final = outbox.take_effects

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state.state

    @property
    def online(self) -> bool:
        return self._state.online

    @property
    def attempt(self) -> int:
        return self._connection.attempt

    @property
    def address(self) -> Address:
        return self._connection.address

    @property
    def blocked(self) -> bool:
        return self._posts.blocked

    @property
    def batch_bytes(self) -> int:
        return self._outbox.batch_bytes

    def counters(self) -> Counters:
        return self._counters.snapshot(
            self._state.state.value, len(self.unacked), self._posts.unacked_bytes, self._deliveries.unconsumed,
            sum(queue.is_open for queue in list(self.queues.values())))

    # -- the application --------------------------------------------------------------------------------------------

    def start(self, token: object, now: float) -> None:
        self._deadlines.now = now
        self._state.feed(Input.START, token)

    def stop(self, token: object, now: float, drain: bool = True) -> None:
        """Wait for acknowledgements (with `drain`, at most `drain_s`), then disconnect permanently."""
        self._deadlines.now = now
        self._state.feed(Input.STOP, token, drain)

    def request_room(self) -> None:
        self._posts.room_requested = True

    def set_health(self, healthy: bool, now: float) -> None:
        """Suspend or resume the queues with `suspends_on_bad_host_health`."""
        self._deadlines.now = now
        self._configuration.set_health(healthy)

    # -- the channel ------------------------------------------------------------------------------------------------

    def on_connected(self, attempt: int, now: float, broker: Address | None = None) -> None:
        """`broker`: the one that has answered, if it is not the first of the attempt."""
        self._deadlines.now = now
        if attempt == self._connection.attempt:
            self._connection.set_broker(broker)
            self._state.feed(Input.CONNECTED)

    def on_connect_failed(self, attempt: int, reason: str, now: float, causes: Mapping[Address, str] | None = None) -> None:
        """`causes`: the reason of each broker, if all of the attempt have failed."""
        self._deadlines.now = now
        if attempt == self._connection.attempt:
            self._state.feed(Input.FAILED, self._connection.end_round(causes) if causes else reason)

    def on_data(self, chunk: bytes, now: float) -> None:
        self._deadlines.now = now
        self._connection.on_data(chunk)

    def on_connection_lost(self, attempt: int, reason: str, now: float) -> None:
        self._deadlines.now = now
        if attempt == self._connection.attempt:
            self._state.feed(Input.LOST, reason)

    def pause_posts(self, now: float) -> None:
        self._deadlines.now = now
        self._posts.pause()

    def resume_posts(self, now: float) -> None:
        self._deadlines.now = now
        self._posts.resume()

    # -- clock and output -------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        return self._deadlines.earliest()

    def tick(self, now: float) -> None:
        deadlines = self._deadlines
        deadlines.now = now
        while (key := deadlines.pop_expired(now)) is not None:
            if isinstance(key, Input):
                self._state.feed(key)
                continue
            queue, request = cast("tuple[Queue, str | ConfigureRequest]", key)
            if isinstance(request, ConfigureRequest):
                self._configuration.on_timeout(queue, request)
            else:
                self._machine.on_timeout(queue)

    def take_output(self, flush: bool = False) -> list[bytes]:
        """Return the chunks to write now. A batch whose delay has not passed stays, unless `flush`."""
        chunks = self._outbox.take_output(flush)
        if chunks and self._outbox.encoded_no_ack:
            self._posts.on_sent()
            self._state.feed(Input.SENT)
        return chunks
