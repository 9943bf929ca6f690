"""Benchmark of a replica that catches up: event-loop stalls and ACK latency of a cluster of three under traffic.

    python -m bench.catch_up [--messages 1000000] [--missed 100000] [--size 100] [--rate 1000] [--files DIR]

1. Fills a strongly consistent queue, kills a replica (`kill -9`) and posts `missed` messages without it.
2. Starts the replica, which gets the missing records, and posts `rate` messages per second until it has caught up.
3. The same with an empty disk: the replica gets an image.

Prints one JSON object for each: seconds to catch up, ACK latency meanwhile, and for each node the longest turn and the
longest delay of a timer since its start (`after_ms`; `before_ms`: the values before, which include filling the queue).
`host_pause_ms`: the longest pause of the machine itself meanwhile (`bench.machine`).

All files are in memory if there is such a file system: on a shared disk an image delays the writes of other nodes by 5
to 25 ms. Clusters are started by `nodes.py`, percentiles are computed by `gauge.py: Samples`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.broker import DOMAINS, Broker
from bench.gauge import Samples
from bench.machine import HostPauseMonitor
from bench.nodes import BrokerCluster
from bench.rawclient import WRITE, RawClient, acks
from bmqtwist.wire.fast import EventType

_IN_MEMORY = "/dev/shm"
_BATCH, _WINDOW = 50, 2000  # messages
_CAUGHT_UP, _SECONDS_MAX = "State 'REPLICA_HEALED'", 300.0  # of its only partition


class Poster:
    """A producer with one connection and one queue, which measures the time to each ACK."""

    def __init__(self, port: int, size: int) -> None:
        self._client, self._payload = RawClient(port, "bench-catch-up"), b"x" * size
        self._client.open(f"bmq://{DOMAINS['priority']}/catch-up", 0, WRITE)
        self._posted: dict[bytes, int] = {}  # GUID -> time of the PUT, ns

    def post(self, count: int) -> None:
        """Post `count` messages in one event."""
        data, guids = self._client.put_event(0, [self._payload] * count)
        now = time.monotonic_ns()
        self._posted.update(dict.fromkeys(guids, now))
        self._client.send(data)

    def receive_acks(self, pending_max: int, seconds: float, samples: Samples) -> None:
        """Receive ACKs until at most `pending_max` are pending, for at most `seconds`; add their latencies to `samples`."""
        deadline = time.monotonic() + seconds
        while len(self._posted) > pending_max:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            for buffer, (kind, _, start, end) in self._client.events(left):
                if kind == EventType.ACK:
                    now = time.monotonic_ns()
                    for status, guid in acks(buffer, start, end):
                        if status:
                            raise RuntimeError(f"a message was refused: {status}")
                        samples.pairs.extend((self._posted.pop(guid), now))

    def fill(self, count: int) -> None:
        """Post `count` messages with at most _WINDOW pending ACKs, and wait for all."""
        for _ in range(count // _BATCH):
            self.post(_BATCH)
            self.receive_acks(_WINDOW, _SECONDS_MAX, Samples())
        self.receive_acks(0, _SECONDS_MAX, Samples())

    def post_until_caught_up(self, rate: float, broker: Broker, position: int) -> dict[str, Any]:
        """Post at a rate until the broker has logged, after `position`, that it has caught up; return the measurements."""
        samples, begun, posted = Samples(), time.monotonic(), 0
        while _CAUGHT_UP not in broker.output(position):
            if time.monotonic() > begun + _SECONDS_MAX:
                raise RuntimeError(f"the replica has not caught up: {broker.output(position)[-1000:]}")
            for _ in range(max(1, int(rate / 20))):
                self.post(1)
                posted += 1
                self.receive_acks(0, begun + posted / rate - time.monotonic(), samples)
                time.sleep(max(0.0, begun + posted / rate - time.monotonic()))
        took = time.monotonic() - begun
        self.receive_acks(0, _SECONDS_MAX, samples)
        return {"seconds": round(took, 2), "posted": posted, "latency_ms": samples.percentiles_ms(0)}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in the queue (default: %(default)s)")
    parser.add_argument("--missed", type=int, default=100_000, help="messages without the replica (default: %(default)s)")
    parser.add_argument("--size", type=int, default=100, help="payload bytes (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages/s while it catches up (default: %(default)s)")
    parser.add_argument("--files", default=_IN_MEMORY if Path(_IN_MEMORY).is_dir() else None,
                        help="directory for all files (default: memory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bmq-catch-up-", dir=options.files) as name, BrokerCluster(
            Path(name)) as cluster, HostPauseMonitor() as pauses:
        leader = cluster.leader
        node = next(broker for broker in cluster.brokers if broker is not leader)
        poster = Poster(leader.port, options.size)
        poster.fill(options.messages)
        filled = [broker.loop_stalls_ms() for broker in cluster.brokers]
        print(json.dumps({"phase": "fill", "messages": options.messages, "files": name, "host_pause_ms": pauses.longest_ms(),
                          "after_ms": filled}), flush=True)
        for what in ("records", "image"):
            node.kill()
            poster.fill(options.missed)
            before = {broker: broker.loop_stalls_ms() for broker in cluster.brokers if broker is not node}
            if what == "image":
                for folder in ("storage", "archive"):
                    shutil.rmtree(node.root / folder)
                    (node.root / folder).mkdir()
            position = node.log.stat().st_size
            pauses.longest_ms()
            node.start()
            row = poster.post_until_caught_up(options.rate, node, position)
            row["host_pause_ms"] = pauses.longest_ms()
            nodes = {"replica" if broker is node else "leader" if broker is leader else "other": {
                "before_ms": before.get(broker), "after_ms": broker.loop_stalls_ms()} for broker in cluster.brokers}
            print(json.dumps({"phase": what, "messages": options.messages, "missed": options.missed, **row, "nodes": nodes}),
                  flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
