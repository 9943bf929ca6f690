"""Commands that look at the broker as the console does: the same documents, as JSON or as text."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from bmqtwist.admin import commands, look_text
from bmqtwist.admin.results import Look, Result
from bmqtwist.view import elections, messages, replicas, stopping, subscriptions
from bmqtwist.view.node_history import NodeHistory

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

EVENTS_SHOWN = 100
SUBSCRIPTION_MESSAGES = 50  # the last stored ones, on which an expression is tried

Work = Result | Generator[None, None, Result]


class Looks:
    """Those of one broker. `history`: what its node remembers."""

    def __init__(self, broker: Broker, history: NodeHistory) -> None:
        self._broker, self._history = broker, history

    def run(self, command: commands.Command, source: str) -> Work:
        """Run a command of this module's kind for somebody; it may pause now and then."""
        return _HANDLERS[type(command)](self, command, source)

    def _events(self, command: commands.Events, source: str) -> Result:
        log = self._history.events
        found = log.last(EVENTS_SHOWN) if command.after is None else log.after(command.after)
        return Look("events", [event.tree() for event in found], look_text.events(found))

    def _alarms(self, command: commands.Alarms, source: str) -> Result:
        found = self._history.alarms.alarms()
        return Look("alarms", [alarm.tree() for alarm in found], look_text.alarms(found))

    def _mark(self, command: commands.AlarmMark, source: str) -> Result:
        book = self._history.alarms
        alarm = (book.clear if command.clear else book.acknowledge)(command.alarm_id, source)
        return Look("alarm", alarm.tree(), look_text.alarms([alarm]))

    def _log(self, command: commands.LogLines, source: str) -> Result:
        lines = self._broker.report.tail(command.count or 1 << 31)
        return Look("log", [line._asdict() for line in lines], look_text.log(lines))

    def _preflight(self, command: commands.StopQuestion, source: str) -> Result:
        tree = stopping.preflight(self._broker)
        return Look("stopPreflight", tree, look_text.preflight(tree))

    def _replicas(self, command: commands.StorageReplicas, source: str) -> Result:
        tree = replicas.partitions(self._broker, command.cluster)
        return Look("replicas", tree, look_text.replicas(tree))

    def _terms(self, command: commands.ElectorTerms, source: str) -> Result:
        tree = elections.elections(self._broker, self._history.events, command.cluster)
        return Look("elections", tree, look_text.terms(tree))

    def _messages(self, command: commands.QueueMessages, source: str) -> Generator[None, None, Result]:
        tree = yield from messages.listing(self._broker, _uri(command), command.after or "",
                                           abs(command.count) or messages.LIMIT_MAX, newest=command.count < 0)
        return Look("messages", tree, look_text.messages(tree))

    def _message(self, command: commands.QueueMessage, source: str) -> Generator[None, None, Result]:
        tree = yield from messages.whole(self._broker, _uri(command), command.guid)
        return Look("message", tree, look_text.message(tree))

    def _subscription(self, command: commands.QueueSubscription, source: str) -> Generator[None, None, Result]:
        tree = yield from subscriptions.test(self._broker, _uri(command), command.expression, None, SUBSCRIPTION_MESSAGES)
        return Look("subscription", tree, look_text.subscription(command.expression, tree))


def _uri(command: commands.QueueMessages | commands.QueueMessage | commands.QueueSubscription) -> str:
    return f"bmq://{command.domain}/{command.queue}"


_HANDLERS: dict[type, Callable[[Looks, Any, str], Work]] = {
    commands.Events: Looks._events,
    commands.Alarms: Looks._alarms,
    commands.AlarmMark: Looks._mark,
    commands.LogLines: Looks._log,
    commands.StopQuestion: Looks._preflight,
    commands.StorageReplicas: Looks._replicas,
    commands.ElectorTerms: Looks._terms,
    commands.QueueMessages: Looks._messages,
    commands.QueueMessage: Looks._message,
    commands.QueueSubscription: Looks._subscription,
}
