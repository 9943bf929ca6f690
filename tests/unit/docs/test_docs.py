"""The documentation: its links lead somewhere, its examples are run, the API reference is that of the docstrings."""

from __future__ import annotations

import re
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from kit.markdown import RUN, Block, blocks

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKETCHES = {"docs/architecture.md", "docs/internals.md"}  # contracts between the parts, in something like Python
RUN_ELSEWHERE = {"docs/spark.md": "tests/spark/test_tutorial.py", "docs/testing.md": "tests/integration/test_testing_kit.py"}
OUT_OF_DATE = "run: make docs (it writes docs/api/ anew from the docstrings), and commit what it wrote"
_LINK = re.compile(r"(?<!!)\[[^\]\[]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)


def make_api() -> ModuleType:
    """The generator."""
    spec = util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["make_api"] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^(`{3,}).*?^\1$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """What a link to this page may name after the #."""
    found = set()
    for heading in _HEADING.findall(prose(path)):
        found.add(re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).lower().replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    dead = []
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(path))):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or anchor and anchor not in anchors(there):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_python_are_run_by_a_test(path: Path) -> None:
    """API pages show signatures, those are no examples."""
    name = str(path.relative_to(ROOT))
    if name in RUN_ELSEWHERE:
        assert path.name in (ROOT / RUN_ELSEWHERE[name]).read_text(encoding="utf-8")
    elif not name.startswith("docs/api/") and name not in SKETCHES:
        assert name in RUN or not [block for block in blocks(path) if block.info == "python"]


@pytest.mark.parametrize("block", [block for name in RUN for block in blocks(ROOT / name)
                                   if block.info.startswith("python")], ids=str)
def test_an_example_in_python_can_be_compiled(block: Block) -> None:
    """Those for other libraries, too, which nobody runs."""
    assert isinstance(block.wants_session, bool)


def test_the_api_reference_is_that_of_the_docstrings() -> None:
    made = make_api().pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")}
    assert sorted(there) == sorted(made), OUT_OF_DATE
    assert not [name for name, text in made.items() if there[name] != text], OUT_OF_DATE


def test_every_public_name_of_the_client_side_has_a_docstring() -> None:
    assert make_api().undocumented() == []


def test_every_exported_name_is_in_the_reference() -> None:
    """A name that the generator cannot find would be missing without a word."""
    api = make_api()
    missing = []
    for name in api.present():
        written = {symbol.partition(".")[0] for symbol, *_ in api.names(name)}
        missing += [f"{name}.{symbol}" for symbol in api.exported(api.module(name))
                    if symbol not in written | api.MACHINERY and not symbol.startswith("__")]
    assert missing == []
