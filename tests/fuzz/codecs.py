"""Decoders as fuzz targets: each function of bytes returns, or raises an error of its declared kind.

Run by `test_fuzz.py` with few inputs, by `tests/soak/command.py` (`frames`) and by `coverage_guided.py`. Whole conversations
are in `sessions.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random

from kit import broker_events as cluster_events
from kit import data_events as events

from bmqtwist.errors import BmqError, PeerError
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.queue.expression import ExpressionError, compile_expression
from bmqtwist.storage.ledger_file import read_ledger
from bmqtwist.storage.records import pack_queue_record, parse_queue_record
from bmqtwist.wire import application_data, control, options, properties
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import FrameBuffer
from fuzz import corpus
from fuzz.findings import Finding
from fuzz.mutation import Mutator

FRAME_BYTES_MAX = 1 << 20
_VALUES = {"x": 1, "y": "a", "a": -3, "b": 7, "c": 0, "s": "text", "flag": True, "z": b"\0", "q": False}


def frames(data: bytes) -> None:
    """Split a stream into events, in chunks of the size in its last byte: the spans are those of a single chunk, and the
    held bytes do not exceed the input."""
    whole, pieces = FrameBuffer(FRAME_BYTES_MAX), FrameBuffer(FRAME_BYTES_MAX)
    expected, found = _walk(whole, [data]), []
    step = 1 + (data[-1] if data else 0)
    found = _walk(pieces, [data[at:at + step] for at in range(0, len(data), step)])
    if found != expected:
        raise AssertionError(f"slicing changes the events: {found} instead of {expected}")
    if pieces.incomplete_bytes > len(data):
        raise AssertionError("more bytes are held than were received")


def _walk(buffer: FrameBuffer, chunks: Sequence[bytes]) -> list[tuple[int, int, bytes]]:
    found = []
    try:
        for chunk in chunks:
            data, spans = buffer.receive(chunk)
            found += [(kind, specific, data[start:end]) for kind, specific, start, end in spans]
            if buffer.error is not None:
                break
    except PeerError:
        pass
    return found


def schema(data: bytes) -> None:
    """Decode schema messages of all top-level types in both encodings; a decoded message must survive a round trip."""
    for decode in (control.decode_control, control.decode_negotiation, control.decode_authentication):
        for encoding in (control.Encoding.BER, control.Encoding.JSON):
            _schema(decode, data, encoding)
    _schema(lambda body, encoding: control.decode_elector(body), data, control.Encoding.BER)


def _schema(decode: Callable[[bytes, int], object], data: bytes, encoding: int) -> None:
    try:
        message = decode(data, encoding)
    except PeerError:
        return
    again = decode(control.encode_body(message, encoding), encoding)
    if again != message:
        raise AssertionError(f"{message} became {again}")


def data_events(data: bytes) -> None:
    """Decode bodies of PUT, PUSH, ACK, CONFIRM and of the events between brokers."""
    for decode in (events.decode_put, events.decode_push, events.decode_ack, events.decode_confirm,
                   cluster_events.decode_storage, cluster_events.decode_recovery, cluster_events.decode_receipt,
                   cluster_events.decode_cluster_state):
        found, error = decode(data, 0, len(data))
        if not found and error is None:
            raise AssertionError(f"{decode.__name__}: neither messages nor an error")


def option_areas(data: bytes) -> None:
    """Decode an options area."""
    options.decode(data)


def property_areas(data: bytes) -> None:
    """Decode a properties area in both styles; decoded properties must survive a round trip."""
    for v2 in (False, True):
        try:
            found = properties.decode(data, v2)
        except PeerError:
            continue
        if properties.decode(properties.encode(found, v2), v2) != found:
            raise AssertionError(f"{found} does not survive")
        properties.values(data, v2)
        if v2:
            properties.to_v1(data)


def stored_data(data: bytes) -> None:
    """Open application data in each style, compressed or not."""
    for has_properties in (False, True):
        for cat in (0, 1):
            for schema_id in (0, 1):
                try:
                    application_data.unpack_data(data, has_properties, cat, schema_id)
                    application_data.for_old_reader(data, has_properties, cat, schema_id)
                except PeerError:
                    continue
    try:
        application_data.inflate(data, 1 << 20)
    except PeerError:
        pass


def expressions(data: bytes) -> None:
    """Compile a subscription expression; it must evaluate to a boolean for any properties."""
    try:
        compiled = compile_expression(data.decode("utf-8", "replace"))
    except ExpressionError:
        return
    for values in (_VALUES, {}, {name: "text" for name in compiled.properties},
                   {name: -(1 << 63) for name in compiled.properties}):
        if not isinstance(compiled.matches(values), bool):
            raise AssertionError(  # noqa: TRY004 - a finding
                f"{compiled} is neither true nor false")


def uris(data: bytes) -> None:
    """Parse a queue URI."""
    try:
        parse_uri(data.decode("utf-8", "replace"))
    except InvalidUri:
        pass


def ledger(data: bytes) -> None:
    """Decode a metadata ledger file."""
    read_ledger(data)


def queue_records(data: bytes) -> None:
    """Decode a QLIST record; its declared error is ValueError."""
    try:
        parse_queue_record(data)
    except ValueError:
        pass


def _bodies(*kinds: int) -> list[bytes]:
    return [event[8:] for kind in kinds for event in corpus.by_type().get(kind, ())]


def _properties() -> list[bytes]:
    found = []
    for body in _bodies(EventType.PUT):
        found += [put.data for put in events.decode_put(body, 0, len(body))[0] if put.flags & 2]
    return found


def _ledgers() -> list[bytes]:
    return [path.read_bytes() for path in sorted((corpus.VECTORS / "ledger-files").rglob("*"))
            if path.is_file() and path.stat().st_size < 8192 and path.name != "README.md"]


SCHEMA_TYPES = (EventType.CONTROL, EventType.AUTHENTICATION, EventType.ELECTOR)
DATA_TYPES = (EventType.PUT, EventType.PUSH, EventType.ACK, EventType.CONFIRM, EventType.STORAGE, EventType.RECOVERY,
              EventType.PARTITION_SYNC, EventType.REPLICATION_RECEIPT, EventType.CLUSTER_STATE)
Target = Callable[[bytes], None]
# name: (target, its seeds, share of the runs)
TARGETS: dict[str, tuple[Target, Callable[[], Sequence[bytes]], float]] = {
    "frames": (frames, corpus.events, 3),
    "schema": (schema, lambda: _bodies(*SCHEMA_TYPES), 6),
    "data_events": (data_events, lambda: _bodies(*DATA_TYPES), 4),
    "option_areas": (option_areas, lambda: [bytes.fromhex(text) for text in (
        "0400000200000001", "0c4000030000000180000000", "0e000080", "0400000400000003000000010000000208000002666f6f01")], 1),
    "property_areas": (property_areas, _properties, 3),
    "application_data": (stored_data, _properties, 1),
    "expressions": (expressions, lambda: [text.encode() for text in corpus.EXPRESSIONS], 2),
    "uris": (uris, lambda: [text.encode() for text in corpus.URIS], 1),
    "ledger": (ledger, _ledgers, 0.2),
    "queue_records": (queue_records, lambda: [pack_queue_record(
        "bmq://d/q", b"\1\2\3\4\5", [("foo", b"\0\0\0\0\1"), ("b" * 31, b"\0\0\0\0\2")])], 0.2),
}


def feed(name: str, data: bytes) -> None:
    """Feed one input to one target; raise Finding unless it returns or raises an error of this package with a text."""
    try:
        TARGETS[name][0](data)
    except BmqError as error:
        if not str(error):
            raise Finding("an error without a sentence", name, data) from error
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}", name, data) from error


def run(count: int, seed: int) -> dict[str, int]:
    """Feed `count` mutated inputs to all targets; return the number of inputs for each."""
    random = Random(seed)
    names = list(TARGETS)
    weights = [TARGETS[name][2] for name in names]
    seeds = {name: list(TARGETS[name][1]()) or [b"\0"] for name in names}
    mutators = {name: Mutator(random, seeds[name]) for name in names}
    done = dict.fromkeys(names, 0)
    for name in names:
        for data in seeds[name]:
            feed(name, data)
    for name in random.choices(names, weights, k=count):
        data = random.choice(seeds[name])
        feed(name, mutators[name].event(data) if name == "frames" else mutators[name].mutate(data))
        done[name] += 1
    return done


if __name__ == "__main__":
    print(json.dumps(run(100_000, 1)))
