"""Alarms: records that a person must see. Always logged; the copy to the alarm channel is held to one a minute.

    log record (ERROR)    ALARM [CATEGORY] text
    alarm channel         ALARM: ALARM [CATEGORY] text
"""

from __future__ import annotations

COPY_INTERVAL = 60.0  # seconds between two copies of one source
SOURCES_MAX = 4096  # sources remembered; sources are places in the code times categories, so this is not reached


def alarm_text(kind: str, category: str, text: str) -> str:
    """The text of the log record; `kind` is ALARM or PANIC."""
    return f"{kind} [{category}] {text}"


def copy_text(kind: str, record: str) -> str:
    """What the alarm channel shows of a record."""
    return f"{kind}: {record}"


class AlarmThrottle:
    """Lets one copy a minute pass for each source."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[object, float] = {}

    def passes(self, source: object, now: float) -> bool:
        """Whether a copy of an alarm of `source` is due at `now` (monotonic seconds); if so it counts as shown."""
        last = self._last.get(source)
        if last is not None and now - last < COPY_INTERVAL:
            return False
        if len(self._last) >= SOURCES_MAX:
            self._last = {key: shown for key, shown in self._last.items() if now - shown < COPY_INTERVAL}
            if len(self._last) >= SOURCES_MAX:
                return False
        self._last[source] = now
        return True
