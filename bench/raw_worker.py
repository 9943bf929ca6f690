"""Client process of a run with the raw client: posts prebuilt PUT events, or consumes and confirms in batches.

`python -m bench.raw_worker JSON`: `port`, `counters`, `worker` (slot), `role`, `batch` and the fields of the role. A PUT
event is built once; for every use only the GUIDs, the time stamp and the checksum of its messages are replaced. Started by
`load.py`; its client is `rawclient.py`, clients with an SDK are `bmqtwist_worker.py` and `sdk_worker.py`.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from crc32c import crc32c

from bench.gauge import ACKED, DONE, GO, POSTED, READY, RECEIVED, STAMP, STOP, SharedCounters
from bench.rawclient import READ, WRITE, RawClient, acks, confirm_event, pushes
from bmqtwist.wire.fast import PUT_HEADER_BYTES, EventType

_PAUSE_SECONDS = 0.001  # delay before a full window is checked again


class PutTemplate:
    """A PUT event of `batch` messages whose time stamps, GUIDs and checksums are written in place."""

    def __init__(self, client: RawClient, batch: int, size: int) -> None:
        event, guids = client.put_event(0, [b"x" * size] * batch)
        self.event = bytearray(event)
        step = (len(event) - 8) // batch
        self.starts = [8 + step * number for number in range(batch)]
        self.size, self.tail, self.counter = size, guids[0][3:], 0

    def stamp(self, now_ns: int) -> bytearray:
        """Return the event with time stamps, GUIDs and checksums of messages posted now."""
        event, counter = self.event, self.counter
        stamp = STAMP.pack(now_ns)
        begin = self.starts[0] + PUT_HEADER_BYTES
        event[begin:begin + 8] = stamp
        crc = crc32c(event[begin:begin + self.size]).to_bytes(4, "big")
        tick = now_ns & (1 << 56) - 1
        tail = self.tail[7:]
        for start in self.starts:
            guid = (1 << 22 | counter & 0x3FFFFF).to_bytes(3, "big") + tick.to_bytes(7, "big") + tail
            counter += 1
            tick += 1
            event[start + 12:start + 32] = guid + crc
            event[start + PUT_HEADER_BYTES:start + PUT_HEADER_BYTES + 8] = stamp
        self.counter = counter
        return event


def produce(counters: SharedCounters, port: int, worker: int, batch: int, slot: int, uri: str, size: int, rate: float,
            window: int, consumers: list[int], seconds: float) -> dict[str, Any]:
    """Post until the end of the posting time, at most `window` messages ahead of the slowest consumer."""
    client = RawClient(port, "bench-raw-producer")
    client.open(uri, 0, WRITE)
    template = PutTemplate(client, batch, size)
    page, unpack, clock = counters.page, STAMP.unpack_from, time.monotonic_ns
    offsets = [(RECEIVED + consumer) * 8 for consumer in consumers]
    acked = refused = posted = 0

    def receive_acks(timeout: float) -> None:
        nonlocal acked, refused
        for buffer, (kind, _, start, end) in client.events(timeout):
            if kind == EventType.ACK:
                good = sum(not status for status, _ in acks(buffer, start, end))
                acked += good
                refused += (end - start) // 24 - good

    counters.set(READY + worker, 1)
    while not counters.get(GO):
        time.sleep(0.0005)
    start_ns = clock()
    deadline, interval_ns = start_ns + int(seconds * 1e9), 1e9 / rate if rate else 0.0
    while (now := clock()) < deadline:
        if posted + batch - min([unpack(page, offset)[0] for offset in offsets]) > window:
            receive_acks(_PAUSE_SECONDS)
            continue
        if interval_ns and (due := start_ns + posted * interval_ns) > now:
            receive_acks((due - now) / 1e9)
            continue
        client.send(template.stamp(now))
        posted += batch
        counters.set(POSTED + slot, posted)
        receive_acks(0.0)
    counters.set(DONE + slot, posted or 1)
    ack_deadline = time.monotonic() + 60
    while acked + refused < posted and time.monotonic() < ack_deadline:
        receive_acks(0.01)
    counters.set(ACKED + slot, acked)
    while not counters.get(STOP):
        receive_acks(0.01)
    return {"posted": posted, "acked": acked, "nacked": refused}


def consume(counters: SharedCounters, port: int, worker: int, batch: int, slot: int, uri: str, app_id: str, samples: str,
            confirms: bool) -> dict[str, Any]:
    """Receive messages and confirm them, up to `batch` per event."""
    client = RawClient(port, "bench-raw-consumer")
    sub_id = 1 if app_id else 0
    client.open(uri, 0, READ, app_id, sub_id)
    client.consume(0, 1, app_id or "__default")
    times, unpack, clock = array("Q"), STAMP.unpack_from, time.monotonic_ns
    received, unconfirmed = 0, []
    counters.set(READY + worker, 1)
    while not counters.get(STOP):
        events = client.events(0.002)
        for buffer, (kind, _, start, end) in events:
            if kind != EventType.PUSH:
                continue
            now = clock()
            for guid, data in pushes(buffer, start, end):
                times.extend((unpack(buffer, data)[0], now))
                unconfirmed.append(guid)
        if unconfirmed:
            received += len(unconfirmed)
            if confirms:
                client.send(b"".join([confirm_event(0, unconfirmed[at:at + batch], sub_id)
                                      for at in range(0, len(unconfirmed), batch)]))
            unconfirmed.clear()
            counters.set(RECEIVED + slot, received)
    client.disconnect()
    Path(samples).write_bytes(times.tobytes())
    return {"received": received}


def main(text: str) -> None:
    """Run one worker."""
    fields = json.loads(text)
    counters = SharedCounters(Path(fields.pop("counters")))
    role = {"produce": produce, "consume": consume}[fields.pop("role")]
    report = role(counters, **fields)
    print(json.dumps({**report, "cpu_seconds": time.process_time()}))


if __name__ == "__main__":
    main(sys.argv[1])
