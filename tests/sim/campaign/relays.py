"""Judge of relays.

P1  In the end the counts of an app at the upstream broker equal the sum of those of the relay's clients.
P2  A PUT is sent only under the current generation of the upstream, to a queue that is open there.

Created by `play.py`; it checks `bmqtwist/relay/relays.py`.
"""

from __future__ import annotations

from bmqtwist.cluster.streams import StreamState
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.queue.queue import Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.relays import Relays
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.judges import Judge, Violation


class RelayJudge(Judge):
    """Checks P1 and P2."""

    def on_put_relayed(self, node: SimulatedNode, relays: Relays, queue: RelayQueue, put: Put) -> None:
        self.world.counts["relayed"] += 1
        opened = relays.opened[queue.uri]
        stream, upstream = opened.streams.get(DEFAULT_APP_ID), opened.upstream
        state, current = stream.state if stream is not None else None, upstream.generation if upstream is not None else 0
        if queue.generation != current or state is not StreamState.OPEN:
            raise Violation("P2", f"{node.name} sends a PUT of {queue.uri} under generation {queue.generation}; the current "
                                  f"generation is {current}, the state of its stream {state}")

    def check_final_state(self) -> None:
        for node in (*self.world.machines, *self.world.proxies):
            for relays in self.world.relays(node) if node.up else ():
                for opened in relays.opened.values():
                    for stream in opened.streams.values():
                        if stream.state is StreamState.OPEN and stream.counts != opened.counts(stream.app_id):
                            raise Violation("P1", f"{node.name} has {stream.counts} of {opened.uri.canonical} open at its "
                                                  f"upstream for app {stream.app_id}, its clients "
                                                  f"{opened.counts(stream.app_id)}")
