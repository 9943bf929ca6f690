"""A whole broker with a virtual network, disk and clock, under random crashes and torn writes, checked by client histories.

The suite uses fixed seeds; `--seeds N` adds N new ones (`make sim`). A failure has its seed in the message;
`PYTHONPATH=tests python -m sim SEED ...` repeats it. The scenario is in `scenario.py`, its judge in `judge.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmqtwist.queue.expression import CompiledExpression
from bmqtwist.queue.queue import App, ConsumerSubscription, Put
from bmqtwist.queue.restored_messages import RestoredMessages
from bmqtwist.queue.root import RootQueue
from bmqtwist.storage.gate import Gate
from bmqtwist.storage.history import GuidHistory
from bmqtwist.storage.partition import Partition
from sim.judge import Violation
from sim.mistakes import Mistakes
from sim.scenario import Scenario

CANARY_SEEDS = range(1, 25)


def test_random_faults_break_no_guarantee_to_clients(fresh_seed: int, tmp_path: Path) -> None:
    """Faults: kills, losses of power, full disks, failed syncs, repeated PUTs, reconfigurations."""
    counts = Scenario(fresh_seed, tmp_path).run().counts
    assert counts["acked"] > 100 and counts["delivered"] > 100 and counts["confirmed"] > 100


def test_exceptions_in_the_broker_lose_no_acknowledged_message(fresh_seed: int, tmp_path: Path) -> None:
    """With exceptions in sessions, queues and partitions; a restart makes failed parts usable again."""
    with Mistakes(fresh_seed) as mistakes:
        counts = Scenario(fresh_seed, tmp_path, mistakes).run().counts
    assert mistakes.met and counts["acked"] > 50 and counts["delivered"] > 50


def test_a_scenario_is_determined_by_its_seed(tmp_path: Path) -> None:
    """The results of two runs in this process, and one in a process with another hash seed, are equal."""
    first, second = Scenario(7, tmp_path).run(), Scenario(7, tmp_path).run()
    assert first == second
    assert all(first.counts[what] for what in ("power losses", "torn", "kills", "posted again", "rollovers",
                                               "delivered late")), first.counts
    code = ("import sys; from pathlib import Path; from sim.scenario import Scenario\n"
            f"print(Scenario(7, Path({str(tmp_path)!r})).run().digest)")
    root = Path(__file__).resolve().parent.parent
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        **os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": f"{root}:{root.parent}"})
    assert other.stdout.strip() == first.digest
    assert Scenario(9, tmp_path).run().digest != first.digest


# -- canaries: deliberate defects, each of which the judge must detect


def _acks_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "release_durable", Gate.release_written)


def _no_deduplication(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GuidHistory, "seen_or_add", lambda history, guid, now: False)


def _limit_exceeded_by_one(patch: pytest.MonkeyPatch) -> None:
    original = ConsumerSubscription.__init__

    def with_larger_limit(self: ConsumerSubscription, *arguments: Any) -> None:
        original(self, *arguments)
        self.max_messages += 1

    patch.setattr(ConsumerSubscription, "__init__", with_larger_limit)


def _unconfirmed_not_returned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(App, "add_redeliveries", lambda app, messages: None)


def _reversed_order(patch: pytest.MonkeyPatch) -> None:
    original = RootQueue.acknowledge

    def released(queue: RootQueue, put: Put, now: float) -> None:
        original(queue, put, now)
        if put.stored:
            for app in queue.active:
                if app.new_messages and app.new_messages[-1] is put.message:
                    app.new_messages.rotate(1)

    patch.setattr(RootQueue, "acknowledge", released)


def _one_message_not_recovered(patch: pytest.MonkeyPatch) -> None:
    restore = RootQueue.restore

    def without_first_message(queue: RootQueue, found: RestoredMessages, wall: int) -> None:
        if queue.messages:
            queue.store.remove_message(next(iter(queue.messages.values())))
        restore(queue, found, wall)

    patch.setattr(RootQueue, "restore", without_first_message)


def _deletions_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "append_deletion",
                  lambda partition, key, message, reason, wall: partition.state.apply_deletion(
                      partition.state.queues[key], message))


def _expressions_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CompiledExpression, "matches", lambda expression, values: True)


def _returned_twice(patch: pytest.MonkeyPatch) -> None:
    drop = App.add_redeliveries

    def twice(app: App, messages: list[Any]) -> None:
        drop(app, messages)
        app.new_messages.extendleft(reversed(messages))

    patch.setattr(App, "add_redeliveries", twice)


@pytest.mark.parametrize("mistake, verdicts", [
    (_acks_before_sync, {"lost"}), (_no_deduplication, {"resurrected", "duplicated", "order"}),
    (_limit_exceeded_by_one, {"credit"}), (_unconfirmed_not_returned, {"stuck", "lost"}), (_reversed_order, {"order"}),
    (_one_message_not_recovered, {"lost", "stuck"}), (_deletions_not_written, {"resurrected"}),
    (_expressions_ignored, {"unexpected"}), (_returned_twice, {"order", "duplicated"})],
    ids=lambda value: getattr(value, "__name__", ""))
def test_the_judge_detects_each_canary(
        mistake: Callable[[pytest.MonkeyPatch], None], verdicts: set[str], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Each defect must lead to one of its kinds of violations within the seeds."""
    mistake(monkeypatch)
    for seed in CANARY_SEEDS:
        try:
            Scenario(seed, tmp_path).run()
        except Violation as violation:
            assert violation.verdict in verdicts, violation
            return
    raise AssertionError(f"not detected: {mistake.__name__}")
