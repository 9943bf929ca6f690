"""The life of a session: it connects, introduces itself, loses the connection, comes back, and stops for good."""

from __future__ import annotations

from logging import INFO, WARNING
from typing import Any

from bmqtwist.errors import Category, PeerError
from bmqtwist.limits import EVENT_BYTES_MAX
from bmqtwist.sdk.effects import Close, Completed, Connect
from bmqtwist.sdk.options import Address, Credential
from bmqtwist.sdk.queues import Job, Queue, QueueMachine
from bmqtwist.sdk.results import EventKind, Result, SdkError, result_of
from bmqtwist.sdk.states import Input, QueueInput, QueueState, State
from bmqtwist.sdk.traffic import Traffic
from bmqtwist.wire import control, schema
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage, encoding_of
from bmqtwist.wire.fast import HEARTBEAT_REQ, HEARTBEAT_RSP
from bmqtwist.wire.frames import FrameBuffer

_ANSWERS = {"openQueue": "openQueueResponse", "configureStream": "configureStreamResponse",
            "configureQueueStream": "configureQueueStreamResponse", "closeQueue": "closeQueueResponse",
            "disconnect": "disconnectResponse"}
_RENEWAL_S = 5.0  # a credential is shown again that long before it ends, or at nine tenths of its life


class Life(Traffic):
    """Start, connection, negotiation, heartbeats, stop."""

    machine: QueueMachine
    now: float
    address: Address
    attempt: int
    blocked: bool
    has_configure_stream: bool
    v2_properties: bool

    # -- start and stop ---------------------------------------------------------------------------------------------

    def start(self, token: object, now: float) -> None:
        """Connect, and stay connected; `token` is completed once that has worked or failed."""
        self.now = now
        self._row[Input.START](token)

    def _begin(self, token: object) -> None:
        self._start_token = token
        self.deadlines.set("start", self.now + self.options.connect_timeout_s)
        self._connect()

    def _refuse_start(self, token: object) -> None:
        raise SdkError(Result.ALREADY_IN_PROGRESS, "a session can be started once: make a new one")

    def _start_due(self) -> None:
        self._give_up(Result.TIMEOUT, f"no connection within {self.options.connect_timeout_s:g} s")

    def _give_up(self, result: Result, message: str) -> None:
        """The first connection did not come up: the session is over."""
        self.note(WARNING, f"the session did not start: {message or result}")
        if result is Result.TIMEOUT:
            self.event(EventKind.CONNECTION_TIMEOUT, result, message)
        token, self._start_token = self._start_token, None
        self._finish()
        if token is not None:
            self.effect(Completed(token, result, message))

    def stop(self, token: object, now: float, drain: bool = True) -> None:
        """Wait for acknowledgements (with `drain`, not longer than the options say), disconnect, never come back."""
        self.now = now
        self._row[Input.STOP](token, drain)

    def _drain(self, token: object, drain: bool) -> None:
        self._stop_tokens.append(token)
        self._restoring.clear()
        for queue in list(self.queues.values()):
            if queue.state not in (QueueState.OPEN, QueueState.DECONFIGURING, QueueState.CLOSING):
                self.machine.feed(queue, QueueInput.CLOSE_LOCALLY)
            elif queue.job or queue.jobs:
                self._cancel_jobs(queue)
        if self.puts.kept and drain and self.options.drain_s and self.state is State.READY:
            self._enter(State.DRAINING)
            self.deadlines.set("drain", self.now + self.options.drain_s)
            self._has_output()
            return
        self._leave()

    def _cancel_jobs(self, queue: Queue) -> None:
        jobs = [*([queue.job] if queue.job else []), *queue.jobs]
        queue.job = None
        queue.jobs.clear()
        for job in jobs:
            self.deadlines.clear((queue, job))
            if job.token is not None:
                self.effect(Completed(job.token, Result.CANCELED, "the session is stopping"))

    def _drain_due(self) -> None:
        self._leave()

    def _leave(self) -> None:
        self.request(None, "disconnect", schema.Disconnect(), "disconnect")
        self._enter(State.LEAVING)
        self.deadlines.set("leave", self.now + self.options.disconnect_timeout_s)

    def _leave_due(self) -> None:
        self._finish()

    def _stop_again(self, token: object, drain: bool) -> None:
        if self.state is State.STOPPED:
            if token is not None:
                self.effect(Completed(token, Result.SUCCESS))
        else:
            self._stop_tokens.append(token)

    def _stop_now(self, token: object, drain: bool) -> None:
        self._stop_tokens.append(token)
        self._finish()

    def _answered(self) -> None:
        if self.state is State.DRAINING and not self.puts.kept:
            self._leave()

    def _finish(self, reason: str = "") -> None:
        """The session is over: nothing is left waiting, nothing reconnects."""
        was_up = self._was_connected
        self._drop_channel()
        self._enter(State.STOPPED)
        for queue in list(self.queues.values()):
            if queue.token is not None:
                token, queue.token = queue.token, None
                self.effect(Completed(token, Result.CANCELED, "the session was stopped"))
            self.machine.feed(queue, QueueInput.LOST)
            if queue.state is not QueueState.CLOSED:
                self.machine.feed(queue, QueueInput.CLOSE_LOCALLY)
        if self._start_token is not None:
            self.effect(Completed(self._start_token, Result.CANCELED, "the session was stopped"))
            self._start_token = None
        if was_up:
            self.note(INFO, f"the session with {self.address} has ended")
            self.event(EventKind.DISCONNECTED, message=reason)
        tokens, self._stop_tokens = self._stop_tokens, []
        for each in tokens:
            if each is not None:
                self.effect(Completed(each, Result.SUCCESS))
        self._give_room()

    # -- the channel ------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.attempt += 1
        self.tally.attempts += 1
        self._enter(State.CONNECTING)
        self.deadlines.set("attempt", self.now + self.options.attempt_timeout_s)
        self.address = self._backoff.address()
        self.effect(Connect(self.attempt, self.address))

    def connected(self, attempt: int, now: float) -> None:
        """The channel of an attempt is up."""
        self.now = now
        if attempt == self.attempt:
            self._row[Input.CONNECTED]()

    def failed(self, attempt: int, reason: str, now: float) -> None:
        """The channel of an attempt did not come up."""
        self.now = now
        if attempt == self.attempt:
            self._row[Input.FAILED](reason)

    def lost(self, attempt: int, reason: str, now: float) -> None:
        """The channel is gone."""
        self.now = now
        if attempt == self.attempt:
            self._row[Input.LOST](reason)

    def pause(self, now: float) -> None:
        """The channel has more to write than its high watermark."""
        self.now = now
        if not self.blocked:
            self.blocked = True
            self.event(EventKind.CHANNEL_HIGH_WATERMARK)

    def resume(self, now: float) -> None:
        """It is below its low watermark again."""
        self.now = now
        if self.blocked:
            self.blocked = False
            self.event(EventKind.CHANNEL_LOW_WATERMARK)
            self._give_room()

    def received(self, chunk: bytes, now: float) -> None:
        """Bytes from the broker."""
        self.now = now
        self._received = True
        self.tally.bytes_in += len(chunk)
        attempt = self.attempt
        try:
            buffer, spans = self._frames.receive(chunk)
        except PeerError as error:
            self.reset(str(error))
            return
        for kind, specific, start, end in spans:
            self._by_type[kind](buffer, specific, start, end)
            if attempt != self.attempt:
                return
        if self._frames.error is not None:
            self.reset(str(self._frames.error))

    def _drop_channel(self, sent: bool = False) -> None:
        """Forget everything that belongs to the channel, and have it closed. `sent`: were posts sent on it?"""
        self.effect(Close(self.attempt))
        self.attempt += 1
        self._out.clear()
        self._confirms.clear()
        self.puts.lost(sent)
        self._requests.clear()
        self._frames = FrameBuffer(EVENT_BYTES_MAX)
        self.blocked = False

    def reset(self, reason: str) -> None:
        """The channel cannot be used any more: as if it were lost."""
        self._row[Input.LOST](reason)

    def _retry(self, reason: str = "") -> None:
        """The attempt failed: another one, later."""
        self._drop_channel()
        pause = self._backoff.pause()
        self.note(INFO, f"no session with {self.address}: {reason or 'no reason given'}; "
                        f"the next attempt {f'in {pause:.1f} s' if pause else 'at once'}")
        if pause:
            self._enter(State.WAITING)
            self.deadlines.set("pause", self.now + pause)
        else:
            self._connect()

    def _attempt_due(self) -> None:
        self._retry("no session in time")

    def _pause_due(self) -> None:
        self._connect()

    def _reconnect(self, reason: str = "") -> None:
        """The session was up and is not any more: keep everything, come back."""
        sent = self.state is State.READY
        self._enter(State.WAITING)
        self._drop_channel(sent)
        self._restoring.clear()
        self.tally.losses += 1
        self.note(INFO, f"connection to {self.address} lost: {reason or 'no reason given'}; {len(self.queues)} queues "
                        f"and {len(self.puts.kept)} posts are kept")
        self.event(EventKind.CONNECTION_LOST, message=reason)
        for queue in list(self.queues.values()):
            self.machine.feed(queue, QueueInput.LOST)
        if self.puts.kept:
            self._expiry_due()
        self.deadlines.set("pause", self.now + self._backoff.pause())

    # -- authentication and negotiation -----------------------------------------------------------------------------

    def _credential(self) -> Credential | None:
        credential = self.options.credential
        return credential() if callable(credential) else credential

    def _no_credential(self, error: Exception) -> None:
        self.note(WARNING, f"no credential: {error}")
        self.event(EventKind.ERROR, Result.UNKNOWN, f"no credential: {error}")

    def _authenticate(self, credential: Credential) -> None:
        self._send(AuthenticationMessage("authenticationRequest",
                                         schema.AuthenticationRequest(credential.mechanism, credential.data)))

    def _introduce(self) -> None:
        """The client speaks first."""
        self._frames = FrameBuffer(EVENT_BYTES_MAX)
        try:
            credential = self._credential()
            if credential is not None:
                self._authenticate(credential)
        except Exception as error:  # noqa: BLE001 - the application's own code: without a credential there is no session
            self._no_credential(error)
            self._retry(str(error))
            return
        if credential is not None:
            self._enter(State.AUTHENTICATING)
        else:
            self._identify()

    def _identify(self) -> None:
        self._enter(State.NEGOTIATING)
        self._send(NegotiationMessage("clientIdentity", self.identity))

    def _authentication_response(self, buffer: bytes, specific: int, start: int, end: int) -> Any:
        message = control.decode_authentication(buffer[start:end], encoding_of(specific))
        if message.choice != "authenticationResponse":
            raise PeerError("not an authenticationResponse", "choice", start)
        return message.value

    def _on_authentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        try:
            response = self._authentication_response(buffer, specific, start, end)
        except PeerError as error:
            self._retry(str(error))
            return
        if response.status.category != Category.E_SUCCESS:
            self._refused(response.status)
            return
        self._identify()
        self._renew_later(response.lifetime_ms)

    def _renew_later(self, lifetime_ms: int | None) -> None:
        if lifetime_ms is not None:
            life = lifetime_ms / 1000
            self.deadlines.set("reauthenticate", self.now + max(min(0.9 * life, life - _RENEWAL_S), 0.0))

    def _reauthenticate_due(self) -> None:
        try:
            credential = self._credential()
            if credential is not None:
                self._authenticate(credential)
        except Exception as error:  # noqa: BLE001 - the application's own code: the broker ends the session if it stays so
            self._no_credential(error)

    def _on_reauthentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        try:
            response = self._authentication_response(buffer, specific, start, end)
        except PeerError as error:
            self._nonsense(error)
            return
        if response.status.category == Category.E_SUCCESS:
            self._renew_later(response.lifetime_ms)
        else:
            self.note(WARNING, f"{self.address} refuses the new credential: {response.status.message}")
            self.event(EventKind.ERROR, result_of(response.status.category), response.status.message)

    def _refused(self, status: schema.Status) -> None:
        """The broker does not want us: final only if no broker ever did."""
        self._refusals += 1
        result = result_of(status.category)
        self.note(WARNING, f"{self.address} refuses this session: {result} {status.message}".rstrip())
        if not self._was_connected and self._refusals >= len(self.options.brokers):
            self._give_up(result, status.message)
            return
        self.event(EventKind.ERROR, result, status.message)
        self._retry(status.message)

    def _on_negotiation(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        try:
            message = control.decode_negotiation(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self._retry(str(error))
            return
        response = message.value
        if message.choice != "brokerResponse":
            self._retry("not a brokerResponse")
        elif response.result.category != Category.E_SUCCESS:
            self._refused(response.result)
        else:
            self._accepted(response)

    def _accepted(self, response: schema.BrokerResponse) -> None:
        """A session is up."""
        features = {name: values.split(",") for name, _, values in
                    (part.partition(":") for part in response.broker_identity.features.split(";"))}
        self.has_configure_stream = "CONFIGURE_STREAM" in features.get("SUBSCRIPTIONS", ())
        v2_properties = "MESSAGE_PROPERTIES_EX" in features.get("MPS", ())
        if self.v2_properties and not v2_properties and self.puts.kept:
            self.puts.restyle()
        self.v2_properties = v2_properties
        self._backoff.succeeded()
        self._enter(State.RESTORING)
        self._silent, self._received = 0, True
        self._heartbeat_s, self._missed_max = response.heartbeat_interval_ms / 1000, response.max_missed_heartbeats
        if self._missed_max > 0 and self._heartbeat_s > 0:
            self.deadlines.set("heartbeat", self.now + self._heartbeat_s)
        again, self._was_connected = self._was_connected, True
        self._told.clear()
        self.note(INFO, f"{'reconnected' if again else 'connected'} to {self.address}")
        if again:
            self.tally.reconnects += 1
            self.event(EventKind.RECONNECTED)
            self._expiry_due()
        else:
            self.event(EventKind.CONNECTED)
            token, self._start_token = self._start_token, None
            if token is not None:
                self.effect(Completed(token, Result.SUCCESS))
        self._restoring = {queue for queue in self.queues.values() if queue.state is QueueState.REOPEN_HELD}
        for queue in list(self.queues.values()):
            self.machine.feed(queue, QueueInput.CONNECTED)
        if not self._restoring:
            self._ready(again)

    def restored(self, queue: Queue) -> None:
        """A queue is back, or will not come back."""
        if queue in self._restoring:
            self._restoring.discard(queue)
            if not self._restoring and self.state is State.RESTORING:
                self._ready(True)

    def _ready(self, again: bool) -> None:
        """All queues are back: send what waited, in the order it was posted."""
        self._enter(State.READY)
        if self.puts.kept:
            self.tally.retransmitted += self.puts.again()
            self._has_output()
        if again:
            self.note(INFO, f"all queues are back, {len(self.puts.kept)} posts are sent")
            self.event(EventKind.STATE_RESTORED)

    def _on_unexpected(self, *_: object) -> None:
        self._retry("data before the end of the negotiation")

    # -- heartbeats -------------------------------------------------------------------------------------------------

    def _on_heartbeat(self, *_: object) -> None:
        self._out.append(HEARTBEAT_RSP)
        self._has_output()

    def _heartbeat_due(self) -> None:
        if self._received:
            self._received, self._silent = False, 0
        else:
            self._silent += 1
            if self._silent > self._missed_max:
                self.reset(f"nothing heard for {self._silent} heartbeats")
                return
            self._out.append(HEARTBEAT_REQ)
            self._has_output()
        self.deadlines.set("heartbeat", self.now + self._heartbeat_s)

    # -- requests ---------------------------------------------------------------------------------------------------

    def request(self, queue: Queue | None, choice: str, value: object, purpose: str | Job) -> None:
        """Send a request; `purpose` says who hears the answer: the queue's life (step), a job, nobody (none)."""
        r_id, self._next_r_id = self._next_r_id, self._next_r_id + 1 & 0x7FFFFFFF
        self._requests[r_id] = queue, purpose, _ANSWERS[choice]
        self._send(ControlMessage(r_id, choice, value))

    def forget_request(self, purpose: Job) -> None:
        """Nobody waits for the answer any more; a broker that never gives one costs no memory."""
        for r_id in [r_id for r_id, found in self._requests.items() if found[1] is purpose]:
            del self._requests[r_id]
