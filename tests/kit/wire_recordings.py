"""The recorded streams of tests/vectors, cut into events by nothing but the length in their headers."""

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
MALFORMED = "reject_and_malformed"  # sends nonsense on purpose


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.rsplit('.', 1)[0]}"


@dataclass(frozen=True)
class Stream:
    """One direction of one connection."""

    name: str
    data: bytes

    @property
    def is_malformed(self) -> bool:
        return MALFORMED in self.name


@dataclass(frozen=True)
class Event:
    """One event; `first_control`: the first CONTROL event of its direction, a NegotiationMessage."""

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
    if path.suffix == ".bin":
        return [Stream(name_of(path), path.read_bytes())]
    joined: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
    for line in segments(path):
        joined[line["stream"], line["src"]] += bytes.fromhex(line["hex"])
    return [Stream(f"{name_of(path)}:{stream}:{port}", bytes(data)) for (stream, port), data in joined.items() if data]


def segments(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(data: bytes) -> list[Event]:
    found = []
    pos, first = 0, True
    while pos < len(data):
        length = int.from_bytes(data[pos:pos + 4], "big")
        assert 8 <= length <= len(data) - pos, "recording does not split"
        raw = data[pos:pos + length]
        is_control = raw[4] & 0x3F == EventType.CONTROL
        found.append(Event(raw, is_control and first))
        first = first and not is_control
        pos += length
    return found


def good_events(path: Path) -> list[Event]:
    """All events of all streams of a file; without the streams that are broken on purpose."""
    return [event for stream in streams(path) if not stream.is_malformed for event in events(stream.data)]
