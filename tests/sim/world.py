"""The world of a scenario: one simulated node with its configuration on the real disk, and clients that connect to it.

What is simulated, and how, is in `bmqtwist.testing`: `simulation.py` (time, chance, trace), `network.py`,
`simulated_node.py`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from kit.config import NODE, ConfigDirectory

from bmqtwist.config.load import DomainReader, load
from bmqtwist.testing.network import ConnectionEnd, Network
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.testing.simulation import Simulation

PORT = 30114  # of the simulated network


class SimulatedWorld(Simulation):
    """One node; `dial` is how clients get there."""

    def __init__(self, root: Path, random: Random, *, app: dict[str, Any], cluster: dict[str, Any]) -> None:
        super().__init__(random)
        self.config = ConfigDirectory(root, PORT, app=app, cluster=cluster)
        self.network = Network(self)
        self.node = SimulatedNode(self.network, NODE, f"{NODE}:{PORT}",
                                  lambda: load(str(self.config.etc), environment={}).configuration,
                                  lambda configuration: DomainReader(configuration.directory))
        self.node.trace_hidden = str(root)

    def dial(self) -> ConnectionEnd | None:
        """A connection; None if nobody listens."""
        return self.network.connect(self.node.address)
