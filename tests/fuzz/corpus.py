"""Seeds: recorded streams of clients and brokers, and files of brokers.

Used by `codecs.py`, `sessions.py` and `tests/soak/hostile.py`; `mutation.py` changes the seeds.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

VECTORS = Path(__file__).resolve().parent.parent / "vectors"


def split(stream: bytes) -> list[bytes]:
    """Return the complete events of a valid stream; a trailing incomplete event is omitted."""
    found, at = [], 0
    while len(stream) - at >= 8:
        size = int.from_bytes(stream[at:at + 4], "big")
        if not 8 <= size <= len(stream) - at:
            break
        found.append(stream[at:at + size])
        at += size
    return found


@cache
def conversations() -> tuple[tuple[bytes, ...], ...]:
    """Return the events that clients sent, by connection; the first event is the negotiation."""
    found = [split(path.read_bytes()) for path in sorted(VECTORS.glob("client/*.c2b.bin"))]
    for path in sorted(VECTORS.glob("real/*.jsonl")):
        streams: dict[tuple[int, int], bytes] = {}
        broker = 0
        for line in path.read_text().splitlines():
            record = json.loads(line)
            key = record["stream"], record["src"]
            streams[key] = streams.get(key, b"") + bytes.fromhex(record["hex"])
            broker = broker or record["dst"]
        found += [split(stream) for (_, source), stream in streams.items() if source != broker]
    return tuple(tuple(events) for events in found if events)


@cache
def events() -> tuple[bytes, ...]:
    """Return all distinct events up to 8 KiB of clients and brokers."""
    found = {event: None for conversation in conversations() for event in conversation}
    for path in sorted(VECTORS.glob("client/*.b2c.bin")):
        found.update((event, None) for event in split(path.read_bytes()))
    for path in sorted(VECTORS.glob("real-cluster/*.jsonl")):
        streams: dict[tuple[int, int, int], bytes] = {}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            key = record["stream"], record["src"], record["dst"]
            streams[key] = streams.get(key, b"") + bytes.fromhex(record["hex"])
        found.update((event, None) for stream in streams.values() for event in split(stream))
    return tuple(event for event in found if len(event) <= 8192)


@cache
def by_type() -> dict[int, tuple[bytes, ...]]:
    """Return the events by type."""
    found: dict[int, list[bytes]] = {}
    for event in events():
        found.setdefault(event[4] & 0x3F, []).append(event)
    return {kind: tuple(some) for kind, some in found.items()}


EXPRESSIONS = ("x > 1", "x == 1 && y != \"a\"", "!(a < 3) || b >= -4", "exists(z) && s == 'text'", "~flag", "a + b * 2 > c",
               "x % 2 == 0", "true && y", "(x)", "a == 9223372036854775807", "x > 1 && (y || z) && exists(q)")
URIS = ("bmq://bmq.test.mem.priority/q1", "bmq://d.~tier/queue-1_x?id=foo", "bmq://d/q?id=", "bmq:///q", "bmq://d/")
