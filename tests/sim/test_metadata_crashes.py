"""Crashes at every 9th disk operation of each change of metadata, as kill and as loss of power.

`python -m tests.soak metadata` crashes at every disk operation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.metadata_crashes import CRASHES, OPERATIONS, walk

STRIDE = 9
CASES = [(operation, crash) for operation in OPERATIONS for crash in CRASHES]


@pytest.mark.parametrize("first, operation, crash", [(number % STRIDE, *case) for number, case in enumerate(CASES)])
def test_a_crash_during_a_metadata_change_keeps_acknowledged_messages_and_consistent_apps(
        tmp_path: Path, first: int, operation: str, crash: str) -> None:
    counts = walk(OPERATIONS[operation], CRASHES[crash], tmp_path, first, STRIDE)
    assert counts["crashes"] >= 3 and counts["acknowledged"] > 0
