"""Generator of the pictures of docs/architecture.md, machines.md and layouts.md: python docs/make_pictures.py

A picture stands between `<!-- picture: name -->` and `<!-- end of picture -->`.

    layers      tests/kit/layers.py, and the first lines of the packages
    way, three  tests/kit/message_way.py
    partition   bmqtwist/storage/availability.py
    elector     bmqtwist/cluster/elector.py
    replication bmqtwist/cluster/partition_machine.py
    link        bmqtwist/cluster/membership.py
    log         bmqtwist/cluster/metadata_log.py
    stream      bmqtwist/cluster/streams.py
    stop        bmqtwist/broker/graceful_stop.py
    session     bmqtwist/sdk/_core/session.py
    accepted    bmqtwist/link/negotiation.py, then client.py
    dialled     bmqtwist/link/negotiation.py, then peer.py
    queue       bmqtwist/queue/lifecycle.py
    activation  bmqtwist/member/activation.py
    upstream    bmqtwist/cluster/upstream.py
    drain       bmqtwist/relay/drain.py
    authentication    bmqtwist/link/authentication.py
    headers     bmqtwist/wire/layout.py
    files       bmqtwist/storage/layout.py
"""

from __future__ import annotations

import ast
import re
import string
import sys
from collections.abc import Mapping
from enum import Enum
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from kit.layers import IO_MODULES, IO_PACKAGES, PACKAGE, RANKS  # noqa: E402
from kit.message_way import WAY, WAY_OF_THREE, Step  # noqa: E402

from bmqtwist.broker import graceful_stop  # noqa: E402
from bmqtwist.cluster import elector, membership, metadata_log, partition_machine, streams, upstream  # noqa: E402
from bmqtwist.link import authentication, client, negotiation, peer  # noqa: E402
from bmqtwist.machine import Cell, event_name  # noqa: E402
from bmqtwist.member import activation  # noqa: E402
from bmqtwist.queue import lifecycle  # noqa: E402
from bmqtwist.relay import drain  # noqa: E402
from bmqtwist.sdk._core.session import SESSION  # noqa: E402
from bmqtwist.storage import layout as storage_layout  # noqa: E402
from bmqtwist.storage import rollover  # noqa: E402
from bmqtwist.storage.availability import TABLE, WriterState  # noqa: E402
from bmqtwist.wire import layout as wire_layout  # noqa: E402
from bmqtwist.wire.declare import Layout  # noqa: E402

ROW_BITS = 32
EVENTS_SHOWN = 5  # at most, with one edge of a state diagram
PAGES = [ROOT / "docs" / name for name in ("architecture.md", "machines.md", "layouts.md")]
_PICTURE = re.compile(r"(<!-- picture: (\w+) -->\n).*?(<!-- end of picture -->)", re.DOTALL)


def first_sentence(name: str) -> str:
    """The first sentence of the docstring of a package or module, without brackets at its end."""
    path = PACKAGE / f"{name}.py"
    source = path if path.is_file() else PACKAGE / name / "__init__.py"
    first = (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    sentence = re.split(r"\.(?: |$)", first)[0]
    return re.sub(r" \([^)]*\)$", "", sentence)


def acting_modules(package: str) -> str:
    """The modules of a package that act instead of deciding: they use files, sockets or the clock."""
    if package in IO_PACKAGES or package in IO_MODULES:
        return "all"
    modules = sorted(name.removeprefix(f"{package}.") for name in IO_MODULES if name.startswith(f"{package}."))
    return ", ".join(["blazingmq", *modules]) if package == "sdk" else ", ".join(modules)


def layers() -> str:
    """Packages and top-level modules, highest rank first."""
    lines = ["```text"]
    before: float | None = None
    for package, number in sorted(RANKS.items(), key=lambda entry: (-entry[1], entry[0])):
        shown = f"{number:g}" if number != before else ""
        name = f"{package}.py" if (PACKAGE / f"{package}.py").is_file() else f"{package}/"
        lines.append(f"{shown:>4} │ {name:<12} {first_sentence(package)}")
        if acting_modules(package):
            lines.append(f"{'':>4} │ {'':<12}   acts: {acting_modules(package)}")
        before = number
    return "\n".join([*lines, "```"])


def way(parts: list[tuple[str, list[Step]]]) -> str:
    """The functions that a message passes."""
    lines, number = ["```text"], 0
    for headline, steps in parts:
        lines.append(f"{headline}")
        for step in steps:
            number += 1
            mark = "s" if step.sockets else " "
            lines.append(f"{number:>3} {mark} {step.module:<23} {step.function:<30} {step.says}")
        lines.append("")
    return "\n".join([*lines[:-1], "```"])


def partition() -> str:
    """The states with one reason at most; several reasons are added and removed independently."""
    simple = [state for state in WriterState if "," not in state.value]
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> OPEN: activate(lease)"]
    lines += [f'    {state.name}: {state.value}' for state in simple]
    for state in simple:
        leads: dict[WriterState, list[str]] = {}
        for event, cell in TABLE[state].items():
            for target in cell.after & set(simple):
                leads.setdefault(target, []).append(event.value)
        lines += [f"    {state.name} --> {target.name}: {' or '.join(events)}" for target, events in leads.items()]
    return "\n".join([*lines, "    CLOSED --> [*]: stop", "```"])


def machine_picture(cells: Mapping[Any, Mapping[Any, Cell[Any]]]) -> str:
    """A table of bmqtwist/machine.py: the edges that change the state, with their events; it begins in its first state.
    Events that lead to the same states from every state except final ones are drawn once, from ANY."""
    states = list(cells)
    going = [state for state in states if any(cell.after for cell in cells[state].values())]
    common = {event for event, cell in cells[states[0]].items()
              if cell.after and all(cells[state][event].after == cell.after for state in going)}
    edges: dict[tuple[str, Enum], list[str]] = {}
    for before in going:
        for event, cell in cells[before].items():
            for after in sorted(cell.after, key=states.index):
                edge = edges.setdefault(("ANY" if event in common else before.name, after), [])
                if (event in common or after is not before) and event_name(event) not in edge:
                    edge.append(event_name(event))
    edges = {edge: events for edge, events in edges.items() if events}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {states[0].name}"]
    for (before, after), events in edges.items():
        if len(events) > EVENTS_SHOWN:
            events[EVENTS_SHOWN - 1:] = [f"{len(events) + 1 - EVENTS_SHOWN} more"]
        lines.append(f"    {before} --> {after.name}: {', '.join(events)}")
    return "\n".join([*lines, "```"])


def layout_picture(layout: Layout) -> str:
    """Rows of 32 bits; a longer field has one row with its size. A name too long for its cell is beside the row, with a
    letter in the cell."""
    rows: list[list[tuple[str, int]]] = [[]]
    for part in layout.parts:
        for name, bits in part.fields or (("", part.size * 8),):
            name, left = "" if name.startswith("_") else name, ROW_BITS - sum(size for _, size in rows[-1])
            if 0 < left < min(bits, ROW_BITS):
                rows[-1].append((name or "reserved", left))
                bits, left = bits - left, 0
            if left <= 0:
                rows.append([])
            rows[-1].append((f"{name or 'reserved'} ({bits // 8} bytes)" if bits > ROW_BITS else name or "reserved", bits))
    lines, edges = [], ""
    for row in rows:
        cells, key = "|", []
        for name, bits in row:
            width = 2 * min(bits, ROW_BITS) - 1
            letter = string.ascii_uppercase[len(key)]
            if len(name) > width and name != "reserved":
                key.append(f"{letter}: {name}")
            cells += f"{name if len(name) <= width else letter if name != 'reserved' else '':^{width}}|"
        line = "".join("+" if each == "|" else "-" for each in cells)
        above = "".join("+" if "+" in pair else "-" for pair in zip_longest(edges, line, fillvalue=""))
        lines += [above, f"{cells}   {', '.join(key)}".rstrip()]
        edges = line
    return "\n".join([*lines, edges])


def layouts(module: ModuleType) -> str:
    """Every layout of a module."""
    found = [(name, value) for name, value in vars(module).items() if isinstance(value, Layout) and not name.startswith("_")]
    return "\n".join(f"{name}, {value.size} bytes:\n\n```text\n{layout_picture(value)}\n```\n" for name, value in found)


PICTURES = {"headers": partial(layouts, wire_layout), "files": partial(layouts, storage_layout),
            "layers": layers, "way": partial(way, WAY), "three": partial(way, WAY_OF_THREE), "partition": partition,
            "elector": partial(machine_picture, elector.TABLE),
            "rollover": partial(machine_picture, rollover.TABLE),
            "replication": partial(machine_picture, partition_machine.TABLE),
            "link": partial(machine_picture, membership.TABLE), "stream": partial(machine_picture, streams.TABLE),
            "stop": partial(machine_picture, graceful_stop.TABLE), "log": partial(machine_picture, metadata_log.TABLE),
            "queue": partial(machine_picture, lifecycle.TABLE),
            "activation": partial(machine_picture, activation.TABLE),
            "upstream": partial(machine_picture, upstream.TABLE), "drain": partial(machine_picture, drain.TABLE),
            "authentication": partial(machine_picture, authentication.TABLE),
            "accepted": partial(machine_picture, {**negotiation.LIFECYCLE.table, **client.LIFECYCLE.table}),
            "dialled": partial(machine_picture, {**negotiation.DIALLED_LIFECYCLE.table, **peer.LIFECYCLE.table}),
            "session": partial(machine_picture, SESSION)}


def with_pictures(text: str) -> str:
    """Return a page with present pictures."""
    return _PICTURE.sub(lambda found: f"{found[1]}{PICTURES[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_pictures(page.read_text(encoding="utf-8")), encoding="utf-8")
