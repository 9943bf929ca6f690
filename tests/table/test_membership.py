"""Membership (cluster/membership.py): connection attempts, retries and accepted connections."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bmqtwist.cluster.election_events import PeerDown, PeerUp, TickAt
from bmqtwist.cluster.membership import (
    PROXY,
    RETRY_AT_ONCE_S,
    RETRY_SECONDS_MAX,
    Dial,
    LinkEvent,
    LinkState,
    Membership,
)

A, W, D, N, C = LinkState
JOIN, DUE, REACHED, FAILED, UP, DOWN = LinkEvent
BEGIN = 50.0


def joined(chance: float = 0.5) -> Membership:
    """Node 2 of 1, 2, 3 dials node 3 and waits for node 1."""
    made = Membership(2, (1, 2, 3), lambda: chance)
    made.step(BEGIN, JOIN)
    return made


def waiting() -> Membership:
    """Node 2, whose first attempt has failed."""
    made = joined()
    made.step(BEGIN, FAILED, 3)
    return made


def connected() -> Membership:
    made = joined()
    made.step(BEGIN, UP, 3)
    return made


def negotiating() -> Membership:
    made = joined()
    made.step(BEGIN, REACHED, 3)
    return made


# By state of the link to node 3 (ABSENT: node 1) and event: the next state and the outputs.
SETUPS: dict[LinkState, tuple[Callable[[], Membership], int]] = {
    A: (joined, 1), W: (waiting, 3), D: (joined, 3), N: (negotiating, 3), C: (connected, 3)}
TABLE: dict[LinkState, dict[LinkEvent, tuple[LinkState, list[str]]]] = {
    A: {UP: (C, ["PeerUp"])},
    W: {UP: (C, ["PeerUp", "TickAt"]), DUE: (D, ["Dial", "TickAt"])},
    D: {REACHED: (N, []), FAILED: (W, ["TickAt"]), UP: (C, ["PeerUp"])},
    N: {FAILED: (W, ["TickAt"]), UP: (C, ["PeerUp"])},
    C: {DOWN: (W, ["PeerDown", "TickAt"])},
}


@pytest.mark.parametrize("state", LinkState, ids=lambda state: state.name)
@pytest.mark.parametrize("event", LinkEvent, ids=lambda event: event.name)
def test_every_event_in_every_state_has_the_expected_outputs(state: LinkState, event: LinkEvent) -> None:
    setup, node_id = SETUPS[state]
    made = setup()
    assert made.links[node_id].state is state
    outputs = made.step(BEGIN + 2.0, event, node_id)
    expected = TABLE[state].get(event, (state, []))
    assert (made.links[node_id].state, [type(output).__name__ for output in outputs]) == expected


@pytest.mark.parametrize("event, node_id", [(UP, 2), (UP, 9), (DOWN, 9), (FAILED, -1), (DUE, None)])
def test_an_event_of_an_unknown_node_or_of_the_node_itself_changes_nothing(event: LinkEvent, node_id: int | None) -> None:
    made = joined()
    assert made.step(BEGIN, event, node_id) == [] and made.links[3].state is D and set(made.links) == {1, 3}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_pair_is_dialled_by_the_node_with_the_smaller_id_at_once(size: int) -> None:
    members = range(1, size + 1)
    dialled = []
    for number in members:
        outputs = Membership(number, members, lambda: 0.5).step(BEGIN, JOIN)
        dialled += [(number, output.node_id) for output in outputs if isinstance(output, Dial)]
    assert dialled == [(one, two) for one in members for two in members if one < two]


@pytest.mark.spec("cluster", 3)
@pytest.mark.spec("cluster", 2)
def test_a_connection_is_refused_unless_the_node_with_the_smaller_id_dials_and_is_not_connected() -> None:
    made = joined()
    assert made.refusal_reason(1) == ""
    assert made.refusal_reason(2) == "2 is the id of this node itself"
    assert made.refusal_reason(3) == "node 3 must not dial node 2: the node with the smaller id dials"
    assert made.refusal_reason(4) == "no node of the cluster has the id 4"
    assert made.refusal_reason(PROXY) == "no node of the cluster has the id -1", "proxies are admitted by another class"
    made.step(BEGIN, UP, 1)
    assert made.refusal_reason(1).startswith("node 1 is connected already")
    assert made.links[1].state is C
    made.step(BEGIN, DOWN, 1)
    assert made.refusal_reason(1) == ""
    assert made.mismatch_reason(3, 3) == "" and made.mismatch_reason(3, 1) == "node 1 is at the address of node 3"


def delays(chance: float, count: int, node_id: int = 2) -> list[float]:
    """Return the delays between an attempt that fails at once and the next one."""
    made, now, found = Membership(node_id, (1, 2, 3), lambda: chance), BEGIN, list[float]()
    made.step(BEGIN, JOIN)
    for _ in range(count):
        moments = [each.moment for each in made.step(now, FAILED, 3) if isinstance(each, TickAt)]
        assert moments[0] is not None
        assert made.step(moments[0] - 0.001, DUE) == []
        assert Dial(3) in made.step(moments[0], DUE)
        found.append(moments[0] - now)
        now = moments[0]
    return found


@pytest.mark.spec("cluster", 5)
def test_the_delay_of_a_proxy_starts_at_one_to_three_seconds_and_at_most_doubles_up_to_thirty() -> None:
    assert delays(0.0, 4, PROXY) == [1.0] * 4
    almost = delays(0.999, 8, PROXY)
    assert 2.9 < almost[0] < 3.0 and almost[-1] == RETRY_SECONDS_MAX
    assert all(before < after <= 2 * before for before, after in zip(almost, almost[1:4], strict=False))


def test_a_member_dials_again_within_three_seconds_after_any_number_of_failures() -> None:
    """A node that returns after a long time is therefore connected soon."""
    assert delays(0.0, 4) == [1.0] * 4
    assert delays(0.999, 8) == pytest.approx([2.998] * 8)


@pytest.mark.spec("cluster", 5)
def test_a_lost_connection_is_dialled_again_at_once_if_it_lasted_long() -> None:
    made = connected()
    later = BEGIN + RETRY_AT_ONCE_S
    assert made.step(later, DOWN, 3) == [PeerDown(3), TickAt(later)]
    assert Dial(3) in made.step(later, DUE)
    assert made.step(later, UP, 3) == [PeerUp(3)]


def test_a_short_connection_resets_the_delay_of_a_proxy_to_the_first_one() -> None:
    made = Membership(PROXY, (3,), lambda: 0.5)
    made.step(BEGIN, JOIN)
    made.step(BEGIN, FAILED, 3)
    made.step(BEGIN + 2.0, DUE)
    made.step(BEGIN + 2.0, FAILED, 3)
    assert made.links[3].delay == 3.0
    made.step(BEGIN + 5.0, DUE)
    made.step(BEGIN + 5.0, UP, 3)
    assert made.step(BEGIN + 6.0, DOWN, 3) == [PeerDown(3), TickAt(BEGIN + 8.0)]
