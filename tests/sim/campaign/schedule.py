"""Schedule of a campaign as data: steps with random parameters, drawn from a seed, stored as JSON.

`play.py` runs it; the meaning of a step is in `actions.py`, `shrink.py` makes it smaller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

JOURNAL_BYTES = (1 << 15, 1 << 18)  # small: partitions roll over often
OLD = 0.2  # share of the schedules with nodes of the previous release
LEADER = 0  # as the node of a step: the leader at that time
LEDGER_BYTES = (2000, 2000, 1 << 18)  # small: the ledger file is full often
RETAINED_BYTES = (0, 500, 1 << 20)  # small: a follower that lags gets a snapshot
MESSAGE_BYTES = (1, 1 << 20)  # 1: each record is sent alone


@dataclass(frozen=True, slots=True)
class Step:
    """One action: `kind` with `node` (and `other`; numbers from 1), followed by a wait of `wait` seconds.

    `share` and `dice` are in [0, 1): the intensity of the action, and its random choice.
    """

    kind: str
    node: int
    other: int
    share: float
    dice: float
    wait: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run with `size` nodes; the first step follows after `begin` seconds. `_bytes`: limits of the logs."""

    seed: int
    size: int
    ledger_bytes: int
    retained_bytes: int
    message_bytes: int
    begin: float
    steps: tuple[Step, ...]
    clients: bool = False  # producers, consumers and proxies take part
    journal_bytes: int = JOURNAL_BYTES[-1]
    spread: bool = False  # the partitions have different primaries
    old_nodes: int = 0  # bit mask of the nodes that begin with the previous release

    def with_steps(self, steps: Sequence[Step]) -> Schedule:
        """Return a copy with other steps."""
        return replace(self, steps=tuple(steps))

    def text(self) -> str:
        """Return the schedule as JSON, one step per line."""
        head = {name: value for name, value in asdict(self).items() if name != "steps"}
        steps = ",\n  ".join(json.dumps(asdict(step)) for step in self.steps)
        return f'{json.dumps(head)[:-1]}, "steps": [\n  {steps}]}}\n'

    @classmethod
    def read(cls, text: str) -> Schedule:
        """Parse JSON."""
        tree: dict[str, Any] = json.loads(text)
        return cls(**{**tree, "steps": tuple(Step(**step) for step in tree["steps"])})


def _share(random: Random) -> float:
    """Return a random value in [0, 1) with 4 decimals."""
    return min(round(random.random(), 4), 0.9999)


def draw(seed: int, size: int, count: int, weights: Mapping[str, int], clients: bool = False) -> Schedule:
    """Draw `count` steps from a seed. `weights`: relative frequencies of the kinds."""
    random = Random(f"{seed}/{size}/schedule")
    kinds, shares = list(weights), list(weights.values())
    steps = []
    for _ in range(count):
        node = random.randint(1, size) if random.random() < 0.7 else LEADER
        steps.append(Step(random.choices(kinds, shares)[0], node, random.randint(1, size), _share(random),
                          _share(random), round(random.choice((0.01, 0.2, 1.0, 4.0)) * random.random(), 4)))
    limits = map(random.choice, (LEDGER_BYTES, RETAINED_BYTES, MESSAGE_BYTES))
    drawn = Schedule(seed, size, *limits, round(random.random() * 8, 4), tuple(steps))
    if size > 1 and random.random() < OLD:
        drawn = replace(drawn, old_nodes=random.randrange(1, 1 << size))
    if not clients:
        return drawn
    return replace(drawn, clients=True, journal_bytes=random.choice(JOURNAL_BYTES), spread=random.random() < 0.5)
