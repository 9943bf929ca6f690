"""Proxies: P1 what is open above is the sum of what clients have open, P2 PUTs go to the upstream of now."""

from __future__ import annotations

from bmqtwist.cluster.streams import StreamState
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.node.proxy import ProxyCluster
from bmqtwist.queue.put import Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.judges import Judge, Violation


class RelayJudge(Judge):
    """See above."""

    def relayed(self, proxy: SimulatedNode, upstream: ProxyCluster, queue: RelayQueue, put: Put) -> None:
        self.world.counts["relayed"] += 1
        stream = upstream.opened[queue.uri].streams.get(DEFAULT_APP_ID)
        state = stream.state if stream is not None else None
        if queue.generation != upstream.selector.generation or state is not StreamState.OPEN:
            raise Violation("P2", f"{proxy.name} sends a PUT of {queue.uri} under generation {queue.generation}, now is "
                                  f"{upstream.selector.generation}, and its stream is {state}")

    def quiet(self) -> None:
        for proxy in self.world.proxies:
            for upstream in proxy.broker.proxies.values() if proxy.up else ():
                for opened in upstream.opened.values():
                    for stream in opened.streams.values():
                        if stream.state is StreamState.OPEN and stream.counts != opened.counts(stream.app_id):
                            raise Violation("P1", f"{proxy.name} has {stream.counts} of {opened.uri.canonical} open above "
                                                  f"for app {stream.app_id}, its clients {opened.counts(stream.app_id)}")
