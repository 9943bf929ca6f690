"""How full the files of a partition may be: when a rollover is worth it, and when an operator is told."""

from __future__ import annotations

from bmqtwist.storage.store import FileSizes

AVAILABLE_PERCENT_MIN = 20  # of every file, for a rollover to be worth it
SOFT_LIMIT_PERCENT = 60  # outstanding part of a file that raises the soft alarm
SOFT_ALARM_PERIOD_S = 15 * 60  # between two soft alarms

Bytes = tuple[int, int, int]  # of JOURNAL, DATA, QLIST


def leaves_enough(sizes: FileSizes, kept: Bytes, needed: Bytes) -> bool:
    """Would a rollover that keeps `kept` leave enough of every file free, `needed` bytes of each taken?"""
    return all((size - part - more) * 100 // size >= AVAILABLE_PERCENT_MIN for size, part, more
               in zip((sizes.journal, sizes.data, sizes.qlist), kept, needed, strict=True))


def passes_soft_limit(sizes: FileSizes, kept: Bytes) -> bool:
    """Is so much of a file kept that an operator must know?"""
    return any(part * 100 >= size * SOFT_LIMIT_PERCENT for part, size in
               zip(kept, (sizes.journal, sizes.data, sizes.qlist), strict=True))


class SoftLimit:
    """Says now and then that the soft limit is passed."""

    def __init__(self) -> None:
        self._quiet_until = 0  # epoch seconds

    def is_told(self, sizes: FileSizes, kept: Bytes, wall: int) -> bool:
        """Whether it is to be told now."""
        if wall < self._quiet_until or not passes_soft_limit(sizes, kept):
            return False
        self._quiet_until = wall + SOFT_ALARM_PERIOD_S
        return True
