"""Tests of the partition judge of campaigns: single violations that whole campaigns reach only by chance.

The judge is in `campaign/partitions.py`.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from bmqtwist.storage.partition_log import Batch
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn
from bmqtwist.storage.records import pack_sync_point
from sim.campaign.judges import Violation
from sim.campaign.partitions import PartitionJudge
from sim.campaign.world import CampaignWorld

NODE: Any = SimpleNamespace(name="n1", run_number=1)


def make_judge(*leases: Psn, committed: Psn) -> tuple[PartitionJudge, Any]:
    """Return a judge and its world. The history of the judge contains the records of `leases`, each (lease, last sequence
    number), in this order."""
    world: Any = SimpleNamespace(counts=Counter(), notifications=[])
    world.notify_judges = world.notifications.append
    judge = PartitionJudge(world)
    previous = NO_PSN
    for lease, end in leases:
        for sequence in range(1, end + 1):
            judge.history(0).records[lease, sequence] = b"", previous
            previous = lease, sequence
    judge.history(0).committed = committed
    return judge, world


def make_hosted(log: LogSummary) -> Any:
    return SimpleNamespace(index=0, summary=log, busy=False)


def test_an_unwritten_record_belongs_to_the_log_with_which_a_lease_starts() -> None:
    judge, _ = make_judge((1, 9), committed=(1, 8))
    judge._inspected["n1", 0] = 1, 5  # of 9: the others were not written
    judge._check_new_lease(NODE, make_hosted(LogSummary((2, 2), NO_PSN, ((1, 9), (2, 2)))), 3)
    with pytest.raises(Violation, match="R6: n1 starts lease 4 .* up to \\(2, 2\\); \\(1, 8\\) is committed"):
        judge._check_new_lease(NODE, make_hosted(LogSummary((2, 2), NO_PSN, ((1, 7), (2, 2)))), 4)


def test_a_truncation_before_a_committed_record_is_a_violation() -> None:
    judge, _ = make_judge((1, 9), committed=(1, 8))
    judge._inspected["n1", 0] = 1, 9
    hosted = make_hosted(LogSummary((1, 9), (1, 9), ((1, 9),)))
    judge._check_truncation(NODE, hosted, (1, 8))
    with pytest.raises(Violation, match="R6: n1, partition 0: truncated after \\(1, 7\\); \\(1, 8\\) is committed"):
        judge._check_truncation(NODE, hosted, (1, 7))


def test_records_that_a_rollover_removes_in_the_same_turn_reach_the_judge() -> None:
    judge, world = make_judge((1, 2), committed=NO_PSN)
    batches = [Batch(3, [pack_sync_point(sequence, 1, 7, 1, 2, 96, 36) for sequence in (3, 4)], [], [])]  # type: ignore[arg-type]
    hosted = make_hosted(LogSummary((1, 4), (1, 4), ((1, 4),)))
    log = type("Log", (), {"take_batches": lambda self: batches})()
    hosted.partition = SimpleNamespace(log=log, psn_at=lambda at: (1, at))
    for _ in range(2):  # the second call has no effect
        CampaignWorld._observe_writes(world, NODE, hosted)
    assert log.take_batches() is batches
    [notify] = world.notifications
    notify(judge)
    assert judge.history(0).records[1, 4][1] == (1, 3) and judge.history(0).previous((1, 3)) == (1, 2)
