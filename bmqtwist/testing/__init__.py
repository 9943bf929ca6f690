"""Test kit: brokers for the tests of applications, in the test's process or in separate processes.

| name | purpose |
|---|---|
| `Broker` | a broker in this process: memory only, virtual clock, `faults`, `recorder` |
| `run` | `asyncio.run` in virtual time |
| `outcome` | the result of a Deferred on a `twisted.internet.task.Clock` |
| `BrokerProcess` | a broker process on a free port, with files in a directory |
| `Cluster` | the nodes of a cluster in this process: simulated network, virtual clock |
| `ClusterProcess` | the nodes of a cluster, one process each |
| fixtures `bmq_broker`, `bmq_process`, `bmq_url` | pytest fixtures, registered by a plugin |

See docs/testing.md. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmqtwist.testing.broker import Broker, Unmet
    from bmqtwist.testing.clock import Clock
    from bmqtwist.testing.cluster import Cluster
    from bmqtwist.testing.cluster_process import ClusterProcess
    from bmqtwist.testing.faults import Fault, Faults
    from bmqtwist.testing.loop import Stuck, VirtualLoop, run
    from bmqtwist.testing.process import BrokerProcess, NotInTime
    from bmqtwist.testing.recorder import Recorder
    from bmqtwist.testing.stored import Stored
    from bmqtwist.testing.tx import outcome

_MODULES = {"Broker": "broker", "BrokerProcess": "process", "Clock": "clock", "Cluster": "cluster",
          "ClusterProcess": "cluster_process", "Fault": "faults", "Faults": "faults",
          "NotInTime": "process", "Recorder": "recorder", "Stored": "stored", "Stuck": "loop", "Unmet": "broker",
          "VirtualLoop": "loop", "outcome": "tx", "run": "loop"}

__all__ = ["Broker", "BrokerProcess", "Clock", "Cluster", "ClusterProcess", "Fault", "Faults", "NotInTime", "Recorder",
           "Stored", "Stuck", "Unmet", "VirtualLoop", "outcome", "run"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
