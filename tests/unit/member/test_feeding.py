"""Records sent to replicas: recent ones from memory at once, older ones from files with a pause after each message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bmqtwist.cluster.partition_events import SendCompleted, SendRecords
from bmqtwist.cluster.replication_targets import Target
from bmqtwist.loop.loop import Timers
from bmqtwist.member.partition_logs import PAUSE_S, Feeding
from bmqtwist.storage.psn import NO_PSN, RecordRun

NODE = 2


class FeedingBench:
    """A primary's partition with one run of records, in memory or in its files."""

    def __init__(self, recent: bool) -> None:
        run = RecordRun((1, 1), (1, 2), bytes(60))
        self.sent: list[bytes] = []
        self.steps: list[tuple[float, Any]] = []
        self.timers = Timers()
        self.hosted: Any = SimpleNamespace(
            partition=SimpleNamespace(recent_run=lambda after: run if recent else None, read_run=lambda after: run),
            machine=SimpleNamespace(lease=1, committed=NO_PSN, targets=SimpleNamespace(by_node={NODE: Target((1, 1))})),
            inputs=[], index=0)
        links: Any = SimpleNamespace(send=lambda node_id, data: self.sent.append(data))
        report: Any = None
        self.feeding = Feeding(1, links, self.timers, report, lambda hosted, now, event: self.steps.append((now, event)))
        self.feeding.send_records(self.hosted, SendRecords(NODE, (1, 1)), 0.0)


def test_records_in_memory_are_sent_without_a_pause() -> None:
    bench = FeedingBench(recent=True)
    assert bench.sent and bench.hosted.inputs == [SendCompleted(NODE, (1, 2), 60)] and bench.timers.next_at is None


def test_records_read_from_files_are_followed_by_more_after_a_pause() -> None:
    bench = FeedingBench(recent=False)
    assert bench.sent and not bench.hosted.inputs
    bench.timers.run(PAUSE_S / 2)
    assert not bench.steps
    bench.timers.run(PAUSE_S)
    assert bench.steps == [(PAUSE_S, SendCompleted(NODE, (1, 2), 60))]


def test_a_replica_that_restarted_its_reception_is_not_marked_as_fed() -> None:
    bench = FeedingBench(recent=False)
    bench.hosted.machine.targets.by_node[NODE] = Target(NO_PSN)
    bench.timers.run(PAUSE_S)
    assert not bench.steps
