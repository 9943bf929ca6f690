"""The whole broker under a virtual network, disk and clock, with crashes and torn writes, before an outside judge.

Fixed seeds in the suite, as many fresh ones as `--seeds` says (`make sim`). A failure names its seed, and
`PYTHONPATH=tests python -m sim SEED ...` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmqtwist.queue.expression import Expression
from bmqtwist.queue.queue import App, Put, Subscription
from bmqtwist.queue.restored import Restored
from bmqtwist.queue.root import RootQueue
from bmqtwist.storage.gate import Gate
from bmqtwist.storage.history import GuidHistory
from bmqtwist.storage.partition import Partition
from sim.judge import Violation
from sim.mistakes import Mistakes
from sim.scenario import Scenario

CANARY_SEEDS = range(1, 25)


def test_random_faults_break_no_guarantee_to_clients(fresh_seed: int, tmp_path: Path) -> None:
    """Producers, consumers, kills, losses of power, full disks, failing syncs, retransmissions, reconfigurations."""
    counts = Scenario(fresh_seed, tmp_path).run().counts
    assert counts["acked"] > 100 and counts["delivered"] > 100 and counts["confirmed"] > 100


def test_exceptions_in_the_broker_lose_no_acknowledged_message(fresh_seed: int, tmp_path: Path) -> None:
    """The same with exceptions out of sessions, queues and partitions; a restart heals what they put out of service."""
    with Mistakes(fresh_seed) as mistakes:
        counts = Scenario(fresh_seed, tmp_path, mistakes).run().counts
    assert mistakes.met and counts["acked"] > 50 and counts["delivered"] > 50


def test_a_scenario_is_determined_by_its_seed(tmp_path: Path) -> None:
    """Twice in this process and once in another, which hashes strings differently."""
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


# -- canaries: a broker with one deliberate mistake must be found out


def _acks_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "release_durable", Gate.release_written)


def _forgets_what_it_has_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GuidHistory, "seen_or_add", lambda history, guid, now: False)


def _grants_one_more(patch: pytest.MonkeyPatch) -> None:
    original = Subscription.__init__

    def generous(self: Subscription, *arguments: Any) -> None:
        original(self, *arguments)
        self.max_messages += 1

    patch.setattr(Subscription, "__init__", generous)


def _does_not_take_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(App, "give_back", lambda app, messages: None)


def _stacks_instead_of_queueing(patch: pytest.MonkeyPatch) -> None:
    original = RootQueue.acknowledge

    def released(queue: RootQueue, put: Put, now: float) -> None:
        original(queue, put, now)
        if put.stored:
            for app in queue.active:
                if app.fresh and app.fresh[-1] is put.message:
                    app.fresh.rotate(1)

    patch.setattr(RootQueue, "acknowledge", released)


def _recovers_all_but_one(patch: pytest.MonkeyPatch) -> None:
    restore = RootQueue.restore

    def forgetful(queue: RootQueue, found: Restored, wall: int) -> None:
        if queue.messages:
            queue.store.drop(next(iter(queue.messages.values())))
        restore(queue, found, wall)

    patch.setattr(RootQueue, "restore", forgetful)


def _does_not_write_deletions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "append_deletion",
                  lambda partition, key, message, reason, wall: partition.state.deletion(
                      partition.state.queues[key], message))


def _ignores_expressions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Expression, "matches", lambda expression, values: True)


def _pushes_to_two(patch: pytest.MonkeyPatch) -> None:
    drop = App.give_back

    def twice(app: App, messages: list[Any]) -> None:
        drop(app, messages)
        app.fresh.extendleft(reversed(messages))

    patch.setattr(App, "give_back", twice)


@pytest.mark.parametrize("mistake, verdicts", [
    (_acks_before_the_sync, {"lost"}), (_forgets_what_it_has_seen, {"resurrected", "duplicated", "order"}),
    (_grants_one_more, {"credit"}), (_does_not_take_back, {"stuck", "lost"}), (_stacks_instead_of_queueing, {"order"}),
    (_recovers_all_but_one, {"lost", "stuck"}), (_does_not_write_deletions, {"resurrected"}),
    (_ignores_expressions, {"unexpected"}), (_pushes_to_two, {"order", "duplicated"})],
    ids=lambda value: getattr(value, "__name__", ""))
def test_the_judge_detects_each_canary(
        mistake: Callable[[pytest.MonkeyPatch], None], verdicts: set[str], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is worth something only if it can say no."""
    mistake(monkeypatch)
    for seed in CANARY_SEEDS:
        try:
            Scenario(seed, tmp_path).run()
        except Violation as violation:
            assert violation.verdict in verdicts, violation
            return
    raise AssertionError(f"nobody noticed: {mistake.__name__}")
