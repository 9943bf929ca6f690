"""The elections of a cluster as this node has seen them, as JSON: its terms, the changes, and what its elector did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bmqtwist.view.cluster_facts import wall_offset
from bmqtwist.view.events import EventLog, NodeEvent
from bmqtwist.view.replicas import cluster_named

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

EVENTS_MAX = 200
Tree = dict[str, Any]


def terms(events: Iterable[NodeEvent]) -> list[Tree]:
    """Who led when, by the events of elections, oldest first. `to` None: still; `end`: why it was over."""
    found: list[Tree] = []
    for event in events:
        term, leader = event.detail.get("term"), event.detail.get("leader")
        last = found[-1] if found else None
        if last is not None and last["to"] is None and (last["term"], last["leader"]) != (term, leader):
            last["to"], last["end"] = event.at, event.text
            last = None
        if leader is not None and (last is None or last["to"] is not None):
            found.append({"term": term, "leader": leader, "from": event.at, "to": None,
                          "reason": event.detail.get("cause", ""), "end": ""})
    return found


def elections(broker: Broker, events: EventLog, cluster_name: str = "") -> Tree:
    """All of it for one cluster, by default the first one of several nodes; LocalError."""
    cluster = cluster_named(broker, cluster_name)
    seen = [event for event in events.last(EVENTS_MAX, ("election",))
            if event.detail.get("cluster", cluster.name) == cluster.name]
    elector, offset = cluster.leadership.elector, wall_offset(broker)
    names = {node.id: node.name for node in cluster.definition.nodes}
    silence = elector.silence(broker.loop.now)
    return {
        "cluster": cluster.name, "terms": terms(seen), "events": [event.tree() for event in seen],
        "story": [{"at": each.at + offset, "before": each.before, "state": each.after, "cause": each.cause}
                  for each in elector.story.transitions],
        "standing": {
            "state": elector.state.name, "leader": names.get(elector.leader) if elector.leader is not None else None,
            "term": elector.term, "active": cluster.leadership.active, "quorum": elector.quorum, "mode": elector.mode.name,
            "supporters": sorted(names.get(each, str(each)) for each in elector.supporters),
            "leaderSilentSeconds": silence, "heartbeatsMissed": int(silence / elector.timing.beat_period),
            "heartbeatsMissedMax": elector.timing.miss_count}}
