"""How long clients wait, and event loops are busy at a time, while another node becomes primary of very many messages.

    python -m bench.take_over [--messages 1000000] [--size 100]

Fills a strongly consistent queue of a cluster of three nodes; gives its partition to another node (`PARTITION 0 MOVE`);
then kills that one (`kill -9`). One JSON object for each: seconds until a message that was posted at the moment is
acknowledged, and for each node the longest turn and how late it was at most, since its start: so they are told from before
as well. `machine_ms`: how long the machine was away at most meanwhile (`bench.machine`).
"""

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
from bench.machine import Machine
from bench.nodes import BrokerCluster
from bmqtwist.cli.adminclient import AdminClient

_SECONDS_MAX = 120.0
_AFTER_S = 3.0  # what is done in slices goes on behind the first acknowledgement


def _move(leader: Broker, to: Broker) -> None:
    with AdminClient("127.0.0.1", leader.port) as admin:
        admin.negotiate()
        answer = admin.run(f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION 0 MOVE {to.root.name}")
    if answer != "SUCCESS":
        raise RuntimeError(f"the partition is not moved: {answer}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bmq-take-over-") as name, BrokerCluster(
            Path(name)) as cluster, Machine() as machine:
        leader = cluster.leader
        moved_to = next(broker for broker in cluster.brokers if broker is not leader)
        poster = Poster(leader.port, options.size)
        poster.fill(options.messages)
        for by, act in (("move", lambda: _move(leader, moved_to)), ("kill", moved_to.kill)):
            before = {broker.root.name: broker.stalls_ms() for broker in cluster.brokers}
            away, begun = machine.longest_ms(), time.monotonic()
            act()
            poster.post(1)
            poster.take(0, _SECONDS_MAX, Samples())
            took = time.monotonic() - begun
            time.sleep(_AFTER_S)
            after = {broker.root.name: broker.stalls_ms() for broker in cluster.brokers if broker.alive()}
            print(json.dumps({"by": by, "messages": options.messages, "seconds": round(took, 2),
                              "machine_before_ms": away, "machine_ms": machine.longest_ms(), "leader": leader.root.name,
                              "moved_to": moved_to.root.name, "before_ms": before, "after_ms": after}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
