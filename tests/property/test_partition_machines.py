"""A partition at 1, 3 and 5 nodes, whatever links and disks do: what is committed stays, and all logs become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit import partitions
from kit.partitions import FAULTS, Partitions, disturb

from bmqtwist.cluster.partition_events import Assigned, LogView, Prepare
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.storage.psn import LogSummary, Psn


def campaign(seed: int, size: int, steps: int, loss: float, mistake: str = "") -> Partitions:
    """Faults at random, then none."""
    world = Partitions(seed, size, mistake)
    world.grant()
    for _ in range(world.random.randint(0, 30)):
        world.round()
    world.lost = loss
    for _ in range(steps):
        disturb(world, world.random.choice(FAULTS))
    world.settle()
    return world


@pytest.mark.spec("cluster", 75)
@pytest.mark.spec("cluster", 77)
@pytest.mark.spec("cluster", 79)
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_what_is_committed_stays_and_all_logs_become_one(size: int, loss: float) -> None:
    cuts = images = served = 0
    for seed in range(150):
        world = campaign(seed, size, 400, loss)
        cuts, images, served = cuts + world.cuts, images + world.images, served + world.served
    assert served >= 150 and (size == 1 or cuts > 10 and images > 20), (served, cuts, images)


# -- what the campaign has to find ---------------------------------------------------------------------------------------


class TakesItsOwnLog(PartitionMachine):
    """Never pulls."""

    def _choose(self, event: object) -> None:
        if self.promised >= self.lease and len(self._promises) + 1 >= self.majority and not self.log.busy:
            self._begin_lease()


class NeedsNoQuorum(PartitionMachine):
    """Leads with its own promise alone."""

    def _choose(self, event: object) -> None:
        kept, self.majority = self.majority, 1
        super()._choose(event)
        self.majority = kept


class UsesOldLeases(PartitionMachine):
    """Takes up the lease of an earlier run."""

    def _appointed(self, event: Assigned) -> None:
        self._used = 0
        super()._appointed(event)


class PromisesAnything(PartitionMachine):
    """Whatever it has promised before."""

    def _on_prepare(self, event: Prepare) -> None:
        self._asked = min(self._asked, event.lease)
        self.promised = min(self.promised, event.lease)
        super()._on_prepare(event)


class SaysWhatIsNotSafe(PartitionMachine):
    """Its receipts tell of what it has merely written."""

    def _tell(self, always: bool = False) -> None:
        kept = self.log
        self.log = _Unsafe(kept)
        super()._tell(always)
        self.log = kept


class NeverPassive(PartitionMachine):
    """Stays active though nobody answers."""

    @property
    def _is_supported(self) -> bool:
        return True


class _Unsafe:
    def __init__(self, log: LogView) -> None:
        self._log = log

    @property
    def durable(self) -> Psn:
        return self._log.written

    @property
    def summary(self) -> LogSummary:
        return self._log.summary

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


MISTAKES: list[Callable[..., PartitionMachine]] = [TakesItsOwnLog, NeedsNoQuorum, UsesOldLeases, PromisesAnything,
                                                   SaysWhatIsNotSafe, NeverPassive]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_mistakes_are_found(mistake: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "PartitionMachine", mistake)
    for seed in range(800):
        try:
            campaign(seed, 3, 400, 0.0, "planted")
        except AssertionError:
            return
    raise AssertionError("not found in 800 lives")


def test_who_forgets_its_promises_is_found() -> None:
    for seed in range(400):
        try:
            campaign(seed, 3, 400, 0.0, "forgets promise")
        except AssertionError:
            return
    raise AssertionError("not found in 400 lives")

