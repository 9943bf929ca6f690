"""Structure of the client library: its imports have no cycle, and its core does not import sessions or adapters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "bmqtwist"
SDK = PACKAGE / "sdk"


def module_name(path: Path) -> str:
    """Return the dotted name of a file; for an `__init__.py` that of its package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.Module, modules: set[str]) -> set[str]:
    """Return those of `modules` that a source imports anywhere, also below TYPE_CHECKING and in functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else str(node.module))
    return found & modules


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the imports among the given modules."""
    return {name: imported_modules(ast.parse(text), set(sources)) for name, text in sources.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or indirectly."""
    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for each in graph[waiting.pop()] - seen:
                seen.add(each)
                waiting.append(each)
        return seen
    reach = {name: reachable(name) for name in graph}
    groups = {tuple(sorted(each for each in reach[name] if name in reach[each])) for name in graph if name in reach[name]}
    return [list(group) for group in sorted(groups)]


def sources() -> Iterator[tuple[str, str]]:
    """Yield name and text of each module of the client library."""
    for path in sorted(SDK.rglob("*.py")):
        yield module_name(path), path.read_text(encoding="utf-8")


def test_a_cycle_of_any_form_of_import_is_found() -> None:
    found = import_graph({
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import X", "b": "def f():\n    import c",
        "c": "from a import Y", "d": "import a", "e": "import e"})
    assert cycles(found) == [["a", "b", "c"], ["e"]]


def test_imports_of_the_client_library_have_no_cycle() -> None:
    """Modules in a cycle can only be understood, tested and changed together."""
    graph = import_graph(dict(sources()))
    assert len(graph) > 30 and graph["bmqtwist.sdk.aio"]
    assert not cycles(graph)


def test_classes_of_the_session_core_do_not_inherit_from_each_other() -> None:
    """The core is composed: its parts receive each other as arguments."""
    inherited = []
    for name, text in sources():
        if name.startswith("bmqtwist.sdk._core"):
            tree = ast.parse(text)
            own_classes = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                           and (node.module or "").startswith("bmqtwist.") for alias in node.names}
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            own_classes |= {node.name for node in classes}
            inherited += [f"{name}.{node.name}" for node in classes for base in node.bases
                          if ast.unparse(base) in own_classes]
    assert not inherited


def test_the_session_core_imports_no_adapter_and_no_session() -> None:
    """The core decides; adapters and sessions perform I/O and import it."""
    graph = import_graph(dict(sources()))
    values = {f"bmqtwist.sdk.{name}" for name in ("codecs", "counters", "message", "options", "results", "tracing")}
    for name, found in graph.items():
        if name.startswith("bmqtwist.sdk._core"):
            assert not {each for each in found - values if not each.startswith("bmqtwist.sdk._core")}, name
