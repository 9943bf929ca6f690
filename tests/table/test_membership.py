"""cluster/membership.py: who dials whom and when, and who may connect, from outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Tick, WakeAt
from bmqtwist.cluster.membership import (
    ACTIONS,
    PROXY,
    RETRY_AT_ONCE_S,
    RETRY_SECONDS_MAX,
    Dial,
    Join,
    LinkDown,
    LinkFailed,
    LinkInput,
    LinkState,
    LinkUp,
    Membership,
)

A, W, D, C = LinkState.ABSENT, LinkState.WAITING, LinkState.DIALLING, LinkState.CONNECTED
BEGIN = 50.0


def joined(chance: float = 0.5) -> Membership:
    """Node 2 of 1, 2, 3 dials node 3 and waits for node 1."""
    made = Membership(2, (1, 2, 3), lambda: chance)
    made.step(BEGIN, Join())
    return made


def waiting() -> Membership:
    """Its first attempt has failed."""
    made = joined()
    made.step(BEGIN, LinkFailed(3))
    return made


def connected() -> Membership:
    made = joined()
    made.step(BEGIN, LinkUp(3))
    return made


# The state of the link to node 3 (of ABSENT: node 1), what happens, the state afterwards, and what is said.
SETUPS: dict[LinkState, tuple[Callable[[], Membership], int]] = {
    A: (joined, 1), W: (waiting, 3), D: (joined, 3), C: (connected, 3)}
TABLE: dict[LinkState, dict[type, tuple[LinkState, list[str]]]] = {
    A: {LinkFailed: (A, []), LinkUp: (C, ["PeerUp"]), LinkDown: (A, [])},
    W: {LinkFailed: (W, []), LinkUp: (C, ["PeerUp", "WakeAt"]), LinkDown: (W, [])},
    D: {LinkFailed: (W, ["WakeAt"]), LinkUp: (C, ["PeerUp"]), LinkDown: (D, [])},
    C: {LinkFailed: (C, []), LinkUp: (C, []), LinkDown: (W, ["PeerDown", "WakeAt"])},
}


def test_every_state_has_a_cell_for_every_event() -> None:
    assert set(ACTIONS) == set(LinkState) == set(TABLE)
    assert all(set(ACTIONS[state]) == {LinkFailed, LinkUp, LinkDown} == set(TABLE[state]) for state in LinkState)


@pytest.mark.parametrize("state", LinkState, ids=lambda state: state.name)
@pytest.mark.parametrize("kind", [LinkFailed, LinkUp, LinkDown])
def test_each_cell(state: LinkState, kind: type) -> None:
    setup, node_id = SETUPS[state]
    made = setup()
    assert made.links[node_id].state is state
    outputs = made.step(BEGIN, kind(node_id))
    assert (made.links[node_id].state, [type(output).__name__ for output in outputs]) == TABLE[state][kind]


@pytest.mark.parametrize("event", [LinkUp(2), LinkUp(9), LinkDown(9), LinkFailed(-1), Tick()], ids=repr)
def test_what_is_of_no_other_node_changes_nothing(event: LinkInput) -> None:
    made = joined()
    assert made.step(BEGIN, event) == [] and made.links[3].state is D and set(made.links) == {1, 3}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_pair_is_dialled_by_the_node_with_the_smaller_id_at_once(size: int) -> None:
    members = range(1, size + 1)
    dialled = []
    for number in members:
        outputs = Membership(number, members, lambda: 0.5).step(BEGIN, Join())
        dialled += [(number, output.node_id) for output in outputs if isinstance(output, Dial)]
    assert dialled == [(one, two) for one in members for two in members if one < two]


@pytest.mark.spec("cluster", 3)
@pytest.mark.spec("cluster", 2)
def test_who_may_connect() -> None:
    made = joined()
    assert made.refusal(1) == ""
    assert made.refusal(2) == "2 is the id of this node itself"
    assert made.refusal(3) == "node 2 dials node 3, not the other way round"
    assert made.refusal(4) == "no node of the cluster has the id 4"
    assert made.refusal(PROXY) == "no node of the cluster has the id -1", "a proxy does not come this way"
    made.step(BEGIN, LinkUp(1))
    assert made.refusal(1) == "node 1 is connected already"
    assert made.links[1].state is C
    made.step(BEGIN, LinkDown(1))
    assert made.refusal(1) == ""
    assert made.mismatch(3, 3) == "" and made.mismatch(3, 1) == "node 1 is at the address of node 3"


def delays(chance: float, count: int, node_id: int = 2) -> list[float]:
    """Between an attempt that fails at once and the next one."""
    made, now, found = Membership(node_id, (1, 2, 3), lambda: chance), BEGIN, list[float]()
    made.step(BEGIN, Join())
    for _ in range(count):
        wake = [each.moment for each in made.step(now, LinkFailed(3)) if isinstance(each, WakeAt)]
        assert wake[0] is not None
        assert made.step(wake[0] - 0.001, Tick()) == []
        assert Dial(3) in made.step(wake[0], Tick())
        found.append(wake[0] - now)
        now = wake[0]
    return found


@pytest.mark.spec("cluster", 5)
def test_delays_begin_with_one_to_three_seconds_and_grow_at_most_to_double_and_to_thirty() -> None:
    assert delays(0.0, 4, PROXY) == [1.0] * 4
    almost = delays(0.999, 8, PROXY)
    assert 2.9 < almost[0] < 3.0 and almost[-1] == RETRY_SECONDS_MAX
    assert all(before < after <= 2 * before for before, after in zip(almost, almost[1:4], strict=False))


def test_members_dial_each_other_again_within_three_seconds_however_often_they_have_failed() -> None:
    """A node that was away for long is of no use before."""
    assert delays(0.0, 4) == [1.0] * 4
    assert delays(0.999, 8) == pytest.approx([2.998] * 8)


@pytest.mark.spec("cluster", 5)
def test_a_connection_that_lasted_long_is_dialled_again_at_once() -> None:
    made = connected()
    later = BEGIN + RETRY_AT_ONCE_S
    assert made.step(later, LinkDown(3)) == [PeerDown(3), WakeAt(later)]
    assert Dial(3) in made.step(later, Tick())
    assert made.step(later, LinkUp(3)) == [PeerUp(3)]


def test_a_connection_that_was_short_is_dialled_again_after_a_first_delay() -> None:
    made = Membership(PROXY, (3,), lambda: 0.5)
    made.step(BEGIN, Join())
    made.step(BEGIN, LinkFailed(3))
    made.step(BEGIN + 2.0, Tick())
    made.step(BEGIN + 2.0, LinkFailed(3))
    assert made.links[3].delay == 3.0
    made.step(BEGIN + 5.0, Tick())
    made.step(BEGIN + 5.0, LinkUp(3))
    assert made.step(BEGIN + 6.0, LinkDown(3)) == [PeerDown(3), WakeAt(BEGIN + 8.0)]
