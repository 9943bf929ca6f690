"""The session of an application: PUT and CONFIRM events, requests about queues, and what queues send it.

PUT and CONFIRM events are walked here with precompiled struct; control messages go to `link/requests.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from bmqtwist.config.broker import Heartbeats
from bmqtwist.errors import AckStatus, PeerError
from bmqtwist.ids import NULL_GUID
from bmqtwist.limits import (
    APPLICATION_DATA_BYTES_MAX,
    CLOSED_IDS_MAX,
    EARLY_PUT_BYTES_MAX,
    INFLATE_STEP_BYTES,
    PUT_OPTIONS_BYTES_MAX,
    REACH_MAX,
    SLICE_BYTES,
)
from bmqtwist.link import requests
from bmqtwist.link.pace import BUSY_MESSAGES, HELD_ACKS_MAX, HELD_PUSHES_MAX, AckPace, ConfirmPace
from bmqtwist.link.pending import Pending
from bmqtwist.link.session import Session, SessionKind, Work
from bmqtwist.link.states import State, row
from bmqtwist.queue.handles import drop_handle
from bmqtwist.queue.mode import ROUTING_FEATURE
from bmqtwist.queue.queue import FLAG_WRITE, Handle, Put
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.wire import application_data
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.compression import Inflation, TooLarge
from bmqtwist.wire.fast import (
    ACK_REQUESTED,
    CAT_NONE,
    CAT_ZLIB,
    CONFIRM_MESSAGE,
    ITEM_BYTES,
    MESSAGE_PROPERTIES,
    confirm_message_at,
)
from bmqtwist.wire.walk import NO_MESSAGES, MessageError, put_at

_FAILED_ACK_LOG_S = 5.0
_NULL_GUID: Final = NULL_GUID  # what is imported is slow to look up
_crc32c: Final = crc32c
_CONFIRM_BYTES: Final = CONFIRM_MESSAGE.size
_CLOSED: Final = State.CLOSED
_CONTROL_AT_ONCE_BYTES = 4 << 10  # about 2 ms
_UNHURRIED_HANDLES_MAX: Final = 8  # looked at each time when CONFIRMs come

ANSWERS = {
    State.SERVING: row("on_unexpected", CONTROL="on_control", PUT="on_puts", CONFIRM="on_confirms",
                       HEARTBEAT_REQ="on_heartbeat", HEARTBEAT_RSP="on_ignored", AUTHENTICATION="on_authentication"),
    State.LEAVING: row("on_ignored"),
}


class ClientSession(SessionKind):
    """An application: its handles, its requests, its deliveries."""

    is_broker = False
    __slots__ = ("is_member", "description", "outbox", "stats", "closed_ids", "closing_now", "just_opened", "pending",
                 "v2_properties", "told_of_apps", "makes_guids", "window", "early_put_bytes", "_late", "_unacked",
                 "_inflating", "_reached", "_converting", "_converted", "_acks", "_confirms", "_busy")

    def __init__(self, session: Session) -> None:
        super().__init__(session, ANSWERS, "#CLIENT_UNEXPECTED_EVENT")
        self.is_member = False
        self.description, self.outbox, self.stats = session.description, session.outbox, session.stats
        self.closed_ids: dict[int, None] = {}  # queue ids given up on this connection: no ACK may name them any more
        self.closing_now: set[int] = set()  # those of this turn
        self.just_opened: list[tuple[str, float]] = []  # queues whose open is answered in this turn, and when it came
        self.pending = Pending(partial(requests.begin, self), partial(requests.timeout, self),
                               partial(requests.expire, self))
        self.v2_properties = "MESSAGE_PROPERTIES_EX" in session.features.get("MPS", ())
        group, member = ROUTING_FEATURE
        self.told_of_apps = member in session.features.get(group, ())  # that its domain does not know
        self.makes_guids = session.makes_guids
        self.window = DeliveryWindow(session.context.output_bytes_max)
        self.early_put_bytes = 0  # of PUTs that wait until the open of their queue is answered
        self._late = False  # they are taken now
        self._reached = 0  # apps or consumers that PUTs went to since the last pause
        self._unacked: dict[bytes, Handle] = {}  # GUIDs of PUTs that wait for their ACK, and the handle it is for
        self._inflating: dict[tuple[int, int], Inflation] = {}  # PUTs that take more than a step, by buffer and position
        self._converting: deque[tuple[Handle, int, Message, bool]] = deque()  # the first one, and what waits behind it
        self._converted = 0  # bytes in this turn
        self._acks, self._confirms = AckPace(), ConfirmPace()
        self._busy = False  # it confirms, and has much to do: PUSHes wait for more of them

    @property
    def unacked(self) -> int:
        """How many PUTs wait for their ACK."""
        return len(self._unacked)

    # -- the life of the session ------------------------------------------------------------------------------------

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """A client that is served has to show signs of life; Java SDKs stall on what asks for them."""
        return limits.client if self.session.state is State.SERVING and not self.session.is_java else 0

    @property
    def may_be_slowed(self) -> bool:
        """Whether the broker may stop reading from it while it does not read: not from one that must confirm."""
        return not any(handle.read_count for handle in self.handles.values())

    def ended(self, crashed: bool) -> None:
        """The session is over: what it held goes back."""
        self.drop_handles(crashed)

    def free(self) -> None:
        """The connection is gone."""
        self.pending.free()

    def drop_handles(self, crashed: bool) -> None:
        """Give up every handle, and every request for one."""
        self.pending.cancel()
        self._converting.clear()
        self._unacked.clear()  # it refers to handles, and these to this
        handles, self.handles = self.handles, {}
        for q_id, handle in handles.items():
            self.close_id(q_id)
            try:
                drop_handle(handle, crashed, self.session.wall)
            except Exception as error:
                self.context.queue_failed(handle.queue, "the loss of a client", error, disable=True)
            self.context.unused(handle.queue)

    def close_id(self, q_id: int) -> None:
        """A queue id was closed for good."""
        self.closed_ids[q_id] = None
        if len(self.closed_ids) > CLOSED_IDS_MAX:
            del self.closed_ids[next(iter(self.closed_ids))]

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self.pending.count:
            self.pending.tick(now)

    def on_control(self, buffer: bytes, specific: int, start: int, end: int) -> Work | None:
        """A request; a long one is read in slices."""
        if end - start > _CONTROL_AT_ONCE_BYTES:
            return self._long_control(buffer, specific, start, end)
        message = self.decode_control(buffer, specific, start, end)
        self._in_a_hurry()
        if message is not None:
            requests.handle(self, message)
        return None

    def _in_a_hurry(self) -> None:
        self._confirms.hurry()
        self.session.unhurried = False

    def _long_control(self, buffer: bytes, specific: int, start: int, end: int) -> Work:
        message = yield from self.decode_slowly(buffer, specific, start, end)
        if message is not None:
            yield from requests.handle_slowly(self, message)

    # -- output -----------------------------------------------------------------------------------------------------

    def turn_over(self) -> None:
        """The output of a turn is taken."""
        self.window.turn_over()
        self._converted = 0
        self.closing_now.clear()
        if self.just_opened:
            for uri, arrived in self.just_opened:
                took_ns = round((self.context.now - arrived) * 1e9)
                self.context.report.info("%s: open queue [queue: '%s'] took: %.2f us (%d nanoseconds)", self.description,
                                         uri, took_ns / 1000, took_ns)
            self.just_opened.clear()

    def written(self, behind: int) -> bool:
        """The output of a turn is written; `behind` bytes are not taken. True: `resume` is due in the next turn."""
        return self.window.written(behind)

    def resume(self) -> None:
        """The next turn: more may be delivered."""
        if self.window.resume():
            for handle in self.handles.values():
                handle.resume()

    def drained(self) -> None:
        """The client has taken all its output."""
        self.window.caught_up()
        self.resume()

    # -- what a queue calls -----------------------------------------------------------------------------------------

    def stop_deliveries(self) -> None:
        """The other side goes away and has asked for an answer: to be done by those that mean it."""

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None:
        """Deliver a message to one subscription of a handle."""
        if self._converting:  # those before it go first
            self._converting.append((handle, sub_id, message, redelivered))
            return
        payload = message.payload
        if payload is None:
            try:
                payload = handle.queue.payload(message)
            except (PartitionUnavailable, OSError) as error:  # it stays stored; the partition has raised its alarm
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
                        conversion = application_data.conversion(payload)
                        if self._converted > INFLATE_STEP_BYTES or not conversion.step():
                            self._converting.append((handle, sub_id, message, redelivered))
                            self.session.do_first(self._convert(conversion))
                            return
                        self._converted += conversion.bytes
                        payload, compression = conversion.data(), CAT_NONE
                    else:
                        payload, compression = application_data.for_old_reader(payload, True, compression,
                                                                       message.schema_id)
                except PeerError as error:
                    self._not_converted(message, error)
                    return
        self._push(handle, sub_id, message, redelivered, compression, schema_id, payload)

    def _convert(self, conversion: Inflation) -> Work:
        """Inflate a message that takes more than a step; then it is delivered, and what waits behind it."""
        while not conversion.step():
            yield
        waiting, self._converting = self._converting, deque()
        handle, sub_id, message, redelivered = waiting.popleft()
        try:
            if self.handles.get(handle.q_id) is handle:
                self._push(handle, sub_id, message, redelivered, CAT_NONE, 0, conversion.data())
        except PeerError as error:
            self._not_converted(message, error)
        for handle, sub_id, message, redelivered in waiting:
            if self.handles.get(handle.q_id) is handle:
                self.push(handle, sub_id, message, redelivered)

    def _not_converted(self, message: Message, error: PeerError) -> None:
        self.context.report.alarm("CLIENT_INVALID_PUSH", f"{self.description}: properties of message "
                               f"[GUID: {message.guid.hex().upper()}] cannot be converted: {error}")

    def _push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool, compression: int, schema_id: int,
              payload: bytes) -> None:
        flags = (4 if redelivered else 0) | (2 if message.has_properties else 0)
        held, stats = 0, self.stats
        stats.push_msgs += 1
        stats.push_bytes += message.size
        if self.is_broker:
            self.push_to_broker(handle, sub_id, message, flags, schema_id, payload)
        elif handle.merges:
            self.outbox.push_merged(handle.q_id, message.guid, sub_id, flags, compression, schema_id, payload)
        else:
            held = self.outbox.push(handle.q_id, message.guid, sub_id, flags, compression, schema_id, payload)
        self.window.count(message.size)
        session = self.session
        if session.waiting:
            return
        if self._busy and 0 < held < HELD_PUSHES_MAX and self.window.open and self._confirms.goes_on(self.context.now):
            session.share_a_turn()
        else:
            self.context.flush_later(session)

    def push_to_broker(self, handle: Handle, sub_id: int, message: Message, flags: int, schema_id: int,
                       payload: bytes) -> None:
        """The same for who has clients behind it."""

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        """Acknowledge a PUT of this session; after the final close of its handle nothing is said any more."""
        if self._unacked.get(guid) is handle:
            del self._unacked[guid]
        if handle.closing:
            return
        if status:
            self._failed_ack(handle, guid, correlation_id, status)
        else:
            self.stats.ack_msgs += 1
        held = self.outbox.ack(handle.q_id, guid, correlation_id, status)
        session = self.session
        if session.waiting:
            return
        if session.holds_acks and not status and held < HELD_ACKS_MAX:
            session.share_a_turn()
        else:
            self.context.flush_later(session)

    def acks_are_due(self, now: float, waited: bool) -> None:
        """Messages that had not been written are in this turn. `waited`: for as long as was meant."""
        if self.session.state is not _CLOSED:
            if waited:
                self.lingered(now)
            self.session.flush()

    def lingered(self, now: float) -> None:
        """ACKs or PUSHes have waited long enough."""
        if self.session.holds_acks:
            self._acks.told(now)
            self.session.holds_acks = self._acks.holding

    def _failed_ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        self.stats.nack_msgs += 1
        handle.queue.stats.nack_msgs += 1
        if self.session.now - handle.acks_failed_at >= _FAILED_ACK_LOG_S:
            handle.acks_failed_at = self.session.now
            self.context.report.warn(f"{self.description}: failed Ack [status: {AckStatus(status).name}, source: "
                                  f"'onAckEvent', correlationId: {correlation_id}, GUID: {guid.hex().upper()}, queue: "
                                  f"'{handle.queue.uri}' (id: {handle.q_id})]")

    # -- PUT --------------------------------------------------------------------------------------------------------

    def on_puts(self, buffer: bytes, specific: int, position: int, end: int) -> Work | None:
        """Take the messages of a PUT event, up to the first that makes no sense; those of a large one in slices."""
        if not self.is_broker:
            self._acks.arrived(self.session.now)
            self.session.holds_acks = self._acks.holding
            self._in_a_hurry()
        if position >= end:
            self._corrupted("Put", NO_MESSAGES)
        if end - position <= SLICE_BYTES:
            position = self._take_puts(buffer, position, end, end)
        return None if position >= end and self._reached <= REACH_MAX else self._puts_in_slices(buffer, position, end)

    def _puts_in_slices(self, buffer: bytes, position: int, end: int) -> Work:
        if self._reached > REACH_MAX:
            self._reached = 0
            yield
        while position < end:
            yield from self._inflate(buffer, position)
            began = position
            position = self._take_puts(buffer, position, end, min(end, position + SLICE_BYTES))
            if position != began:
                self._inflating.pop((id(buffer), began), None)
            self._reached = 0
            yield

    def _take_puts(self, buffer: bytes, start: int, end: int, until: int) -> int:
        """Take the messages that begin before `until`; where the next one begins, or the end if there is none. It stops
        before one that takes more than a step to inflate, and behind what made up a step, or went to very many."""
        try:
            return self._take_good_puts(buffer, start, end, until)
        except MessageError as error:
            self._corrupted("Put", error.code)
            return end

    def _take_good_puts(self, buffer: bytes, start: int, end: int, until: int) -> int:
        handles, unacked = self.handles, self._unacked
        now, wall, stats = self.session.now, self.session.wall, self.stats
        inflated = 0
        while start < until:
            q_id, guid, payload, flags, crc, compression, schema_id, options, _, stop = put_at(buffer, start, end)
            wants_ack = bool(flags & ACK_REQUESTED)
            size = len(payload)
            begin, start = start, stop
            correlation_id = 0
            handle = handles.get(q_id)
            if handle is None or not handle.flags & FLAG_WRITE:
                if self.pending.count and not self._late and self.pending.in_line(q_id):
                    if not requests.put_early(self, q_id, buffer[begin:stop]):
                        self.session.close("#CLIENT_IMPROPER_BEHAVIOR %s: too many PUTs before their open was answered "
                                           "(limit: %d bytes)", self.description, EARLY_PUT_BYTES_MAX)
                        return end
                    continue
                self.refuse_put(handle, q_id, guid, size)
                continue
            if self.makes_guids:
                if guid == _NULL_GUID:
                    self._invalid_put("PUT message without a GUID", q_id)
                    handle.queue.stats.nack_msgs += 1
                    self.ack(handle, guid, 0, AckStatus.UNKNOWN)
                    continue
            else:
                correlation_id = int.from_bytes(guid[1:4], "big")
                wants_ack = wants_ack or correlation_id != 0
                guid = self.context.make_guid()
            computed: int = _crc32c(payload)
            if (size > APPLICATION_DATA_BYTES_MAX or computed != crc or options and (
                    len(options) > PUT_OPTIONS_BYTES_MAX or size + len(options) > APPLICATION_DATA_BYTES_MAX)):
                self._invalid_put("PUT message that is too large or does not match its CRC32-C", q_id)
                self.ack(handle, guid if self.makes_guids else NULL_GUID, correlation_id, AckStatus.UNKNOWN)
                continue
            if compression:
                has_properties, most = bool(flags & MESSAGE_PROPERTIES), APPLICATION_DATA_BYTES_MAX - len(options)
                key = (id(buffer), begin)
                try:
                    inflation = self._inflating.pop(key, None) or application_data.inflation(payload, has_properties,
                                                                                             schema_id, most)
                    if inflation is not None:
                        if not inflation.step():
                            self._inflating[key] = inflation
                            return begin
                        inflated += inflation.bytes
                        if inflated > INFLATE_STEP_BYTES:
                            until = start
                        plain = inflation.data()
                        if inflation.keeps:
                            payload, crc, compression = plain, inflation.crc, 0
                except TooLarge:
                    self._invalid_put(f"PUT message that inflates to more than {APPLICATION_DATA_BYTES_MAX} bytes", q_id)
                    self.ack(handle, guid if self.makes_guids else NULL_GUID, correlation_id, AckStatus.UNKNOWN)
                    continue
                except PeerError:
                    pass  # stored as it came; only subscriptions and conversions notice
            if wants_ack:
                if unacked.get(guid) is handle:
                    if self.session.lines.admits(now):
                        self.context.report.warn(f"#UNACKED_PUT_GUID_COLLISION {self.description}: GUID "
                                              f"[{guid.hex().upper()}], queue '{handle.queue.uri}'")
                    wants_ack = False
                else:
                    unacked[guid] = handle
            stats.put_msgs += 1
            stats.put_bytes += size
            message = Message(guid, payload, options, bool(flags & MESSAGE_PROPERTIES), compression, schema_id, crc, now,
                              wall)
            try:
                refused = handle.queue.post(Put(handle, message, correlation_id, wants_ack), now, wall)
            except Exception:
                handle.queue.forget_post(guid)
                raise
            if refused:
                self.ack(handle, guid if self.makes_guids else NULL_GUID, correlation_id, refused)
            self._reached = reached = self._reached + handle.queue.reach
            if reached > REACH_MAX:
                until = start
        return start

    def post_late(self, message: bytes, done: Callable[[], None]) -> None:
        """A PUT message that had to wait until the open of its queue was answered; `done()`: it is taken."""
        if self._take_late(message):
            done()
        else:
            self.session.do_first(self._late_in_slices(message, done))

    def _take_late(self, message: bytes) -> bool:
        self._late = True
        try:
            return self._take_puts(message, 0, len(message), len(message)) >= len(message)
        finally:
            self._late = False

    def _late_in_slices(self, message: bytes, done: Callable[[], None]) -> Work:
        yield from self._inflate(message, 0)
        while not self._take_late(message):
            yield
        done()

    def _inflate(self, buffer: bytes, position: int) -> Work:
        """Inflate the message at a position, if that was begun."""
        inflation = self._inflating.get((id(buffer), position))
        while inflation is not None and not inflation.step():
            yield

    def refuse_put(self, handle: Handle | None, q_id: int, guid: bytes, size: int) -> None:
        """A PUT for a queue that is not open, or not for writing."""
        self.context.invalid_put(size)
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
        self.session.flush()

    def _invalid_put(self, what: str, q_id: int) -> None:
        if self.session.lines.admits(self.session.now):
            self.context.report.warn(f"#CLIENT_INVALID_PUT {self.description}: {what} ([ qId = {q_id} subId = DEFAULT ])")

    def _corrupted(self, what: str, code: int) -> None:
        if self.session.lines.admits(self.session.now):
            self.context.report.warn(f"#CORRUPTED_EVENT {self.description}: Invalid {what} event [rc: {code}]")

    # -- CONFIRM ----------------------------------------------------------------------------------------------------

    def on_confirms(self, buffer: bytes, specific: int, position: int, end: int) -> Work | None:
        """Walk the messages of a CONFIRM event, those of a large one in slices; unknown ones are ignored."""
        if not self.is_broker:
            held = self._held() if self._confirms.arrived(self.session.now) else None
            self.session.unhurried, self._busy = held is not None, held is not None and held >= BUSY_MESSAGES
        position, step = self.confirm_layout("Confirm", buffer, position, end)
        if end - position > SLICE_BYTES:
            return self._confirms_in_slices(buffer, position, end, step)
        self._take_confirms(buffer, position, end, step)
        return None

    def _held(self) -> int | None:
        """How many messages it has to confirm, if all it does is to read, from few queues that have plenty of room, and
        that is at most half of what it may hold; otherwise None."""
        handles, held = self.handles, 0
        if len(handles) > _UNHURRIED_HANDLES_MAX:
            return None
        for handle in handles.values():
            if handle.write_count or not handle.queue.has_plenty:
                return None
            for substream in handle.substreams.values():
                for each in substream.counting:
                    if 2 * each.messages > each.max_messages or 2 * each.bytes > each.max_bytes:
                        return None
                    held += each.messages
        return held

    def _confirms_in_slices(self, buffer: bytes, position: int, end: int, step: int) -> Work:
        size = SLICE_BYTES // step * step
        while end - position > size:
            self._take_confirms(buffer, position, position + size, step)
            position += size
            yield
        self._take_confirms(buffer, position, end, step)

    def _take_confirms(self, buffer: bytes, position: int, end: int, step: int) -> None:
        handles, now, wall, stats = self.handles, self.session.now, self.session.wall, self.stats
        items = self.confirms("Confirm", buffer, position, end, step)
        for at in range(0, len(items), ITEM_BYTES):
            q_id, guid, sub_id = confirm_message_at(items, at)
            handle = handles.get(q_id)
            if handle is None:
                if self.session.lines.admits(now):
                    self.context.report.warn(f"#CLIENT_UNKNOWN_QUEUE {self.description}: CONFIRM for a queue with unknown "
                                          f"Id [ qId = {q_id} ]")
                continue
            substream = handle.substreams.get(sub_id)
            if substream is None:
                continue
            if handle.queue.broadcast:
                if self.session.lines.admits(now):
                    self.context.report.warn(f"#CLIENT_IMPROPER_BEHAVIOR {self.description}: Received CONFIRM message for "
                                          f"queue in broadcast mode [queue: '{handle.queue.uri}']")
                continue
            stats.confirm_msgs += 1
            handle.queue.confirm(substream, guid, now, wall)

    def confirm_layout(self, what: str, buffer: bytes, position: int, end: int) -> tuple[int, int]:
        """Where the messages of a CONFIRM or REJECT event begin, and the size of each; `end` if that makes no sense."""
        sizes = buffer[position] if position < end else 0
        position += sizes >> 4 << 2
        step = (sizes & 15) << 2
        if step < _CONFIRM_BYTES or position > end:
            self._corrupted(what, -1)
            return end, _CONFIRM_BYTES
        return position, step

    def confirms(self, what: str, buffer: bytes, position: int, end: int, step: int) -> bytes:
        """The whole messages of a CONFIRM or REJECT event, one behind the other."""
        if step != _CONFIRM_BYTES:
            buffer = b"".join(buffer[at:at + _CONFIRM_BYTES] for at in range(position, end - step + 1, step))
            position, end = 0, len(buffer)
        whole = position + (end - position) // _CONFIRM_BYTES * _CONFIRM_BYTES
        if whole != end:
            self._corrupted(what, -2)
        return buffer[position:whole]
