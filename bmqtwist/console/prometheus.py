"""Prometheus' text format for the metric families of `view.prometheus`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bmqtwist.steps import Steps, in_steps
from bmqtwist.view.prometheus import POINTS_AT_ONCE, Family, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]")


def exposition_in_steps(families: Iterable[Family], prefix: str = "", instance: str = "") -> Steps[str]:
    """The whole text. `prefix` goes in front of every name, `instance` replaces the label Instance where it is given."""
    prefix = _NOT_IN_A_NAME.sub("_", prefix)
    lines: list[str] = []
    for family in families:
        def line(sample: tuple[Labels, float], name: str = prefix + family.name) -> str:
            inside = ",".join([f'{key}="{_escaped(instance if instance and key == "Instance" else text)}"'
                               for key, text in sample[0] if text])
            number = int(sample[1]) if float(sample[1]).is_integer() else sample[1]
            return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"
        lines.append(f"# TYPE {prefix}{family.name} {family.kind}")
        lines += yield from in_steps(family.samples, line, POINTS_AT_ONCE)
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
