"""Lifecycle of a queue (queue/lifecycle.py): every change in every phase, and its effect on a RootQueue."""

from __future__ import annotations

import pytest
from kit.engine_kit import Engine

from bmqtwist.queue.lifecycle import TABLE, QueueChange, QueueLifecycle, QueuePhase

P, C = QueuePhase, QueueChange
AFTER = {  # phase -> change -> next phase; other changes have no effect
    P.SERVING: {C.DELETION_PROPOSED: P.DELETING, C.FAILED: P.DISABLED, C.UNASSIGNED: P.DELETED, C.MOVED: P.RETIRED},
    P.DELETING: {C.DELETION_FAILED: P.SERVING, C.FAILED: P.DISABLED_DELETING, C.UNASSIGNED: P.DELETED, C.MOVED: P.RETIRED},
    P.DISABLED: {C.DELETION_PROPOSED: P.DISABLED_DELETING, C.UNASSIGNED: P.DELETED, C.MOVED: P.RETIRED},
    P.DISABLED_DELETING: {C.DELETION_FAILED: P.DISABLED, C.UNASSIGNED: P.DELETED, C.MOVED: P.RETIRED},
    P.RETIRED: {}, P.DELETED: {}}
REACHED_BY = {P.SERVING: [], P.DELETING: [C.DELETION_PROPOSED], P.DISABLED: [C.FAILED],
              P.DISABLED_DELETING: [C.FAILED, C.DELETION_PROPOSED],
              P.RETIRED: [C.MOVED], P.DELETED: [C.UNASSIGNED]}


@pytest.mark.parametrize("phase, change", [(phase, change) for phase in P for change in C], ids=lambda each: each.name)
def test_every_queue_change_in_every_phase_has_the_expected_phase(phase: QueuePhase, change: QueueChange) -> None:
    engine = Engine()
    queue, lifecycle = engine.queue, engine.queue.lifecycle
    for each in REACHED_BY[phase]:
        queue.step_lifecycle(each, 1.0, "before")
    assert lifecycle.phase is phase
    queue.step_lifecycle(change, 2.0, "why")
    after = AFTER[phase].get(change, phase)
    assert lifecycle.phase is after
    assert queue.disabled is (after in (P.DISABLED, P.DISABLED_DELETING, P.RETIRED))
    assert lifecycle.is_deleting is (after in (P.DELETING, P.DISABLED_DELETING))
    assert (queue.name in engine.domain.queues) is (after not in (P.RETIRED, P.DELETED))
    recorded = [(each.before, each.after, each.cause) for each in lifecycle.transitions.transitions if each.at == 2.0]
    assert recorded == ([(phase.name, after.name, "why")] if after is not phase else [])


def test_a_retired_or_deleted_queue_ignores_all_changes() -> None:
    assert not any(cell.after for phase in (P.RETIRED, P.DELETED) for cell in TABLE[phase].values())
    assert not QueueLifecycle().has_ended
