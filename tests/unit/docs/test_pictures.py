"""Pictures, file names and call sequences of docs/architecture.md and of the pages beside it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from types import FrameType, ModuleType

import pytest
from kit.layers import MODULES
from kit.memory import MemoryWorld
from kit.message_way import STEPS, STEPS_OF_THREE, Step
from sim.replicated import STRONG, ReplicatingCluster

ROOT = Path(__file__).resolve().parent.parent.parent.parent
OUT_OF_DATE = "run `make docs`, which draws the pictures from the code, and commit the changed pages"


def make_pictures() -> ModuleType:
    """Import docs/make_pictures.py."""
    spec = util.spec_from_file_location("make_pictures", ROOT / "docs" / "make_pictures.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["make_pictures"] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_up_to_date() -> None:
    made = make_pictures()
    texts = [page.read_text(encoding="utf-8") for page in made.PAGES]
    assert sorted(re.findall(r"<!-- picture: (\w+) -->", "".join(texts))) == sorted(made.PICTURES)
    assert [made.with_pictures(text) for text in texts] == texts, OUT_OF_DATE


def quoted() -> list[str]:
    """The texts between backticks in the pages about the structure, outside of their pictures."""
    pages = [ROOT / "docs" / f"{name}.md" for name in ("architecture", "internals", "machines", "protocol-extensions")]
    texts = [path.read_text(encoding="utf-8") for path in [*pages, *(ROOT / "docs" / "decisions").glob("*.md")]]
    return [found for text in texts
            for found in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))]


def sources() -> dict[str, str]:
    """The text of every Python file of the tree, by path."""
    paths = [path for folder in ("bmqtwist", "tests", "docs") for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def test_every_file_and_name_in_a_file_that_the_pages_mention_exists() -> None:
    """`queue/root.py`, `frames.py`, `broker/output.py: Output`."""
    there = sources()
    wrong = []
    for text in quoted():
        found = re.fullmatch(r"([\w/]+\.py)(?:: (\w+))?", text)
        if found:
            files = [content for path, content in there.items() if f"/{path}".endswith(f"/{found[1]}")]
            if not any(re.search(rf"\b{found[2] or ''}\b", content) for content in files):
                wrong.append(text)
        elif "/" in text and text.startswith(("bmqtwist/", "tests/")) and not (ROOT / text).exists():
            wrong.append(text)
    assert not wrong


def test_every_method_and_attribute_that_the_pages_mention_exists() -> None:
    """`Partition.hold_effect(put)`, `Broker.peers`."""
    there = [path.read_text(encoding="utf-8") for path in MODULES]
    wrong = []
    for text in quoted():
        found = re.match(r"([A-Z]\w+)\.(\w+)", text)
        homes = [content for content in there if found and re.search(rf"^class {found[1]}\b", content, re.MULTILINE)]
        if found and not any(re.search(rf"(def |self\.|^    ){found[2]}\b", content, re.MULTILINE) for content in homes):
            wrong.append(text)
    assert not wrong


@pytest.mark.parametrize("step", [*STEPS, *STEPS_OF_THREE], ids=lambda step: f"{step.module}.{step.function}")
def test_every_function_on_the_way_of_a_message_exists(step: Step) -> None:
    found = importlib.import_module(f"bmqtwist.{step.module}")
    for name in step.function.split("."):
        found = getattr(found, name)
    assert callable(found)


@pytest.mark.parametrize("module", sorted({step.module for step in [*STEPS, *STEPS_OF_THREE]}))
def test_the_head_of_each_module_on_the_way_of_a_message_points_to_it(module: str) -> None:
    assert "docs/architecture.md" in " ".join((importlib.import_module(f"bmqtwist.{module}").__doc__ or "").split())


@contextmanager
def traced(calls: list[tuple[str, str]]) -> Iterator[None]:
    """Append every call of a function of the package, in order: (file, qualified name)."""
    package = str(ROOT) + "/"

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            calls.append((code.co_filename.removeprefix(package), code.co_qualname))
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_message_takes_the_documented_way(tmp_path: Path) -> None:
    world = MemoryWorld(tmp_path)
    world.domain()
    consumer, producer = world.consumer(), world.producer()
    world.run()
    calls: list[tuple[str, str]] = []
    with traced(calls):
        producer.post(b"message")
        pushes = world.pushes(consumer)
        consumer.confirm(*pushes)
        world.run()
    assert [push.payload for push in pushes] == [b"message"]
    assert_in_order(STEPS, calls)


def assert_in_order(steps: list[Step], calls: list[tuple[str, str]]) -> None:
    """Assert that each step is among the calls, after the previous step."""
    at = 0
    for step in steps:
        if not step.sockets:
            assert step.code in calls[at:], f"{step.module}.{step.function} is not called after the step before it"
            at = calls.index(step.code, at) + 1


def test_a_put_through_three_nodes_takes_the_documented_way() -> None:
    nodes = ReplicatingCluster(1, 3)
    nodes.run_until_stable()
    nodes.post(1, STRONG)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    replica = next(each for each in nodes.machines if each is not primary)
    queue = nodes.client(replica.name).open(STRONG, write=1)
    nodes.run(2.0)
    calls: list[tuple[str, str]] = []
    with traced(calls):
        assert queue.next_ack(queue.put(b"message")).status == 0
    assert_in_order(STEPS_OF_THREE, calls)


def test_the_way_of_a_put_through_three_nodes_is_in_fifteen_files_at_most() -> None:
    assert len({step.module for step in STEPS_OF_THREE}) <= 15
