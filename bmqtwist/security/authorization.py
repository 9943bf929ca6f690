"""Authorization: actions, the plug-in interface of authorizers, and the built-in authorizers.

Without an authorizer or rules in the configuration nothing is checked or logged. An authorizer decides about (principal,
action, subject). The subject is the domain for QueueRead and QueueWrite, the cluster for ConnectClusterNode, else empty.

Rules are an ordered table; the first matching rule decides:

    principal          actions                                domain    effect
    BASIC_USER-ops*    ConnectAdmin, ExecuteAdminCommand      *         allow
    BASIC_USER-orders  ConnectClient, QueueRead, QueueWrite   t.*       allow
    *                  *                                      *         deny

In a rule that allows, `*` means the actions of applications; actions of administrators and brokers are allowed by name only.
In a rule that denies, `*` means all actions. If no rule matches, `default: allow` excludes the actions of administrators.

`authenticators.py` creates the authorizers; `broker/access.py` and `broker/commands.py` request decisions through
`Security.allows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Protocol

from bmqtwist.config.broker import RuleConfig
from bmqtwist.report import Report, shown

PluginValue = bool | int | float | str


class Action(Enum):
    """Actions that an authorizer allows or denies; the value is the name in rules and logs."""

    CONNECT_CLIENT = "ConnectClient"
    CONNECT_PROXY = "ConnectProxy"
    CONNECT_CLUSTER_NODE = "ConnectClusterNode"
    CONNECT_ADMIN = "ConnectAdmin"
    EXECUTE_ADMIN_COMMAND = "ExecuteAdminCommand"
    QUEUE_READ = "QueueRead"
    QUEUE_WRITE = "QueueWrite"


QUEUE_ACTIONS = frozenset({Action.QUEUE_READ, Action.QUEUE_WRITE})
APPLICATION_ACTIONS = QUEUE_ACTIONS | {Action.CONNECT_CLIENT}
ADMIN_ACTIONS = frozenset({Action.CONNECT_ADMIN, Action.EXECUTE_ADMIN_COMMAND})


class Authorizer(Protocol):
    """Plug-in for authorization decisions; called in the reactor's thread, so it must not block.

    `authorizer.name` contains the dotted name of a custom class, which is called with its settings and a Report.
    """

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        """Return whether `principal` may perform `action` on `subject`."""


class DefaultAuthorizer:
    """Allows and logs every action."""

    def __init__(self, settings: Mapping[str, PluginValue], report: Report) -> None:
        self._report = report

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        self._report.info("Authorize allow on %s [principal: '%s', subject: '%s']", action.value, shown(principal),
                          shown(subject))
        return True


class RulesAuthorizer:
    """Decides by the first matching rule, else by `default` (`allow` or `deny`); logs every denial."""

    def __init__(self, rules: Sequence[RuleConfig], default: str, report: Report) -> None:
        self._rules, self._default, self._report = tuple(rules), default, report

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        allowed = self.allows(principal, action, subject)
        if not allowed:
            self._report.warn("Authorize deny on %s [principal: '%s', subject: '%s']", action.value, shown(principal),
                              shown(subject))
        return allowed

    def allows(self, principal: str, action: Action, subject: str = "") -> bool:
        """Return the decision without logging it."""
        rule = self.rule(principal, action, subject)
        if rule is None:
            return self._default == "allow" and action not in ADMIN_ACTIONS
        return rule.effect == "allow"

    def rule(self, principal: str, action: Action, subject: str) -> RuleConfig | None:
        """Return the first matching rule; None = the default decides."""
        return next((rule for rule in self._rules if _matches(rule, principal, action, subject)), None)


class CombinedAuthorizer:
    """Two authorizers that must both allow an action."""

    def __init__(self, first: Authorizer, second: Authorizer) -> None:
        self.parts = first, second

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        """Return whether both allow the action; the second one is not called if the first one denies."""
        return all(each.authorize(principal, action, subject) for each in self.parts)


def allows_explicitly(authorizer: Authorizer, principal: str, action: Action, subject: str) -> bool:
    """Return whether an authorizer that allows an action does so by a rule or plug-in rather than by default."""
    if isinstance(authorizer, CombinedAuthorizer):
        return any(allows_explicitly(each, principal, action, subject) for each in authorizer.parts)
    if isinstance(authorizer, RulesAuthorizer):
        return authorizer.rule(principal, action, subject) is not None
    return not isinstance(authorizer, DefaultAuthorizer)


def is_unrestricted(authorizer: Authorizer | None, principal: str, action: Action, subject: str = "") -> bool:
    """Return whether no authorizer and no rule restricts the action of a principal; a custom authorizer counts as one."""
    if isinstance(authorizer, CombinedAuthorizer):
        return all(is_unrestricted(each, principal, action, subject) for each in authorizer.parts)
    if isinstance(authorizer, RulesAuthorizer):
        return authorizer.allows(principal, action, subject)
    return authorizer is None or isinstance(authorizer, DefaultAuthorizer)


def _matches(rule: RuleConfig, principal: str, action: Action, subject: str) -> bool:
    every = "*" in rule.actions and (rule.effect == "deny" or action in APPLICATION_ACTIONS)
    if not every and action.value not in rule.actions:
        return False
    if action in QUEUE_ACTIONS and not fnmatchcase(subject, rule.domain):
        return False
    return fnmatchcase(principal, rule.principal)
