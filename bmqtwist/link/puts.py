"""PUT events of one client: messages are checked, inflated if necessary, and posted to their queues.

Large events are processed in slices, and so are messages that take long to inflate or go to very many apps or consumers. A
PUT after an unanswered open is deferred in the line of its queue id (`link/requests.py`).

Called by `client.py` for each PUT event; `queue/root.py` and `queue/relay.py` take the messages. Sizes of messages,
slices and deferred PUTs are limited in `bmqtwist/limits.py`, quotas in `queue/meter.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from bmqtwist.errors import AckStatus, PeerError
from bmqtwist.ids import NULL_GUID
from bmqtwist.limits import (
    APPLICATION_DATA_BYTES_MAX,
    INFLATE_STEP_BYTES,
    PUT_OPTIONS_BYTES_MAX,
    REACH_MAX,
    SLICE_BYTES,
)
from bmqtwist.link.requests import QueueRequests, QueueRequestsContext
from bmqtwist.link.session import Session
from bmqtwist.queue.queue import FLAG_WRITE, Handle, Put
from bmqtwist.steps import Steps
from bmqtwist.storage.message import Message
from bmqtwist.wire import application_data
from bmqtwist.wire.application_data import Inflation, TooLarge
from bmqtwist.wire.fast import ACK_REQUESTED, MESSAGE_PROPERTIES
from bmqtwist.wire.walk import NO_MESSAGES, MessageError, put_at

_NULL_GUID: Final = NULL_GUID  # imported names are slow to look up
_crc32c: Final = crc32c
_INVALID_PUT = "Invalid Put event [rc: %d]"


class PutReader:
    """Reader of the PUT events of one client. `unacked`: handles of PUTs without an ACK, by GUID; `ignores_unknown`: drop
    PUTs for unknown queue ids without an answer."""

    __slots__ = ("unacked", "makes_guids", "ignores_unknown", "_session", "_queues", "_requests", "_handles",
                 "_posting_deferred", "_inflating", "_receivers", "_found_wrong_crc")

    def __init__(self, session: Session, queues: QueueRequestsContext, requests: QueueRequests,
                 handles: dict[int, Handle]) -> None:
        self._session, self._queues, self._requests, self._handles = session, queues, requests, handles
        self.makes_guids, self.ignores_unknown = session.remote.makes_guids, False
        self.unacked: dict[bytes, Handle] = {}
        self._posting_deferred = False  # a deferred PUT is being posted
        self._found_wrong_crc = False  # and logged
        self._receivers = 0  # apps or consumers that received PUTs in this slice
        self._inflating: dict[tuple[int, int], Inflation] = {}  # in progress, by buffer and position

    def read(self, buffer: bytes, position: int, end: int) -> Steps[None] | None:
        """Post the messages of a PUT event up to the first invalid one; return the remaining work of a large event."""
        if position >= end:
            self._session.log("#CORRUPTED_EVENT", _INVALID_PUT, NO_MESSAGES)
        if end - position <= SLICE_BYTES:
            position = self._post_until(buffer, position, end, end)
        return None if position >= end and self._receivers <= REACH_MAX else self._in_slices(buffer, position, end)

    def _in_slices(self, buffer: bytes, position: int, end: int) -> Steps[None]:
        if self._receivers > REACH_MAX:
            self._receivers = 0
            yield
        while position < end:
            yield from self._inflate(buffer, position)
            began = position
            position = self._post_until(buffer, position, end, min(end, position + SLICE_BYTES))
            if position != began:
                self._inflating.pop((id(buffer), began), None)
            self._receivers = 0
            yield

    def _post_until(self, buffer: bytes, start: int, end: int, until: int) -> int:
        """Post the messages that begin before `until`; return the position of the next one, or `end`. Stop before a message
        that takes more than a step to inflate, and after INFLATE_STEP_BYTES inflated bytes or REACH_MAX receivers."""
        try:
            return self._post_valid(buffer, start, end, until)
        except MessageError as error:
            self._session.log("#CORRUPTED_EVENT", _INVALID_PUT, error.code)
            return end

    def _post_valid(self, buffer: bytes, start: int, end: int, until: int) -> int:
        handles, now, wall, inflated = self._handles, self._session.now, self._session.wall, 0
        while start < until:
            q_id, guid, payload, flags, crc, compression, schema_id, options, _, stop = put_at(buffer, start, end)
            begin, start = start, stop
            handle = handles.get(q_id)
            if handle is None or not handle.flags & FLAG_WRITE:
                self._refuse_unopened(handle, q_id, guid, len(payload), buffer, begin, stop)
                continue
            wants_ack, correlation_id = bool(flags & ACK_REQUESTED), 0
            if self.makes_guids:
                if guid == _NULL_GUID:
                    handle.queue.stats.nack_msgs += 1
                    self._refuse(handle, guid, 0, "PUT message without a GUID")
                    continue
            else:
                correlation_id = int.from_bytes(guid[1:4], "big")
                wants_ack = wants_ack or correlation_id != 0
                guid = self._queues.make_guid()
            size = len(payload)
            if size > APPLICATION_DATA_BYTES_MAX or options and (
                    len(options) > PUT_OPTIONS_BYTES_MAX or size + len(options) > APPLICATION_DATA_BYTES_MAX):
                self._refuse(handle, guid, correlation_id, "PUT message that is too large")
                continue
            computed: int = _crc32c(payload)
            if computed != crc:
                crc = computed
                self._count_wrong_crc(handle)
            has_properties = bool(flags & MESSAGE_PROPERTIES)
            if compression:
                key = (id(buffer), begin)
                try:
                    inflation = self._inflating.pop(key, None) or application_data.inflation_of_put(
                        payload, has_properties, schema_id, APPLICATION_DATA_BYTES_MAX - len(options))
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
                    self._refuse(handle, guid, correlation_id,
                                 f"PUT message that inflates to more than {APPLICATION_DATA_BYTES_MAX} bytes")
                    continue
                except PeerError:
                    pass  # stored unchanged; subscriptions and conversions treat its properties as unreadable
            self._post(handle, Message(guid, payload, options, has_properties, compression, schema_id, crc, now, wall), size,
                       correlation_id, wants_ack)
            self._receivers = reached = self._receivers + handle.queue.receiver_count
            if reached > REACH_MAX:
                until = start
        return start

    def _post(self, handle: Handle, message: Message, size: int, correlation_id: int, wants_ack: bool) -> None:
        guid, session, unacked, queue = message.guid, self._session, self.unacked, handle.queue
        if wants_ack:
            if unacked.get(guid) is handle:
                session.log("#UNACKED_PUT_GUID_COLLISION", "GUID [%s], queue '%s'", guid.hex().upper(), queue.uri)
                wants_ack = False
            else:
                unacked[guid] = handle
        stats = session.stats
        stats.put_msgs += 1
        stats.put_bytes += size
        try:
            refused = queue.post(Put(handle, message, correlation_id, wants_ack), session.now, session.wall)
        except Exception:
            queue.undo_post(guid)
            raise
        if refused:
            handle.client.ack(handle, guid if self.makes_guids else NULL_GUID, correlation_id, refused)

    def post_deferred(self, message: bytes, done: Callable[[], None]) -> None:
        """Post a PUT that was deferred until the open of its queue was answered, then call `done`."""
        if self._post_deferred_slice(message):
            done()
        else:
            self._session.run_first(self._post_deferred_in_slices(message, done))

    def _post_deferred_slice(self, message: bytes) -> bool:
        self._posting_deferred = True
        try:
            return self._post_until(message, 0, len(message), len(message)) >= len(message)
        finally:
            self._posting_deferred = False

    def _post_deferred_in_slices(self, message: bytes, done: Callable[[], None]) -> Steps[None]:
        yield from self._inflate(message, 0)
        while not self._post_deferred_slice(message):
            yield
        done()

    def _inflate(self, buffer: bytes, position: int) -> Steps[None]:
        """Continue the inflation of the message at a position, if one is in progress."""
        inflation = self._inflating.get((id(buffer), position))
        while inflation is not None and not inflation.step():
            yield

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _refuse_unopened(self, handle: Handle | None, q_id: int, guid: bytes, size: int, buffer: bytes, begin: int,
                         stop: int) -> None:
        """Defer a PUT for a queue whose open is pending, up to a limit; refuse other PUTs for a queue that is not open for
        writing."""
        session, requests = self._session, self._requests
        if (requests.pending.count and not self._posting_deferred and requests.pending.has_pending(q_id)
                and requests.defer_put(q_id, buffer[begin:stop]) or handle is None and self.ignores_unknown):
            return
        self._queues.count_invalid_put(size)
        self._log_invalid("PUT message for queue with unknown Id" if handle is None else
                          "PUT message for queue not opened in WRITE mode by the client", q_id)
        session.stats.nack_msgs += 1
        if q_id not in requests.closed_ids:  # an ACK after the final close kills official clients
            correlation_id = 0
            if not self.makes_guids:
                correlation_id, guid = int.from_bytes(guid[1:4], "big"), NULL_GUID
            session.outbox.ack(q_id, guid, correlation_id, AckStatus.UNKNOWN)
            session.flush()

    def _refuse(self, handle: Handle, guid: bytes, correlation_id: int, what: str) -> None:
        self._log_invalid(what, handle.q_id)
        handle.client.ack(handle, guid if self.makes_guids else NULL_GUID, correlation_id, AckStatus.UNKNOWN)

    def _count_wrong_crc(self, handle: Handle) -> None:
        """Count a PUT whose CRC32-C is not that of its application data, as some clients send it; log the first one of the
        session. The message is stored with the right CRC32-C."""
        handle.queue.stats.wrong_crc_msgs += 1
        if not self._found_wrong_crc:
            self._found_wrong_crc = True
            self._log_invalid("PUT message with a wrong CRC32-C, accepted and corrected (logged once per session)",
                              handle.q_id)

    def _log_invalid(self, what: str, q_id: int) -> None:
        self._session.log("#CLIENT_INVALID_PUT", "%s ([ qId = %d subId = DEFAULT ])", what, q_id)
