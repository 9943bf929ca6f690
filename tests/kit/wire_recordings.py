"""Recorded streams of tests/vectors, split into events by the length in the event headers.

The split uses no product code except the numbers of event types. Used by tests/unit/wire; recordings of SDK sessions are
played by `sdk_playback.py`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bmqtwist.wire.fast import EventType

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
CLIENT = VECTORS / "client"
RECORDINGS = sorted([*(VECTORS / "real").glob("*.jsonl"), *(VECTORS / "real-cluster").glob("*.jsonl"),
                     *(VECTORS / "cluster-run").glob("*.jsonl")])
FILES = [*sorted(CLIENT.glob("*.bin")), *RECORDINGS]
MALFORMED = "reject_and_malformed"  # the recording that contains malformed events


def name_of(path: Path) -> str:
    """Return the name of a recording in test ids: directory and file name without suffix."""
    return f"{path.parent.name}/{path.name.rsplit('.', 1)[0]}"


@dataclass(frozen=True)
class Stream:
    """Bytes of one direction of one connection."""

    name: str
    data: bytes

    @property
    def is_malformed(self) -> bool:
        return MALFORMED in self.name


@dataclass(frozen=True)
class Event:
    """Bytes of one event; `first_control`: it is the first CONTROL event of its direction, a NegotiationMessage."""

    raw: bytes
    first_control: bool = False

    @property
    def kind(self) -> int:
        return self.raw[4] & 0x3F

    @property
    def encoding(self) -> int:
        return self.raw[6] >> 5

    @property
    def body(self) -> bytes:
        return self.raw[8:]


@cache
def streams(path: Path) -> list[Stream]:
    """Return the streams of a recording."""
    if path.suffix == ".bin":
        return [Stream(name_of(path), path.read_bytes())]
    joined: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
    for line in segments(path):
        joined[line["stream"], line["src"]] += bytes.fromhex(line["hex"])
    return [Stream(f"{name_of(path)}:{stream}:{port}", bytes(data)) for (stream, port), data in joined.items() if data]


def segments(path: Path) -> list[dict]:
    """Return the recorded TCP segments of a .jsonl recording, as dictionaries."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(data: bytes) -> list[Event]:
    """Split a stream into events."""
    found = []
    pos, first = 0, True
    while pos < len(data):
        length = int.from_bytes(data[pos:pos + 4], "big")
        assert 8 <= length <= len(data) - pos, "the recording does not end with an event"
        raw = data[pos:pos + length]
        is_control = raw[4] & 0x3F == EventType.CONTROL
        found.append(Event(raw, is_control and first))
        first = first and not is_control
        pos += length
    return found


def good_events(path: Path) -> list[Event]:
    """Return all events of a file, without the streams that contain malformed events."""
    return [event for stream in streams(path) if not stream.is_malformed for event in events(stream.data)]
