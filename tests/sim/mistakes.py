"""Injected defects: functions of the broker that raise an exception at random while a scenario runs.

`scenario.py` injects them; defects that campaigns must detect are in `campaign/canaries.py`.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from types import TracebackType
from typing import Any

import bmqtwist.link.client as client_module
import bmqtwist.queue.delivery as delivery_module
from bmqtwist.link.client import ClientSession
from bmqtwist.link.session import Session
from bmqtwist.queue.queue import Queue
from bmqtwist.queue.root import RootQueue
from bmqtwist.storage.partition import Partition
from bmqtwist.testing.simulated_node import SimulatedPerformer

# Owner, function, and probability that a call of it raises before it does anything.
DEFECTS: list[tuple[Any, str, float]] = [
    (Partition, "flush", 0.0005), (Partition, "begin_sync", 0.0005), (Partition, "on_synced", 0.001),
    (Partition, "write_sync_point", 0.005), (SimulatedPerformer, "write", 0.002),
    (RootQueue, "add_to_apps", 0.001), (RootQueue, "post", 0.001), (Queue, "confirm", 0.001), (RootQueue, "expire", 0.02),
    (delivery_module, "deliver", 0.003), (delivery_module, "_push", 0.001), (ClientSession, "push", 0.001),
    (ClientSession, "ack", 0.001),
    (Session, "take_output", 0.002), (Session, "receive", 0.001), (Session, "on_lost", 0.05),
    (client_module, "drop_handle", 0.005)]


class Mistake(Exception):
    """The exception of an injected defect."""


class Mistakes:
    """Context in which the functions of DEFECTS raise at random while `active`; `met` counts the exceptions."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"{seed}/mistakes")
        self.active = False
        self.met: Counter[str] = Counter()
        self._originals: list[Any] = []

    def __enter__(self) -> Mistakes:
        self._originals = [getattr(owner, name) for owner, name, _ in DEFECTS]
        for (owner, name, rate), original in zip(DEFECTS, self._originals, strict=True):
            setattr(owner, name, self._with_defect(original, name, rate))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        for (owner, name, _), original in zip(DEFECTS, self._originals, strict=True):
            setattr(owner, name, original)

    def _with_defect(self, original: Any, name: str, rate: float) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self.active and self._random.random() < rate:
                self.met[name] += 1
                raise Mistake(name)
            return original(*arguments, **keywords)
        return call
