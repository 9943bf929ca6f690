"""What a judge is: it stands outside, is told what the machines of all nodes are told and say, and says no.

A judge believes no node: it keeps a history of its own, and looks at what the disks would hold after a loss of power.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from bmqtwist.cluster.election_events import ElectionInput, ElectionOutput
from bmqtwist.cluster.log_events import Input, Output
from bmqtwist.cluster.partition_events import PartitionInput, PartitionOutput
from bmqtwist.cluster.record_log import LogRecord
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.psn import Psn
from bmqtwist.storage.slot_file import PromiseFile, StoredPromise, Vote, VoteFile
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import Lsn

if TYPE_CHECKING:
    from bmqtwist.member.partition_logs import HostedPartition
    from bmqtwist.queue.queue import Put
    from bmqtwist.queue.relay import RelayQueue
    from bmqtwist.relay.relays import Relays
    from bmqtwist.storage.partition_log import Batch
    from sim.campaign.world import CampaignWorld

STORAGE = "/memory/{}/storage"  # the directory of a node, by its name


class Violation(AssertionError):
    """An invariant does not hold; `rule` is its name in the specification."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Judge:
    """Looks at nothing; every method may raise Violation."""

    def __init__(self, world: CampaignWorld) -> None:
        self.world = world

    def booted(self, node: SimulatedNode) -> None:
        """A life of a node begins: it has recovered."""

    def damaged(self, node: SimulatedNode) -> None:
        """The vote of a node was destroyed while it was down."""

    def elector_stepped(self, node: SimulatedNode, now: float, event: ElectionInput,
                        outputs: list[ElectionOutput]) -> None:
        """Its elector took an input. `now`: of the node's clock."""

    def appended(self, node: SimulatedNode, record: LogRecord, previous: Lsn) -> None:
        """Its log has another record, behind the one with the LSN `previous`."""

    def log_stepped(self, node: SimulatedNode, event: Input, outputs: list[Output]) -> None:
        """Its log took an input."""

    def assigned(self, uri: str, key: bytes) -> None:
        """Somebody was told that a queue is assigned."""

    def partition_stepped(self, node: SimulatedNode, hosted: HostedPartition, now: float, event: PartitionInput,
                          outputs: list[PartitionOutput]) -> None:
        """The machine of a partition took an input; what follows from it is not done yet."""

    def written(self, node: SimulatedNode, hosted: HostedPartition, batches: list[Batch]) -> None:
        """A primary has these records in its files; a rollover may have taken them out again by now."""

    def recorded(self, index: int, psn: Psn, record: bytes, base: Psn) -> None:
        """A record of a partition was seen for the first time, in a log with this base. Its offsets are 0."""

    def relayed(self, node: SimulatedNode, relays: Relays, queue: RelayQueue, put: Put) -> None:
        """A proxy sends a PUT up."""

    def looked(self) -> None:
        """Something happened somewhere."""

    def quiet(self) -> None:
        """All faults are over, and everything had time to settle."""


def durable_vote(node: SimulatedNode) -> tuple[Vote, bool]:
    """Term and vote that a loss of power would leave, and whether they are lost."""
    return _vote_in(_left(node, VoteFile.name))


def durable_promises(node: SimulatedNode) -> list[StoredPromise]:
    """What it has promised for each partition, as far as a loss of power would leave it."""
    return _promises_in(_left(node, PromiseFile.name))


def _left(node: SimulatedNode, name: str) -> bytes | None:
    """What a loss of power would leave of a file of a node, in the worst case; None: nothing of it."""
    file = node.disk._durable_names.get(f"{STORAGE.format(node.name)}/{name}")
    return None if file is None else bytes(file.durable)


@lru_cache(maxsize=1000)
def _vote_in(content: bytes | None) -> tuple[Vote, bool]:
    return VoteFile(_disk_with(VoteFile.name, content), STORAGE.format("n")).read()


@lru_cache(maxsize=1000)
def _promises_in(content: bytes | None) -> list[StoredPromise]:
    return list(PromiseFile(_disk_with(PromiseFile.name, content), STORAGE.format("n")).read()[0])


def _disk_with(name: str, content: bytes | None) -> MemoryDisk:
    disk = MemoryDisk()
    if content is not None:
        disk.put(f"{STORAGE.format('n')}/{name}", content)
    return disk


def after_power_loss(disk: MemoryDisk, ending: str) -> MemoryDisk:
    """A disk with what a loss of power would leave, in the worst case, of the files whose names end so."""
    left = MemoryDisk()
    for path, file in disk._durable_names.items():
        if path.endswith(ending):
            left.put(path, bytes(file.durable))
    return left
