"""Which partition moves next so that the nodes of a cluster are primary of equally many. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from bmqtwist.cluster.changes import LEAST_ASSIGNED
from bmqtwist.cluster.state import Primary
from bmqtwist.storage.psn import NO_PSN, Psn


class Move(NamedTuple):
    """A partition gets another primary."""

    partition_id: int
    node_id: int


def loads_of(primaries: Mapping[int, Primary], nodes: Collection[int]) -> dict[int, int]:
    """Of how many partitions each of the nodes is primary."""
    loads = dict.fromkeys(nodes, 0)
    for primary in primaries.values():
        if primary.node_id in loads:
            loads[primary.node_id] += 1
    return loads


def successor_of(primaries: Mapping[int, Primary], candidates: Collection[int], safe: Mapping[int, Psn], algorithm: str,
                 leader: int | None) -> int | None:
    """Who is to be primary of a partition whose primary goes; None = there are no candidates. `safe`: how much of it each
    node has.

    Where the leader is to be primary of all, it is, if it can. Else it is who has the fewest partitions, and of these who
    has most of this one.
    """
    if algorithm != LEAST_ASSIGNED:
        return leader if leader in candidates else next(iter(candidates), None)
    loads = loads_of(primaries, candidates)
    ranked = sorted(candidates)
    ranked.sort(key=lambda each: safe.get(each, NO_PSN), reverse=True)
    ranked.sort(key=lambda each: loads[each])
    return next(iter(ranked), None)


def next_move(primaries: Mapping[int, Primary], nodes: Collection[int], algorithm: str, leader: int,
              staying: Collection[int] = ()) -> Move | None:
    """The first of the moves that are left, None = there are none. `nodes` may be primary of more; `staying`: partitions
    that cannot move.

    Where the leader is to be primary of all, it gets what it lacks. Else the node with the most partitions gives one to the
    node with the fewest, as long as they differ by more than one.
    """
    loads = loads_of(primaries, nodes)
    movable = {index: primary for index, primary in sorted(primaries.items())
               if index not in staying and primary.node_id in loads}
    if algorithm != LEAST_ASSIGNED:
        return next((Move(index, leader) for index, primary in movable.items() if primary.node_id != leader), None)
    if not loads:
        return None
    fewest = min(loads, key=lambda each: (loads[each], each))
    found = max(movable.items(), key=lambda each: (loads[each[1].node_id], each[0]), default=None)
    if found is None or loads[found[1].node_id] - loads[fewest] < 2:
        return None
    return Move(found[0], fewest)
