"""Who may do what: actions, the plug-in interface of authorizers, and the two that come along.

Nothing is checked, and nothing logged, unless the configuration names an authorizer. An authorizer answers yes or no
for (principal, action, subject) where the subject is the domain of QueueRead and QueueWrite, the cluster of
ConnectClusterNode, and empty otherwise.

`TableAuthorizer` reads its rules from its settings, one per entry:

    {"key": "QueueRead t.*", "value": {"stringVal": "BASIC_USER-alice, BASIC_USER-ops*"}}
    {"key": "Connect*",      "value": {"stringVal": "*"}}

The key is a pattern of actions, optionally followed by a pattern of subjects; the value lists patterns of principals.
Patterns are those of the shell (`*`, `?`, `[a-z]`), case-sensitive. What no rule allows is denied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Protocol

from bmqtwist.errors import LocalError
from bmqtwist.report import Report

Setting = bool | int | float | str


class Action(Enum):
    """What somebody wants to do."""

    CONNECT_CLIENT = "ConnectClient"
    CONNECT_PROXY = "ConnectProxy"
    CONNECT_CLUSTER_NODE = "ConnectClusterNode"
    CONNECT_ADMIN = "ConnectAdmin"
    EXECUTE_ADMIN_COMMAND = "ExecuteAdminCommand"
    QUEUE_READ = "QueueRead"
    QUEUE_WRITE = "QueueWrite"


class Authorizer(Protocol):
    """A plug-in that decides; called on the reactor's thread, so it answers at once."""

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        """May `principal` do this to `subject`?"""


class DefaultAuthorizer:
    """Allows everything and says so."""

    def __init__(self, settings: Mapping[str, Setting], report: Report) -> None:
        self._report = report

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        """Yes."""
        self._report.info("Authorize allow on %s [principal: '%s', subject: '%s']", action.value, principal, subject)
        return True


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a table: patterns of action, subject and principals."""

    action: str
    subject: str
    principals: tuple[str, ...]

    def allows(self, principal: str, action: Action, subject: str) -> bool:
        """Does this rule speak of it?"""
        return (fnmatchcase(action.value, self.action) and fnmatchcase(subject, self.subject)
                and any(fnmatchcase(principal, pattern) for pattern in self.principals))


class TableAuthorizer:
    """Allows what its rules allow; every denial is logged."""

    def __init__(self, settings: Mapping[str, Setting], report: Report) -> None:
        self._report = report
        self.rules = tuple(_rule(key, value) for key, value in settings.items())

    def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
        """Yes if any rule says so."""
        if any(rule.allows(principal, action, subject) for rule in self.rules):
            return True
        self._report.warn("Authorize deny on %s [principal: '%s', subject: '%s']", action.value, principal, subject)
        return False


def _rule(key: str, value: Setting) -> Rule:
    action, _, subject = key.strip().partition(" ")
    if not any(fnmatchcase(known.value, action) for known in Action):
        raise LocalError(f"TableAuthorizer: the key '{key}' names no action; write one of "
                         f"{', '.join(known.value for known in Action)}, or a pattern of them.")
    principals = tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else ()
    if not principals:
        raise LocalError(f"TableAuthorizer: the rule '{key}' needs a stringVal that lists principals.")
    return Rule(action, subject.strip() or "*", principals)
