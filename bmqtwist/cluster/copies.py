"""What is known of the copies of a partition's log, beyond what its machine counts: a majority at its primary."""

from __future__ import annotations

from collections.abc import Iterable

from bmqtwist.cluster.partition_events import Say
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.storage.psn import NO_PSN, Psn


def copied(machine: PartitionMachine, available: Iterable[int]) -> tuple[Psn, Psn]:
    """Up to where some other node than this primary has the records safe, and up to where all of the `available` have that
    can be spoken with, and a majority."""
    safe = {node_id: target.durable for node_id, target in machine.targets.items()}
    every = [safe.get(node_id, NO_PSN) for node_id in available if node_id in machine.up]
    return max(safe.values(), default=NO_PSN), min(every, default=machine.committed)


def news(machine: PartitionMachine, psn: Psn) -> list[Say]:
    """From a primary to nodes that do not have a record of its lease safe: what is committed."""
    return [Say(node_id, machine.replicas.keepalive(target)) for node_id, target in machine.targets.items()
            if target.durable < psn]


def has_safe(machine: PartitionMachine, lease: int, psn: Psn) -> bool:
    """Whether a record of a replica's log is safe as its receipts to the primary of that lease say, or known to be
    committed."""
    return psn <= machine.committed or lease == machine.lease and psn <= min(machine.reception.matched, machine.log.durable)


def knows_committed(machine: PartitionMachine, psn: Psn) -> bool:
    """Whether a record that its primary has safe is committed, as far as a replica knows, which may lack it. What is safe at
    two of no more than three nodes is; of what another primary had, nobody knows under the next lease."""
    return psn[0] == machine.lease and (psn <= machine.reception.announced or has_safe(machine, machine.lease, psn))
