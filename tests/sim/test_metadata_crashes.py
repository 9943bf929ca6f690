"""A crash at every write of every operation that changes metadata, and in every way that processes and machines die.

Here some of the writes; `python -m tests.soak metadata` walks all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.metadata_crashes import OPERATIONS, POWER, walk

STRIDE = 9
CASES = [(operation, crash) for operation in OPERATIONS for crash in POWER]


@pytest.mark.parametrize("first, operation, crash", [(number % STRIDE, *case) for number, case in enumerate(CASES)])
def test_what_was_acknowledged_is_there_and_no_app_is_half_there(tmp_path: Path, first: int, operation: str,
                                                                crash: str) -> None:
    counts = walk(OPERATIONS[operation], POWER[crash], tmp_path, first, STRIDE)
    assert counts["crashes"] >= 3 and counts["acknowledged"] > 0
