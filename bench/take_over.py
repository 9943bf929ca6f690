"""Benchmark of a failover with very many messages: time without service, and event-loop stalls of all nodes.

    python -m bench.take_over [--messages 1000000] [--size 100]

Fills a strongly consistent queue of a cluster of three nodes, moves its partition to another node (`PARTITION 0 MOVE`),
then kills that node (`kill -9`). Prints one JSON object for each: seconds until a message posted at that time is
acknowledged, and for each node the longest turn and timer delay since its start, before and after. `host_pause_ms`: the
longest pause of the machine itself meanwhile (`bench.machine`). Clusters are started by `nodes.py`, posts are made by
`catch_up.py: Poster`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.broker import CLUSTER, Broker
from bench.catch_up import Poster
from bench.gauge import Samples
from bench.machine import HostPauseMonitor
from bench.nodes import BrokerCluster
from bmqtwist.cli.adminclient import AdminClient

_SECONDS_MAX = 120.0
_AFTER_S = 3.0  # jobs in slices continue after the first ACK


def _move(leader: Broker, to: Broker) -> None:
    with AdminClient("127.0.0.1", leader.port) as admin:
        admin.negotiate()
        answer = admin.run(f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION 0 MOVE {to.root.name}")
    if answer != "SUCCESS":
        raise RuntimeError(f"the move was refused: {answer}")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in the queue (default: %(default)s)")
    parser.add_argument("--size", type=int, default=100, help="payload bytes (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bmq-take-over-") as name, BrokerCluster(
            Path(name)) as cluster, HostPauseMonitor() as pauses:
        leader = cluster.leader
        moved_to = next(broker for broker in cluster.brokers if broker is not leader)
        poster = Poster(leader.port, options.size)
        poster.fill(options.messages)
        for action, perform in (("move", lambda: _move(leader, moved_to)), ("kill", moved_to.kill)):
            before = {broker.root.name: broker.loop_stalls_ms() for broker in cluster.brokers}
            pause, begun = pauses.longest_ms(), time.monotonic()
            perform()
            poster.post(1)
            poster.receive_acks(0, _SECONDS_MAX, Samples())
            took = time.monotonic() - begun
            time.sleep(_AFTER_S)
            after = {broker.root.name: broker.loop_stalls_ms() for broker in cluster.brokers if broker.is_running()}
            print(json.dumps({"action": action, "messages": options.messages, "seconds": round(took, 2),
                              "host_pause_before_ms": pause, "host_pause_ms": pauses.longest_ms(),
                              "leader": leader.root.name,
                              "moved_to": moved_to.root.name, "before_ms": before, "after_ms": after}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
