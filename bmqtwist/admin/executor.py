"""Executor of admin commands: from the text of a command to the text of its answer.

`daemon/assemble.py` creates it and passes it the commands of connections and of the control pipe; the functions of the
commands are in `operations.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from bmqtwist import alarms
from bmqtwist.admin.commands import AdminContext, AnswerEncoding, AnswerKind, Command, CommandError, publish_intervals
from bmqtwist.admin.json import dump
from bmqtwist.admin.parse import parse
from bmqtwist.admin.table import DONE, ERROR
from bmqtwist.errors import LocalError, Refused
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.report import shown, traceback_text
from bmqtwist.steps import Awaited, Steps
from bmqtwist.view.events import NodeHistory
from bmqtwist.view.snapshot import ProcessState
from bmqtwist.view.statistics import Statistics

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

COMMAND_CHARS_MAX = 512  # of a command in the log


class AdminExecutor:
    """Executor of one broker; sessions and the control pipe call `execute`. `process` reads the state of the process;
    `history`: events and alarms of the node.
    """

    def __init__(self, broker: Broker, statistics: Statistics, process: Callable[[], ProcessState] = ProcessState,
                 history: NodeHistory | None = None) -> None:
        stats = broker.configuration.app.stats
        intervals = publish_intervals({plugin.name: plugin.publish_interval for plugin in stats.plugins},
                                     stats.snapshot_interval)
        history = history or NodeHistory("", lambda: float(broker.loop.wall(broker.loop.now)))
        self.context = AdminContext(broker, statistics, history, process, intervals)

    def execute(self, text: str, source: str) -> Steps[AdminAnswer | Awaited[AdminAnswer]]:
        """Run one command in steps; any text gets an answer. `source`: the sender, for the log."""
        report = self.context.broker.report
        logged = shown(text, COMMAND_CHARS_MAX)
        report.info("Received command '%s' [source: %s]", logged, source)
        try:
            command, encoding = parse(text)
        except CommandError as error:
            return self._answer(source, error.answer, True)
        try:
            result = yield from self.run(command, source)
            if isinstance(result, Awaited):
                return result.map(partial(self._encoded, source, encoding))
            return self._encoded(source, encoding, result)
        except Exception as error:
            report.alarm(alarms.INTERNAL_ERROR, "Command '%s' [source: %s]: %s", logged, source, traceback_text(error))
            return self._answer(source, f"Internal error: {type(error).__name__}. See the broker's log.\n", True)

    def _encoded(self, source: str, encoding: AnswerEncoding, result: tuple[AnswerKind, Any]) -> AdminAnswer:
        kind, value = result
        return self._answer(source, kind.text(value) if encoding is AnswerEncoding.TEXT else dump(
            {kind.name: kind.tree(value)}, encoding is AnswerEncoding.JSON_PRETTY), kind is ERROR)

    def _answer(self, source: str, text: str, failed: bool) -> AdminAnswer:
        self.context.broker.report.info("Send response message to '%s': %d characters", source, len(text))
        return AdminAnswer(text.encode("utf-8", "replace").decode(), failed)  # JSON may contain half a surrogate pair

    def run(self, command: Command, source: str = ""
            ) -> Steps[tuple[AnswerKind, Any] | Awaited[tuple[AnswerKind, Any]]]:
        """Run a parsed command and return the kind of its answer, and the result; a refusal is an ERROR. The reason that an
        `Awaited` results in is a refusal, too."""
        try:
            result = command.entry.run(replace(self.context, source=source), *command.arguments)
            if isinstance(result, Generator):
                result = yield from result
            if isinstance(result, Awaited):
                return result.map(lambda reason: (ERROR, reason) if reason else (DONE, None))
            return (DONE if result is None else command.entry.answer), result
        except Refused as refused:
            return ERROR, refused.message
        except LocalError as error:
            return ERROR, str(error)
