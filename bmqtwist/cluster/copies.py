"""Up to which record other numbers of nodes than a majority have the log of a primary."""

from __future__ import annotations

from collections.abc import Iterable

from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.storage.psn import NO_PSN, Psn


def copied(machine: PartitionMachine, available: Iterable[int]) -> tuple[Psn, Psn]:
    """Up to where some other node has the records safe, and up to where all of the `available` have that can be spoken with,
    and a majority."""
    safe = {node_id: target.durable for node_id, target in machine.targets.items()}
    every = [safe.get(node_id, NO_PSN) for node_id in available if node_id in machine.up]
    return max(safe.values(), default=NO_PSN), min(every, default=machine.committed)
