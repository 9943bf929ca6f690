"""Structure of the package: ranks of its subpackages, imports of its modules, and cycles of imports.

tests/test_tidy.py checks the package against it; docs/make_pictures.py draws it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "bmqtwist"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from modules of the same or a lower rank.
RANKS: dict[str, float] = {
    "limits": 0, "alarms": 0, "errors": 0, "ids": 0, "report": 0, "compiled": 0, "textformat": 0, "steps": 0, "machine": 0,
    "versions": 0, "environment": 0, "addresses": 0, "dialing": 0, "wire": 1, "storage": 2,
    "queue": 3, "cluster": 4, "config": 4.5, "link": 5, "sdk": 5.5, "security": 5.6, "logs": 5.7, "loop": 5.8, "peers": 5.9,
    "relay": 6, "member": 6.1, "broker": 6.2, "storagetool": 6.25, "view": 6.3, "admin": 6.4, "reactor": 6.7,
    "daemon": 6.8, "console": 7, "cli": 7, "kombu": 7, "spark": 7, "testing": 8, "tap": 8}
# Modules that perform input and output. All other modules are pure.
IO_MODULES = {"storage.files", "reactor.tcp", "reactor.incoming", "config.load", "security.tls", "security.key_file",
              "logs.observer", "logs.background", "daemon.service", "daemon.directories", "reactor.performer",
              "reactor.epoll_round", "daemon.control_pipe", "reactor.disk_threads", "daemon.process",
              "daemon.statistics_log", "daemon.systemd", "daemon.trial_start", "reactor.dialing", "reactor.listening",
              "reactor.watchdog", "storagetool.inputs", "sdk._adapters.forks", "sdk._adapters.dialing",
              "sdk._adapters.identity", "sdk.pump", "sdk.simple", "sdk.aio", "sdk.rpc", "sdk.tx", "tap", "console.http",
              "console.site", "console.scrapes", "console.answers", "console.pages", "console.audit", "console.live",
              "console.history_file",
              "console.collector", "console.demonstration", "console.stops", "console.server", "console.service",
              "console.consoles", "console.exchange", "console.generations", "console.local_queues", "console.proxies",
              "console.operation", "console.documents_api", "console.actions", "console.routes"}
IO_PACKAGES = {"cli", "kombu", "spark", "testing"}


def dotted(path: Path) -> str:
    """`reactor.tcp` for bmqtwist/reactor/tcp.py; a package's own name for its __init__."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank(name: str) -> float | None:
    """The rank of a dotted module name below bmqtwist; None for the package itself."""
    return RANKS[name.split(".")[0]] if name else None


def tree(path: Path) -> ast.Module:
    """Parse a module. Results are not kept: the collector would visit the nodes of some 800 files again and again."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


class Summary(NamedTuple):
    """Facts of a module that the tests of the structure evaluate."""

    docstring: str | None
    classes: list[str]
    imports: list[tuple[int, str]]  # line, dotted name; the names of a from-import are appended to its module


@cache
def summary(path: Path) -> Summary:
    """Read a module once and return its docstring, class names and imports."""
    module = tree(path)
    classes, imported = list[str](), list[tuple[int, str]]()
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Import):
            imported += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            imported += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return Summary(ast.get_docstring(module), classes, imported)


def imports(path: Path) -> list[tuple[int, str]]:
    """Return (line, dotted name) of each import of a module."""
    return summary(path).imports


def is_pure(name: str) -> bool:
    """Return whether a module must work without a reactor, a clock, a socket or a file."""
    return (name not in IO_MODULES and name.split(".")[0] not in IO_PACKAGES
            and not name.startswith("sdk.blazingmq"))


def graph() -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, at module level or in a function."""
    names = {dotted(path) for path in MODULES}
    found: dict[str, set[str]] = {}
    for path in MODULES:
        targets = set()
        for _, full in imports(path):
            if full.startswith("bmqtwist."):
                name = full.removeprefix("bmqtwist.")
                targets.add(name if name in names else name.rpartition(".")[0])
        found[dotted(path)] = (targets & names) - {dotted(path)}
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the cycles of imports: lists of modules that import each other, directly or through other modules."""
    reach: dict[str, set[str]] = {}
    for name in edges:
        seen, waiting = set[str](), [name]
        while waiting:
            for target in edges[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        reach[name] = seen
    found = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in edges if name in reach[name]}
    return [list(each) for each in sorted(found)]
