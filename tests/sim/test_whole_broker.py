"""The whole broker under a virtual network, disk and clock, with crashes and torn writes, before an outside judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from sim.scenario import Scenario

SEEDS = range(1, 13)


@pytest.mark.parametrize("seed", SEEDS)
def test_x(seed, tmp_path):
    r = Scenario(seed, tmp_path).run()
    print(r)
