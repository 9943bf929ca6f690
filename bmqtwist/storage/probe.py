"""Probe of a storage directory: whether files can be created, written, synced and removed there.

Blocks; run it in a thread. Called by `member/disk_health.py` while a member cannot write.
"""

from __future__ import annotations

from contextlib import closing

from bmqtwist.storage.store import Disk

PROBE_NAME = "bmqtwist_probe"
PROBE_BYTES = 256 << 10  # written: more than a metadata ledger grows in minutes, so that a node does not stand for seconds


def probe_directory(disk: Disk, directory: str) -> None:
    """Write PROBE_BYTES to a new file, sync it, and remove it. OSError."""
    path = f"{directory}/{PROBE_NAME}"
    if PROBE_NAME in disk.names(directory):
        disk.remove(path)
    try:
        with closing(disk.create(path)) as file:
            file.write(0, [bytes(PROBE_BYTES)])
            file.sync()
    finally:
        if PROBE_NAME in disk.names(directory):
            disk.remove(path)
