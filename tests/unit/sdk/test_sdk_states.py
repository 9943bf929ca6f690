"""State machines of the client library: owners of actions, timers by state, transition history. (`machine.table` refuses a
table with missing cells, `machine.check` an undeclared state.)"""

from __future__ import annotations

import pytest
from kit.sdk_kit import Bench

from bmqtwist.machine import IllegalTransition, to
from bmqtwist.sdk._core.session import SESSION
from bmqtwist.sdk._core.states import Input, State, ignore


@pytest.mark.parametrize("state", State)
def test_every_action_of_a_session_is_a_method_of_one_of_its_parts(state: State) -> None:
    core = Bench().core
    core._state.enter(state)
    for what, action in core._state.row.items():
        assert action is ignore or action.__func__ is SESSION[state][what].action


def test_entering_a_state_clears_the_timers_of_other_states() -> None:
    core = Bench().core
    due = [what for what in Input if what.name.endswith("_DUE")]
    for state in State:
        for each in due:
            core._deadlines.set_after(each, 5.0)
        core._state.enter(state)
        assert {each for each in due if each in core._deadlines} == {
            each for each in due if SESSION[state][each].action is not ignore}


def test_a_session_and_its_queues_have_a_transition_history() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.cut_connection()
    bench.restore_broker()
    transitions = [(each.event, each.change) for each in bench.core._state.history.transitions]
    assert transitions[:3] == [("start", "idle -> connecting"), ("connected", "connecting -> negotiating"),
                               ("control", "negotiating -> restoring")]
    lost = next(each for each in bench.core._state.history.transitions if each.event == "lost")
    assert lost.change == "ready -> waiting" and lost.cause == "connection reset"
    assert [(each.event, each.change) for each in queue.history.transitions] == [
        ("connected", "open pending -> opening"), ("granted", "opening -> configuring"), ("granted", "configuring -> open"),
        ("lost", "open -> reopen pending"), ("connected", "reopen pending -> reopening"),
        ("granted", "reopening -> reconfiguring"), ("granted", "reconfiguring -> open")]


def test_an_undeclared_transition_raises() -> None:
    core = Bench().start().core
    row = {**SESSION[State.READY], Input.LOST: to(SESSION[State.READY][Input.LOST].action)}
    core._state._table = {**SESSION, State.READY: row}
    with pytest.raises(IllegalTransition, match="READY --LOST--> WAITING"):
        core._state.feed(Input.LOST, "gone")


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("what", [Input.CONTROL, Input.AUTHENTICATION, Input.PUSH, Input.ACK, Input.HEARTBEAT_REQ,
                                  Input.OTHER])
def test_malformed_events_of_a_broker_do_not_raise_in_any_state(state: State, what: Input) -> None:
    """Feeds invalid bodies in each state and for each event type."""
    kinds = {Input.CONTROL: 1, Input.AUTHENTICATION: 15, Input.PUSH: 4, Input.ACK: 5, Input.HEARTBEAT_REQ: 11,
             Input.OTHER: 8}
    for body in (b"", b"\0" * 4, b"\xff" * 40, b"\x16\0\0\0" + b"\1" * 23, b"\0\0\0\x09" + b"\0" * 32):
        bench = Bench()
        bench.core._state.enter(state)
        length = (8 + len(body)).to_bytes(4, "big")
        bench.core.on_data(length + bytes([0x40 | kinds[what], 2, 0, 0]) + body, bench.now)
        bench.core.tick(bench.now + 1000)
        bench.core.take_output()
