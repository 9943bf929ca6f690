"""The test kit: brokers for the tests of applications, in this process or in one of their own.

| what | for |
|---|---|
| `Broker` | a broker in this process: memory only, a clock that jumps, `faults`, a `recorder` |
| `run` | `asyncio.run` in virtual time |
| `outcome` | the outcome of a Deferred on a `twisted.internet.task.Clock` |
| `BrokerProcess` | a broker in a process of its own, on a free port and with files in a directory |
| `Cluster` | several nodes of a cluster in this process: a simulated network, a clock that jumps |
| `ClusterProcess` | several nodes of a cluster, a process each |
| fixtures `bmq_broker`, `bmq_process`, `bmq_url` | the same for pytest, which finds them by itself |

See docs/testing.md. Nothing is imported before it is used.
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

_HOMES = {"Broker": "broker", "BrokerProcess": "process", "Clock": "clock", "Cluster": "cluster",
          "ClusterProcess": "cluster_process", "Fault": "faults", "Faults": "faults",
          "NotInTime": "process", "Recorder": "recorder", "Stored": "stored", "Stuck": "loop", "Unmet": "broker",
          "VirtualLoop": "loop", "outcome": "tx", "run": "loop"}

__all__ = ["Broker", "BrokerProcess", "Clock", "Cluster", "ClusterProcess", "Fault", "Faults", "NotInTime", "Recorder",
           "Stored", "Stuck", "Unmet", "VirtualLoop", "outcome", "run"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
