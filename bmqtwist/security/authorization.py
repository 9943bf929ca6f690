"""Who may do what: actions, the plug-in interface of authorizers, and the two that come along.

Nothing is checked, and nothing logged, unless the configuration names an authorizer or has rules. An authorizer answers
yes or no for (principal, action, subject) where the subject is the domain of QueueRead and QueueWrite, the cluster of
ConnectClusterNode, and empty otherwise.

Rules are a table, read from above; the first one that matches decides:

    principal          actions                  domain    effect
    BASIC_USER-ops*    *                        *         allow
    *                  QueueRead                t.*       allow
    *                  QueueRead, QueueWrite    *         deny
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Protocol

from bmqtwist.config.broker import RuleConfig
from bmqtwist.report import Report, shown

Setting = bool | int | float | str


class Action(Enum):
    CONNECT_CLIENT = "ConnectClient"
    CONNECT_PROXY = "ConnectProxy"
    CONNECT_CLUSTER_NODE = "ConnectClusterNode"
    CONNECT_ADMIN = "ConnectAdmin"
    EXECUTE_ADMIN_COMMAND = "ExecuteAdminCommand"
    QUEUE_READ = "QueueRead"
    QUEUE_WRITE = "QueueWrite"


QUEUE_ACTIONS = frozenset({Action.QUEUE_READ, Action.QUEUE_WRITE})


class Authorizer(Protocol):
    """A plug-in that decides; called on the reactor's thread, so it answers at once.

    A class of one's own is named by its dotted name in `authorizer.name` and made with its settings and a Report.
    """

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        """May `principal` do this to `subject`?"""


class DefaultAuthorizer:
    """Allows everything and says so."""

    def __init__(self, settings: Mapping[str, Setting], report: Report) -> None:
        self._report = report

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        self._report.info("Authorize allow on %s [principal: '%s', subject: '%s']", action.value, shown(principal),
                          shown(subject))
        return True


class RulesAuthorizer:
    """Decides by the first rule that matches, else by `default` (`allow` or `deny`); every denial is logged."""

    def __init__(self, rules: Sequence[RuleConfig], default: str, report: Report) -> None:
        self._rules, self._default, self._report = tuple(rules), default, report

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        rule = self.rule(principal, action, subject)
        effect = self._default if rule is None else rule.effect
        if effect != "allow":
            self._report.warn("Authorize deny on %s [principal: '%s', subject: '%s']", action.value, shown(principal),
                              shown(subject))
        return effect == "allow"

    def rule(self, principal: str, action: Action, subject: str) -> RuleConfig | None:
        """The first rule that matches; None = the default decides."""
        return next((rule for rule in self._rules if _matches(rule, principal, action, subject)), None)


class Both:
    """Two authorizers of which each must agree."""

    def __init__(self, first: Authorizer, second: Authorizer) -> None:
        self.parts = first, second

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        """Yes if both say so; the second is not asked when the first denies."""
        return all(each.authorize(principal, action, subject) for each in self.parts)


def speaks_of(authorizer: Authorizer, principal: str, action: Action, subject: str) -> bool:
    """Whether an authorizer that allows something does so because somebody has said so, rather than because nobody has."""
    if isinstance(authorizer, Both):
        return any(speaks_of(each, principal, action, subject) for each in authorizer.parts)
    if isinstance(authorizer, RulesAuthorizer):
        return authorizer.rule(principal, action, subject) is not None
    return not isinstance(authorizer, DefaultAuthorizer)


def _matches(rule: RuleConfig, principal: str, action: Action, subject: str) -> bool:
    if "*" not in rule.actions and action.value not in rule.actions:
        return False
    if action in QUEUE_ACTIONS and not fnmatchcase(subject, rule.domain):
        return False
    return fnmatchcase(principal, rule.principal)
