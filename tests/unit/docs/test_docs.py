"""Links and examples of the documentation, and the generator of the API reference."""

from __future__ import annotations

import re
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from kit.markdown import RUN, Block, blocks

ROOT = Path(__file__).resolve().parent.parent.parent.parent
API = ROOT / "docs" / "api"  # generated, not in the repository
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
         *(path for path in sorted((ROOT / "docs").rglob("*.md")) if API not in path.parents)]
SKETCHES = {"docs/architecture.md", "docs/internals.md"}  # contracts between the parts, in something like Python
RUN_ELSEWHERE = {"docs/spark.md": "tests/spark/test_tutorial.py", "docs/testing.md": "tests/integration/test_testing_kit.py"}
_LINK = re.compile(r"(?<!!)\[[^\]\[]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)


def make_api() -> ModuleType:
    """Import docs/make_api.py."""
    spec = util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["make_api"] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^(`{3,}).*?^\1$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page: its headings, as a link names them after the #."""
    found = set()
    for heading in _HEADING.findall(prose(path)):
        found.add(re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).lower().replace(" ", "-"))
    return found


def dead_links(path: Path) -> list[str]:
    """Return the links of a page to a missing file or heading; links to other hosts are not checked."""
    dead = []
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(path))):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or anchor and anchor not in anchors(there):
            dead.append(link)
    return dead


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_between_pages_has_a_target(path: Path) -> None:
    assert dead_links(path) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_python_are_run_by_a_test(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name in RUN_ELSEWHERE:
        assert path.name in (ROOT / RUN_ELSEWHERE[name]).read_text(encoding="utf-8")
    elif name not in SKETCHES:
        assert name in RUN or not [block for block in blocks(path) if block.info == "python"]


@pytest.mark.parametrize("block", [block for name in RUN for block in blocks(ROOT / name)
                                   if block.info.startswith("python")], ids=str)
def test_an_example_in_python_can_be_compiled(block: Block) -> None:
    """Includes examples for other libraries, which no test runs."""
    assert isinstance(block.wants_session, bool)


def test_the_generated_api_reference_has_a_page_per_module_and_no_dead_links(tmp_path: Path) -> None:
    (tmp_path / "guide.md").touch()
    made = make_api().pages()
    assert {"README.md", "sdk.md", "testing.md"} <= made.keys()
    (tmp_path / "api").mkdir()
    for name, text in made.items():
        (tmp_path / "api" / name).write_text(text, encoding="utf-8")
    assert {name: dead for name in made if (dead := dead_links(tmp_path / "api" / name))} == {}


def test_no_page_of_the_repository_links_to_the_generated_api_reference() -> None:
    assert [str(path) for path in PAGES if re.search(r"\]\([^)]*\bapi/", prose(path))] == []


def test_every_public_name_of_the_client_side_has_a_docstring() -> None:
    assert make_api().undocumented() == []


def test_every_exported_name_is_in_the_reference() -> None:
    """The generator omits a name that it cannot find."""
    api = make_api()
    missing = []
    for name in api.present():
        written = {symbol.partition(".")[0] for symbol, *_ in api.names(name)}
        missing += [f"{name}.{symbol}" for symbol in api.exported(api.module(name))
                    if symbol not in written | api.MACHINERY and not symbol.startswith("__")]
    assert missing == []
