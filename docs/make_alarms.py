"""Generator of the tables of docs/alarms.md, from the catalogue `bmqtwist/alarms.py`: python docs/make_alarms.py

`tests/unit/docs/test_operations.py` compares the file with `refresh`.
"""

from __future__ import annotations

from pathlib import Path

from bmqtwist.alarms import CATALOGUE, AlarmKind

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
HEAD = "| alarm | meaning | effect | what to do | cleared by the broker when |\n|---|---|---|---|---|"


def tables() -> str:
    """Return one table for each category, categories and alarms in alphabetical order."""
    by_category: dict[str, list[AlarmKind]] = {}
    for kind in CATALOGUE.values():
        by_category.setdefault(kind.category, []).append(kind)
    parts = []
    for category in sorted(by_category):
        rows = [_row(kind) for kind in sorted(by_category[category], key=lambda kind: kind.id)]
        parts.append("\n".join([f"## {category}\n", HEAD, *rows, ""]))
    return "\n".join(parts)


def _row(kind: AlarmKind) -> str:
    name = f'<a id="{kind.id}"></a>`{kind.id}`' + (" (PANIC)" if kind.severity == "PANIC" else "")
    remedy = kind.remedy.replace("docs/operations.md", "[operations.md](operations.md)")
    return "| " + " | ".join((name, kind.meaning, kind.effect, remedy, kind.clears or "never")) + " |"


def refresh(text: str) -> str:
    """Return a page with the present tables between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    target = Path(__file__).with_name("alarms.md")
    target.write_text(refresh(target.read_text(encoding="utf-8")), encoding="utf-8")
