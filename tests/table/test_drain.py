"""Drain of a queue at the cluster that its domain has left (relay/drain.py): every cell, and the times."""

from __future__ import annotations

import pytest

from bmqtwist.relay.drain import (
    FLUSH_S,
    QUIET_S,
    TABLE,
    UNREACHABLE_S,
    Activity,
    DrainInput,
    DrainOutput,
    DrainState,
    Observed,
    PutAnswered,
    QueueDrain,
    ReleasePosts,
    SwitchApp,
    UpstreamLost,
)

S, BEGIN = DrainState, 50.0


def made(state: DrainState, apps: tuple[str, ...] = ("a", "b")) -> QueueDrain:
    """Return a drain in a state, with one outstanding PUT if it is FLUSHING."""
    drain = QueueDrain([b"1"] if state is S.FLUSHING else (), () if state is S.DRAINED else apps, BEGIN)
    assert drain.state is state
    return drain


def observed(after_s: float, *activities: Activity) -> Observed:
    """Return an observation of the apps a, b, ..."""
    return Observed(BEGIN + after_s, dict(zip("ab", activities, strict=False)))


QUIET, ACTIVE, GONE, UNREAD = Activity.QUIET, Activity.ACTIVE, Activity.UNREACHABLE, Activity.UNREAD
SWITCH_BOTH: list[DrainOutput] = [SwitchApp("a", False), SwitchApp("b", False)]
CELLS: list[tuple[DrainState, DrainInput, DrainState, list[DrainOutput]]] = [
    (S.FLUSHING, PutAnswered(b"1"), S.DRAINING, [ReleasePosts()]),
    (S.FLUSHING, PutAnswered(b"2"), S.FLUSHING, []),
    (S.FLUSHING, UpstreamLost(), S.DRAINING, [ReleasePosts()]),
    (S.FLUSHING, observed(FLUSH_S - 0.1, QUIET, QUIET), S.FLUSHING, []),
    (S.FLUSHING, observed(FLUSH_S, QUIET, QUIET), S.DRAINING, [ReleasePosts()]),
    (S.DRAINING, PutAnswered(b"1"), S.DRAINING, []),
    (S.DRAINING, UpstreamLost(), S.DRAINING, []),
    (S.DRAINING, observed(QUIET_S - 0.1, QUIET, QUIET), S.DRAINING, []),
    (S.DRAINING, observed(QUIET_S, QUIET, ACTIVE), S.DRAINING, SWITCH_BOTH[:1]),
    (S.DRAINING, observed(QUIET_S, UNREAD, GONE), S.DRAINING, []),
    (S.DRAINING, observed(QUIET_S, QUIET, QUIET), S.DRAINED, SWITCH_BOTH),
    (S.DRAINED, PutAnswered(b"1"), S.DRAINED, []),
    (S.DRAINED, UpstreamLost(), S.DRAINED, []),
    (S.DRAINED, observed(QUIET_S), S.DRAINED, [])]


@pytest.mark.parametrize(("before", "event", "after", "outputs"), CELLS)
def test_every_cell(before: DrainState, event: DrainInput, after: DrainState, outputs: list[DrainOutput]) -> None:
    drain = made(before)
    assert drain.step(event) == outputs and drain.state is after


def test_the_cells_are_complete() -> None:
    assert {(before, type(event)) for before, event, _, _ in CELLS} == {(s, e) for s in TABLE for e in TABLE[s]}
    for before, row in TABLE.items():
        for kind, cell in row.items():
            reached = {after for was, event, after, _ in CELLS if was is before and type(event) is kind} - {before}
            without_apps = {S.DRAINED} if before is S.FLUSHING else set()
            assert reached | without_apps == cell.after | without_apps


def test_a_queue_without_apps_is_drained_with_its_last_ack() -> None:
    drain = made(S.FLUSHING, ())
    assert drain.step(PutAnswered(b"1")) == [ReleasePosts()] and drain.state is S.DRAINED


def test_the_quiet_time_begins_after_the_last_activity_and_after_the_flush() -> None:
    drain = made(S.FLUSHING)
    drain.step(observed(QUIET_S, QUIET, QUIET))
    drain.step(PutAnswered(b"1"))
    assert drain.step(observed(QUIET_S + 1.0, QUIET, ACTIVE)) == []
    assert drain.step(observed(2 * QUIET_S, QUIET, QUIET)) == SWITCH_BOTH[:1]
    assert drain.state is S.DRAINING and set(drain.apps) == {"b"}


def test_an_app_of_an_unreachable_cluster_is_abandoned_only_if_it_stays_unreachable() -> None:
    drain = made(S.DRAINING, ("a",))
    assert not drain.step(observed(1.0, GONE)) and not drain.step(observed(UNREACHABLE_S, UNREAD))
    assert not drain.step(observed(UNREACHABLE_S + 1.0, GONE)) and not drain.step(observed(2 * UNREACHABLE_S - 0.1, GONE))
    assert drain.step(observed(2 * UNREACHABLE_S, GONE)) == [SwitchApp("a", True)]
