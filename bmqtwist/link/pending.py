"""The requests of one session that are not answered yet, in line by queue id.

A request whose answer comes at once never waits here. One whose answer comes from elsewhere stands at the head of the
line of its queue id until it is answered or its deadline has passed; later requests of the same queue id stand behind it
and begin, in order, when it is over. Queue ids do not wait for each other.

A request may be late, but nothing that comes too late does harm: one that is OVER takes no second answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from bmqtwist.limits import PENDING_REQUESTS_MAX
from bmqtwist.queue.expression import Expression

EARLY_PUT = "(put)"  # `Request.choice` of a PUT message that came before its open was answered; no peer can send it


class Progress(Enum):
    """How far a request is."""

    WAITING = "behind an earlier one of its queue id"
    BEGINNING = "its action runs: an answer now is an answer at once"
    ASKED = "the answer comes in a later turn"
    OVER = "answered, timed out, or cancelled"


class Request:
    """One open, configure or close, from its arrival to its answer; or PUTs that came before their open was answered."""

    __slots__ = ("r_id", "choice", "value", "q_id", "arrived", "domain", "deadline", "progress", "matchers")

    def __init__(self, r_id: int, choice: str, value: Any, q_id: int, arrived: float) -> None:
        self.r_id, self.choice, self.value, self.q_id = r_id, choice, value, q_id
        self.arrived = arrived  # monotonic seconds, as the deadline is
        self.matchers: Mapping[str, Expression] = {}  # by text: the expressions of a configure that were compiled before
        self.domain = ""  # of its queue; known once its action has looked
        self.deadline = float("inf")
        self.progress = Progress.WAITING


class Pending:
    """What a session's clients wait for.

    `begin(request)` runs its action, `timeout(request)` says how many seconds it may take, `expire(request)` answers one
    that took longer; an action and an expiry both end in `over(request)`, at once or later.
    """

    __slots__ = ("count", "_begin", "_timeout", "_expire", "_lines")

    def __init__(self, begin: Callable[[Request], None], timeout: Callable[[Request], float],
                 expire: Callable[[Request], None]) -> None:
        self._begin, self._timeout, self._expire = begin, timeout, expire
        self._lines: dict[int, deque[Request]] = {}
        self.count = 0

    def in_line(self, q_id: int) -> bool:
        """Does a request of this queue id wait for its answer?"""
        return q_id in self._lines

    @property
    def full(self) -> bool:
        """Whether as many wait as may."""
        return self.count >= PENDING_REQUESTS_MAX

    def add(self, request: Request) -> None:
        """Begin a request, or let it wait until the earlier ones of its queue id are over."""
        line = self._lines.get(request.q_id)
        if line is None:
            self._start(request)
            if request.progress is not Progress.ASKED:
                return
            line = self._lines[request.q_id] = deque()
            request.deadline = request.arrived + self._timeout(request)
        else:
            last = line[-1]
            request.domain = last.domain
            request.deadline = max(last.deadline, request.arrived + self._timeout(request))  # they are over in order
        line.append(request)
        self.count += 1

    def over(self, request: Request, now: float) -> None:
        """A request was answered or given up: the next of its queue id begins."""
        at_once = request.progress is Progress.BEGINNING
        request.progress = Progress.OVER
        line = self._lines.get(request.q_id)
        if at_once or line is None:
            return
        while line and line[0].progress is Progress.OVER:
            line.popleft()
            self.count -= 1
            if line and line[0].deadline > now:
                self._start(line[0])
            elif line:
                line[0].progress = Progress.BEGINNING
                self._expire(line[0])
        if not line:
            self._lines.pop(request.q_id, None)

    def _start(self, request: Request) -> None:
        request.progress = Progress.BEGINNING
        self._begin(request)
        if request.progress is Progress.BEGINNING:
            request.progress = Progress.ASKED

    def tick(self, now: float) -> None:
        """Time has passed: give up on what took too long."""
        for request in [line[0] for line in self._lines.values() if line[0].deadline <= now]:
            self._expire(request)

    def cancel(self) -> None:
        """The session is over: nobody waits for an answer any more."""
        lines, self._lines = self._lines, {}
        self.count = 0
        for line in lines.values():
            for request in line:
                request.progress = Progress.OVER
            line.clear()
    def free(self) -> None:
        """Nothing is asked for any more: let go of the session, which refers to this."""
        del self._begin, self._timeout, self._expire
