"""Client process of a run with the official SDK: posts, or consumes and confirms, or both.

`python -m bench.sdk_worker JSON`: `broker` (URI), `counters` (path), `worker` (slot), `producers` and `consumers` (lists of
the fields below). Every message is acknowledged to a callback; every message but those of broadcast queues is confirmed
from the delivery callback. The first 8 bytes of a payload say when it was posted (monotonic, ns). Prints one JSON object at
the end and leaves a file of samples per consumer (gauge.Samples). Started by `load.py`; the SDK of bmqtwist runs in
`bmqtwist_worker.py`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import blazingmq

from bench.gauge import ACKED, DONE, GO, POSTED, READY, RECEIVED, STAMP, STOP, SharedCounters

_PAUSE_SECONDS = 0.001  # delay before a full window is checked again


def _session(broker: str, on_message: Any = None) -> blazingmq.Session:
    options = blazingmq.SessionOptions(host_health_monitor=None, stats_dump_interval=0.0)
    return blazingmq.Session.with_options(lambda event: None, on_message=on_message, broker=broker,
                                          session_options=options)


class Consumer:
    """A session with one queue open for reading."""

    def __init__(self, counters: SharedCounters, broker: str, slot: int, uri: str, app_id: str, samples: str,
                 confirms: bool) -> None:
        self.samples, self.path, self.received = array("Q"), Path(samples), 0
        page, offset = counters.page, (RECEIVED + slot) * 8
        extend, unpack, pack, clock = self.samples.extend, STAMP.unpack_from, STAMP.pack_into, time.monotonic_ns

        def on_message(message: Any, handle: Any) -> None:
            extend((unpack(message.data)[0], clock()))
            if confirms:
                handle.confirm()
            self.received += 1
            pack(page, offset, self.received)

        self.session = _session(broker, on_message)
        self.session.open_queue(f"{uri}?id={app_id}" if app_id else uri, read=True, options=blazingmq.QueueOptions(
            max_unconfirmed_messages=100_000, max_unconfirmed_bytes=1 << 30))

    def stop(self) -> None:
        """Stop the session and write the latency samples."""
        self.session.stop()
        self.path.write_bytes(self.samples.tobytes())


class Producer:
    """A session with one queue open for writing."""

    def __init__(self, counters: SharedCounters, broker: str, slot: int, uri: str, size: int, rate: float, window: int,
                 consumers: list[int], seconds: float) -> None:
        self.counters, self.slot, self.uri, self.size, self.rate = counters, slot, uri, size, rate
        self.window, self.consumers, self.seconds = window, consumers, seconds
        self.posted = self.acked = self.refused = 0
        self.session = _session(broker)
        self.session.open_queue(uri, write=True)

    def _on_ack(self, ack: blazingmq.Ack) -> None:
        if ack.status is blazingmq.AckStatus.SUCCESS:
            self.acked += 1
        else:
            self.refused += 1

    def run(self) -> None:
        """Post until the end of the posting time, at most `window` messages ahead of the slowest consumer."""
        page, unpack, pack, clock, sleep = (self.counters.page, STAMP.unpack_from, STAMP.pack, time.monotonic_ns,
                                            time.sleep)
        post, uri, on_ack, filler = self.session.post, self.uri, self._on_ack, b"x" * (self.size - 8)
        offsets = [(RECEIVED + slot) * 8 for slot in self.consumers]
        interval_ns = 1e9 / self.rate if self.rate else 0.0
        posted, start = 0, clock()
        deadline = start + int(self.seconds * 1e9)
        while True:
            now = clock()
            if now >= deadline:
                break
            if posted - min([unpack(page, offset)[0] for offset in offsets]) >= self.window:
                sleep(_PAUSE_SECONDS)
                continue
            if interval_ns and (due := start + posted * interval_ns) > now:
                sleep((due - now) / 1e9)
            post(uri, pack(clock()) + filler, on_ack=on_ack)
            posted += 1
        self.posted = posted
        self.counters.set(POSTED + self.slot, posted)
        self.counters.set(DONE + self.slot, posted or 1)
        ack_deadline = time.monotonic() + 60
        while self.acked + self.refused < posted and time.monotonic() < ack_deadline:
            sleep(0.002)
        self.counters.set(ACKED + self.slot, self.acked)


def main(text: str) -> None:
    """Run one worker."""
    spec = json.loads(text)
    counters = SharedCounters(Path(spec["counters"]))
    consumers = [Consumer(counters, spec["broker"], **fields) for fields in spec["consumers"]]
    producers = [Producer(counters, spec["broker"], **fields) for fields in spec["producers"]]
    counters.set(READY + spec["worker"], 1)
    while not counters.get(GO):
        time.sleep(0.0005)
    threads = [threading.Thread(target=producer.run) for producer in producers]
    begun = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while not counters.get(STOP):
        time.sleep(0.001)
    cpu = time.process_time() - begun
    for consumer in consumers:
        consumer.stop()
    for producer in producers:
        producer.session.stop()
    print(json.dumps({"posted": sum(p.posted for p in producers), "acked": sum(p.acked for p in producers),
                      "nacked": sum(p.refused for p in producers), "received": sum(c.received for c in consumers),
                      "cpu_seconds": cpu}))


if __name__ == "__main__":
    main(sys.argv[1])
