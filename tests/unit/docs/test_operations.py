"""docs/operations.md against the program: what an operator looks up there is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kit.layers import MODULES, PACKAGE, ROOT, dotted, tree

from bmqtwist.queue.meter import MeterState

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
CATEGORY = re.compile(r"[A-Z][A-Z_]+")


@cache
def constants(path: Path) -> dict[str, str]:
    """Texts that a module gives a name."""
    named = [(node.targets[0], node.value) for node in tree(path).body if isinstance(node, ast.Assign)]
    named += [(node.target, node.value) for node in tree(path).body if isinstance(node, ast.AnnAssign) and node.value]
    return {target.id: value.value for target, value in named if isinstance(target, ast.Name)
            and isinstance(value, ast.Constant) and isinstance(value.value, str)}


def raised(path: Path) -> Iterator[str]:
    """The categories of alarms that a module raises, or notes for somebody who does."""
    names = dict(constants(path))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
            source = PACKAGE.joinpath(*node.module.split(".")[1:]).with_suffix(".py")  # type: ignore[union-attr]
            known = constants(source) if source.exists() else {}
            names |= {alias.name: known[alias.name] for alias in node.names if alias.name in known}
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function, first = ast.unparse(node.func), node.args[0]
        if function.endswith("alarms.append") and isinstance(first, ast.Tuple):
            first = first.elts[0]
        elif not function.endswith((".alarm", ".panic", "alarm")):
            continue
        text = first.value if isinstance(first, ast.Constant) else names.get(ast.unparse(first))
        if isinstance(text, str) and CATEGORY.fullmatch(text):
            yield text


def test_every_category_of_alarms_is_explained_and_no_other() -> None:
    found = {category for path in MODULES if not dotted(path).startswith(("sdk", "cli", "kombu", "testing", "storagetool"))
             for category in raised(path)}
    found |= {f"CAPACITY_{state.name}" for state in MeterState if state != MeterState.STATE_NORMAL}
    table = PAGE.partition("## Log and alarms")[2].partition("\n## ")[0]
    explained = {category for row in table.splitlines() if row.startswith("| `")
                 for category in re.findall(r"`([A-Z][A-Z_]+)`", row.split(" | ")[0])}
    assert found == explained, f"missing: {found - explained}, unknown: {explained - found}"
    assert len(found) > 15


def test_the_table_of_limits_gives_the_numbers_of_the_program() -> None:
    """Those of `limits.py` that it names as fixed."""
    from bmqtwist import limits
    from bmqtwist.loop.scheduler import BUDGETS, BURST_S, Priority
    table = PAGE.partition("## Limits")[2]
    said = {
        "what they send":
            f"{limits.NEGOTIATION_BYTES_MAX >> 10} KiB each, {limits.UNAUTHENTICATED_BYTES_MAX >> 20} MiB together",
        "one control message of a client": f"{limits.CONTROL_BYTES_MAX >> 10} KiB",
        "one message, properties included": f"{limits.APPLICATION_DATA_BYTES_MAX >> 20} MiB",
        "options of a PUT": f"{limits.PUT_OPTIONS_BYTES_MAX >> 10} KiB",
        "what a compressed message inflates to, options included": f"{limits.INFLATED_BYTES_MAX >> 20} MiB",
        "length of a queue name, of a domain's with its tier":
            f"{limits.QUEUE_NAME_CHARS_MAX}, {limits.DOMAIN_NAME_CHARS_MAX}",
        "subscriptions of one consumer of one app": str(limits.SUBSCRIPTIONS_MAX),
        "delivered to one client in one turn; waiting for it before it gets nothing more":
            f"{limits.TURN_PUSH_BYTES_MAX >> 20} MiB; {limits.LAGGING_BYTES >> 20} MiB",
        "of one connection in one turn":
            f"{BURST_S * 1000:.0f} ms, and {BUDGETS[Priority.INPUT] * 1000:.0f} ms for all such connections, in slices of "
            f"{limits.SLICE_BYTES >> 10} KiB; "
            f"{limits.INFLATE_STEP_BYTES >> 10} KiB to inflate",
        "delivered of one queue in one turn": f"{limits.TURN_MESSAGES_MAX} messages, {limits.TURN_EVALUATIONS_MAX} looks at "
                                              f"expressions for each app, then {BUDGETS[Priority.DELIVERY] * 1000:.0f} ms",
        "expired messages of one queue removed at once": str(limits.MESSAGES_AT_ONCE),
        "purged messages, those of an app that is removed, and those a lost consumer held":
            f"{BUDGETS[Priority.QUEUE] * 1000:.0f} ms of a turn for all of them, {limits.MESSAGES_AT_ONCE} messages a slice",
        "expression": f"{limits.EXPRESSION_CHARS_MAX} characters, {limits.EXPRESSION_OPERATORS_MAX} operators, "
                      f"{limits.EXPRESSION_PROPERTIES_MAX} properties",
    }
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in table.splitlines() if row.startswith("| ")}
    assert {limit: number in rows.get(limit, "") for limit, number in said.items()} == dict.fromkeys(said, True)


def test_the_page_says_what_is_trusted() -> None:
    assert "## What is trusted" in PAGE
