"""What it may cost to read one schema message: a few bytes can stand for a value, and each takes its time.

A value costs one, a record RECORD_VALUES more: that is how long they take, about 1 and 5 us.

Readers are generators: after SLICE_VALUES they pause, so that a long message can be read over several turns.
"""

from __future__ import annotations

import sys

RECORD_VALUES = 4
SLICE_VALUES = 1024  # about 2 ms


class Budget:
    """What is `left`; a reader that finds it below zero gives up. 0 = there is no end of it. When it is below `pause` a
    reader calls `next_pause`, then pauses."""

    __slots__ = ("left", "pause")

    def __init__(self, values_max: int) -> None:
        self.left = values_max or sys.maxsize
        self.next_pause()

    def next_pause(self) -> None:
        """Pause again after SLICE_VALUES."""
        self.pause = max(0, self.left - SLICE_VALUES)
