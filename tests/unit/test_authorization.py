"""Who may do what."""

from __future__ import annotations

import pytest

from bmqtwist.errors import LocalError
from bmqtwist.node.authorization import Action, DefaultAuthorizer, TableAuthorizer
from bmqtwist.report import ListReport


def test_the_default_authorizer_allows_everything_and_logs_it() -> None:
    """Operators grep for the line."""
    report = ListReport()
    authorizer = DefaultAuthorizer({}, report)
    assert all(authorizer.authorize("anybody", action, "any") for action in Action)
    assert all(line.startswith("Authorize allow on ") for line in report.texts("INFO"))
    assert len(report.lines) == len(Action)


def test_a_table_allows_what_a_rule_says_and_denies_the_rest() -> None:
    """Reading one domain must not open another, nor writing."""
    report = ListReport()
    table = TableAuthorizer({"QueueRead t.*": "BASIC_USER-alice, BASIC_USER-ops*", "Connect*": "*"}, report)
    assert table.authorize("BASIC_USER-alice", Action.QUEUE_READ, "t.orders")
    assert table.authorize("BASIC_USER-ops7", Action.QUEUE_READ, "t.orders")
    assert not table.authorize("BASIC_USER-bob", Action.QUEUE_READ, "t.orders")
    assert not table.authorize("BASIC_USER-alice", Action.QUEUE_WRITE, "t.orders")
    assert not table.authorize("BASIC_USER-alice", Action.QUEUE_READ, "x.orders")
    assert table.authorize("anonymous", Action.CONNECT_ADMIN)
    assert not table.authorize("anonymous", Action.EXECUTE_ADMIN_COMMAND)
    assert len(report.texts("WARN")) == 4


def test_patterns_are_case_sensitive() -> None:
    """Domain names are."""
    table = TableAuthorizer({"Queue* T.a": "u"}, ListReport())
    assert table.authorize("u", Action.QUEUE_WRITE, "T.a")
    assert not table.authorize("u", Action.QUEUE_WRITE, "t.a")


@pytest.mark.parametrize(("key", "value"), [("QueueReed t.*", "u"), ("QueueRead t.*", ""), ("QueueRead t.*", True)])
def test_a_rule_that_can_never_apply_is_refused(key: str, value: str) -> None:
    """A typing mistake in a rule would otherwise lock somebody out, or be believed to."""
    with pytest.raises(LocalError):
        TableAuthorizer({key: value}, ListReport())
