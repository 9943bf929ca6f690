"""What concerns very many messages of a queue is begun at once and goes on in slices, at the beginning of each turn.

Work is an iterator: each step takes about a millisecond. What is small is over with its first step, in the call that
begins it. All work under way goes on in turns, for SLICES_S of each turn of the loop; what is begun when so much of a turn
is gone waits for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bmqtwist.limits import SLICES_MAX, SLICES_S
from bmqtwist.steps import Work

Failed = Callable[[Exception], None]  # is told what a step raised; the work is over then
_OVER = object()


class Chores:
    """The work under way at one broker. `worked`: seconds of work so far; `turn_due` asks for another turn."""

    def __init__(self, worked: Callable[[], float], turn_due: Callable[[], None]) -> None:
        self._worked, self._turn_due = worked, turn_due
        self._waiting: deque[tuple[Work, Failed]] = deque()
        self._spent = 0.0  # seconds of this turn

    def begin(self, work: Work, failed: Failed) -> None:
        """Do the first step now, the others in this turn and those that follow."""
        if self._spent >= SLICES_S or self._step(work, failed):
            self._waiting.append((work, failed))
            self._turn_due()

    def run(self) -> None:
        """A turn begins: go on."""
        if not self._waiting and not self._spent:
            return
        for _ in range(SLICES_MAX):
            if not self._waiting or self._spent >= SLICES_S:
                break
            work, failed = self._waiting.popleft()
            if self._step(work, failed):
                self._waiting.append((work, failed))
        self._spent = 0.0
        if self._waiting:
            self._turn_due()

    def _step(self, work: Work, failed: Failed) -> bool:
        """One step; False: it was the last one."""
        began = self._worked()
        try:
            return next(work, _OVER) is not _OVER
        except Exception as error:
            failed(error)
            return False
        finally:
            self._spent += self._worked() - began
