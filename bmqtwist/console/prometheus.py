"""Prometheus' text format for the metric families of `node.prometheus`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bmqtwist.monitor.prometheus import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]")


def exposition(families: Iterable[Family], prefix: str = "", instance: str = "") -> str:
    """The whole text. `prefix` goes in front of every name, `instance` replaces the label Instance where it is given."""
    prefix = _NOT_IN_A_NAME.sub("_", prefix)
    lines: list[str] = []
    for family in families:
        name = prefix + family.name
        lines.append(f"# TYPE {name} {family.kind}")
        for labels, value in family.samples:
            inside = ",".join([f'{key}="{_escaped(instance if instance and key == "Instance" else text)}"'
                               for key, text in labels if text])
            number = int(value) if float(value).is_integer() else value
            lines.append(f"{name}{{{inside}}} {number}" if inside else f"{name} {number}")
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
