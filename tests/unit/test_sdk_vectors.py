"""The client library against recordings of the official one: for the same calls it says the same, and it understands
every answer.

Each recorded event of the client is either something our core has said by itself already (an answer to what the broker
said before it) or the result of a call; the call is read off the event, made, and the outcome compared: decoded, with
request ids mapped. Schema ids (ours is always 1, which every reader takes) count only as "new style or old".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sdk_kit import Bench

from bmqtwist.errors import PeerError
from bmqtwist.sdk import QueueOptions, Result, SessionOptions
from bmqtwist.sdk.queues import Queue
from bmqtwist.wire import control, events, properties, schema
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import FrameBuffer
from bmqtwist.wire.restyle import open_data

VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "client"
ALL = sorted({path.name.split(".")[0] for path in VECTORS.glob("*.seq.txt")})
# open_late_response: that client answers late responses one by one; ours resets the channel at the timeout (rule S14).
SAME_CALLS = [name for name in ALL if not name.startswith("java") and name != "open_late_response"]


class Silent(Bench):
    """A bench whose broker says only what was recorded."""

    def _broker(self, chunk: bytes) -> None:
        buffer, spans = self._frames.receive(chunk)
        for kind, specific, start, end in spans:
            self.heard += _decoded(kind, specific, buffer[start:end], not self._negotiated)
            self._negotiated = True


def _decoded(kind: int, specific: int, body: bytes, first: bool) -> list[Any]:
    if kind == EventType.CONTROL:
        return [(control.decode_negotiation if first else control.decode_control)(body, specific >> 5)]
    if kind == EventType.PUT:
        found, error = events.decode_put(body, 0, len(body))
        assert error is None
        return list(found)
    if kind == EventType.CONFIRM:
        return list(events.decode_confirm(body, 0, len(body))[0])
    return [EventType(kind).name]


def _meaning(said: Any) -> Any:
    """What of an event must be the same."""
    if isinstance(said, control.NegotiationMessage):
        who = said.value
        return "clientIdentity", who.protocol_version, who.client_type
    if isinstance(said, control.ControlMessage):
        return said.choice, said.value
    if isinstance(said, events.Put):
        assert said.crc == crc32c(said.data)
        area, payload = open_data(said.data, bool(said.flags & 2), said.compression, said.schema_id)
        values = properties.decode(area, said.schema_id != 0) if area else {}
        return "PUT", said.queue_id, said.guid, said.flags, said.compression, said.schema_id != 0, values, payload
    return said


def _options(value: Any) -> QueueOptions:
    info = value.stream_parameters
    if isinstance(value, schema.ConfigureStream):
        info = info.subscriptions[0].consumers[0]
    return QueueOptions(info.max_unconfirmed_messages, info.max_unconfirmed_bytes, info.consumer_priority)


class Playback:
    """One recording, played to one core."""

    def __init__(self, name: str) -> None:
        self.name = name
        options = SessionOptions(compression="zlib" in name, drain_s=0.0)
        self.bench = Silent(options)
        self.core = self.bench.core
        self.guids: list[bytes] = []
        self.core.make_guid = lambda: self.guids.pop(0)
        self.r_ids: dict[int, int] = {}  # recorded -> ours
        self.unmatched: list[Any] = []
        self.queues: dict[tuple[int, int], Queue] = {}
        self.compared = 0
        self.ahead: list[Any] = []  # control requests that follow in the recording

    def run(self) -> Playback:
        """All connections of the recording."""
        for number, part in enumerate(("", ".conn2")):
            if (VECTORS / f"{self.name}{part}.seq.txt").exists():
                if number:
                    self.lose(part)
                else:
                    self.bench.start()
                self.connection(part)
        return self

    def lose(self, part: str) -> None:
        """The connection is cut; what the recorded client posted before the next one is posted now."""
        self.bench.lose()
        known = {put.guid for put in self.core.puts.kept.values()}
        for put in (each for _, each in self.recorded(part) if isinstance(each, events.Put)):
            if put.guid not in known:
                self.post(put)
        self.bench.advance(1.0)

    def recorded(self, part: str) -> list[tuple[str, Any]]:
        """("c2b", decoded) and ("b2c", bytes) in order."""
        data = {way: (VECTORS / f"{self.name}{part}.{way}.bin").read_bytes() for way in ("c2b", "b2c")}
        found: list[tuple[str, Any]] = []
        first = True
        for line in (VECTORS / f"{self.name}{part}.seq.txt").read_text().splitlines():
            way, offset, length = line.split()[0], *(int(word.partition("=")[2]) for word in line.split()[1:3])
            raw = data[way][offset:offset + length]
            if way == "b2c":
                found.append((way, raw))
                continue
            buffer, spans = FrameBuffer(1 << 26).receive(raw)
            kind, specific, start, end = spans[0]
            found += [(way, each) for each in _decoded(kind, specific, buffer[start:end], first)]
            first = False
        return found

    def connection(self, part: str) -> None:
        """One connection."""
        answered = False
        recorded = self.recorded(part)
        for index, (way, what) in enumerate(recorded):
            self.ahead = [each.value for way, each in recorded[index + 1:] if isinstance(each, control.ControlMessage)]
            if way == "b2c":
                self.bench.say(self.answer(what, not answered))
                answered = True
            else:
                self.compare(what)
        self.collect()
        assert not self.unmatched, self.unmatched

    def answer(self, raw: bytes, first: bool) -> bytes:
        """A recorded answer with our request id."""
        if raw[4] & 63 != EventType.CONTROL or first:
            return raw
        message = control.decode_control(raw[8:], raw[6] >> 5)
        if message.r_id is not None:
            message.r_id = self.r_ids[message.r_id]
        return control.encode_event(message, raw[6] >> 5)

    def collect(self) -> None:
        """What our core has said."""
        self.bench.turn()
        self.unmatched += self.bench.heard
        self.bench.heard.clear()

    def compare(self, recorded: Any) -> None:
        """Our core has said, or says when it is called, what the recorded client said."""
        wanted = _meaning(recorded)
        self.collect()
        if not any(_meaning(said) == wanted for said in self.unmatched):
            self.call(recorded)
            self.collect()
        for said in self.unmatched:
            if _meaning(said) == wanted:
                self.unmatched.remove(said)
                self.compared += 1
                if isinstance(recorded, control.ControlMessage):
                    self.r_ids[recorded.r_id] = said.r_id
                return
        raise AssertionError(f"recorded {wanted}\nours {[_meaning(said) for said in self.unmatched]}")

    def call(self, recorded: Any) -> None:
        """Make the call that the recorded client's application made."""
        now = self.bench.now
        if isinstance(recorded, events.Put):
            self.post(recorded)
        elif isinstance(recorded, events.Confirm):
            message = next(each for each in self.bench.messages if each.guid == recorded.guid
                           and (each.queue.q_id, each.queue.sub_id) == (recorded.queue_id, recorded.sub_queue_id))
            message.confirm()
        elif isinstance(recorded, control.ControlMessage):
            value = recorded.value
            if isinstance(value, schema.OpenQueue):
                its = value.handle_parameters
                queue = self.bench.open(its.uri, read=bool(its.flags & 2), write=bool(its.flags & 4),
                                        options=self.options_ahead(its))
                self.queues[queue.q_id, queue.sub_id] = queue
            elif isinstance(value, schema.ConfigureStream):
                queue = next(each for each in self.queues.values() if each.q_id == value.q_id and each.is_open
                             and each.readable and (each.target.app_id or "__default") == value.stream_parameters.app_id)
                if value.stream_parameters.subscriptions:
                    self.core.configure(queue, _options(value), "configure", now)
                else:
                    self.core.close(queue, "close", now)
            elif isinstance(value, schema.ConfigureQueueStream):
                info = value.stream_parameters
                queue = self.queues[value.q_id, info.sub_id_info.sub_id if info.sub_id_info else 0]
                if info.consumer_priority_count:
                    self.core.configure(queue, _options(value), "configure", now)
                else:
                    self.core.close(queue, "close", now)
            elif isinstance(value, schema.CloseQueue):
                its = value.handle_parameters
                self.core.close(self.queues[its.q_id, its.sub_id_info.sub_id if its.sub_id_info else 0], "close", now)
            elif isinstance(value, schema.Disconnect):
                self.core.stop("stop", now)

    def options_ahead(self, opened: schema.QueueHandleParameters) -> QueueOptions:
        """What the queue that is being opened will be configured with."""
        app_id = opened.sub_id_info.app_id if opened.sub_id_info else "__default"
        for value in self.ahead if opened.flags & 2 else ():
            if isinstance(value, schema.ConfigureStream) and value.q_id == opened.q_id:
                if value.stream_parameters.app_id == app_id:
                    return _options(value)
            elif isinstance(value, schema.ConfigureQueueStream) and value.q_id == opened.q_id and (
                    value.stream_parameters.sub_id_info == opened.sub_id_info):
                return _options(value)
        return QueueOptions()

    def post(self, put: events.Put) -> None:
        """Post what was posted."""
        area, payload = open_data(put.data, bool(put.flags & 2), put.compression, put.schema_id)
        found = properties.decode(area, put.schema_id != 0) if area else {}
        self.guids.append(put.guid)
        queue = next(each for each in self.queues.values() if each.q_id == put.queue_id and each.writable)
        self.core.post(queue, payload, self.bench.now, {name: value for name, (_, value) in found.items()},
                       {name: kind for name, (kind, _) in found.items()}, ack=bool(put.flags & 1), token=put.guid)


@pytest.mark.parametrize("name", SAME_CALLS)
def test_for_the_same_calls_the_same_is_said(name: str) -> None:
    played = Playback(name).run()
    assert played.compared >= 1


@pytest.mark.parametrize("name", [name for name in SAME_CALLS if name.startswith("consumer")])
def test_every_recorded_delivery_is_understood(name: str) -> None:
    """Everything the official client confirmed arrived here, too; nothing is dropped."""
    played = Playback(name).run()
    assert played.bench.messages and not played.core.dropped
    readable = 0
    for message in played.bench.messages:
        try:
            readable += bool(message.property_types) or message.payload is not None
        except PeerError:
            continue
    assert readable >= len(played.bench.messages) - 2  # two are corrupt on purpose in consumer_full


def test_all_sixteen_ack_statuses_are_understood() -> None:
    acks = Playback("producer_ack_codes").run().bench.acks
    known = {0: Result.SUCCESS, 1: Result.LIMIT_MESSAGES, 2: Result.LIMIT_BYTES, 6: Result.STORAGE_FAILURE,
             7: Result.NOT_READY}
    assert [ack.status for ack in acks] == [known.get(status, Result.UNKNOWN) for status in range(16)]


def test_a_refused_negotiation_ends_the_start_with_its_reason() -> None:
    bench = Playback("negotiation_refused").run().bench
    assert bench.done["start"].result is Result.REFUSED


@pytest.mark.parametrize("name", ["open_refused", "configure_refused"])
def test_a_refused_open_ends_with_the_brokers_status(name: str) -> None:
    done = Playback(name).run().bench.done
    assert {each.result for key, each in done.items() if key[0] == "open"} <= {Result.REFUSED, Result.UNKNOWN}
