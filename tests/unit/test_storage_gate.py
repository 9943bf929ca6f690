"""Effects come out in order, and never before the records they wait for are durable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.storage.gate import Gate


@given(st.lists(st.sampled_from(["add", "write", "turn", "begin", "end", "roll", "want"]), max_size=80))
def test_every_effect_is_released_once_in_order_and_only_when_durable(steps: list[str]) -> None:
    gate, added, written, durable, covers, token = Gate(), 0, 0, 0, 0, None
    needs: list[int] = []  # per effect: batches that must be durable
    released: list[int] = []
    for step in steps:
        out: list[int] = []
        if step == "add":
            gate.add(added)
            added += 1
            needs.append(written + 1)  # the batch of this turn
        elif step == "write":
            gate.wrote()
            written += 1
        elif step == "turn":
            needs = [min(need, written) for need in needs]  # nothing was written in this turn: what there is suffices
            out = gate.turn(wait=True)
        elif step == "want":
            gate.want_sync()
        elif step == "begin":
            begun = gate.begin_sync()
            assert begun is None or token is None
            if begun is not None:
                token, covers = begun, written
        elif step == "end" and token is not None:
            durable, finished = max(durable, covers), token
            token = None
            out = gate.end_sync(finished)
            assert gate.end_sync(finished) == []
        elif step == "roll":
            gate.all_durable()
            durable = covers = written
        for effect in out:
            assert needs[effect] <= durable
        released += out
    released += gate.release_all()
    assert released == list(range(added))
