"""Faults of the disk of a simulated node; `SimulatedNode.clear_disk_faults` ends them.

Used by tests/sim; the disk is `bmqtwist/storage/memory.py`.
"""

from __future__ import annotations

import errno

from bmqtwist.testing.simulated_node import SimulatedNode


def fill_disk(node: SimulatedNode, spare: int) -> None:
    """Leave `spare` bytes of free space on the disk."""
    node.disk.capacity = node.disk.used_bytes() + spare


def fail_syncs(node: SimulatedNode) -> None:
    """Let all later syncs fail."""
    node.disk.fail = lambda operation, path: errno.EIO if operation == "sync" else None
