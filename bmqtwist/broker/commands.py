"""Admin commands of one broker: jobs of the scheduler, answered when their changes of the metadata are committed.

`link/admin.py` (administrators), `console/operation.py` and the control pipe (`daemon/service.py`) run commands with it.
Their parsing and execution is in `admin/executor.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bmqtwist.link.admin import AdminAnswer, AdminSession
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.member.cluster import Cluster
from bmqtwist.report import shown
from bmqtwist.security.authenticators import Security
from bmqtwist.security.authorization import Action
from bmqtwist.steps import Awaited, Steps, at_once

BEGUN = "BEGUN"  # answer to a command that is in progress


class Commands:
    """`execute(command, source)` parses and executes one command; `daemon/assemble.py` sets it."""

    execute: Callable[[str, str], Steps[AdminAnswer | Awaited[AdminAnswer]]]

    def __init__(self, loop: Loop, clusters: dict[str, Cluster], security: Security) -> None:
        self._loop, self._clusters, self._security = loop, clusters, security

    def run_admin(self, admin: AdminSession, r_id: int, command: str) -> None:
        """Run a command of an administrator's session, if it is authorized."""
        session = admin.session
        if not self._security.allows(session.authentication.principal, Action.EXECUTE_ADMIN_COMMAND):
            admin.answer(r_id, "Command not authorized")
            return
        self.run(command, session.peer, lambda answer: admin.answer(r_id, answer.text))

    def run(self, command: str, source: str, done: Callable[[AdminAnswer], None]) -> None:
        """Run a command as a job; `done` receives the answer when the changed metadata is committed."""
        def work() -> Steps[AdminAnswer | Awaited[AdminAnswer]]:
            return (yield from self.execute(command, source))
        self.run_job(work(), done, partial(self._loop.isolation.alarm, f"Command '{shown(command)}'"))

    def run_job(self, work: Steps[Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        """Run the work of an operator as a job; `done` receives its result when the changed metadata is committed; the
        result of an Awaited when it is known."""
        metadata = [cluster.metadata for cluster in self._clusters.values()]
        before = [each.proposals for each in metadata]

        def steps() -> Steps[None]:
            result = yield from work
            answer = partial(result.begin, done) if isinstance(result, Awaited) else partial(done, result)
            for each, proposals in zip(metadata, before, strict=True):
                if each.proposals != proposals:
                    answer = partial(each.call_after_pending, answer)
            answer()
        self._loop.scheduler.start(Priority.COMMAND, object(), steps(), failed)

    def run_at_once(self, command: str, source: str) -> AdminAnswer:
        """Run a command to its end without a pause. A command that depends on other nodes is begun, and answered BEGUN."""
        result = at_once(self.execute(command, source))
        if not isinstance(result, Awaited):
            return result
        answers = [AdminAnswer(BEGUN, False)]
        result.begin(answers.append)
        return answers[-1]
