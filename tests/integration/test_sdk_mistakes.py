"""Programs that do the obvious wrong thing lose nothing silently: what they posted arrives, or they are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.process import STARTED, ProcessWorld

URI = "bmq://d/q"
DEADLINE = 120.0

pytestmark = pytest.mark.process


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessWorld]:
    """A broker process."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    world = ProcessWorld(tmp_path, start=False)
    try:
        world.broker.launch()
        world.broker.expect(STARTED, deadline=180.0)
        world.domain("d")
        yield world
    finally:
        world.cleanup()


def ran(node: ProcessWorld, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program; its argument is the address of the broker."""
    return subprocess.run([sys.executable, "-c", program, node.broker.uri], capture_output=True, text=True,
                          timeout=DEADLINE, check=False)


SIMPLE = """
import sys
from bmqtwist.sdk.simple import Session
session = Session(sys.argv[1])
queue = session.open("bmq://d/q", write=True)
for number in range(100):
    queue.post_nowait(b"%d" % number)
"""


@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt", "del queue, session", "session = queue = None"])
def test_a_blocking_session_that_is_left_running_delivers_and_warns(node: ProcessWorld, end: str) -> None:
    done = ran(node, SIMPLE + end)
    assert node.stored(URI) == 100
    assert "was not stopped: use it with `with`, or call `stop`" in done.stderr


def test_a_blocking_session_that_is_forked_away_is_stopped_by_its_parent_alone(node: ProcessWorld) -> None:
    done = ran(node, SIMPLE + "import os\nif os.fork() == 0:\n    sys.exit()\nos.wait()\nqueue.post(b'after')")
    assert node.stored(URI) == 101 and done.stderr.count("was not stopped") == 1
