"""Batches of a query: confirmations, stored GUIDs, restart; without I/O.

The tested module is `bmqtwist/spark/plan.py`; the calls of Spark around it are tested in `test_engine.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.spark.plan import BatchPlan, Offset, OffsetError, Segment


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(17, "big") for number in numbers]


def filled(plan: BatchPlan, *numbers: int) -> BatchPlan:
    given = keys(*numbers)
    assert not plan.deliver(given, given, 1, 0.0)
    return plan


def test_a_segment_has_the_oldest_waiting_messages_up_to_its_maximum() -> None:
    plan = filled(BatchPlan(10), 1, 2, 3)
    segment = plan.plan_segment(0, 2)
    assert segment is not None and (segment.start, segment.end, segment.items) == (0, 2, keys(1, 2))
    assert plan.waiting_count == 1 and plan.unconfirmed_count == 3
    assert plan.segment_at(0) is segment and plan.segment_at(2) is None


def test_messages_are_confirmed_when_spark_requests_the_next_batch() -> None:
    plan = filled(BatchPlan(10), 1, 2, 3)
    plan.plan_segment(0, 2)
    assert plan.commit(1).confirm == []
    assert plan.commit(2).confirm == keys(1, 2)
    assert plan.commit(2).confirm == []


def test_a_repeated_delivery_is_not_planned_again_and_is_confirmed_if_it_was_committed() -> None:
    plan = filled(BatchPlan(10), 1, 2)
    plan.plan_segment(0, 1)
    assert plan.deliver(keys(1, 2), keys(1, 2), 1, 0.0) == []
    assert plan.waiting_count == 1
    plan.commit(1)
    assert plan.deliver(keys(1, 2), keys(1, 2), 1, 0.0) == keys(1)
    assert plan.repeated == 2


def test_a_lost_connection_drops_waiting_messages_and_keeps_planned_ones() -> None:
    plan = filled(BatchPlan(10), 1, 2)
    plan.plan_segment(0, 1)
    plan.drop_waiting(1)
    assert (plan.waiting_count, plan.unconfirmed_count) == (0, 1)
    filled(plan, 1, 2)
    again = plan.plan_segment(1, 5)
    assert again is not None and again.keys == keys(2)


def test_a_new_process_restores_the_segments_of_the_spool() -> None:
    plan = BatchPlan(10)
    done = plan.restore([Segment(0, 2, keys(1, 2)), Segment(2, 3, keys(3))], 2)
    assert (done.confirm, plan.end) == (keys(1, 2), 3)
    assert plan.segment_at(2) is not None and plan.segments_between(2, 3) is not None
    assert plan.deliver(keys(1, 3), keys(1, 3), 1, 0.0) == keys(1)
    assert plan.waiting_count == 0


def test_segments_that_do_not_match_the_checkpoint_are_refused() -> None:
    with pytest.raises(OffsetError, match="inside of it"):
        BatchPlan(10).restore([Segment(0, 2, keys(1, 2))], 1)
    with pytest.raises(OffsetError, match="two queries"):
        BatchPlan(10).restore([Segment(0, 2, keys(1, 2)), Segment(1, 3, keys(3, 4))], 0)
    with pytest.raises(OffsetError, match="checkpoint was changed"):
        filled(BatchPlan(10), 1).plan_segment(5, 1)


def test_an_unknown_range_has_no_segments() -> None:
    plan = filled(BatchPlan(10), 1, 2)
    plan.plan_segment(0, 1)
    assert plan.segments_between(0, 2) is None and plan.segments_between(1, 2) is None and plan.segments_between(0, 0) == []


def test_committed_guids_expire_by_whole_segments_beyond_the_retention() -> None:
    plan = BatchPlan(3)
    expired = []
    for number in range(4):
        filled(plan, 2 * number, 2 * number + 1)
        plan.plan_segment(2 * number, 2)
        expired.append([each.start for each in plan.commit(2 * number + 2).expired])
    assert expired == [[], [], [0], [2]]
    assert keys(3)[0] not in plan.committed.keys and keys(4)[0] in plan.committed.keys and len(plan.committed) == 4


def test_an_offset_of_another_source_is_refused() -> None:
    assert Offset.from_json(Offset("e", 3).as_json()) == Offset("e", 3)
    with pytest.raises(OffsetError, match="another source"):
        Offset.from_json({"topic": 1})


def test_a_message_redelivered_to_another_receiver_stays_when_the_first_receiver_loses_its_connection() -> None:
    plan = BatchPlan(100)
    one, two, three = keys(1, 2, 3)
    for key, receiver in ((one, 1), (two, 1), (three, 2), (one, 2)):
        plan.deliver([key], [key], receiver, 0.0)
    plan.drop_waiting(1)
    segment = plan.plan_segment(0, 10)
    assert segment is not None and segment.keys == [one, three]


@given(st.lists(st.sampled_from(["deliver", "plan", "commit", "drop_waiting", "crash"]), max_size=60), st.integers(1, 4))
def test_after_any_sequence_of_events_each_message_is_in_one_batch_and_confirmed_after_it(steps: list[str],
                                                                                          most: int) -> None:
    """With redelivery of unconfirmed messages, a spool, and crashes at any step."""
    queue = keys(*range(8))
    confirmed: set[bytes] = set()
    spool: list[Segment] = []
    logged = 0  # position in Spark's commit log
    plan = BatchPlan(100)
    for step in steps:
        if step == "deliver":
            due = [key for key in queue if key not in confirmed]
            confirmed.update(plan.deliver(due, due, 1, 0.0))
        elif step == "plan" and plan.segment_at(logged) is None:
            segment = plan.plan_segment(logged, most)
            if segment is not None:
                spool.append(Segment(segment.start, segment.end, segment.keys))
        elif step == "commit" and plan.segment_at(logged) is not None:
            logged = spool[-1].end
            confirmed.update(plan.commit(logged).confirm)
        elif step == "drop_waiting":
            plan.drop_waiting(1)
        elif step == "crash":
            plan = BatchPlan(100)
            confirmed.update(plan.restore([Segment(each.start, each.end, each.keys) for each in spool], logged).confirm)
    planned = [key for segment in spool for key in segment.keys]
    assert len(planned) == len(set(planned)), "a message is in two batches"
    assert confirmed <= {key for segment in spool if segment.end <= logged for key in segment.keys}
