"""The last lines of the log, kept in memory for whoever looks at a running broker."""

from __future__ import annotations

from collections import deque
from itertools import islice

from bmqtwist.logs.format import SEVERITIES, Record, visible
from bmqtwist.report import LogLine

LINES_MAX = 2_000
CHARS_MAX = 1 << 20  # of all lines together
LINE_CHARS_MAX = 8_192  # of one; the file has all of it


class LogTail:
    """A ring of lines, numbered from 1 on."""

    __slots__ = ("_lines", "_chars", "newest")

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque()
        self._chars = self.newest = 0

    def add(self, record: Record) -> None:
        """One more line; the oldest ones are forgotten."""
        text = record.message
        if len(text) > LINE_CHARS_MAX:
            text = f"{text[:LINE_CHARS_MAX]}... ({len(text)} characters)"
        self.newest += 1
        self._lines.append(LogLine(self.newest, record.wall, record.severity, record.category, visible(text)))
        self._chars += len(self._lines[-1].text)
        while self._lines and (len(self._lines) > LINES_MAX or self._chars > CHARS_MAX):
            self._chars -= len(self._lines.popleft().text)

    def lines(self, count: int, level: str, after: int = 0) -> list[LogLine]:
        """The last `count` lines that are as severe as `level` (a name of `SEVERITIES`; one that is none means all of them)
        and younger than line `after`, oldest first."""
        threshold = SEVERITIES.get(level.upper(), max(SEVERITIES.values()))
        kept = list(self._lines)  # other threads may say something meanwhile
        wanted = (line for line in reversed(kept) if line.n > after
                  and SEVERITIES.get(line.level, 0) <= threshold)
        return list(islice(wanted, max(0, count)))[::-1]
