"""The tables of the client library: total, and every cell names something that exists."""

from __future__ import annotations

import pytest
from kit.sdk_kit import Bench

from bmqtwist.sdk._core.states import QUEUE, SESSION, SESSION_TIMERS, TIMERS, Input, QueueInput, QueueState, State


@pytest.mark.parametrize("state", State)
def test_every_input_of_a_session_has_a_decision_in_every_state(state: State) -> None:
    core = Bench().core
    assert set(SESSION[state]) == set(Input)
    core._state.enter(state)
    assert set(core._state.row) == set(Input) and all(map(callable, core._state.row.values()))


@pytest.mark.parametrize("state", QueueState)
def test_every_input_of_a_queue_has_a_decision_in_every_state(state: QueueState) -> None:
    machine = Bench().core._machine
    assert set(QUEUE[state]) == set(QueueInput)
    assert all(callable(getattr(machine, name)) for name in QUEUE[state].values())


def test_every_timer_has_a_handler_and_every_state_its_timers() -> None:
    core = Bench().core
    assert set(TIMERS) == set(State)
    assert set(core._timers) == SESSION_TIMERS


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("what", [Input.CONTROL, Input.AUTHENTICATION, Input.PUSH, Input.ACK, Input.HEARTBEAT_REQ,
                                  Input.OTHER])
def test_garbage_from_a_broker_never_raises_in_any_state(state: State, what: Input) -> None:
    """Walks every cell an event can reach, with bodies that make no sense."""
    kinds = {Input.CONTROL: 1, Input.AUTHENTICATION: 15, Input.PUSH: 4, Input.ACK: 5, Input.HEARTBEAT_REQ: 11,
             Input.OTHER: 8}
    for body in (b"", b"\0" * 4, b"\xff" * 40, b"\x16\0\0\0" + b"\1" * 23, b"\0\0\0\x09" + b"\0" * 32):
        bench = Bench()
        bench.core._state.enter(state)
        length = (8 + len(body)).to_bytes(4, "big")
        bench.core.received(length + bytes([0x40 | kinds[what], 2, 0, 0]) + body, bench.now)
        bench.core.tick(bench.now + 1000)
        bench.core.take_output()
