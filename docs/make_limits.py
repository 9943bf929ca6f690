"""Generator of the tables of docs/limits.md, from the code: python docs/make_limits.py

A limit is a constant of `bmqtwist/` with a name as in `NAME`, or a number in the configuration with `max` in its name.
`tests/unit/docs/test_limits.py` compares the file with `refresh`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from bmqtwist.config.broker import BmqtwistConfig, Http, TcpInterface
from bmqtwist.config.declare import Declaration, Section
from bmqtwist.config.domain import DomainConfig

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
COMMON = ROOT / "bmqtwist" / "limits.py"
PACKAGES = ("admin", "broker", "cluster", "config", "console", "daemon", "link", "logs", "loop", "member", "peers",
            "queue", "reactor", "relay", "security", "storage", "view", "wire")
NAME = re.compile(r"(^|_)(MAX|AT_ONCE|PER_SECOND|PER_ADDRESS|PER_S|BURST|RESERVE|RESERVED|SHARE)(_|$)")
VALUE = re.compile(r"[0-9_\s<>*().+\-]+")
UNITS = (("_BYTES", "B"), ("_SECONDS", "s"), ("_S_MAX", "s"), ("_INTERVAL_S", "s"), ("_CHARS", "characters"),
         ("_PERCENT", "%"))


def refresh(text: str) -> str:
    """Return a page with the present tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{_configured()}\n{_fixed()}\n{END}{after}"


def _configured() -> str:
    rows = ["## Configured\n", "| member | default | unit | limit |", "|---|---|---|---|"]
    for prefix, section in (("tcpInterface", TcpInterface), ("bmqtwist", BmqtwistConfig), ("bmqtwist.http", Http),
                            ("domains/*.json", DomainConfig)):
        rows += [f"| `{prefix}.{each.name}` | {each.default:,} | {each.unit or 'number'} | {each.text} |"
                 for each in _members(section)]
    return "\n".join([*rows, ""])


def _members(section: type[Section]) -> list[Declaration]:
    return [each for each in section.DECLARED if re.search(r"Max$|Max[A-Z]|^max", each.name) and type(each.default) is int]


def _fixed() -> str:
    rows = ["## Fixed\n", "| constant | value | unit | limit | owner |", "|---|---|---|---|---|"]
    for path in (COMMON, *sorted(path for each in PACKAGES for path in (ROOT / "bmqtwist" / each).rglob("*.py"))):
        for name, value, comment in _constants(path):
            owner = _users(name) if path == COMMON else str(path.relative_to(ROOT / "bmqtwist"))
            rows.append(f"| `{name}` | {value:,} | {_unit(name)} | {comment or '-'} | {owner} |")
    return "\n".join([*rows, ""])


def _unit(name: str) -> str:
    return next((unit for part, unit in UNITS if part in name or name.endswith(part)), "number")


def _constants(path: Path) -> list[tuple[str, float, str]]:
    """Return (name, value, comment) of the limits in a module."""
    found, lines = [], path.read_text(encoding="utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and NAME.search(target.id):
            source = ast.unparse(node.value)
            if VALUE.fullmatch(source):
                comment = lines[node.lineno - 1].partition("  # ")[2]
                found.append((target.id.lstrip("_"), eval(source), comment.replace("|", "\\|")))  # noqa: S307 - digits only
    return found


def _users(name: str) -> str:
    """Return the modules that import a common limit."""
    word = re.compile(rf"\b{name}\b")
    found = [str(path.relative_to(ROOT / "bmqtwist")) for path in sorted((ROOT / "bmqtwist").rglob("*.py"))
             if path != COMMON and word.search(path.read_text(encoding="utf-8"))]
    return ", ".join(found)


if __name__ == "__main__":
    target = Path(__file__).with_name("limits.md")
    target.write_text(refresh(target.read_text(encoding="utf-8")), encoding="utf-8")
