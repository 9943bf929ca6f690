"""What it may cost to read one schema message: a few bytes can stand for a value, and each takes its time.

A value costs one, a record RECORD_VALUES more: that is how long they take, about 1 and 5 us.
"""

from __future__ import annotations

import sys

RECORD_VALUES = 4


class Budget:
    """What is `left`; a reader that finds it below zero gives up. 0 = there is no end of it."""

    __slots__ = ("left",)

    def __init__(self, values_max: int) -> None:
        self.left = values_max or sys.maxsize
