"""The examples of the client library and those in its documentation, run as they stand against a broker process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.process import STARTED, ProcessWorld

ROOT = Path(__file__).resolve().parent.parent.parent
BROKER = "tcp://localhost:30114"
DEADLINE = 120.0

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessWorld]:
    """A broker process."""
    world = ProcessWorld(tmp_path_factory.mktemp("node"), start=False)
    try:
        world.broker.launch()
        world.broker.expect(STARTED, deadline=180.0)
        world.domain("bmq.test.persistent.priority")
        yield world
    finally:
        world.cleanup()


def run(*arguments: str) -> str:
    """Run Python; its output."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("sdk_*.py")), ids=lambda path: path.stem)
def test_an_example_runs(node: ProcessWorld, path: Path) -> None:
    assert run(str(path), node.broker.uri)
    assert node.stored(f"bmq://bmq.test.persistent.priority/{path.stem.replace('_', '-')}") == 0


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_of_the_documentation_runs(node: ProcessWorld, number: int) -> None:
    assert BROKER in BLOCKS[number]
    run("-c", BLOCKS[number].replace(BROKER, node.broker.uri))
