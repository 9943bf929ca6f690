"""What the processor has done for a thread, asked for often: the system is asked at most once a millisecond."""

from __future__ import annotations

from collections.abc import Callable

ASK_AFTER_S = 0.001  # asking the system takes 1.7 us, looking at the clock 0.05


class ProcessorTime:
    """Call it for the seconds that the processor has worked for the calling thread, which is always the same one.

    Between two questions to the system the clock stands in: the answer may be too large by the time that other threads
    and processes had the processor, at most `ASK_AFTER_S`.
    """

    def __init__(self, clock: Callable[[], float], processor: Callable[[], float]) -> None:
        self._clock, self._processor = clock, processor
        self._asked_at, self._worked = float("-inf"), 0.0

    def __call__(self) -> float:
        now = self._clock()
        since = now - self._asked_at
        if since < ASK_AFTER_S:
            return self._worked + since
        self._asked_at, self._worked = now, self._processor()
        return self._worked
