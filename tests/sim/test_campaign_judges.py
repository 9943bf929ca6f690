"""What the judges of a campaign see, and that they say no: beside whole campaigns, whose moments move with the code."""

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


def judge_of(*leases: Psn, committed: Psn) -> tuple[PartitionJudge, Any]:
    """A judge that has seen these leases, each up to a sequence, one behind the other; its world."""
    world: Any = SimpleNamespace(counts=Counter(), asked=[])
    world.ask = world.asked.append
    judge = PartitionJudge(world)
    previous = NO_PSN
    for lease, end in leases:
        for sequence in range(1, end + 1):
            judge.history(0).records[lease, sequence] = b"", previous
            previous = lease, sequence
    judge.history(0).committed = committed
    return judge, world


def hosted_with(log: LogSummary) -> Any:
    return SimpleNamespace(index=0, summary=log, busy=False)


def test_a_record_that_waits_to_be_written_is_in_the_log_of_a_primary() -> None:
    judge, _ = judge_of((1, 9), committed=(1, 8))
    judge._seen["n1", 0] = 1, 5  # its disk took no more
    judge._begins(NODE, hosted_with(LogSummary((2, 2), NO_PSN, ((1, 9), (2, 2)))), 3)
    with pytest.raises(Violation, match="R6: n1 begins lease 4 .* up to \\(2, 2\\); \\(1, 8\\) is committed"):
        judge._begins(NODE, hosted_with(LogSummary((2, 2), NO_PSN, ((1, 7), (2, 2)))), 4)


def test_an_image_that_ends_before_what_its_node_has_committed_is_a_violation() -> None:
    judge, _ = judge_of((1, 9), committed=(1, 8))
    judge._seen["n1", 0] = 1, 9
    hosted = hosted_with(LogSummary((1, 9), (1, 9), ((1, 9),)))
    judge._cuts(NODE, hosted, (1, 8))
    with pytest.raises(Violation, match="R6: n1, partition 0: cut off behind \\(1, 7\\), and \\(1, 8\\) is committed"):
        judge._cuts(NODE, hosted, (1, 7))


def test_what_a_primary_writes_is_seen_though_a_rollover_takes_it_out_of_its_files_at_once() -> None:
    judge, world = judge_of((1, 2), committed=NO_PSN)
    batches = [Batch(3, [pack_sync_point(sequence, 1, 7, 1, 2, 96, 36) for sequence in (3, 4)], [], [])]  # type: ignore[arg-type]
    hosted = hosted_with(LogSummary((1, 4), (1, 4), ((1, 4),)))
    log = type("Log", (), {"take_batches": lambda self: batches})()
    hosted.partition = SimpleNamespace(log=log, psn_at=lambda at: (1, at))
    for _ in range(2):  # it is watched once
        CampaignWorld._writing_watched(world, NODE, hosted)
    assert log.take_batches() is batches
    [question] = world.asked
    question(judge)
    assert judge.history(0).records[1, 4][1] == (1, 3) and judge.history(0).previous((1, 3)) == (1, 2)
