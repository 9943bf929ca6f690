"""Benchmark of idle queues: memory per queue, and CPU of the broker without traffic.

    python -m bench.idle_queues [--queues 10000] [--held]

Opens the queues, posts one message to each and consumes it, closes them (`--held`: keeps them open), waits for 5 s without
traffic and prints one JSON object; then restarts the broker and prints its start time and memory. Queues with traffic are
measured by `many_queues.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.broker import DOMAINS, Broker
from bench.gauge import cpu_seconds, memory_mib
from bench.rawclient import READ, WRITE, RawClient, confirm_event, pushes
from bmqtwist.wire.fast import EventType

_IDLE_SECONDS = 5.0


def use_queue(client: RawClient, uri: str, q_id: int, held: bool) -> None:
    """Open a queue, post and consume one message, and close it unless `held`."""
    client.open(uri, q_id, READ | WRITE)
    client.consume(q_id, q_id + 1)
    client.send(client.put_event(q_id, [b"x" * 100])[0])
    guids: list[bytes] = []
    while not guids:
        for buffer, (kind, _, start, end) in client.events(10.0):
            if kind == EventType.PUSH:
                guids += [guid for guid, _ in pushes(buffer, start, end)]
    client.send(confirm_event(q_id, guids))
    if not held:
        client.close_queue(uri, q_id, READ | WRITE)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000, help="number of queues (default: %(default)s)")
    parser.add_argument("--held", action="store_true", help="keep the queues open")
    parser.add_argument("--durability", default="none", help="none, group or always (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bmq-idle-") as name, Broker(Path(name), options.durability) as broker:
        empty = memory_mib(broker.pid)["now"]
        client = RawClient(broker.port, "bench-idle")
        began = time.monotonic()
        for number in range(options.queues):
            use_queue(client, f"bmq://{DOMAINS['priority']}/idle.{number}", number, options.held)
        seconds = time.monotonic() - began
        before = sum(cpu_seconds(broker.pid))
        time.sleep(_IDLE_SECONDS)
        idle = (sum(cpu_seconds(broker.pid)) - before) / _IDLE_SECONDS
        memory = memory_mib(broker.pid)
        print(json.dumps({"queues": options.queues, "held": options.held, "seconds": round(seconds, 1),
                          "rss_empty_mib": empty, "rss_mib": memory,
                          "kib_per_queue": round((memory["now"] - empty) * 1024 / options.queues, 1),
                          "idle_cores": round(idle, 3)}), flush=True)
        client.close()
        broker.kill()
        restarted = broker.start(600)
        print(json.dumps({"queues": options.queues, "restart_s": round(restarted, 2),
                          "rss_restarted_mib": memory_mib(broker.pid)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
