"""Upstream selector (cluster/upstream.py): the node that a proxy uses."""

from __future__ import annotations

from random import Random

import pytest

from bmqtwist.cluster.election_events import Tick, TickAt
from bmqtwist.cluster.upstream import (
    LOCAL_WAIT_S,
    TABLE,
    NodeLost,
    NoUpstream,
    SelectorInput,
    SelectorState,
    StatusChanged,
    UpstreamSelector,
    UseNode,
)
from bmqtwist.wire.cluster_schema import NodeStatus

UNKNOWN, STARTING, AVAILABLE = NodeStatus.E_UNKNOWN, NodeStatus.E_STARTING, NodeStatus.E_AVAILABLE
STOPPING, GONE = NodeStatus.E_STOPPING, NodeStatus.E_UNAVAILABLE
BEGIN = 50.0
EVENTS: dict[str, SelectorInput] = {
    **{status.name: StatusChanged(1, status) for status in NodeStatus}, "tick": Tick(),
    "of an unknown node": StatusChanged(9, AVAILABLE)}
AFTER: dict[str, NodeStatus | None] = {  # status of the node, whatever it was before
    **{status.name: status for status in NodeStatus}, "tick": None, "of an unknown node": None}


def made(places: dict[int, str], mine: str = "a", chance: float = 0.0) -> UpstreamSelector:
    return UpstreamSelector(places, mine, lambda: chance, BEGIN)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("before", list(NodeStatus), ids=lambda status: status.name)
def test_a_single_node_is_selected_exactly_while_it_is_available(before: NodeStatus, event: str) -> None:
    selector = made({1: "a"})
    selector.step(BEGIN, StatusChanged(1, before))
    generation = selector.generation
    assert (selector.active, generation) == ((1, 1) if before is AVAILABLE else (None, 0))
    outputs = selector.step(BEGIN + 1, EVENTS[event])
    after = before if AFTER[event] is None else AFTER[event]
    assert selector.statuses == {1: after}
    expected: list[object] = []
    if before is AVAILABLE and after is not AVAILABLE:
        expected = [NodeLost(1), NoUpstream()]
    elif before is not AVAILABLE and after is AVAILABLE:
        expected = [UseNode(1, 1)]
    assert [each for each in outputs if not isinstance(each, TickAt)] == expected


LOCAL, REMOTE = 1, 2  # nodes
IN_STATE: dict[SelectorState, list[SelectorInput]] = {
    SelectorState.INITIAL: [], SelectorState.LOCAL_ONLY: [StatusChanged(REMOTE, AVAILABLE)],
    SelectorState.SELECTED: [StatusChanged(LOCAL, AVAILABLE)],
    SelectorState.NONE: [StatusChanged(LOCAL, AVAILABLE), StatusChanged(LOCAL, GONE)]}
# By state, event, and whether the wait for local nodes has ended: the next state and the outputs.
NEXT: dict[SelectorState, dict[tuple[str, bool], tuple[SelectorState, list[object]]]] = {}
for _late in (False, True):
    NEXT.setdefault(SelectorState.INITIAL, {}).update({
        ("local", _late): (SelectorState.SELECTED, [UseNode(LOCAL, 1)]),
        ("remote", _late): ((SelectorState.SELECTED, [UseNode(REMOTE, 1)]) if _late else
                            (SelectorState.LOCAL_ONLY, [TickAt(BEGIN + LOCAL_WAIT_S)])),
        ("gone", _late): ((SelectorState.NONE, []) if _late else
                          (SelectorState.LOCAL_ONLY, [TickAt(BEGIN + LOCAL_WAIT_S)])),
        ("tick", _late): ((SelectorState.NONE, []) if _late else
                          (SelectorState.LOCAL_ONLY, [TickAt(BEGIN + LOCAL_WAIT_S)]))})
    NEXT.setdefault(SelectorState.LOCAL_ONLY, {}).update({
        ("local", _late): (SelectorState.SELECTED, [UseNode(LOCAL, 1)]),
        **{(event, _late): ((SelectorState.SELECTED, [UseNode(REMOTE, 1)]) if _late else (SelectorState.LOCAL_ONLY, []))
           for event in ("remote", "gone", "tick")}})
    NEXT.setdefault(SelectorState.SELECTED, {}).update({
        **{(event, _late): (SelectorState.SELECTED, []) for event in ("local", "remote", "tick")},
        ("gone", _late): (SelectorState.NONE, [NodeLost(LOCAL), NoUpstream()])})
    NEXT.setdefault(SelectorState.NONE, {}).update({
        ("local", _late): (SelectorState.SELECTED, [UseNode(LOCAL, 2)]),
        ("remote", _late): (SelectorState.SELECTED, [UseNode(REMOTE, 2)]),
        **{(event, _late): (SelectorState.NONE, []) for event in ("gone", "tick")}})
CALLS: dict[str, SelectorInput] = {"local": StatusChanged(LOCAL, AVAILABLE), "remote": StatusChanged(REMOTE, AVAILABLE),
                                   "gone": StatusChanged(LOCAL, GONE), "tick": Tick()}


@pytest.mark.parametrize("late", [False, True], ids=["local only", "any"])
@pytest.mark.parametrize("event", CALLS)
@pytest.mark.parametrize("state", list(SelectorState), ids=lambda state: state.name)
def test_every_event_in_every_state_has_the_expected_outputs(state: SelectorState, event: str, late: bool) -> None:
    selector = made({LOCAL: "a", REMOTE: "b"})
    for each in IN_STATE[state]:
        selector.step(BEGIN, each)
    assert selector.state is state
    now = BEGIN + LOCAL_WAIT_S * (1.5 if late else 0.5)
    outputs = selector.step(now, CALLS[event])
    after, expected = NEXT[state][event, late]
    assert (selector.state, outputs) == (after, expected)
    assert after in {state, *TABLE[state][type(CALLS[event])].after}
    recorded = [(each.before, each.after) for each in selector.transition_log.transitions if each.at == now]
    assert recorded == ([(state.name, after.name)] if after is not state else [])


@pytest.mark.spec("cluster", 97)
@pytest.mark.parametrize("mine, places, first", [
    ("a", {1: "b", 2: "a", 3: "c"}, 2), ("a", {1: "b", 2: "c"}, 1), ("", {1: "b", 2: "a"}, 1),
    ("UNSPECIFIED", {1: "b", 2: "UNSPECIFIED"}, 1)], ids=["own", "no local node", "none", "unspecified"])
def test_at_the_start_nodes_of_the_own_data_centre_are_preferred(mine: str, places: dict[int, str], first: int) -> None:
    selector = made(places, mine)
    outputs = [output for node in places for output in selector.step(BEGIN, StatusChanged(node, AVAILABLE))]
    assert [output for output in outputs if isinstance(output, UseNode)] == [UseNode(first, 1)]


@pytest.mark.spec("cluster", 97)
def test_nodes_of_other_data_centres_are_used_after_ten_seconds() -> None:
    selector = made({1: "b", 2: "a"})
    assert selector.step(BEGIN, StatusChanged(1, AVAILABLE)) == [TickAt(BEGIN + LOCAL_WAIT_S)]
    assert selector.step(BEGIN + LOCAL_WAIT_S - 0.1, Tick()) == []
    assert selector.step(BEGIN + LOCAL_WAIT_S, Tick()) == [UseNode(1, 1)]
    assert selector.step(BEGIN + 20, StatusChanged(2, AVAILABLE)) == [], "node 1 stays selected"
    assert selector.step(BEGIN + 30, StatusChanged(1, GONE)) == [NodeLost(1), UseNode(2, 2)]
    assert selector.step(BEGIN + 31, StatusChanged(1, AVAILABLE)) == []


def test_after_the_first_choice_the_own_data_centre_is_not_awaited() -> None:
    selector = made({1: "b", 2: "a"})
    selector.step(BEGIN, StatusChanged(2, AVAILABLE))
    selector.step(BEGIN, StatusChanged(1, AVAILABLE))
    assert selector.step(BEGIN + 1, StatusChanged(2, STOPPING)) == [NodeLost(2), UseNode(1, 2)]


@pytest.mark.parametrize("chance, chosen", [(0.0, 1), (0.34, 2), (0.99, 3)])
def test_a_node_is_selected_at_random_among_several_available_ones(chance: float, chosen: int) -> None:
    selector = made({1: "a", 2: "a", 3: "a", 4: "b"}, chance=chance)
    selector.step(BEGIN, StatusChanged(4, AVAILABLE))
    for node in (1, 2, 3):
        selector.statuses[node] = AVAILABLE
    assert selector.step(BEGIN, Tick()) == [UseNode(chosen, 1)]


@pytest.mark.spec("cluster", 120)
@pytest.mark.parametrize("seed", range(50))
def test_the_used_node_is_always_available_and_generations_grow(seed: int) -> None:
    random = Random(seed)
    selector = UpstreamSelector({1: "a", 2: "a", 3: "b"}, "a", random.random, BEGIN)
    now, using, generation = BEGIN, None, 0
    for _ in range(200):
        now += random.random()
        node = random.randint(1, 3)
        for output in selector.step(now, random.choice([
                StatusChanged(node, random.choice(list(NodeStatus))), Tick()])):
            if isinstance(output, UseNode):
                assert using is None and output.generation == generation + 1
                assert output.node_id != 3 or selector.generation > 1 or now >= BEGIN + LOCAL_WAIT_S
                using, generation = output.node_id, output.generation
            elif isinstance(output, NodeLost):
                assert output.node_id == using
                using = None
        assert using == selector.active and (using is None or selector.statuses[using] is AVAILABLE)
        local = [each for each in (1, 2) if selector.statuses[each] is AVAILABLE]
        assert using is not None or not local
