"""Connection of a session: attempts, negotiation, heartbeats, reconnect, and the end of the session.

`session.py` calls it by the table `SESSION`; the pending requests of a connection are in `requests.py`, sockets in
`_adapters/event_loop.py` and `pump.py`. Timeouts and pauses between attempts are declared in `options.py`; the broker
sends the heartbeat limits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from logging import INFO, WARNING
from typing import Any

from bmqtwist.errors import Category, PeerError
from bmqtwist.limits import EVENT_BYTES_MAX
from bmqtwist.sdk._core.outbox import Close, Connect, SharedParts
from bmqtwist.sdk._core.posts import Posts
from bmqtwist.sdk._core.queue_machine import Queues
from bmqtwist.sdk._core.requests import Requests
from bmqtwist.sdk._core.states import Input, State
from bmqtwist.sdk.options import Address
from bmqtwist.sdk.results import EventKind, Result, SdkError, result_of
from bmqtwist.wire import control, schema
from bmqtwist.wire.control import AuthenticationMessage, NegotiationMessage, encoding_of
from bmqtwist.wire.fast import HEARTBEAT_REQ, HEARTBEAT_RSP
from bmqtwist.wire.frames import FrameBuffer

_RENEWAL_S = 5.0  # a credential is renewed this long before its expiry, or at 0.9 of its lifetime if that is earlier


class Backoff:
    """Rotation over the broker addresses with exponential backoff between rounds.

    Pauses: none within a round; at most `first_s` after a connection loss, doubled by each round up to `max_s`. Half of a
    pause is random, so that the clients of a broker do not reconnect simultaneously. `random` returns numbers in [0, 1).
    """

    __slots__ = ("_addresses", "_first_s", "_max_s", "_next", "_pause_s", "_random", "_tried")

    def __init__(self, addresses: tuple[Address, ...], first_s: float, max_s: float,
                 random: Callable[[], float]) -> None:
        self._addresses, self._first_s, self._max_s, self._random = addresses, first_s, max_s, random
        self._next = self._tried = 0
        self._pause_s = first_s

    def next_address(self) -> Address:
        found = self._addresses[self._next]
        self._next = (self._next + 1) % len(self._addresses)
        self._tried += 1
        return found

    def others(self) -> tuple[Address, ...]:
        """Return the addresses that follow the last returned one in this round."""
        count = len(self._addresses)
        return tuple(self._addresses[(self._next + i) % count] for i in range(self.addresses_left - 1))

    def skip_to(self, address: Address) -> None:
        """Continue after an address of `others`, which has answered first."""
        while address in self.others():
            if self.next_address() == address:
                return

    @property
    def rounds(self) -> int:
        """Number of rounds over all addresses since the last success."""
        return self._tried // len(self._addresses)

    @property
    def addresses_left(self) -> int:
        """Number of addresses left in this round, including the last returned one."""
        return len(self._addresses) - (self._tried - 1) % len(self._addresses)

    def next_pause_s(self) -> float:
        """Return the pause before the next attempt; after a complete round, double the pause of the next round."""
        if self._tried and self._tried % len(self._addresses):
            return 0.0
        pause = self._pause_s
        self._pause_s = min(self._pause_s * 2, self._max_s)
        return pause * (0.5 + self._random() / 2)

    def reset(self) -> None:
        self._tried, self._pause_s = 0, self._first_s


class Heartbeats:
    """Heartbeats of the current connection. `received`: bytes were received in this interval."""

    def __init__(self, shared: SharedParts) -> None:
        self._state, self._outbox, self._deadlines = shared.state, shared.outbox, shared.deadlines
        self.received = False
        self._silent_intervals = 0  # intervals without a byte
        self._interval_s = 0.0
        self._missed_max = 0

    def start(self, interval_s: float, missed_max: int) -> None:
        """Start for a new connection, with the interval and limit that the broker sent; 0 = no heartbeats."""
        self._silent_intervals, self.received = 0, True
        self._interval_s, self._missed_max = interval_s, missed_max
        if missed_max > 0 and interval_s > 0:
            self._deadlines.set_after(Input.HEARTBEAT_DUE, interval_s)

    def on_request(self, *_: object) -> None:
        self._outbox.write(HEARTBEAT_RSP)

    def on_due(self) -> None:
        if self.received:
            self.received, self._silent_intervals = False, 0
        else:
            self._silent_intervals += 1
            if self._silent_intervals > self._missed_max:
                self._state.feed(Input.LOST, f"no data for {self._silent_intervals} heartbeat intervals")
                return
            self._outbox.write(HEARTBEAT_REQ)
        self._deadlines.set_after(Input.HEARTBEAT_DUE, self._interval_s)


class Connection:
    """Connects, reconnects and ends a session. `attempt`: number of the current attempt, events of earlier ones are ignored;
    `address`: broker of the last attempt."""

    def __init__(self, shared: SharedParts, posts: Posts, queues: Queues, requests: Requests, heartbeats: Heartbeats,
                 random: Callable[[], float]) -> None:
        self._options, self._state, self._outbox = shared.options, shared.state, shared.outbox
        self._deadlines, self._counters = shared.deadlines, shared.counters
        self._posts, self._queues, self._requests, self._heartbeats = posts, queues, requests, heartbeats
        options = shared.options
        self._backoff = Backoff(options.brokers, options.backoff_first_s, options.backoff_max_s, random)
        self.attempt = 0
        self.address: Address = options.brokers[0]
        self._frames = FrameBuffer(EVENT_BYTES_MAX)
        self._was_connected = False
        self._causes: dict[Address, str] = {}  # reason of the last failed attempt, by address
        self._refused_by: set[Address] = set()  # brokers that have refused the first connection
        self._start_token: object = None
        self._stop_tokens: list[object] = []

    def on_data(self, chunk: bytes) -> None:
        self._heartbeats.received = True
        self._counters.bytes_in += len(chunk)
        state, attempt = self._state, self.attempt
        try:
            buffer, spans = self._frames.receive(chunk)
        except PeerError as error:
            state.feed(Input.LOST, str(error))
            return
        for kind, specific, start, end in spans:
            state.by_type[kind](buffer, specific, start, end)
            if attempt != self.attempt:
                return
        if self._frames.error is not None:
            state.feed(Input.LOST, str(self._frames.error))

    # -- start ------------------------------------------------------------------------------------------------------

    def start(self, token: object) -> None:
        self._start_token = token
        self._deadlines.set_after(Input.START_DUE, self._options.connect_timeout_s)
        self.connect()

    def refuse_start(self, token: object) -> None:
        raise SdkError(Result.ALREADY_IN_PROGRESS, "a session can be started only once: create a new one")

    def on_start_due(self) -> None:
        self._causes.setdefault(self.address, "no answer")
        self._fail_start(Result.TIMEOUT, f"no connection within {self._options.connect_timeout_s:g} s")

    def _fail_start(self, result: Result, message: str) -> None:
        message = ": ".join(filter(None, (message, "; ".join(f"{each}: {why}" for each, why in self._causes.items()))))
        self._outbox.log(WARNING, f"the session did not start: {message or result}")
        if result is Result.TIMEOUT:
            self._outbox.event(EventKind.CONNECTION_TIMEOUT, result, message)
        token, self._start_token = self._start_token, None
        self.end_session()
        self._outbox.complete(token, result, message)

    def connect(self) -> None:
        self.attempt += 1
        self._counters.attempts += 1
        self._state.enter(State.CONNECTING)
        self.address = self._backoff.next_address()
        seconds = self._options.attempt_timeout_s
        end = self._deadlines.get(Input.START_DUE)
        if end is not None:  # the attempts of the first connection share one timeout
            seconds = min(seconds, max(end - self._deadlines.now, 0.0) / self._backoff.addresses_left)
        self._deadlines.set_after(Input.ATTEMPT_DUE, seconds)
        self._outbox.add(Connect(self.attempt, self.address, seconds, self._backoff.others()))

    def end_round(self, causes: Mapping[Address, str]) -> str:
        """Record that all brokers of an attempt have failed; return the reason of the last one."""
        for broker in (self.address, *self._backoff.others()):
            if broker != self.address:
                self._outbox.log(INFO, f"no session with {self.address}: {self._causes[self.address]}")
                self.address = self._backoff.next_address()
            self._causes[broker] = causes.get(broker, "no reason given")
        return self._causes[self.address]

    def set_broker(self, broker: Address | None) -> None:
        if broker is not None and broker != self.address:
            self._backoff.skip_to(broker)
            self.address = broker

    # -- failed attempts --------------------------------------------------------------------------------------------

    def retry(self, reason: str = "") -> None:
        """Handle a failed attempt: try the next address, after a pause between rounds."""
        self._drop_channel()
        self._causes[self.address] = reason or "no reason given"
        rounds_max = self._options.connect_rounds_max
        if rounds_max and Input.START_DUE in self._deadlines and self._backoff.rounds >= rounds_max:
            self._fail_start(Result.NOT_CONNECTED, "")
            return
        pause = self._backoff.next_pause_s()
        self._outbox.log(INFO, f"no session with {self.address}: {reason or 'no reason given'}; "
                                f"the next attempt {f'in {pause:.1f} s' if pause else 'at once'}")
        if pause:
            self._state.enter(State.WAITING, reason)
            self._deadlines.set_after(Input.PAUSE_DUE, pause)
        else:
            self.connect()

    def on_refused(self, result: Result, message: str) -> None:
        """Handle a refusal by the broker: final if every broker of the list has refused the first connection."""
        self._refused_by.add(self.address)
        self._outbox.log(WARNING, f"{self.address} refused the session: {result} {message}".rstrip())
        if not self._was_connected and self._refused_by.issuperset(self._options.brokers):
            self._causes[self.address] = message or result.value
            self._fail_start(result, "")
            return
        self._outbox.event(EventKind.ERROR, result, message)
        self.retry(message)

    def on_attempt_due(self) -> None:
        self.retry("no answer")

    def on_unexpected(self, *_: object) -> None:
        self.retry("data before the end of the negotiation")

    # -- established connection -------------------------------------------------------------------------------------

    def on_accepted(self, response: schema.BrokerResponse) -> None:
        features = {name: values.split(",") for name, _, values in
                    (part.partition(":") for part in response.broker_identity.features.split(";"))}
        self._posts.on_connected("MESSAGE_PROPERTIES_EX" in features.get("MPS", ()))
        self._backoff.reset()
        self._causes.clear()
        self._state.enter(State.RESTORING)
        self._heartbeats.start(response.heartbeat_interval_ms / 1000, response.max_missed_heartbeats)
        reconnected, self._was_connected = self._was_connected, True
        self._outbox.log(INFO, f"{'reconnected' if reconnected else 'connected'} to {self.address}")
        if reconnected:
            self._counters.reconnects += 1
            self._outbox.event(EventKind.RECONNECTED)
            self._posts.on_expiry_due()
        else:
            self._outbox.event(EventKind.CONNECTED)
            token, self._start_token = self._start_token, None
            self._outbox.complete(token)
        if self._queues.on_connected("CONFIGURE_STREAM" in features.get("SUBSCRIPTIONS", ())):
            self.enter_ready(reconnected)

    def enter_ready(self, reconnected: bool = True) -> None:
        """Retransmit posts after all queues are reopened."""
        self._state.enter(State.READY)
        count = self._posts.retransmit()
        if reconnected:
            self._outbox.log(INFO, f"all queues are reopened, {count} posts are sent")
            self._outbox.event(EventKind.STATE_RESTORED)

    def reconnect(self, reason: str = "") -> None:
        """Handle a lost connection: keep queues and posts, and reconnect."""
        sent = self._state.state is State.READY
        self._state.enter(State.WAITING, reason)
        self._drop_channel(sent)
        self._counters.losses += 1
        self._outbox.log(INFO, f"connection to {self.address} lost: {reason or 'no reason given'}; {len(self._queues)} "
                                f"queues and {len(self._posts.unacked)} posts are kept")
        self._outbox.event(EventKind.CONNECTION_LOST, message=reason)
        self._queues.on_connection_lost()
        if self._posts.unacked:
            self._posts.on_expiry_due()
        self._deadlines.set_after(Input.PAUSE_DUE, self._backoff.next_pause_s())

    def _drop_channel(self, sent: bool = False) -> None:
        """Close the channel and discard its state. `sent`: posts were sent on it."""
        self._outbox.add(Close(self.attempt))
        self.attempt += 1
        self._posts.on_connection_lost(sent)
        self._outbox.clear()
        self._requests.pending.clear()
        self._frames = FrameBuffer(EVENT_BYTES_MAX)

    # -- stop -------------------------------------------------------------------------------------------------------

    def start_drain(self, token: object, drain: bool) -> None:
        self._stop_tokens.append(token)
        self._queues.on_stopping()
        if self._posts.unacked and drain and self._options.drain_s and self._state.state is State.READY:
            self._state.enter(State.DRAINING)
            self._deadlines.set_after(Input.DRAIN_DUE, self._options.drain_s)
            self._outbox.notify()
            return
        self.send_disconnect()

    def on_ack_draining(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        self._posts.on_ack(buffer, specific, start, end)
        self.on_sent()

    def on_sent(self) -> None:
        if not self._posts.unacked:
            self.send_disconnect()

    def send_disconnect(self) -> None:
        self._requests.send("disconnect", schema.Disconnect(), lambda *_: self.end_session())
        self._state.enter(State.DISCONNECTING)
        self._deadlines.set_after(Input.DISCONNECT_DUE, self._options.disconnect_timeout_s)

    def on_repeated_stop(self, token: object, drain: bool) -> None:
        if self._state.state is State.STOPPED:
            self._outbox.complete(token)
        else:
            self._stop_tokens.append(token)

    def stop_now(self, token: object, drain: bool) -> None:
        self._stop_tokens.append(token)
        self.end_session()

    def end_session(self, reason: str = "") -> None:
        """End the session: complete pending requests, close the queues, fail their posts."""
        self._drop_channel()
        self._state.enter(State.STOPPED, reason)
        self._queues.on_stopped()
        self._outbox.complete(self._start_token, Result.CANCELED, "the session was stopped")
        self._start_token = None
        if self._was_connected:
            self._outbox.log(INFO, f"the session with {self.address} has ended")
            self._outbox.event(EventKind.DISCONNECTED, message=reason)
        tokens, self._stop_tokens = self._stop_tokens, []
        for each in tokens:
            self._outbox.complete(each)
        self._posts.signal_room()


class Negotiation:
    """Authenticates, if the session has a credential, then negotiates, and passes the result to `connection`. A credential
    is renewed before it expires."""

    def __init__(self, shared: SharedParts, identity: schema.ClientIdentity, connection: Connection) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self._identity, self._connection = identity, connection

    def start(self) -> None:
        try:
            authenticating = self._authenticate()
        except Exception as error:  # noqa: BLE001 - application code; no session without the credential
            self._connection.retry(str(error))
            return
        if authenticating:
            self._state.enter(State.AUTHENTICATING)
        else:
            self._send_identity()

    def _send_identity(self) -> None:
        self._state.enter(State.NEGOTIATING)
        self._outbox.send(NegotiationMessage("clientIdentity", self._identity))

    def on_negotiation(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        try:
            message = control.decode_negotiation(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self._connection.retry(str(error))
            return
        response = message.value
        if message.choice != "brokerResponse":
            self._connection.retry("not a brokerResponse")
        elif response.result.category != Category.E_SUCCESS:
            self._connection.on_refused(result_of(response.result.category), response.result.message)
        else:
            self._connection.on_accepted(response)

    # -- credentials ------------------------------------------------------------------------------------------------

    def _authenticate(self) -> bool:
        """Send the credential; False if the session has none."""
        try:
            given = self._options.credential
            credential = given() if callable(given) else given
            if credential is not None:
                self._outbox.send(AuthenticationMessage("authenticationRequest", schema.AuthenticationRequest(
                    credential.mechanism, credential.data)))
            return credential is not None
        except Exception as error:
            self._outbox.log(WARNING, f"no credential: {error}")
            self._outbox.event(EventKind.ERROR, Result.UNKNOWN, f"no credential: {error}")
            raise

    def _decode_response(self, buffer: bytes, specific: int, start: int, end: int) -> Any:
        message = control.decode_authentication(buffer[start:end], encoding_of(specific))
        if message.choice != "authenticationResponse":
            raise PeerError("not an authenticationResponse", "choice", start)
        return message.value

    def on_authentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        try:
            response = self._decode_response(buffer, specific, start, end)
        except PeerError as error:
            self._connection.retry(str(error))
            return
        if response.status.category != Category.E_SUCCESS:
            self._connection.on_refused(result_of(response.status.category), response.status.message)
            return
        self._send_identity()
        self._schedule_renewal(response.lifetime_ms)

    def _schedule_renewal(self, lifetime_ms: int | None) -> None:
        if lifetime_ms is not None:
            lifetime_s = lifetime_ms / 1000
            self._deadlines.set_after(Input.REAUTHENTICATE_DUE, max(min(0.9 * lifetime_s, lifetime_s - _RENEWAL_S), 0.0))

    def on_reauthenticate_due(self) -> None:
        with contextlib.suppress(Exception):  # application code; the broker ends the session at the expiry
            self._authenticate()

    def on_reauthentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        try:
            response = self._decode_response(buffer, specific, start, end)
        except PeerError as error:
            self._outbox.report_invalid(error)
            return
        if response.status.category == Category.E_SUCCESS:
            self._schedule_renewal(response.lifetime_ms)
        else:
            self._outbox.log(WARNING, f"{self._connection.address} refused the new credential: {response.status.message}")
            self._outbox.event(EventKind.ERROR, result_of(response.status.category), response.status.message)
