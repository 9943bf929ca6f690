"""Durability gate: releases effects in order, and only when their records are durable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.storage.gate import Gate


class NumberedEffect:
    """An effect with a number."""

    def __init__(self, number: int, position: int) -> None:
        self.number, self.position = number, position


@given(st.lists(st.sampled_from(["append", "hold", "hold", "write", "tick", "release", "begin", "end", "roll", "want"]),
                max_size=80))
def test_each_effect_is_released_once_in_order_when_its_records_are_durable(steps: list[str]) -> None:
    gate, held, position, written, durable, covers, token = Gate(), 0, 0, 0, 0, 0, None
    matter = 0  # the newest record that an effect can wait for
    needs: list[int] = []  # per effect: the record that must be durable
    released: list[int] = []
    for step in steps:
        out = []
        if step == "append":
            position += 1
            matter = position
        elif step == "hold":
            gate.effects.append(NumberedEffect(held, position))
            held += 1
            needs.append(matter)
        elif step == "write":
            gate.mark_written(position, True)
            written = position
        elif step == "tick" and position == written:
            position += 1
            gate.mark_written(position, False)
            written = position
        elif step == "release":
            out = gate.release_durable()
        elif step == "want":
            gate.sync_due = True
        elif step == "begin":
            begun = gate.begin_sync()
            assert begun is None or token is None
            if begun is not None:
                token, covers = begun, written
        elif step == "end" and token is not None:
            durable, finished = max(durable, covers), token
            token = None
            assert gate.end_sync(finished) and not gate.end_sync(finished)
            out = gate.release_durable()
        elif step == "roll":
            gate.mark_all_durable()
            durable = covers = written
        for effect in out:
            assert needs[effect.number] <= durable
        released += [effect.number for effect in out]
    gate.written = position
    gate.mark_all_durable()
    released += [effect.number for effect in gate.release_durable()]
    assert released == list(range(held))


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 60))
def test_a_written_position_releases_only_the_effects_up_to_it(steps: list[int], mark: int) -> None:
    gate, position = Gate(), 0
    for number, more in enumerate(steps):
        position += more
        gate.effects.append(NumberedEffect(number, position))
    gate.written = min(mark, position)
    first = gate.release_written()
    assert all(effect.position <= mark for effect in first)
    gate.written = position
    rest = gate.release_written()
    assert all(effect.position > min(mark, position) for effect in rest)
    assert [effect.number for effect in first + rest] == list(range(len(steps))) and not gate.effects
