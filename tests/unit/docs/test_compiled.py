"""Modules that `make fast` compiles: a compiled class has no interpreted subclasses, else the broker does not start."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parents[3]


def compiled() -> set[str]:
    """Return the modules that setup.py lists."""
    text = (HERE / "setup.py").read_text()
    listed = re.search(r"^HOT = .*?\)\]$", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    return {f"bmqtwist.{name.replace('/', '.')}" for name in re.findall(r'"([\w/]+)"', listed.group(0))}


def classes_of(package: Path) -> dict[str, list[str]]:
    """Return each class of a package by its qualified name, with its bases within the package."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        names = {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[f"{module}.{node.name}"] = [names.get(ast.unparse(base), ast.unparse(base)) for base in node.bases]
    return found


def interpreted_subclasses(classes: dict[str, list[str]], modules: set[str]) -> list[str]:
    return [f"{name} of {base}" for name, bases in classes.items() for base in bases
            if base.rpartition(".")[0] in modules and name.rpartition(".")[0] not in modules
            and "typing.Protocol" not in classes.get(base, ())]


def test_a_class_and_its_subclasses_are_compiled_together_or_not_at_all() -> None:
    modules, classes = compiled(), classes_of(HERE / "bmqtwist")
    assert {name for name in modules if not (HERE / f"{name.replace('.', '/')}.py").is_file()} == set()
    assert interpreted_subclasses(classes, modules) == []
    assert interpreted_subclasses(classes, modules - {"bmqtwist.storage.recovery"}) == [
        "bmqtwist.storage.recovery.Recovery of bmqtwist.storage.replay.Replay"]
