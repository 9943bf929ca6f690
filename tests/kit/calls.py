"""Counter of function calls: a measure of the cost of an operation that does not depend on the machine.

Used by `unit/queue/test_delivery.py` and `unit/link/test_unauthenticated.py`; measurements of time are in `bench/`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_calls(operation: Callable[[], Any]) -> Counter[str]:
    """Run an operation; return the number of calls of each function by name, including functions in C."""
    counts: Counter[str] = Counter()

    def on_event(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            counts[frame.f_code.co_name] += 1
        elif event == "c_call":
            counts[function.__name__] += 1

    sys.setprofile(on_event)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return counts
