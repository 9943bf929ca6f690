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


def fail_file(node: SimulatedNode, part: str, code: int = errno.EIO) -> None:
    """Let writes to files whose path contains `part` fail."""
    node.disk.fail = lambda operation, path: code if operation == "write" and part in path else None


def make_read_only(node: SimulatedNode) -> None:
    """Let all operations that change the disk fail, as on a file system that is mounted read-only."""
    node.disk.fail = lambda operation, path: errno.EROFS if operation != "sync" else None
