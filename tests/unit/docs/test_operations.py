"""docs/alarms.md and docs/operations.md against the program: alarms, limits."""

from __future__ import annotations

import ast
import re
import runpy

from kit.layers import MODULES, ROOT, dotted, tree

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.errors import AckStatus

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_declared_alarm_is_raised() -> None:
    """A declaration without a use describes an alarm that operators never see."""
    names = {name for name, value in vars(alarms).items() if isinstance(value, AlarmKind)}
    assert len(names) == len(alarms.CATALOGUE) > 60
    used = {node.attr for path in MODULES if dotted(path) != "alarms" for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "alarms"}
    assert names - used - {"OPERATOR"} == set(), "declared, and not raised"


def test_every_status_of_an_ack_is_explained() -> None:
    page = (ROOT / "docs" / "alarms.md").read_text(encoding="utf-8")
    missing = [status.name for status in AckStatus if status and f"| {status.value} | `{status.name}` |" not in page]
    assert not missing


def test_every_state_of_a_member_is_explained_and_no_other() -> None:
    table = PAGE.partition("| state | meaning | what to do |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([A-Z_]+)` \|", table, re.MULTILINE)) == sorted(state.name for state in MemberState)


def test_the_page_of_alarms_is_up_to_date() -> None:
    page = ROOT / "docs" / "alarms.md"
    refresh = runpy.run_path(str(ROOT / "docs" / "make_alarms.py"))["refresh"]
    assert refresh(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8"), "run: python docs/make_alarms.py"


def test_the_table_of_limits_gives_the_numbers_of_the_program() -> None:
    """Those of `limits.py` that it names as fixed."""
    from bmqtwist import limits
    from bmqtwist.loop.scheduler import BUDGETS, BURST_S, Priority
    table = PAGE.partition("## Limits")[2]
    said = {
        "input of a connection that is not negotiated yet":
            f"{limits.NEGOTIATION_BYTES_MAX >> 10} KiB each, {limits.UNAUTHENTICATED_BYTES_MAX >> 20} MiB together",
        "size of one control message of a client": f"{limits.CONTROL_BYTES_MAX >> 10} KiB",
        "size of one message, properties included": f"{limits.APPLICATION_DATA_BYTES_MAX >> 20} MiB",
        "options of a PUT": f"{limits.PUT_OPTIONS_BYTES_MAX >> 10} KiB",
        "size of a message after decompression, options included": f"{limits.INFLATED_BYTES_MAX >> 20} MiB",
        "length of a queue name, of a domain's with its tier":
            f"{limits.QUEUE_NAME_CHARS_MAX}, {limits.DOMAIN_NAME_CHARS_MAX}",
        "subscriptions of one consumer of one app": str(limits.SUBSCRIPTIONS_MAX),
        "deliveries to one client in one turn; unread output at which its deliveries pause":
            f"{limits.TURN_PUSH_BYTES_MAX >> 20} MiB; {limits.LAGGING_BYTES >> 20} MiB",
        "input of one connection processed in one turn":
            f"{BURST_S * 1000:.0f} ms, and {BUDGETS[Priority.INPUT] * 1000:.0f} ms for all such connections, in slices of "
            f"{limits.SLICE_BYTES >> 10} KiB; "
            f"{limits.INFLATE_STEP_BYTES >> 10} KiB to inflate",
        "deliveries of one queue in one turn":
            f"{limits.TURN_MESSAGES_MAX} messages, {limits.TURN_EVALUATIONS_MAX} evaluations of expressions for each app, "
            f"then {BUDGETS[Priority.DELIVERY] * 1000:.0f} ms",
        "expired messages of one queue removed at once": str(limits.MESSAGES_AT_ONCE),
        "purged messages, messages of a removed app, unconfirmed messages of a lost consumer":
            f"{BUDGETS[Priority.QUEUE] * 1000:.0f} ms of a turn for all of them, {limits.MESSAGES_AT_ONCE} messages a slice",
        "expression": f"{limits.EXPRESSION_CHARS_MAX} characters, {limits.EXPRESSION_OPERATORS_MAX} operators, "
                      f"{limits.EXPRESSION_PROPERTIES_MAX} properties",
    }
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in table.splitlines() if row.startswith("| ")}
    assert {limit: number in rows.get(limit, "") for limit, number in said.items()} == dict.fromkeys(said, True)


def test_the_page_lists_the_trusted_parties() -> None:
    assert "## What is trusted" in PAGE
