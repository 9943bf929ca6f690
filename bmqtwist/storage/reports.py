"""What a partition reports to the operator: alarms, kept until they are taken, and lines for the log."""

from __future__ import annotations

from collections.abc import Callable


class Reports:
    """Of one partition and its files. Threads may add alarms."""

    def __init__(self, partition_id: int) -> None:
        self.subject = f"Partition [{partition_id}]"
        self.listener: Callable[[str], None] = lambda text: None  # gets the lines for the log
        self._alarms: list[tuple[str, str]] = []

    def inform(self, text: str) -> None:
        """A line for the log."""
        self.listener(f"{self.subject}: {text}")

    def alarm(self, category: str, text: str) -> None:
        """Something that an operator must know; the text goes on from the name of the partition."""
        self._alarms.append((category, self.subject + text))

    def take(self) -> list[tuple[str, str]]:
        """(category, text) of the alarms since the last call."""
        alarms, self._alarms = self._alarms, []
        return alarms
