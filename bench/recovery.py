"""Benchmark of a restart with a million unconfirmed messages after kill -9.

    python -m bench.recovery [--messages 1000000] [--size 1024] [--durability none]

Posts the messages, kills the broker, starts it again, and measures the time until it accepts clients, until the first
delivery, and with `--drain` until the last one. Prints one JSON object. Failovers of a cluster are measured by
`take_over.py`, rollovers by `rollover.py`. The broker is started by `broker.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.broker import DOMAINS, Broker
from bench.gauge import memory_mib
from bench.raw_worker import PutTemplate
from bench.rawclient import READ, WRITE, RawClient, acks, confirm_event, pushes
from bmqtwist.wire.fast import EventType

URI = f"bmq://{DOMAINS['priority']}/recovery"
_BATCH, _WINDOW, _CREDIT = 50, 5000, 1000


def fill(port: int, count: int, size: int) -> float:
    """Post `count` messages, wait for all ACKs, and return the seconds."""
    client = RawClient(port, "bench-recovery")
    client.open(URI, 0, WRITE)
    template = PutTemplate(client, _BATCH, size)
    began, posted, acked = time.monotonic(), 0, 0
    while acked < count:
        if posted < count and posted - acked < _WINDOW:
            client.send(template.stamp(time.monotonic_ns()))
            posted += _BATCH
        for buffer, (kind, _, start, end) in client.events(0.0 if posted < count and posted - acked < _WINDOW else 1.0):
            if kind == EventType.ACK:
                for status, _ in acks(buffer, start, end):
                    if status:
                        raise RuntimeError(f"a message was refused: {status}")
                    acked += 1
    client.close()
    return time.monotonic() - began


def receive(port: int, count: int) -> float:
    """Consume `count` messages and return the seconds; a single one is not confirmed."""
    client = RawClient(port, "bench-recovery", timeout=120)
    began = time.monotonic()
    client.open(URI, 0, READ)
    client.consume(0, 1, credit=_CREDIT, credit_bytes=1 << 30)
    got = 0
    while got < count:
        for buffer, (kind, _, start, end) in client.events(60.0):
            if kind == EventType.PUSH:
                guids = [guid for guid, _ in pushes(buffer, start, end)]
                got += len(guids)
                if count > 1:
                    client.send(confirm_event(0, guids))
    client.close()
    return time.monotonic() - began


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages (default: %(default)s)")
    parser.add_argument("--size", type=int, default=1024, help="payload bytes (default: %(default)s)")
    parser.add_argument("--durability", default="none", help="none, group or always (default: %(default)s)")
    parser.add_argument("--drain", action="store_true", help="also consume all messages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bmq-recovery-") as name:
        broker = Broker(Path(name), options.durability)
        broker.start()
        try:
            filled = fill(broker.port, options.messages, options.size)
            full = memory_mib(broker.pid)
            broker.kill()
            serving = broker.start(600)
            first = receive(broker.port, 1)
            row = {"messages": options.messages, "size": options.size, "durability": options.durability,
                   "fill_s": round(filled, 1), "fill_per_s": round(options.messages / filled),
                   "rss_full_mib": full, "serving_after_s": round(serving, 2),
                   "first_delivery_after_s": round(serving + first, 2), "rss_recovered_mib": memory_mib(broker.pid)}
            if options.drain:
                drained = receive(broker.port, options.messages)
                row["drained_per_s"] = round(options.messages / drained)
                row["rss_drained_mib"] = memory_mib(broker.pid)
            print(json.dumps(row), flush=True)
        finally:
            broker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
