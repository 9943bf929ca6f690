"""Playback of recordings of the official clients against the session core of the SDK.

Each recorded event of the client is either one that the core has sent already (an answer to an event of the broker) or the
result of a call. In the second case the playback derives the call from the event, makes it, and compares the decoded output.

Differences that are intended, and not compared:

| recorded value | value of this SDK | reason |
|---|---|---|
| identity (process, host, language, version, client id) | its own | it is another library |
| request ids | matched by their order | all unused numbers are valid |
| schema ids of new-style properties | always 1 | all readers accept it; only "new or old" matters |
| order of properties | ascending names | as the C++ client; readers look by name |
| bytes of compressed payloads | output of zlib here | compared decompressed |
| Java: encoding of control events | as configured, here JSON, too | brokers accept both |
| Java: correlation ids in place of GUIDs | GUIDs | brokers recognise repeated posts by GUID |
| Java: URI in the open request of a reader | with its `?id=` | as the C++ client; the app is in another field, too |
| bmqtool: queue flag ACK | never set | each post requests its acknowledgement |
| an open that is answered after its timeout | connection closed at the timeout | S14; that client closes the queue |

Run by `unit/sdk/test_sdk_vectors.py`; the recordings are in tests/vectors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from crc32c import crc32c

from bmqtwist.sdk import QueueOptions, SessionOptions, Subscription
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.wire import control, options, properties, schema
from bmqtwist.wire.application_data import unpack_data
from bmqtwist.wire.control import Encoding
from bmqtwist.wire.fast import EventType
from kit import data_events as events
from kit.sdk_kit import Bench

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
REAL_BROKER_PORT = 30141
Event = tuple[bool, bytes]  # whether the client sent it; the event


def against_stand_in(name: str) -> list[list[Event]]:
    """Return the connections of a recording of an official client with a scripted broker."""
    found = []
    for part in ("", ".conn2"):
        path = VECTORS / "client" / f"{name}{part}.seq.txt"
        if path.exists():
            data = {way: path.with_name(f"{name}{part}.{way}.bin").read_bytes() for way in ("c2b", "b2c")}
            connection = []
            for line in path.read_text(encoding="ascii").splitlines():
                way, offset, length = line.split()[:3]
                start = int(offset.partition("=")[2])
                connection.append((way == "c2b", data[way][start:start + int(length.partition("=")[2])]))
            found.append(connection)
    return found


def against_real_broker(name: str) -> list[list[Event]]:
    """Return the connections of a recording of a client with the original broker."""
    streams: dict[int, list[Event]] = {}
    buffers: dict[tuple[int, bool], bytes] = {}
    for line in (VECTORS / "real" / f"{name}.jsonl").read_text(encoding="ascii").splitlines():
        entry = json.loads(line)
        mine = entry["dst"] == REAL_BROKER_PORT
        key = entry["stream"], mine
        data = buffers.get(key, b"") + bytes.fromhex(entry["hex"])
        while len(data) >= 8 and len(data) >= (length := int.from_bytes(data[:4], "big")):
            streams.setdefault(entry["stream"], []).append((mine, data[:length]))
            data = data[length:]
        buffers[key] = data
    return [streams[number] for number in sorted(streams)]


def decoded(raw: bytes, first: bool) -> list[Any]:
    """Decode the messages of an event of a client."""
    kind, body = raw[4] & 63, raw[8:]
    if kind == EventType.CONTROL:
        return [(control.decode_negotiation if first else control.decode_control)(body, raw[6] >> 5)]
    if kind == EventType.PUT:
        found, error = events.decode_put(body, 0, len(body))
        assert error is None
        return list(found)
    if kind == EventType.CONFIRM:
        return list(events.decode_confirm(body, 0, len(body))[0])
    return [EventType(kind).name]


def meaning(said: Any) -> Any:
    """Return the compared values of a message."""
    if isinstance(said, control.NegotiationMessage):
        identity = said.value
        return "clientIdentity", identity.protocol_version, identity.client_type
    if isinstance(said, control.ControlMessage):
        value = said.value
        if isinstance(value, (schema.OpenQueue, schema.CloseQueue)):
            its = value.handle_parameters
            value = replace(value, handle_parameters=replace(its, uri=its.uri.partition("?")[0], flags=its.flags & ~8))
        return said.choice, value
    if isinstance(said, events.PutMessage):
        assert said.crc == crc32c(said.data)
        area, payload = unpack_data(said.data, bool(said.flags & 2), said.compression, said.schema_id)
        values = properties.decode(area, said.schema_id != 0) if area else {}
        return "PUT", said.queue_id, said.guid, said.flags, said.compression, said.schema_id != 0, values, payload
    return said


def queue_options(value: Any) -> QueueOptions:
    """Return the options of the application that lead to a recorded configuration."""
    parameters = value.stream_parameters
    if isinstance(value, schema.ConfigureStream):
        found = [Subscription(each.expression.text, each.consumers[0].max_unconfirmed_messages,
                              each.consumers[0].max_unconfirmed_bytes, each.consumers[0].consumer_priority)
                 for each in parameters.subscriptions]
        return QueueOptions(subscriptions=tuple(found))
    return QueueOptions(parameters.max_unconfirmed_messages, parameters.max_unconfirmed_bytes,
                        parameters.consumer_priority)


def java_guid(correlation_id: int) -> bytes:
    """Return the value that the Java client sends in the place of a GUID."""
    return correlation_id.to_bytes(4, "big") + bytes(12)


class RecordedBench(Bench):
    """A bench whose broker sends recorded events only."""

    def _broker(self, chunk: bytes) -> None:
        buffer, spans = self._frames.receive(chunk)
        for _, _, start, end in spans:
            self.received += decoded(buffer[start - 8:end], not self._negotiated)
            self._negotiated = True


class Playback:
    """Playback of one recorded session to one core; counts the messages and ACKs that the application must receive."""

    def __init__(self, connections: list[list[Event]], *, java: bool = False, open_timeout_s: float = 300.0) -> None:
        self.connections, self.java = connections, java
        self.bench = RecordedBench(SessionOptions(drain_s=0.0, encoding=Encoding.JSON if java else Encoding.BER,
                                           open_timeout_s=open_timeout_s))
        self.core = self.bench.core
        self.guids: list[bytes] = []
        self.bench.make_guid = lambda: self.guids.pop(0)
        self.r_ids: dict[int, int] = {}  # recorded request id -> request id of the core
        self.unmatched: list[Any] = []
        self.queues: dict[tuple[int, int], Queue] = {}
        self.compared = 0
        self.ahead: list[Any] = []  # control requests that follow in the recording
        self.expected_messages = self.expected_acks = 0

    def run(self) -> Playback:
        """Play all connections of the session."""
        for number, connection in enumerate(self.connections):
            if number:
                self.drop_connection(connection)
            else:
                self.bench.start()
            self.play(connection)
        return self

    def drop_connection(self, following: list[Event]) -> None:
        """Drop the connection, and make the posts that the recorded client made before the next connection."""
        self.bench.cut_connection()
        known = {put.guid for put in self.core.unacked.values()}
        for mine, raw in following:
            if mine and raw[4] & 63 == EventType.PUT:
                for put in decoded(raw, False):
                    if put.guid not in known:
                        self.post(put)
        self.bench.advance(1.0)

    def play(self, connection: list[Event], negotiated: bool = False) -> None:
        """Play one connection, or the part of it after the negotiation."""
        said = answered = negotiated
        for index, (mine, raw) in enumerate(connection):
            if mine:
                self.ahead = [each.value for other, later in connection[index:] if other and later[4] & 63 == 1
                              for each in decoded(later, not said and later is raw)
                              if isinstance(each, control.ControlMessage)]
                for what in decoded(raw, not said):
                    self.compare(what)
                said = True
            else:
                self.bench.send_from_broker(self.answer(raw, not answered))
                answered = True
        self.collect()
        assert not self.unmatched, self.unmatched

    def answer(self, raw: bytes, first: bool) -> bytes:
        """Return a recorded event of the broker with the request id or GUID of the core; count the expected effects."""
        kind, body = raw[4] & 63, raw[8:]
        if kind == EventType.PUSH:
            for push in events.decode_push(body, 0, len(body))[0]:
                self.expected_messages += self.deliveries(push)
        if kind == EventType.ACK:
            acks = list(events.decode_ack(body, 0, len(body))[0])
            for ack in acks:
                if self.java:
                    ack.guid = java_guid(ack.correlation_id)
                self.expected_acks += ack.guid in self.core.unacked
            return events.encode_ack(acks)
        if kind != EventType.CONTROL or first:
            return raw
        message = control.decode_control(body, raw[6] >> 5)
        if message.r_id is not None:
            message.r_id = self.r_ids[message.r_id]
        return control.encode_event(message, Encoding(raw[6] >> 5))

    @staticmethod
    def deliveries(push: events.PushMessage) -> int:
        """Return the number of deliveries of a PUSH message."""
        named = 0
        for option in options.decode(push.options):
            if isinstance(option, options.SubQueueIds):
                named += len(option.ids)
            elif isinstance(option, options.SubQueueInfos):
                named += len(option.items)
        return named or 1

    def collect(self) -> None:
        """Collect the output of the core."""
        self.bench.turn()
        self.unmatched += self.bench.received
        self.bench.received.clear()

    def compare(self, recorded: Any) -> None:
        """Require that the core has sent a recorded message, or sends it after the corresponding call."""
        wanted = meaning(recorded)
        self.collect()
        if not any(meaning(said) == wanted for said in self.unmatched):
            self.call(recorded)
            self.collect()
        for said in self.unmatched:
            if meaning(said) == wanted:
                self.unmatched.remove(said)
                self.compared += 1
                if isinstance(recorded, control.ControlMessage):
                    assert recorded.r_id is not None and said.r_id is not None
                    self.r_ids[recorded.r_id] = said.r_id
                return
        raise AssertionError(f"recorded {wanted}\nsent {[meaning(said) for said in self.unmatched]}")

    def call(self, recorded: Any) -> None:
        """Make the call of the application that led to a recorded message."""
        now = self.bench.now
        if isinstance(recorded, events.PutMessage):
            self.post(recorded)
        elif isinstance(recorded, events.ConfirmMessage):
            message = next(each for each in self.bench.messages if each.guid == recorded.guid
                           and (each.queue.q_id, each.queue.sub_id) == (recorded.queue_id, recorded.sub_queue_id))
            message.confirm()
        elif isinstance(recorded, control.ControlMessage):
            value = recorded.value
            if isinstance(value, schema.OpenQueue):
                its = value.handle_parameters
                uri = its.uri.partition("?")[0] + (f"?id={its.sub_id_info.app_id}" if its.sub_id_info else "")
                queue = self.bench.open(uri, read=bool(its.flags & 2), write=bool(its.flags & 4),
                                        options=self.options_ahead(its))
                self.queues[queue.q_id, queue.sub_id] = queue
            elif isinstance(value, schema.ConfigureStream):
                queue = next(each for each in self.queues.values() if each.q_id == value.q_id and each.is_open
                             and each.readable and (each.target.app_id or "__default") == value.stream_parameters.app_id)
                if value.stream_parameters.subscriptions:
                    self.core.configure(queue, queue_options(value), "configure", now)
                else:
                    self.core.close(queue, "close", now)
            elif isinstance(value, schema.ConfigureQueueStream):
                info = value.stream_parameters
                queue = self.queues[value.q_id, info.sub_id_info.sub_id if info.sub_id_info else 0]
                if info.consumer_priority_count:
                    self.core.configure(queue, queue_options(value), "configure", now)
                else:
                    self.core.close(queue, "close", now)
            elif isinstance(value, schema.CloseQueue):
                its = value.handle_parameters
                self.core.close(self.queues[its.q_id, its.sub_id_info.sub_id if its.sub_id_info else 0], "close", now)
            elif isinstance(value, schema.Disconnect):
                self.core.stop("stop", now)

    def options_ahead(self, opened: schema.QueueHandleParameters) -> QueueOptions:
        """Return the options of a queue from the configuration that follows its open request."""
        app_id = opened.sub_id_info.app_id if opened.sub_id_info else "__default"
        for value in self.ahead if opened.flags & 2 else ():
            if isinstance(value, schema.ConfigureStream) and value.q_id == opened.q_id:
                if value.stream_parameters.app_id == app_id:
                    return queue_options(value)
            elif isinstance(value, schema.ConfigureQueueStream) and value.q_id == opened.q_id and (
                    value.stream_parameters.sub_id_info == opened.sub_id_info):
                return queue_options(value)
        return QueueOptions()

    def post(self, put: events.PutMessage) -> None:
        """Post a recorded message."""
        area, payload = unpack_data(put.data, bool(put.flags & 2), put.compression, put.schema_id)
        found = properties.decode(area, put.schema_id != 0) if area else {}
        self.guids.append(put.guid)
        queue = next(each for each in self.queues.values() if each.q_id == put.queue_id and each.writable)
        self.core.post(queue, payload, self.bench.now, {name: value for name, (_, value) in found.items()},
                       {name: kind for name, (kind, _) in found.items()},
                       Post(bool(put.flags & 1), put.guid, compress=put.compression != 0))
