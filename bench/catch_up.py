"""How long the event loops of a cluster are busy at a time while one of three nodes catches up under traffic.

    python -m bench.catch_up [--messages 1000000] [--missed 100000] [--size 100] [--rate 1000] [--files DIR]

Fills a strongly consistent queue, kills a node that is not the leader (`kill -9`) and posts `missed` messages without it;
starts it again, which it catches up with records, and posts `rate` messages a second until it has all that is committed.
Then the same with an empty disk: it is given an image. One JSON object for each: seconds until then, latency of the
acknowledgements meanwhile, and for each node the longest turn and how late it was at most, since its start: of the others
that includes filling the queue, so theirs are told from before as well. `machine_ms`: how long the machine was away at
most meanwhile (`bench.machine`).

The files of all nodes are in memory, if there is a file system in memory. On a disk that they share a node that writes an
image holds up what the others write, for 5 to 25 ms at a time.
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
from bench.machine import Machine
from bench.nodes import BrokerCluster
from bench.rawclient import WRITE, RawClient, acks
from bmqtwist.wire.fast import EventType

_IN_MEMORY = "/dev/shm"
_BATCH, _WINDOW = 50, 2000  # messages
_CAUGHT_UP, _SECONDS_MAX = "State 'REPLICA_HEALED'", 300.0  # of its only partition


class Poster:
    """One connection that posts to one queue, and waits for all acknowledgements."""

    def __init__(self, port: int, size: int) -> None:
        self._client, self._payload = RawClient(port, "bench-catch-up"), b"x" * size
        self._client.open(f"bmq://{DOMAINS['priority']}/catch-up", 0, WRITE)
        self._posted: dict[bytes, int] = {}  # when, ns

    def post(self, count: int) -> None:
        """One event."""
        data, guids = self._client.put_event(0, [self._payload] * count)
        now = time.monotonic_ns()
        self._posted.update(dict.fromkeys(guids, now))
        self._client.send(data)

    def take(self, waiting_max: int, seconds: float, samples: Samples) -> None:
        """Acknowledgements, until so many are still to come, at the most; or for that time."""
        deadline = time.monotonic() + seconds
        while len(self._posted) > waiting_max:
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
        """Post so many, as fast as they are acknowledged."""
        for _ in range(count // _BATCH):
            self.post(_BATCH)
            self.take(_WINDOW, _SECONDS_MAX, Samples())
        self.take(0, _SECONDS_MAX, Samples())

    def trickle(self, rate: float, broker: Broker, position: int) -> dict[str, Any]:
        """Post at that rate until the broker says that it has all that is committed."""
        samples, begun, posted = Samples(), time.monotonic(), 0
        while _CAUGHT_UP not in broker.output(position):
            if time.monotonic() > begun + _SECONDS_MAX:
                raise RuntimeError(f"the node does not catch up: {broker.output(position)[-1000:]}")
            for _ in range(max(1, int(rate / 20))):
                self.post(1)
                posted += 1
                self.take(0, begun + posted / rate - time.monotonic(), samples)
                time.sleep(max(0.0, begun + posted / rate - time.monotonic()))
        took = time.monotonic() - begun
        self.take(0, _SECONDS_MAX, samples)
        return {"seconds": round(took, 2), "posted": posted, "latency_ms": samples.percentiles_ms(0)}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--missed", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--files", default=_IN_MEMORY if Path(_IN_MEMORY).is_dir() else None, help="where all files are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bmq-catch-up-", dir=options.files) as name, BrokerCluster(
            Path(name)) as cluster, Machine() as machine:
        leader = cluster.leader
        node = next(broker for broker in cluster.brokers if broker is not leader)
        poster = Poster(leader.port, options.size)
        poster.fill(options.messages)
        filled = [broker.stalls_ms() for broker in cluster.brokers]
        print(json.dumps({"by": "filling", "messages": options.messages, "files": name, "machine_ms": machine.longest_ms(),
                          "after_ms": filled}), flush=True)
        for what in ("records", "image"):
            node.kill()
            poster.fill(options.missed)
            before = {broker: broker.stalls_ms() for broker in cluster.brokers if broker is not node}
            if what == "image":
                for folder in ("storage", "archive"):
                    shutil.rmtree(node.root / folder)
                    (node.root / folder).mkdir()
            position = node.log.stat().st_size
            machine.longest_ms()
            node.start()
            row = poster.trickle(options.rate, node, position)
            row["machine_ms"] = machine.longest_ms()
            nodes = {"catches up" if broker is node else "leads" if broker is leader else "follows": {
                "before_ms": before.get(broker), "after_ms": broker.stalls_ms()} for broker in cluster.brokers}
            print(json.dumps({"by": what, "messages": options.messages, "missed": options.missed, **row, "nodes": nodes}),
                  flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
