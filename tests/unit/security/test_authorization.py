"""Authorization: rules and the default authorizer."""

from __future__ import annotations

from bmqtwist.config.broker import RuleConfig
from bmqtwist.report import ListReport
from bmqtwist.security.authorization import Action, DefaultAuthorizer, RulesAuthorizer


def rule(principal: str, actions: tuple[str, ...], domain: str, effect: str) -> RuleConfig:
    """Return a rule."""
    return RuleConfig(principal=principal, actions=actions, domain=domain, effect=effect)  # type: ignore[arg-type]


TABLE = (rule("BASIC_USER-ops*", ("*",), "*", "allow"),
         rule("good", ("ConnectAdmin",), "nowhere", "allow"),
         rule("BASIC_USER-alice", ("QueueWrite",), "t.orders", "allow"),
         rule("*", ("QueueRead",), "t.*", "allow"),
         rule("*", ("QueueRead", "QueueWrite"), "*", "deny"),
         rule("evil", ("ConnectClient", "ConnectAdmin"), "nowhere", "deny"))


def test_the_default_authorizer_allows_everything_and_logs_it() -> None:
    """Operators search the log for this line."""
    report = ListReport()
    authorizer = DefaultAuthorizer({}, report)
    assert all(authorizer.authorize("a principal", action, "any") for action in Action)
    assert all(line.startswith("Authorize allow on ") for line in report.texts("INFO"))
    assert len(report.lines) == len(Action)


def test_the_first_matching_rule_determines_the_result() -> None:
    """Permission to read one domain must not permit writing, or reading another domain."""
    report = ListReport()
    table = RulesAuthorizer(TABLE, "allow", report)
    assert table.authorize("BASIC_USER-ops7", Action.QUEUE_WRITE, "x.anything")
    assert table.authorize("BASIC_USER-alice", Action.QUEUE_WRITE, "t.orders")
    assert table.authorize("BASIC_USER-bob", Action.QUEUE_READ, "t.orders")
    assert report.lines == []
    assert not table.authorize("BASIC_USER-bob", Action.QUEUE_WRITE, "t.orders")
    assert not table.authorize("BASIC_USER-alice", Action.QUEUE_READ, "x.orders")
    assert len(report.texts("WARN")) == 2


def test_a_domain_pattern_applies_only_to_queue_actions() -> None:
    """A connection has no domain, so the domain of a rule does not matter for it."""
    table = RulesAuthorizer(TABLE, "allow", ListReport())
    assert not table.authorize("evil", Action.CONNECT_ADMIN)
    assert table.authorize("good", Action.CONNECT_ADMIN)


def test_actions_without_matching_rule_get_the_default() -> None:
    """The default is `allow`, which excludes admin commands, or `deny`."""
    assert RulesAuthorizer((), "allow", ListReport()).authorize("x", Action.QUEUE_WRITE)
    assert not RulesAuthorizer((), "allow", ListReport()).authorize("x", Action.EXECUTE_ADMIN_COMMAND)
    assert not any(RulesAuthorizer((), "deny", ListReport()).authorize("x", action) for action in Action)


def test_rule_patterns_are_case_sensitive() -> None:
    """Domain names are case-sensitive, too."""
    table = RulesAuthorizer((rule("u", ("*",), "T.a", "allow"),), "deny", ListReport())
    assert table.authorize("u", Action.QUEUE_WRITE, "T.a")
    assert not table.authorize("u", Action.QUEUE_WRITE, "t.a")
