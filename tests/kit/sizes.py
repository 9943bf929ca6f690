"""Sizes of functions, classes and protocol interfaces of the product, with their limits (tests/test_sizes.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kit.layers import MODULES, dotted

LINES_MAX = 60  # of a function
PARAMETERS_MAX = 7  # of a function, without self
ATTRIBUTES_MAX = 25  # of a class
METHODS_MAX = 35  # of a class
PROTOCOL_METHODS_MAX = 12

Function = ast.FunctionDef | ast.AsyncFunctionDef


def oversize() -> dict[str, str]:
    """Return all sizes above a limit: `module:Class.function` -> the measured value."""
    found: dict[str, str] = {}
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typing = {alias.asname or alias.name for node in tree.body
                  if isinstance(node, ast.ImportFrom) and node.module == "typing" for alias in node.names}
        for name, node in _definitions(tree, ""):
            faults = (_faults_of_class(node, "Protocol" in typing) if isinstance(node, ast.ClassDef)
                      else _faults_of_function(node))
            if text := ", ".join(faults):
                found[f"{dotted(path)}:{name}"] = text
    return found


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from _definitions(child, prefix)


def _decorators(node: Function | ast.ClassDef) -> set[str]:
    return {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}


def _faults_of_function(node: Function) -> Iterator[str]:
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    parameters = len(every) - sum(each.arg in ("self", "cls") for each in every[:1])
    if lines > LINES_MAX:
        yield f"{lines} lines"
    if parameters > PARAMETERS_MAX:
        yield f"{parameters} parameters"


def _faults_of_class(node: ast.ClassDef, protocols: bool) -> Iterator[str]:
    methods = [each for each in node.body if isinstance(each, Function)]
    is_protocol = protocols and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
    limit = PROTOCOL_METHODS_MAX if is_protocol else METHODS_MAX
    if len(methods) > limit:
        yield f"{len(methods)} methods"
    if "dataclass" in _decorators(node):  # a record: its fields are its interface
        return
    attributes = {each.attr for method in methods for each in ast.walk(method)
                  if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
                  and isinstance(each.value, ast.Name) and each.value.id == "self"}
    attributes |= {each.target.id for each in node.body
                   if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    if len(attributes) > ATTRIBUTES_MAX:
        yield f"{len(attributes)} attributes"
