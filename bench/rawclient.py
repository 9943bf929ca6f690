"""Small blocking client on `bmqtwist.wire`, for loads that the official SDK cannot produce, such as many messages per event.

It uses BER and generates GUIDs. The caller reads: `events()` returns complete received events, `pushes()` and `acks()`
iterate over their bodies without an object per message. Used by `raw_worker.py` and other benchmarks; the layouts are
in `bmqtwist/wire/`."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from crc32c import crc32c

from bmqtwist.wire.control import (
    ControlMessage,
    Encoding,
    NegotiationMessage,
    decode_control,
    decode_negotiation,
    encode_event,
)
from bmqtwist.wire.fast import (
    ACK_MESSAGE,
    ACK_REQUESTED,
    CONFIRM_MESSAGE,
    HEARTBEAT_RSP,
    ITEMS_HEADER_BYTES,
    WORDS_MASK,
    EventType,
    event_header,
    items_event,
    put_message,
)
from bmqtwist.wire.frames import FrameBuffer, Span
from bmqtwist.wire.schema import (
    ClientIdentity,
    ClientType,
    CloseQueue,
    ConfigureStream,
    ConsumerInfo,
    Disconnect,
    GuidInfo,
    OpenQueue,
    QueueHandleParameters,
    StreamParameters,
    SubQueueIdInfo,
    Subscription,
)

READ, WRITE = 2, 4
FEATURES = "PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX"
_EVENT_BYTES_MAX = 512 << 20
_CHUNK_BYTES = 1 << 20
_PUSH = struct.Struct(">II4x16s")
_GUID = struct.Struct(">3s7s6s")


class Refusal(Exception):
    """The broker answered a request with a status."""


class Closed(Exception):
    """The broker has closed the connection."""


class RawClient:
    """One negotiated connection."""

    def __init__(self, port: int, name: str = "raw", timeout: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = timeout
        self._poll = select.poll()  # `select` takes no descriptor above 1023
        self._poll.register(self.socket, select.POLLIN)
        self._frames = FrameBuffer(_EVENT_BYTES_MAX)
        self._deferred: list[tuple[bytes, Span]] = []  # events received while a request was pending
        self._r_id, self._guids, self._client = 0, 0, os.urandom(6)
        self._start_ns = time.time_ns()
        identity = ClientIdentity(
            protocol_version=1, client_type=ClientType.E_TCPCLIENT, process_name=name, pid=os.getpid(),
            features=FEATURES, guid_info=GuidInfo(self._client.hex().upper(), self._start_ns))
        self.send(encode_event(NegotiationMessage("clientIdentity", identity)))
        buffer, (_, specific, start, end) = self._next_control()
        answer = decode_negotiation(buffer[start:end], specific >> 5)
        if answer.value is None or answer.value.result.category:
            raise Refusal(str(answer.value))

    # -- bytes -------------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the file descriptor, for `select`."""
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        """Send all bytes, without a time limit."""
        self.socket.settimeout(None)
        self.socket.sendall(data)

    def events(self, timeout: float | None = 0.0) -> list[tuple[bytes, Span]]:
        """Return complete events received within `timeout` seconds (None = no limit); answer heartbeats."""
        found, self._deferred = self._deferred, []
        if found:
            timeout = 0.0
        if self._poll.poll(None if timeout is None else timeout * 1000):
            chunk = self.socket.recv(_CHUNK_BYTES)
            if not chunk:
                raise Closed
            buffer, spans = self._frames.receive(chunk)
            for span in spans:
                if span[0] == EventType.HEARTBEAT_REQ:
                    self.send(HEARTBEAT_RSP)
                else:
                    found.append((buffer, span))
        return found

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()

    # -- control -----------------------------------------------------------------------------------------------------

    def _next_control(self) -> tuple[bytes, Span]:
        deadline = time.monotonic() + self.timeout
        others: list[tuple[bytes, Span]] = []
        while time.monotonic() < deadline:
            events = self.events(0.2)
            for index, (buffer, span) in enumerate(events):
                if span[0] == EventType.CONTROL:
                    self._deferred = others + events[index + 1:]
                    return buffer, span
                others.append((buffer, span))
        raise TimeoutError("no answer to a request")

    def request(self, choice: str, value: Any) -> ControlMessage:
        """Send a request and return the response; raise Refusal for a status."""
        self._r_id += 1
        self.send(encode_event(ControlMessage(self._r_id, choice, value)))
        while True:
            buffer, (_, specific, start, end) = self._next_control()
            answer = decode_control(buffer[start:end], Encoding(specific >> 5))
            if answer.r_id == self._r_id:
                break
        if answer.choice == "status":
            raise Refusal(f"{choice}: {answer.value}")
        return answer

    def open(self, uri: str, q_id: int, flags: int, app_id: str = "", sub_id: int = 0) -> None:
        """Open a queue; `app_id` with its `sub_id` for a reader of a fanout queue."""
        parameters = QueueHandleParameters(uri, q_id, SubQueueIdInfo(sub_id, app_id) if app_id else None, flags,
                                           int(flags & READ > 0), int(flags & WRITE > 0), 0)
        self.request("openQueue", OpenQueue(parameters))

    def consume(self, q_id: int, s_id: int, app_id: str = "__default", credit: int = 1 << 20,
                credit_bytes: int = 1 << 32) -> None:
        """Configure one subscription that matches all messages."""
        consumer = ConsumerInfo(credit, credit_bytes, 0, 1)
        self.request("configureStream", ConfigureStream(q_id, StreamParameters(app_id, [
            Subscription(s_id, consumers=[consumer])])))

    def close_queue(self, uri: str, q_id: int, flags: int) -> None:
        """Close a queue without substreams."""
        self.request("closeQueue", CloseQueue(QueueHandleParameters(
            uri, q_id, None, flags, int(flags & READ > 0), int(flags & WRITE > 0), 0), True))

    def disconnect(self) -> None:
        """Disconnect gracefully."""
        self.request("disconnect", Disconnect())
        self.close()

    # -- data --------------------------------------------------------------------------------------------------------

    def guid(self) -> bytes:
        """Return a new GUID."""
        counter = self._guids
        self._guids += 1
        timer = time.time_ns() - self._start_ns & (1 << 56) - 1
        return _GUID.pack((1 << 22 | counter & 0x3FFFFF).to_bytes(3, "big"), timer.to_bytes(7, "big"), self._client)

    def put_event(self, q_id: int, payloads: list[bytes]) -> tuple[bytes, list[bytes]]:
        """Return a PUT event with ACKs requested, and the GUIDs of its messages."""
        guids = [self.guid() for _ in payloads]
        body = b"".join([put_message(q_id, guid, payload, crc32c(payload), ACK_REQUESTED)
                         for guid, payload in zip(guids, payloads, strict=True)])
        return event_header(EventType.PUT, len(body)) + body, guids


def pushes(buffer: bytes, start: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield (GUID, offset of the application data) of each message of a PUSH event."""
    while start < end:
        first, second, guid = _PUSH.unpack_from(buffer, start)
        yield guid, start + ((second & 31) + (second >> 8) << 2)
        start += (first & WORDS_MASK) << 2


def acks(buffer: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (status, GUID) of each message of an ACK event."""
    for word, guid, _ in ACK_MESSAGE.iter_unpack(buffer[start + ITEMS_HEADER_BYTES:end]):
        yield word >> 24 & 15, guid


def confirm_event(q_id: int, guids: list[bytes], sub_id: int = 0) -> bytes:
    """Return a CONFIRM event."""
    return items_event(EventType.CONFIRM, [CONFIRM_MESSAGE.pack(q_id, guid, sub_id) for guid in guids])
