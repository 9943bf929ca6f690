"""Sessions of clients: PUT and CONFIRM events, queue requests, and output of PUSHes and ACKs.

CONFIRM events are decoded here; `link/puts.py` handles PUT events, `link/requests.py` control messages. ACKs and PUSHes
are delayed by the rules of `link/batching.py`. Sizes of slices are in `bmqtwist/limits.py`.

A kind of session: `negotiation.py` sets it for clients, `session.py` calls it. Its subclass for brokers is in `peer.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from bmqtwist import alarms
from bmqtwist.config.broker import Heartbeats
from bmqtwist.errors import AckStatus, PeerError
from bmqtwist.limits import INFLATE_STEP_BYTES, SLICE_BYTES
from bmqtwist.link.batching import BUSY_MESSAGES, DELAYED_ACKS_MAX, DELAYED_PUSHES_MAX, AckBatching, ConfirmBatching
from bmqtwist.link.puts import PutReader
from bmqtwist.link.requests import QueueRequests, QueueRequestsContext
from bmqtwist.link.session import Session, SessionKind, negotiated_lifecycle
from bmqtwist.link.states import ConnectionState, LifecycleTable
from bmqtwist.machine import to
from bmqtwist.queue.handles import drop_handle
from bmqtwist.queue.queue import Handle
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.steps import Steps
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable, PayloadDamaged
from bmqtwist.wire import application_data
from bmqtwist.wire.application_data import Inflation
from bmqtwist.wire.fast import (
    CAT_NONE,
    CAT_ZLIB,
    CONFIRM_MESSAGE,
    ITEM_BYTES,
    MESSAGE_PROPERTIES,
    OUT_OF_ORDER,
    confirm_message_at,
)

_FAILED_ACK_LOG_S = 5.0
_CONFIRM_BYTES: Final = CONFIRM_MESSAGE.size
_CLOSED: Final = ConnectionState.CLOSED
_CONTROL_AT_ONCE_BYTES = 4 << 10  # about 2 ms
_PAUSABLE_HANDLES_MAX: Final = 8  # examined with each CONFIRM event


class ClientSession(SessionKind):
    """Kind of a client's session: handles, requests, deliveries."""

    is_broker = False
    __slots__ = ("is_member", "resumes_at_once", "description", "outbox", "stats", "queues", "requests", "puts",
                 "v2_properties", "window", "_unacked", "_converting", "_converted_bytes", "_ack_batching",
                 "_confirm_batching", "_batches_pushes")

    def __init__(self, session: Session, queues: QueueRequestsContext, lifecycle: LifecycleTable | None = None,
                 unexpected_tag: str = "#CLIENT_UNEXPECTED_EVENT") -> None:
        super().__init__(session, lifecycle or LIFECYCLE, unexpected_tag)
        self.is_member = self.resumes_at_once = False
        self.queues = queues
        self.description, self.outbox, self.stats = session.description, session.outbox, session.stats
        self.requests = QueueRequests(self, session, queues, self.handles)
        self.puts = PutReader(session, queues, self.requests, self.handles)
        self._unacked = self.puts.unacked
        self.v2_properties = "MESSAGE_PROPERTIES_EX" in session.remote.features.get("MPS", ())
        self.window = DeliveryWindow(session.context.output_bytes_max)
        self._converting: deque[tuple[Handle, int, Message, bool]] = deque()  # first the message being converted
        self._converted_bytes = 0  # in this turn
        self._ack_batching, self._confirm_batching = AckBatching(), ConfirmBatching()
        self._batches_pushes = False  # it has at least BUSY_MESSAGES unconfirmed messages and confirms steadily

    @property
    def unacked(self) -> int:
        """Number of PUTs without an ACK."""
        return len(self._unacked)

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """As configured for clients; unlimited for Java SDKs, which stall on heartbeat requests."""
        return limits.client if self.session.state is ConnectionState.SERVING and not self.session.remote.is_java else 0

    @property
    def may_pause_reading(self) -> bool:
        """True for clients without consumers: a consumer must be able to confirm."""
        return not any(handle.read_count for handle in self.handles.values())

    def on_ended(self, crashed: bool) -> None:
        self.drop_handles(crashed)

    def break_cycles(self) -> None:
        self.requests.break_cycles()

    def drop_handles(self, crashed: bool) -> None:
        """Drop all handles and cancel all pending requests."""
        self.requests.pending.cancel()
        self._converting.clear()
        self._unacked.clear()  # breaks a reference cycle through the handles
        handles = list(self.handles.items())
        self.handles.clear()
        for q_id, handle in handles:
            self.requests.close_id(q_id)
            try:
                drop_handle(handle, crashed, self.session.wall)
            except Exception as error:
                self.queues.isolate_queue(handle.queue, "the loss of a client", error, disable=True)
            self.queues.release_unused(handle.queue)

    def tick(self, now: float) -> None:
        if self.requests.pending.count:
            self.requests.pending.tick(now)

    def on_control(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> Steps[None] | None:
        """Handle a control message; one above 4 KiB is decoded in slices."""
        if end - start > _CONTROL_AT_ONCE_BYTES:
            return self._control_in_slices(buffer, specific, start, end)
        message = self.decode_control(buffer, specific, start, end)
        self._stop_batching()
        if message is not None:
            self.requests.handle(message)
        return None

    def _stop_batching(self) -> None:
        self._confirm_batching.reset()
        self.session.pausable = False

    def _control_in_slices(self, buffer: bytes, specific: int, start: int, end: int) -> Steps[None]:
        message = yield from self.decode_in_steps(buffer, specific, start, end)
        if message is not None:
            yield from self.requests.handle_slowly(message)

    # -- output -----------------------------------------------------------------------------------------------------

    def on_turn_end(self) -> None:
        self.window.on_turn_end()
        self._converted_bytes = 0
        if self.requests.has_changes:
            self.requests.on_turn_end()

    def on_written(self, unsent: int) -> bool:
        return self.window.on_written(unsent)

    def resume_deliveries(self) -> None:
        if self.window.resume():
            for handle in self.handles.values():
                handle.resume()

    def on_drained(self) -> None:
        self.window.on_drained()
        self.resume_deliveries()

    # -- called by queues -------------------------------------------------------------------------------------------

    def post_deferred(self, message: bytes, done: Callable[[], None]) -> None:
        """Post a PUT that was deferred until the open of its queue was answered, then call `done`."""
        self.puts.post_deferred(message, done)

    def stop_deliveries(self) -> None:
        """Stop deliveries before a stop response; clients never send a stop request."""

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None:
        """Deliver a message to one subscription of a handle."""
        if self._converting:  # deliver in order
            self._converting.append((handle, sub_id, message, redelivered))
            return
        payload = message.payload
        if payload is None:
            try:
                payload = handle.queue.payload(message)
            except PayloadDamaged as error:
                self._await_repair(error, handle, sub_id, message, redelivered)
                return
            except (PartitionUnavailable, OSError) as error:  # the partition has raised its alarm
                self.context.report.error(f"{self.description}: message [GUID: {message.guid.hex().upper()}] of queue "
                                       f"'{handle.queue.uri}' is not delivered: {error}")
                return
        compression, schema_id = message.compression, 0
        if message.has_properties and message.schema_id:
            if self.v2_properties:
                schema_id = 1
            else:
                try:
                    if compression == CAT_ZLIB:
                        conversion = application_data.inflation_for_old_reader(payload)
                        if self._converted_bytes > INFLATE_STEP_BYTES or not conversion.step():
                            self._converting.append((handle, sub_id, message, redelivered))
                            self.session.run_first(self._convert(conversion))
                            return
                        self._converted_bytes += conversion.bytes
                        payload, compression = conversion.data(), CAT_NONE
                    else:
                        payload, compression = application_data.for_old_reader(payload, True, compression,
                                                                       message.schema_id)
                except PeerError as error:
                    self._alarm_unconvertible(message, error)
                    return
        self._push(handle, sub_id, message, redelivered, compression, schema_id, payload)

    def _convert(self, conversion: Inflation) -> Steps[None]:
        """Inflate a message in steps; deliver it and the messages deferred after it."""
        while not conversion.step():
            yield
        waiting, self._converting = self._converting, deque()
        handle, sub_id, message, redelivered = waiting.popleft()
        try:
            if self.handles.get(handle.q_id) is handle:
                self._push(handle, sub_id, message, redelivered, CAT_NONE, 0, conversion.data())
        except PeerError as error:
            self._alarm_unconvertible(message, error)
        for handle, sub_id, message, redelivered in waiting:
            if self.handles.get(handle.q_id) is handle:
                self.push(handle, sub_id, message, redelivered)

    def _await_repair(self, error: PayloadDamaged, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None:
        """Deliver a damaged message after its repair. While other members are asked, later messages wait for it; if that
        takes longer, they are delivered before it."""
        repair = error.repair
        if repair is None:
            self.context.report.error(f"{self.description}: queue '{handle.queue.uri}': {error}; it is not delivered")
        elif repair.asking:
            self._converting.append((handle, sub_id, message, redelivered))
            repair.listeners[self] = self._deliver_deferred
        else:
            repair.listeners[handle, sub_id] = partial(_push_late, self, handle, sub_id, message)

    def _deliver_deferred(self) -> None:
        """Deliver the deferred messages, except those that were discarded or returned."""
        waiting, self._converting = self._converting, deque()
        for handle, sub_id, message, redelivered in waiting:
            if self.handles.get(handle.q_id) is handle and _is_unconfirmed(handle, message):
                self.push(handle, sub_id, message, redelivered)

    def _alarm_unconvertible(self, message: Message, error: PeerError) -> None:
        self.context.report.alarm(alarms.CLIENT_INVALID_PUSH, f"{self.description}: properties of message "
                               f"[GUID: {message.guid.hex().upper()}] cannot be converted: {error}")

    def _push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool, compression: int, schema_id: int,
              payload: bytes) -> None:
        flags = MESSAGE_PROPERTIES if message.has_properties else 0
        if redelivered or 0 < message.lease < handle.queue.lease and not self.is_broker:
            flags |= OUT_OF_ORDER
        count, stats, is_new = 0, self.stats, True
        stats.push_msgs += 1
        stats.push_bytes += message.size
        if self.is_broker:
            is_new = self.push_to_broker(handle, sub_id, message, flags, schema_id, payload)
        elif handle.merges:
            is_new = self.outbox.push_merged(handle.q_id, message.guid, sub_id, flags, compression, schema_id, payload)
        else:
            count = self.outbox.push(handle.q_id, message.guid, sub_id, flags, compression, schema_id, payload)
        if is_new:
            self.window.count_push(message.size)
        session = self.session
        if session.flush_due:
            return
        if (self._batches_pushes and 0 < count < DELAYED_PUSHES_MAX and self.window.open
                and self._confirm_batching.is_steady(self.context.now)):
            session.flush_with_turn()
        else:
            self.context.output.flush_at_turn_end(session)

    def push_to_broker(self, handle: Handle, sub_id: int, message: Message, flags: int, schema_id: int,
                       payload: bytes) -> bool:
        """Append a PUSH in the form for downstream brokers; False if it was merged with an earlier one."""
        return True

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        """Acknowledge a PUT of this session; a handle after its final close receives no ACK."""
        if self._unacked.get(guid) is handle:
            del self._unacked[guid]
        if handle.closing:
            return
        if status:
            self._count_nack(handle, guid, correlation_id, status)
        else:
            self.stats.ack_msgs += 1
        count = self.outbox.ack(handle.q_id, guid, correlation_id, status)
        session = self.session
        if session.flush_due:
            return
        if session.delays_acks and not status and count < DELAYED_ACKS_MAX:
            session.flush_with_turn()
        else:
            self.context.output.flush_at_turn_end(session)

    def flush_delayed_acks(self, now: float, waited: bool) -> None:
        """Write the delayed ACKs in this turn, as their records are written. `waited`: their delay has passed."""
        if self.session.state is not _CLOSED:
            if waited:
                self.on_flush_due(now)
            self.session.flush()

    def on_flush_due(self, now: float) -> None:
        if self.session.delays_acks:
            self._ack_batching.on_acks_sent(now)
            self.session.delays_acks = self._ack_batching.delays

    def _count_nack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        self.stats.nack_msgs += 1
        handle.queue.stats.nack_msgs += 1
        if self.session.now - handle.acks_failed_at >= _FAILED_ACK_LOG_S:
            handle.acks_failed_at = self.session.now
            self.context.report.warn(f"{self.description}: failed Ack [status: {AckStatus(status).name}, source: "
                                  f"'onAckEvent', correlationId: {correlation_id}, GUID: {guid.hex().upper()}, queue: "
                                  f"'{handle.queue.uri}' (id: {handle.q_id})]")

    # -- PUT --------------------------------------------------------------------------------------------------------

    def on_puts(self, event: int, buffer: bytes, specific: int, position: int, end: int) -> Steps[None] | None:
        """Post the messages of a PUT event."""
        if not self.is_broker:
            self._ack_batching.on_puts(self.session.now)
            self.session.delays_acks = self._ack_batching.delays
            self._stop_batching()
        return self.puts.read(buffer, position, end)

    # -- CONFIRM ----------------------------------------------------------------------------------------------------

    def on_confirms(self, event: int, buffer: bytes, specific: int, position: int, end: int) -> Steps[None] | None:
        """Process a CONFIRM event, in slices if it is large; confirms of unknown messages are ignored."""
        if not self.is_broker:
            unconfirmed = self._pausable_unconfirmed() if self._confirm_batching.on_confirms(self.session.now) else None
            self.session.pausable = unconfirmed is not None
            self._batches_pushes = unconfirmed is not None and unconfirmed >= BUSY_MESSAGES
        position, step = self.confirm_layout("Confirm", buffer, position, end)
        if end - position > SLICE_BYTES:
            return self._confirms_in_slices(buffer, position, end, step)
        self._process_confirms(buffer, position, end, step)
        return None

    def _pausable_unconfirmed(self) -> int | None:
        """Return the number of unconfirmed messages if reads may be paused, else None. Condition: the client only consumes,
        has at most 8 handles, its queues have plenty of free quota, and no subscription is more than half full."""
        handles, unconfirmed = self.handles, 0
        if len(handles) > _PAUSABLE_HANDLES_MAX:
            return None
        for handle in handles.values():
            if handle.write_count or not handle.queue.has_ample_quota:
                return None
            for substream in handle.substreams.values():
                for each in substream.counted_subscriptions:
                    if 2 * each.messages > each.max_messages or 2 * each.bytes > each.max_bytes:
                        return None
                    unconfirmed += each.messages
        return unconfirmed

    def _confirms_in_slices(self, buffer: bytes, position: int, end: int, step: int) -> Steps[None]:
        size = SLICE_BYTES // step * step
        while end - position > size:
            self._process_confirms(buffer, position, position + size, step)
            position += size
            yield
        self._process_confirms(buffer, position, end, step)

    def _process_confirms(self, buffer: bytes, position: int, end: int, step: int) -> None:
        handles, now, wall, stats = self.handles, self.session.now, self.session.wall, self.stats
        items = self.confirms("Confirm", buffer, position, end, step)
        for at in range(0, len(items), ITEM_BYTES):
            q_id, guid, sub_id = confirm_message_at(items, at)
            handle = handles.get(q_id)
            if handle is None:
                self.session.log("#CLIENT_UNKNOWN_QUEUE", "CONFIRM for a queue with unknown Id [ qId = %d ]", q_id)
                continue
            substream = handle.substreams.get(sub_id)
            if substream is None:
                continue
            if handle.queue.broadcast:
                self.session.log("#CLIENT_IMPROPER_BEHAVIOR", "Received CONFIRM message for queue in broadcast mode [queue: "
                                 "'%s']", handle.queue.uri)
                continue
            stats.confirm_msgs += 1
            handle.queue.confirm(substream, guid, now, wall)

    def confirm_layout(self, what: str, buffer: bytes, position: int, end: int) -> tuple[int, int]:
        """Return position and size (bytes) of the messages of a CONFIRM or REJECT event; position `end` if it is invalid."""
        sizes = buffer[position] if position < end else 0
        position += sizes >> 4 << 2
        step = (sizes & 15) << 2
        if step < _CONFIRM_BYTES or position > end:
            self.session.log("#CORRUPTED_EVENT", "Invalid %s event [rc: -1]", what)
            return end, _CONFIRM_BYTES
        return position, step

    def confirms(self, what: str, buffer: bytes, position: int, end: int, step: int) -> bytes:
        """Return the complete messages of a CONFIRM or REJECT event, joined."""
        if step != _CONFIRM_BYTES:
            buffer = b"".join(buffer[at:at + _CONFIRM_BYTES] for at in range(position, end - step + 1, step))
            position, end = 0, len(buffer)
        whole = position + (end - position) // _CONFIRM_BYTES * _CONFIRM_BYTES
        if whole != end:
            self.session.log("#CORRUPTED_EVENT", "Invalid %s event [rc: -2]", what)
        return buffer[position:whole]


def _push_late(session: ClientSession, handle: Handle, sub_id: int, message: Message) -> None:
    """Deliver a message after its repair, out of order."""
    if session.handles.get(handle.q_id) is handle and _is_unconfirmed(handle, message):
        session.push(handle, sub_id, message, True)


def _is_unconfirmed(handle: Handle, message: Message) -> bool:
    """Return whether a consumer of the handle still has the message: it was not discarded or returned."""
    return handle.queue.broadcast or any(message.guid in substream.unconfirmed for substream in handle.substreams.values())


LIFECYCLE = negotiated_lifecycle(ClientSession, {
    "CONTROL": to(ClientSession.on_control, ConnectionState.DISCONNECTING),
    "PUT": to(ClientSession.on_puts, ConnectionState.CLOSED),
    "CONFIRM": to(ClientSession.on_confirms)})
