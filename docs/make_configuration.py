"""Generator of the tables of docs/configuration.md, from the code: python docs/make_configuration.py

`tests/unit/config/test_config.py` compares the file with `refresh`. The members are declared in `bmqtwist/config/broker.py`,
`clusters.py` and `domain.py`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bmqtwist.config.broker import BrokerConfig
from bmqtwist.config.clusters import Clusters
from bmqtwist.config.declare import Declaration, Scalar, Section
from bmqtwist.config.domain import DomainVariant

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
FILES = (("bmqbrkrcfg.json", BrokerConfig), ("clusters.json", Clusters), ("domains/&lt;name&gt;.json", DomainVariant))


def tables() -> str:
    """One heading per file, one table per object, in the order of the members."""
    parts = []
    for file, root in FILES:
        parts.append(f"## {file}\n")
        seen: set[type] = set()
        parts += _object(root, "", seen)
    return "\n".join(parts)


def _object(cls: type[Section], path: str, seen: set[type]) -> list[str]:
    members = cls.DECLARED
    if cls in seen or not members:
        return []
    seen.add(cls)
    lines = [f"### `{path}`\n"] if path else []
    if cls.IS_CHOICE:
        lines.append("Exactly one of:\n")
    lines += ["| member | type | default | unit | effect |", "|---|---|---|---|---|"]
    lines += [_row(declared) for declared in members]
    lines.append("")
    for declared in members:
        if not isinstance(declared.kind, Scalar):
            inner = f"{path}.{declared.name}" if path else declared.name
            lines += _object(declared.kind, inner + ("[]" if declared.many else ""), seen)
    return lines


def _row(declared: Declaration) -> str:
    text = f"*ignored: {declared.ignored}.* {declared.text}" if declared.ignored else declared.text
    cells = (f"`{declared.name}`", _kind(declared), _default(declared), declared.unit, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(declared: Declaration) -> str:
    name = declared.kind.name if isinstance(declared.kind, Scalar) else "object"
    return f"array of {name}" if declared.many else name


def _default(declared: Declaration) -> str:
    if declared.mandatory:
        return "**mandatory**"
    default = declared.default
    if default is None or default == () or dataclasses.is_dataclass(default):
        return ""
    if isinstance(default, bool):
        return "true" if default else "false"
    return f'"{default}"'.replace("\n", "\\n") if isinstance(default, str) else str(default)


def refresh(text: str) -> str:
    """A document with the tables between its markers replaced by the present ones."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    target = Path(__file__).with_name("configuration.md")
    target.write_text(refresh(target.read_text(encoding="utf-8")), encoding="utf-8")
