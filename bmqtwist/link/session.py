"""The broker's side of one connection, without the connection: chunks in, chunks out.

    session.receive(chunk, now, wall)      what the socket delivered
    session.take()                         what to write, asked for at the end of the turn
    session.lost(now, wall)                the channel is gone without a disconnect

PUT and CONFIRM events are walked here with precompiled struct; control messages go to `link/requests.py`. What is
done with which event in which state stands in `link/states.py`. Nothing a peer sends raises out of `receive`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist.errors import AckStatus, PeerError
from bmqtwist.ids import NULL_GUID
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX, CLOSED_IDS_MAX, TURN_PUSH_BYTES_MAX
from bmqtwist.link import requests
from bmqtwist.link.authentication import Answer, Authenticate, Authentication, Close, Drop, Effect, Outcome, Proceed
from bmqtwist.link.context import SessionContext
from bmqtwist.link.outbox import Outbox
from bmqtwist.link.pending import Pending
from bmqtwist.link.states import ANSWERS, State
from bmqtwist.queue.counters import ChannelStats, ClientStats
from bmqtwist.queue.handle import FLAG_WRITE, Handle
from bmqtwist.queue.handles import drop_handle
from bmqtwist.queue.put import Put
from bmqtwist.queue.routing import Subscription
from bmqtwist.report import LineLimiter
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.wire import application_data, control
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, Encoding, NegotiationMessage, encoding_of
from bmqtwist.wire.fast import CONFIRM_MESSAGE, HEARTBEAT_RSP, PUT_HEADER
from bmqtwist.wire.frames import FrameBuffer
from bmqtwist.wire.schema import (
    AdminCommandResponse,
    AuthenticationResponse,
    ClientIdentity,
    ClientType,
    SdkLanguage,
    Status,
)

_PUT_BYTES_MIN = 32  # a header without the schema word is accepted
_FAILED_ACK_LOG_S = 5.0
_HELD_FRAMES_MAX = 1024  # frames kept back while a credential is looked at


class Session:
    """One connection: its state, its handles, what it will write."""

    __slots__ = ("context", "peer", "session_number", "state", "description", "identity", "encoding", "v2_properties",
                 "makes_guids", "guard", "handles", "closed_ids", "closing_now", "just_opened", "pending", "outbox",
                 "stats", "channel", "closing", "lagging", "held", "waiting", "now", "wall", "last_received",
                 "missed_heartbeats", "connected_at", "negotiated_at",
                 "transport", "encoding_of_authentication", "_frames", "_answers", "_held",
                 "_unacked", "_lines", "_turn_bytes")

    def __init__(self, context: SessionContext, peer: str, guard: Authentication, now: float, event_bytes_max: int) -> None:
        self.context, self.peer, self.guard = context, peer, guard
        self.description = peer
        self.identity = ClientIdentity()
        self.encoding = Encoding.BER
        self.v2_properties = self.makes_guids = False
        self.transport: object = None  # what performs take(), the performer's
        self.session_number = 0
        self.handles: dict[int, Handle] = {}
        self.closed_ids: dict[int, None] = {}  # queue ids given up on this connection: no ACK may name them any more
        self.closing_now: set[int] = set()  # those of this turn
        self.just_opened: list[tuple[str, float]] = []  # queues whose open is answered in this turn, and when it came
        self.pending = Pending(partial(requests.begin, self), partial(requests.timeout, self),
                               partial(requests.expire, self))
        self.outbox = Outbox()
        self.stats = ClientStats()
        self.channel = ChannelStats()
        self.closing = False  # close the connection once everything is written
        self.lagging = False  # see queue.handle.Client; the broker's to set
        self.held = False  # no credit until what was delivered is written
        self._turn_bytes = 0  # delivered in this turn
        self.waiting = False  # a flush is due at the end of the turn
        self.now, self.wall = now, 0
        self.connected_at = self.last_received = now
        self.negotiated_at: float | None = None
        self.missed_heartbeats = 0
        self.encoding_of_authentication = Encoding.BER
        self._frames = FrameBuffer(event_bytes_max)
        self._held: list[tuple[bytes, int, int, int, int]] = []
        self._unacked: set[bytes] = set()
        self._lines = LineLimiter()
        self.enter(State.NEGOTIATING)

    # -- from the transport -----------------------------------------------------------------------------------------

    def receive(self, chunk: bytes, now: float, wall: int) -> None:
        """Take what the socket delivered; answers are in the outbox afterwards."""
        self.now, self.wall = now, wall
        self.last_received = now
        self.missed_heartbeats = 0
        self.channel.in_bytes += len(chunk)
        self.channel.in_chunks += 1
        try:
            buffer, frames = self._frames.receive(chunk)
        except PeerError as error:
            self.close("#TCP_READ_ERROR %s: %s", self.description, error)
            return
        for kind, specific, start, end in frames:
            self._answers[kind](buffer, specific, start, end)
        if self._frames.error is not None:
            self.close("#TCP_READ_ERROR %s: %s", self.description, self._frames.error)

    def take(self) -> list[bytes]:
        """What to write now, in order."""
        self.waiting = False
        self._turn_bytes = 0
        self.closing_now.clear()
        if self.just_opened:
            for uri, arrived in self.just_opened:
                took_ns = round((self.context.now - arrived) * 1e9)
                self.context.report.info("%s: open queue [queue: '%s'] took: %.2f us (%d nanoseconds)", self.description,
                                         uri, took_ns / 1000, took_ns)
            self.just_opened.clear()
        data = self.outbox.take()
        self.channel.out_chunks += 1
        return data

    def lost(self, now: float, wall: int) -> None:
        """The channel is gone: everything held goes back, at the cost of a delivery attempt unless we closed it."""
        self.now, self.wall = now, wall
        if self.state is not State.CLOSED:
            self.drop_handles(crashed=self.context.serving)
            self.enter(State.CLOSED)
        self.guard.closed()
        self.context.gone(self)

    def close(self, reason: str, *args: object) -> None:
        """Write what is collected, then close; nothing more is read."""
        if self.state is not State.CLOSED:
            self.context.report.warn(reason, *args)
            self._end(crashed=self.context.serving)

    def leave(self) -> None:
        """The broker goes away: write what is collected, then close, at no cost of a delivery attempt."""
        if self.state is not State.CLOSED:
            self._end(crashed=False)

    def _end(self, crashed: bool) -> None:
        self.drop_handles(crashed)
        self.enter(State.CLOSED)
        self.guard.closed()
        self.closing = True
        self._flush()

    # -- state ------------------------------------------------------------------------------------------------------

    def enter(self, state: State) -> None:
        """Change state: from now on events are answered by that row of the table."""
        self.state = state
        row = ANSWERS[state]
        self._answers: dict[int, Callable[[bytes, int, int, int], None]] = {
            kind: partial(self.on_held, kind) if action == "on_held" else getattr(self, action)
            for kind, action in row.items()}

    def drop_handles(self, crashed: bool) -> None:
        """Give up every handle, and every request for one."""
        self.pending.cancel()
        handles, self.handles = self.handles, {}
        for q_id, handle in handles.items():
            self.close_id(q_id)
            try:
                drop_handle(handle, crashed, self.wall)
            except Exception as error:
                self.context.queue_failed(handle.queue, "the loss of a client", error, disable=True)
            self.context.unused(handle.queue)

    def close_id(self, q_id: int) -> None:
        """A queue id was closed for good."""
        self.closed_ids[q_id] = None
        if len(self.closed_ids) > CLOSED_IDS_MAX:
            del self.closed_ids[next(iter(self.closed_ids))]

    def _flush(self) -> None:
        if not self.waiting:
            self.context.flush_later(self)

    def send(self, message: ControlMessage | NegotiationMessage | AuthenticationMessage,
             encoding: int | None = None) -> None:
        """Queue a schema message behind everything collected so far."""
        self.outbox.event(control.encode_event(message, self.encoding if encoding is None else encoding))
        self._flush()

    def answer(self, r_id: int, choice: str, value: object) -> None:
        """Answer a request."""
        self.send(ControlMessage(r_id, choice, value))

    # -- what a queue calls -----------------------------------------------------------------------------------------

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None:
        """Deliver a message to one subscription of a handle."""
        payload = message.payload
        if payload is None:
            try:
                payload = handle.queue.payload(message)
            except (PartitionUnavailable, OSError) as error:  # it stays stored; the partition has raised its alarm
                self.context.report.error(f"{self.description}: message [GUID: {message.guid.hex().upper()}] of queue "
                                       f"'{handle.queue.uri}' is not delivered: {error}")
                return
        compression, schema_id, flags = message.compression, 0, 4 if redelivered else 0
        if message.has_properties:
            flags |= 2
            if message.schema_id:
                schema_id = 1
                if not self.v2_properties:
                    try:
                        payload, compression = application_data.for_old_reader(payload, True, compression,
                                                                       message.schema_id)
                    except PeerError as error:
                        self.context.report.alarm("CLIENT_INVALID_PUSH", f"{self.description}: properties of message "
                                               f"[GUID: {message.guid.hex().upper()}] cannot be converted: {error}")
                        return
                    schema_id = 0
        stats = self.stats
        stats.push_msgs += 1
        stats.push_bytes += message.size
        send = self.outbox.push_merged if handle.merges else self.outbox.push
        send(handle.q_id, message.guid, sub_id, flags, compression, schema_id, payload)
        self._turn_bytes += message.size
        if self._turn_bytes > TURN_PUSH_BYTES_MAX and not self.held:
            self.hold()
        if not self.waiting:
            self.context.flush_later(self)

    def hold(self) -> None:
        """Count every subscription as full: what waits for this client must not grow with its credit."""
        self.held = True
        for subscription in self._subscriptions():
            subscription.full = True

    def resume(self) -> None:
        """The client has taken enough: its credit counts again."""
        if self.held:
            self.held = False
            for subscription in self._subscriptions():
                subscription.carry_over(subscription.messages, subscription.bytes)
                subscription.substream.app.recheck_waiting = True
                subscription.substream.handle.queue.touch()

    def _subscriptions(self) -> list[Subscription]:
        return [subscription for handle in self.handles.values() for substream in handle.substreams.values()
                for subscription in substream.subscriptions]

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        """Acknowledge a PUT of this session; after the final close of its handle nothing is said any more."""
        self._unacked.discard(guid)
        if handle.closing:
            return
        if status:
            self._failed_ack(handle, guid, correlation_id, status)
        else:
            self.stats.ack_msgs += 1
        self.outbox.ack(handle.q_id, guid, correlation_id, status)
        if not self.waiting:
            self.context.flush_later(self)

    def _failed_ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        self.stats.nack_msgs += 1
        handle.queue.stats.nack_msgs += 1
        if self.now - handle.acks_failed_at >= _FAILED_ACK_LOG_S:
            handle.acks_failed_at = self.now
            self.context.report.warn(f"{self.description}: failed Ack [status: {AckStatus(status).name}, source: "
                                  f"'onAckEvent', correlationId: {correlation_id}, GUID: {guid.hex().upper()}, queue: "
                                  f"'{handle.queue.uri}' (id: {handle.q_id})]")

    # -- PUT --------------------------------------------------------------------------------------------------------

    def on_puts(self, buffer: bytes, specific: int, position: int, end: int) -> None:
        """Walk the messages of a PUT event."""
        unpack, handles, unacked = PUT_HEADER.unpack_from, self.handles, self._unacked
        now, wall, stats = self.now, self.wall, self.stats
        if position >= end:
            self._corrupted("Put", -1)
        while position < end:
            if end - position < PUT_HEADER.size:
                self._corrupted("Put", -2)
                return
            first, second, q_id, guid, crc, schema_id, _ = unpack(buffer, position)
            header = (second & 31) << 2
            option_bytes = second >> 8 << 2
            compression = second >> 5 & 7
            start = position + header + option_bytes
            stop = position + ((first & 0x0FFFFFFF) << 2)
            if stop > end or start >= stop or header < _PUT_BYTES_MIN:
                self._corrupted("Put", -3)
                return
            size = stop - start - buffer[stop - 1]
            has_properties = bool(first & 0x20000000)
            if header < PUT_HEADER.size:
                schema_id = 0
            if size <= 0 or not 1 <= buffer[stop - 1] <= 4 or compression > 1 or schema_id and not has_properties:
                self._corrupted("Put", -4)
                return
            payload = buffer[start:start + size]
            options = buffer[position + header:start] if option_bytes else b""
            position = stop
            wants_ack = bool(first & 0x10000000)
            correlation_id = 0
            handle = handles.get(q_id)
            if handle is None or not handle.flags & FLAG_WRITE:
                self._refuse_put(handle, q_id, guid, size)
                continue
            if self.makes_guids:
                if guid == NULL_GUID:
                    self._invalid_put("PUT message without a GUID", q_id)
                    handle.queue.stats.nack_msgs += 1
                    self.ack(handle, guid, 0, AckStatus.UNKNOWN)
                    continue
            else:
                correlation_id = int.from_bytes(guid[1:4], "big")
                wants_ack = wants_ack or correlation_id != 0
                guid = self.context.make_guid()
            if size > APPLICATION_DATA_BYTES_MAX or crc32c(payload) != crc:
                self._invalid_put("PUT message that is too large or does not match its CRC32-C", q_id)
                self.ack(handle, guid if self.makes_guids else NULL_GUID, correlation_id, AckStatus.UNKNOWN)
                continue
            if wants_ack:
                if guid in unacked:
                    if self._lines.admits(now):
                        self.context.report.warn(f"#UNACKED_PUT_GUID_COLLISION {self.description}: GUID "
                                              f"[{guid.hex().upper()}], queue '{handle.queue.uri}'")
                    wants_ack = False
                else:
                    unacked.add(guid)
            if has_properties and compression and not schema_id:
                try:
                    payload, crc = application_data.inflated_v1(payload)
                    compression = 0
                except PeerError:
                    pass  # stored as it came; only subscriptions and conversions notice
            stats.put_msgs += 1
            stats.put_bytes += size
            try:
                refused = handle.queue.post(Put(handle, Message(guid, payload, options, has_properties, compression,
                                                                schema_id, crc, now, wall), correlation_id, wants_ack),
                                            now, wall)
            except Exception:
                handle.queue.forget_post(guid)
                raise
            if refused:
                self.ack(handle, guid if self.makes_guids else NULL_GUID, correlation_id, refused)

    def _refuse_put(self, handle: Handle | None, q_id: int, guid: bytes, size: int) -> None:
        self.context.invalid_put(size, False)
        if handle is None:
            self._invalid_put("PUT message for queue with unknown Id", q_id)
        else:
            self._invalid_put("PUT message for queue not opened in WRITE mode by the client", q_id)
        self.stats.nack_msgs += 1
        if q_id in self.closed_ids:
            return  # an ACK after the final close kills official clients
        correlation_id = 0
        if not self.makes_guids:
            correlation_id, guid = int.from_bytes(guid[1:4], "big"), NULL_GUID
        self.outbox.ack(q_id, guid, correlation_id, AckStatus.UNKNOWN)
        self._flush()

    def _invalid_put(self, what: str, q_id: int) -> None:
        if self._lines.admits(self.now):
            self.context.report.warn(f"#CLIENT_INVALID_PUT {self.description}: {what} ([ qId = {q_id} subId = DEFAULT ])")

    def _corrupted(self, what: str, code: int) -> None:
        if self._lines.admits(self.now):
            self.context.report.warn(f"#CORRUPTED_EVENT {self.description}: Invalid {what} event [rc: {code}]")

    # -- CONFIRM ----------------------------------------------------------------------------------------------------

    def on_confirms(self, buffer: bytes, specific: int, position: int, end: int) -> None:
        """Walk the messages of a CONFIRM event; unknown ones are ignored."""
        sizes = buffer[position] if position < end else 0
        position += sizes >> 4 << 2
        step = (sizes & 15) << 2
        if step < CONFIRM_MESSAGE.size or position > end:
            self._corrupted("Confirm", -1)
            return
        if step != CONFIRM_MESSAGE.size:
            buffer = b"".join(buffer[at:at + CONFIRM_MESSAGE.size] for at in range(position, end - step + 1, step))
            position, end = 0, len(buffer)
        whole = position + (end - position) // CONFIRM_MESSAGE.size * CONFIRM_MESSAGE.size
        handles, now, wall, stats = self.handles, self.now, self.wall, self.stats
        for q_id, guid, sub_id in CONFIRM_MESSAGE.iter_unpack(buffer[position:whole]):
            handle = handles.get(q_id)
            if handle is None:
                if self._lines.admits(now):
                    self.context.report.warn(f"#CLIENT_UNKNOWN_QUEUE {self.description}: CONFIRM for a queue with unknown "
                                          f"Id [ qId = {q_id} ]")
                continue
            substream = handle.substreams.get(sub_id)
            if substream is None:
                continue
            if handle.queue.mode == "broadcast":
                if self._lines.admits(now):
                    self.context.report.warn(f"#CLIENT_IMPROPER_BEHAVIOR {self.description}: Received CONFIRM message for "
                                          f"queue in broadcast mode [queue: '{handle.queue.uri}']")
                continue
            stats.confirm_msgs += 1
            handle.queue.confirm(substream, guid, now, wall)
        if whole != end:
            self._corrupted("Confirm", -2)

    # -- control ----------------------------------------------------------------------------------------------------

    def on_negotiation(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """The first control message: who is it?"""
        try:
            message = control.decode_negotiation(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self.close("#SESSION_NEGOTIATION %s: failed to decode the negotiation message: %s", self.peer, error)
            return
        if message.choice != "clientIdentity" or message.value.client_type == ClientType.E_UNKNOWN:
            self.close("#SESSION_NEGOTIATION %s: unexpected negotiation message '%s'", self.peer, message.choice)
            return
        self._adopt(message.value)
        self.perform(self.guard.identity(self.now))

    def _welcome(self) -> None:
        response = self.context.welcome(self, self.identity)
        if response is None:
            self.close("#SESSION_NEGOTIATION %s: refused", self.description)
            return
        self.send(NegotiationMessage("brokerResponse", response))
        if response.result.category:
            self.close("#SESSION_NEGOTIATION %s: %s", self.description, response.result.message)
            return
        self.negotiated_at = self.now
        admin = self.identity.client_type == ClientType.E_TCPADMIN
        self.enter(State.ADMINISTERING if admin else State.SERVING)

    def _adopt(self, identity: ClientIdentity) -> None:
        self.identity = identity
        features = {name: values.split(",") for name, _, values in
                    (section.partition(":") for section in identity.features.split(";"))}
        encodings = features.get("PROTOCOL_ENCODING", ["BER"])
        self.encoding = Encoding.JSON if "JSON" in encodings and "BER" not in encodings else Encoding.BER
        self.v2_properties = "MESSAGE_PROPERTIES_EX" in features.get("MPS", ())
        self.makes_guids = bool(identity.guid_info.client_id)
        name = identity.process_name or "?"
        suffix = f".{identity.session_id}" if identity.session_id != 1 else ""
        self.description = f"{name}:{identity.pid}{suffix}"

    def on_control(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A request of an application."""
        message = self._decode_control(buffer, specific, start, end)
        if message is not None:
            requests.handle(self, message)

    def on_admin(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A command of an administrator."""
        message = self._decode_control(buffer, specific, start, end)
        if message is None:
            return
        if message.choice == "adminCommand":
            self.context.run_admin(self, message.r_id or 0, message.value.command)
        else:
            self.context.report.error(f"#ADMCLIENT_IMPROPER_BEHAVIOR {self.description}: unexpected control message "
                                   f"'{message.choice}'")

    def admin_answer(self, r_id: int, text: str) -> None:
        """What a command printed."""
        if self.state is State.ADMINISTERING:
            self.answer(r_id, "adminCommandResponse", AdminCommandResponse(text))

    def _decode_control(self, buffer: bytes, specific: int, start: int, end: int) -> ControlMessage | None:
        try:
            message = control.decode_control(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self.context.report.error(f"#CORRUPTED_EVENT {self.description}: failed to decode control message: {error}")
            return None
        if not message.choice or message.r_id is None and message.choice != "clusterMessage" or (message.r_id or 0) < 0:
            self.context.report.error(f"#CORRUPTED_CONTROL_MESSAGE {self.description}: no request id or no known choice")
            return None
        return message

    # -- authentication ---------------------------------------------------------------------------------------------

    def on_authentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A credential, before the negotiation or again later."""
        try:
            message = control.decode_authentication(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self._bad_authentication(error)
            return
        if message.choice != "authenticationRequest":
            self._bad_authentication(f"unexpected message '{message.choice}'")
            return
        self.encoding_of_authentication = encoding_of(specific)
        self.perform(self.guard.request(message.value.mechanism, message.value.data or b"", self.now))

    def _bad_authentication(self, why: object) -> None:
        if self.negotiated_at is None:
            self.close("#AUTHENTICATION %s: %s", self.description, why)
        else:
            self.context.report.error(f"#CORRUPTED_EVENT {self.description}: failed to decode authentication message: {why}")

    def authenticated(self, token: int, outcome: Outcome, now: float, wall: int) -> None:
        """An authenticator has judged, on its own time."""
        self.now, self.wall = now, wall
        self.perform(self.guard.done(token, outcome, now))

    def perform(self, effects: list[Effect]) -> None:
        """Do what the authentication decided; frames wait while it looks at a first credential."""
        for effect in effects:
            if isinstance(effect, Answer):
                self.send(AuthenticationMessage("authenticationResponse", AuthenticationResponse(
                    Status(effect.category, effect.code, effect.message), effect.lifetime_ms)),
                    self.encoding_of_authentication)
            elif isinstance(effect, Proceed):
                self._welcome()
            elif isinstance(effect, Close):
                self.close("#AUTHENTICATION %s: %s", self.description, effect.reason)
            elif isinstance(effect, Drop):
                self.context.report.info("%s: %s", self.description, effect.reason)
            elif isinstance(effect, Authenticate):
                self.context.authenticate(self, effect)
        if self.guard.holding:
            if self.state is State.NEGOTIATING:
                self.enter(State.HOLDING)
        elif self._held or self.state is State.HOLDING:
            if self.state is State.HOLDING:
                self.enter(State.NEGOTIATING)
            held, self._held = self._held, []
            for buffer, kind, specific, start, end in held:
                self._answers[kind](buffer, specific, start, end)

    def on_held(self, kind: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Keep a frame until the credential was looked at."""
        if len(self._held) >= _HELD_FRAMES_MAX:
            self.close("#AUTHENTICATION %s: more than %d events before the answer", self.description, _HELD_FRAMES_MAX)
            return
        self._held.append((buffer, kind, specific, start, end))

    # -- the rest ---------------------------------------------------------------------------------------------------

    def on_heartbeat(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Answer a sign of life."""
        self.outbox.event(HEARTBEAT_RSP)
        self._flush()

    def on_ignored(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Nothing to do."""

    def on_too_early(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Anything but a negotiation first."""
        self.close("#UNEXPECTED_STATE %s: data before the negotiation", self.peer)

    def on_unexpected(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """An event that clients do not send."""
        tag = "#ADMCLIENT_UNEXPECTED_EVENT" if self.state is State.ADMINISTERING else "#CLIENT_UNEXPECTED_EVENT"
        if self._lines.admits(self.now):
            self.context.report.error(f"{tag} {self.description}: event of an unexpected type dropped")

    def on_invalid_packet(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """An event whose header made no sense."""
        if self._lines.admits(self.now):
            self.context.report.error(f"#TCP_INVALID_PACKET {self.description}: event with an impossible header dropped")

    @property
    def is_java(self) -> bool:
        """Java SDKs stall on heartbeats they did not ask for."""
        return self.identity.sdk_language == SdkLanguage.E_JAVA
