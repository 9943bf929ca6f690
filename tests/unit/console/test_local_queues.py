"""Sampling of the queues that a node reports to the consoles."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kit.memory import MemoryWorld
from twisted.internet.task import Clock

from bmqtwist.console import local_queues
from bmqtwist.console.local_queues import LocalQueues

URI = "bmq://bmq.test.persistent.priority/q"


def test_queues_of_a_partition_are_sampled_before_an_answer_that_names_it(tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """The node becomes primary of the partition between two requests."""
    memory = MemoryWorld(tmp_path)
    memory.domain("bmq.test.persistent.priority")
    memory.producer(URI)
    led, clock = set[int](), Clock()
    monkeypatch.setattr(local_queues, "led_partitions", lambda broker: set(led))
    found = LocalQueues(cast(Any, SimpleNamespace(
        node=SimpleNamespace(broker=memory.broker), reactor=clock, present_time=lambda: (clock.seconds(), 0.0),
        run_in_steps=None)))
    found.request_sampling()
    clock.advance(0.1)
    assert found.book.rows([URI], 0.1, 0.0) == []
    led.update(range(4))
    done = found.request_sampling(led)
    assert not done.called
    clock.advance(0.5)
    assert done.called and [row["uri"] for row in found.book.rows([URI], 0.6, 0.0)] == [URI]
    found.stop()
