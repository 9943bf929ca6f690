"""One partition of a cluster of several nodes: its machine, and what is under way with its files."""

from __future__ import annotations

from collections import deque

from bmqtwist.cluster.partition_events import PartitionInput, PartitionTalk, ReplicaReceipt
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.cluster.write_times import WriteTimes
from bmqtwist.storage.image import ImageFiles, ImageSource
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn
from bmqtwist.storage.replica import ReplicatedPartition


class Cell:
    """One partition: `cluster.partition_events.LogView` of its machine, and what is under way with its files."""

    def __init__(self, partition: ReplicatedPartition) -> None:
        self.partition = partition
        self.machine: PartitionMachine
        self.inputs: deque[PartitionInput] = deque()
        self.stepping = self.busy = False
        self.lingers = False  # a moment is set at which what was written is sent in any case
        self.told_ahead = False  # since the last receipt: clients here are told of records as soon as they are safe here
        self.announced = NO_PSN  # at a moment that is set nodes that lack this record are told that it is committed
        self.image: ImageFiles | None = None  # that is being taken
        self.times = WriteTimes()  # of what this node writes as primary
        self.images: dict[int, ImageSource] = {}  # that are being sent, by node
        self.unreadable = NO_PSN  # up to here there is a record that cannot be read for another node

    @property
    def index(self) -> int:
        """The number of the partition."""
        return self.partition.partition_id

    @property
    def summary(self) -> LogSummary:
        return self.partition.summary

    @property
    def written(self) -> Psn:
        return self.partition.kept  # what lingers is not to be sent yet

    @property
    def durable(self) -> Psn:
        return self.partition.durable

    def offers(self, after: Psn) -> bool:
        return self.partition.offers(after)

    @property
    def broken(self) -> bool:
        return self.partition.log.broken

    def hurries(self, message: PartitionTalk) -> bool:
        """Whether anybody may wait for a message to another node: not for a receipt of records that clients here are told of
        already, if there is another replica, whose receipt the primary gets at once."""
        if not isinstance(message, ReplicaReceipt) or not self.told_ahead:
            return True
        self.told_ahead = False
        return len(self.machine.up) < 2 or self.machine.leads

    def count_needed(self) -> None:
        """As primary: of how many nodes a majority is, or how many there are to be by command, may have changed."""
        self.partition.copies.pair_commits = max(self.machine.standing.majority, self.machine.standing.factor) <= 2
