"""Simulation of one node for scenarios, with its configuration files on the real disk.

`bmqtwist.testing` has the parts: `simulation.py` (time, random values, trace), `network.py` and `simulated_node.py`.
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
    """A simulation with one node; clients connect with `dial`."""

    def __init__(self, root: Path, random: Random, *, app: dict[str, Any], cluster: dict[str, Any]) -> None:
        super().__init__(random)
        self.config = ConfigDirectory(root, PORT, app=app, cluster=cluster)
        self.network = Network(self)
        self.node = SimulatedNode(self.network, NODE, f"{NODE}:{PORT}",
                                  lambda: load(str(self.config.etc), environment={}).configuration,
                                  lambda configuration: DomainReader(configuration.directory))
        self.node.trace_hidden = str(root)

    def dial(self) -> ConnectionEnd | None:
        """Connect to the node; return None if it does not listen."""
        return self.network.connect(self.node.address)
