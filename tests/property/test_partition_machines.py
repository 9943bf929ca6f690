"""A partition at 1, 3 and 5 nodes, whatever links and disks do: what is committed stays, and all logs become one."""

from __future__ import annotations

import pytest
from kit.partitions import FAULTS, Partitions, disturb


def campaign(seed: int, size: int, steps: int, loss: float, mistake: str = "") -> Partitions:
    """Faults at random, then none."""
    world = Partitions(seed, size, mistake)
    world.grant()
    for _ in range(world.random.randint(0, 30)):
        world.round()
    world.lost = loss
    for _ in range(steps):
        disturb(world, world.random.choice(FAULTS))
    world.settle()
    return world


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_what_is_committed_stays_and_all_logs_become_one(size: int, loss: float) -> None:
    cuts = images = served = 0
    for seed in range(150):
        world = campaign(seed, size, 400, loss)
        cuts, images, served = cuts + world.cuts, images + world.images, served + world.served
    assert served >= 150 and (size == 1 or cuts > 20 and images > 20), (served, cuts, images)
