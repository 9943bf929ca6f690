"""The client library is put together from parts that know each other one way: no import leads back to where it began."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "bmqtwist"
SDK = PACKAGE / "sdk"


def module_name(path: Path) -> str:
    """`bmqtwist.sdk.aio` for its file; a package's own name for its __init__."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """Those of the modules that a source imports, wherever in it: below TYPE_CHECKING and in functions as well."""
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
    """Which module imports which, of those that are given."""
    return {name: imported(ast.parse(text), set(sources)) for name, text in sources.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that can all be reached from each other."""
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
    """The modules of the client library."""
    for path in sorted(SDK.rglob("*.py")):
        yield module_name(path), path.read_text(encoding="utf-8")


def test_a_cycle_is_found_however_it_is_imported() -> None:
    found = import_graph({
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import X", "b": "def f():\n    import c",
        "c": "from a import Y", "d": "import a", "e": "import e"})
    assert cycles(found) == [["a", "b", "c"], ["e"]]


def test_no_module_of_the_client_library_imports_itself_over_others() -> None:
    """A circle of files can only be understood, tested and changed as a whole."""
    graph = import_graph(dict(sources()))
    assert len(graph) > 30 and graph["bmqtwist.sdk.aio"]
    assert not cycles(graph)


def test_the_session_core_is_made_of_parts_not_of_ancestors() -> None:
    """Parts are handed to each other where they are made; a class of the core is derived from none of ours."""
    inherited = []
    for name, text in sources():
        if name.startswith("bmqtwist.sdk._core"):
            tree = ast.parse(text)
            ours = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                    and (node.module or "").startswith("bmqtwist.") for alias in node.names}
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            ours |= {node.name for node in classes}
            inherited += [f"{name}.{node.name}" for node in classes for base in node.bases if ast.unparse(base) in ours]
    assert not inherited


def test_the_core_knows_no_adapter_and_no_kind_of_session() -> None:
    """What decides does not know what does."""
    graph = import_graph(dict(sources()))
    values = {f"bmqtwist.sdk.{name}" for name in ("codecs", "counters", "message", "options", "results", "tracing")}
    for name, found in graph.items():
        if name.startswith("bmqtwist.sdk._core"):
            assert not {each for each in found - values if not each.startswith("bmqtwist.sdk._core")}, name
