"""Faults of the disk of a simulated node; `SimulatedNode.clear_disk_faults` ends them."""

from __future__ import annotations

import errno

from bmqtwist.testing.simulated_node import SimulatedNode


def fill_disk(node: SimulatedNode, spare: int) -> None:
    """No space beyond `spare` bytes."""
    node.disk.capacity = node.disk.used_bytes() + spare


def fail_syncs(node: SimulatedNode) -> None:
    """Every sync fails from now on."""
    node.disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None
