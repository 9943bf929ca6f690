"""Replicated partition at 1, 3 and 5 nodes under random faults: committed records stay, and all logs become equal.

Tests `bmqtwist/cluster/partition_machine.py`; single cells are in `tests/table/test_partition_machine.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from kit.partitions import FAULTS, Partitions, disturb

from bmqtwist.cluster.partition_events import Assigned, LogView
from bmqtwist.cluster.partition_reception import Reception
from bmqtwist.cluster.partition_standing import PartitionStanding
from bmqtwist.cluster.replication_targets import ReplicationTargets
from bmqtwist.cluster.take_over import TakeOver
from bmqtwist.storage.psn import LogSummary, Psn
from bmqtwist.wire.cluster_schema import Prepare


def campaign(seed: int, size: int, steps: int, loss: float, mistake: str = "") -> Partitions:
    """Run random faults, then end them."""
    world = Partitions(seed, size, mistake)
    world.grant()
    for _ in range(world.random.randint(0, 30)):
        world.round()
    world.loss_rate = loss
    for _ in range(steps):
        disturb(world, world.random.choice(FAULTS))
    world.recover()
    return world


@pytest.mark.spec("cluster", 75)
@pytest.mark.spec("cluster", 77)
@pytest.mark.spec("cluster", 79)
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_committed_records_stay_and_all_logs_become_equal(size: int, loss: float) -> None:
    cuts = images = served = 0
    for seed in range(150):
        world = campaign(seed, size, 400, loss)
        cuts, images, served = cuts + world.cuts, images + world.images, served + world.served
    assert served >= 150 and (size == 1 or cuts > 10 and images > 20), (served, cuts, images)


# -- what the campaign has to find ---------------------------------------------------------------------------------------


_send_receipt = Reception.send_receipt
_assign, _reject_stale = PartitionStanding.accept_assignment, PartitionStanding.reject_stale


def _take_own_log(self: TakeOver, event: object) -> None:
    """Chooses its own log without pulling records."""
    standing = self._standing
    if standing.promised_lease >= standing.lease and len(self.promises) + 1 >= standing.majority and not standing.log.busy:
        self._begin_lease()


def _use_old_lease(self: PartitionStanding, assigned: Assigned) -> bool:
    """Takes up the lease of an earlier run."""
    self.used_lease = 0
    return _assign(self, assigned)


def _ignore_promises(self: PartitionStanding, event: Any) -> bool:
    """Ignores earlier promises."""
    if isinstance(event, Prepare):
        self.requested_lease = min(self.requested_lease, event.lease)
        self.promised_lease = min(self.promised_lease, event.lease)
    return _reject_stale(self, event)


def _acknowledge_unsynced(self: Reception, always: bool = False) -> None:
    """Sends receipts for records that are written and not synced."""
    kept = self._standing.log
    self._standing.log = _UnsyncedLog(kept)
    _send_receipt(self, always)
    self._standing.log = kept


class _UnsyncedLog:
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


MISTAKES: dict[str, tuple[type, str, Any]] = {
    "takes its own log": (TakeOver, "choose_log", _take_own_log),
    "needs no quorum": (TakeOver, "_has_quorum", lambda self: True),
    "uses old leases": (PartitionStanding, "accept_assignment", _use_old_lease),
    "promises anything": (PartitionStanding, "reject_stale", _ignore_promises),
    "says what is not safe": (Reception, "send_receipt", _acknowledge_unsynced),
    "never passive": (ReplicationTargets, "is_supported", property(lambda self: True)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_injected_mistakes_are_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    for seed in range(800):
        try:
            campaign(seed, 3, 400, 0.0, "planted")
        except AssertionError:
            return
    raise AssertionError("not detected in 800 runs")


def test_a_node_that_loses_its_promises_is_detected() -> None:
    for seed in range(400):
        try:
            campaign(seed, 3, 400, 0.0, "promise lost")
        except AssertionError:
            return
    raise AssertionError("not detected in 400 runs")

