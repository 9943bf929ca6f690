"""Interface of a judge: receives the inputs and outputs of all state machines of all nodes, and raises `Violation`.

A judge does not rely on the state of a node: it keeps its own history, and reads the part of a disk that would survive a
loss of power. `CampaignWorld.notify_judges` calls the `on_` methods. The judges are in `elections.py`, `metadata.py`,
`partitions.py`, `messages.py` and `relays.py`; `world.py` calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from bmqtwist.cluster.election_events import ElectionInput, ElectionOutput
from bmqtwist.cluster.log_events import Input, Output
from bmqtwist.cluster.partition_events import PartitionInput, PartitionOutput
from bmqtwist.cluster.record_log import LogRecord
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.payloads import is_intact, record_bytes
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
    """A broken invariant; `rule` is its name in the specification, such as "D6"."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Loss:
    """Destroyed files of a node. `partitions`: those whose file sets are lost; `metadata`: the ledger is; `is_old`: they
    were replaced by older ones, which the node cannot notice."""

    vote: bool = False
    promises: bool = False
    metadata: bool = False
    partitions: tuple[int, ...] = ()
    is_old: bool = False


class Judge:
    """Base class that checks nothing; each method may raise Violation."""

    def __init__(self, world: CampaignWorld) -> None:
        self.world = world

    def on_boot(self, node: SimulatedNode) -> None:
        """A run of a node has recovered its files."""

    def on_storage_lost(self, node: SimulatedNode, lost: Loss) -> None:
        """Files of a node are about to be destroyed; the node is down."""

    def on_elector_step(self, node: SimulatedNode, now: float, event: ElectionInput,
                        outputs: list[ElectionOutput]) -> None:
        """The elector of a node processed an input. `now`: the node's clock, in seconds."""

    def on_ledger_append(self, node: SimulatedNode, record: LogRecord, previous: Lsn) -> None:
        """The metadata log of a node appended a record; `previous`: LSN of the record before it."""

    def on_log_step(self, node: SimulatedNode, event: Input, outputs: list[Output]) -> None:
        """The metadata log of a node processed an input."""

    def on_queue_assigned(self, uri: str, key: bytes) -> None:
        """A node reported the assignment of a queue as committed."""

    def on_partition_step(self, node: SimulatedNode, hosted: HostedPartition, now: float, event: PartitionInput,
                          outputs: list[PartitionOutput]) -> None:
        """The machine of a partition processed an input; its outputs are not performed yet."""

    def on_batches_written(self, node: SimulatedNode, hosted: HostedPartition, batches: list[Batch]) -> None:
        """A primary has written these records; a rollover in the same turn may have removed them from its files again."""

    def on_new_record(self, index: int, psn: Psn, record: bytes, base: Psn) -> None:
        """The first copy of a record of partition `index` was found. `record`: with offsets of 0; `base`: the base of the
        log that contains it."""

    def on_put_relayed(self, node: SimulatedNode, relays: Relays, queue: RelayQueue, put: Put) -> None:
        """A relay sends a PUT to its upstream broker."""

    def check_after_event(self) -> None:
        """Check what must hold after each event of the simulation."""

    def check_final_state(self) -> None:
        """Check the invariants of the final state, after all faults have ended and the cluster is stable."""


def durable_vote(node: SimulatedNode) -> tuple[Vote, bool]:
    """Return the term and vote that would survive a loss of power, and whether the file is unreadable."""
    return _vote_in(_durable_content(node, VoteFile.name))


def durable_promises(node: SimulatedNode) -> list[StoredPromise]:
    """Return the promise for each partition that would survive a loss of power."""
    return _promises_in(_durable_content(node, PromiseFile.name))


def _durable_content(node: SimulatedNode, name: str) -> bytes | None:
    """Return the content of a file that is certain to survive a loss of power; None = not even its name."""
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
    """Return a disk with the certain remains, after a loss of power, of the files whose names end with `ending`."""
    remaining = MemoryDisk()
    for path, file in disk._durable_names.items():
        if path.endswith(ending):
            remaining.put(path, bytes(file.durable))
    return remaining


def damaged_messages(all_hosted: Iterable[HostedPartition]) -> Iterator[bytes]:
    """Yield the GUID of each live message whose stored data are damaged."""
    for hosted in all_hosted:
        payloads = hosted.partition.payloads
        for message in hosted.partition.state.live_messages():
            if payloads.is_written(message) and not is_intact(hosted.partition.files.read_data(
                    payloads.offset(message), record_bytes(message)), message):
                yield message.guid
