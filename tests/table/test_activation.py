"""Activation of a queue (member/activation.py): every event in every state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.member.activation import TABLE, Activation, ActivationEvent, Activations, ActivationState

S, E = ActivationState, ActivationEvent
URI = "bmq://d/q"
AFTER = {  # state -> event -> next state; other events change nothing
    S.PENDING: {E.RESTORED: S.ACTIVATED, E.RAISED: S.FAILED, E.CANCEL: S.CANCELLED},
    S.ACTIVATED: {E.RAISED: S.FAILED}, S.FAILED: {}, S.CANCELLED: {}}
REACHED_BY = {S.PENDING: [], S.ACTIVATED: [E.RESTORED], S.FAILED: [E.RAISED], S.CANCELLED: [E.CANCEL]}
EVENT_ARGUMENTS: dict[ActivationEvent, tuple[str, ...]] = {E.RESTORED: ("store", "messages"), E.RAISED: ("error",)}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("state, event", [(state, event) for state in S for event in E], ids=lambda each: each.name)
def test_every_event_in_every_state_has_the_expected_calls(
        state: ActivationState, event: ActivationEvent, opened: bool) -> None:
    calls: list[tuple[Any, ...]] = []
    record, domain = QueueRecord(URI, b"key", 0, {}), SimpleNamespace(opening=1)
    loop: Any = SimpleNamespace(now=1.0)
    activations = Activations(
        lambda record: pytest.fail("not read"),  # type: ignore[arg-type, return-value]
        lambda *created: calls.append(("created", *created)), lambda *failed: calls.append(("failed", *failed)), loop)
    activation = activations._pending[URI] = Activation(record, domain)  # type: ignore[arg-type]
    if opened:
        activations.open(URI)
    for each in REACHED_BY[state]:
        activations._feed(activation, each, *EVENT_ARGUMENTS.get(each, ()))
    assert activation.state is state
    calls.clear()
    loop.now = 2.0
    activations._feed(activation, event, *EVENT_ARGUMENTS.get(event, ()))
    after = AFTER[state].get(event, state)
    assert activation.state is after and after in {state, *TABLE[state][event].after}
    pending = after is S.PENDING
    assert ((URI in activations), domain.opening) == (pending, int(pending))
    opened = opened or (state, event) == (S.PENDING, E.OPEN)
    assert activation.opened is opened
    expected = {(S.PENDING, E.RESTORED): [("created", domain, record, "store", "messages", opened)],
                (S.PENDING, E.RAISED): [("failed", record, opened, "error")],
                (S.ACTIVATED, E.RAISED): [("failed", record, opened, "error")]}
    assert calls == expected.get((state, event), [])
    recorded = [(each.before, each.after, each.event) for each in activations.transitions.transitions if each.at == 2.0]
    assert recorded == ([(state.name, after.name, event.name)] if after is not state else [])
