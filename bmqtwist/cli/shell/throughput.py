"""Throughput statistics of the automatic mode: a line per interval and a final line.

Used by `auto.py` each second; latencies are in `cli/latencies.py`.
"""

from __future__ import annotations

from collections import Counter

from bmqtwist.cli.latencies import pretty_time
from bmqtwist.textformat import grouped, pretty_bytes

_COLUMNS = (" Msg/s         |", " Delta         |", " Bytes/s       ||", " Evt/s         |", " Delta         |",
            " Bytes/s       ")


def format_header(with_latency: bool) -> str:
    titles = "Mode     |" + "".join(_COLUMNS)
    rule = "".join("+" if each == "|" else "-" for each in titles)
    if not with_latency:
        return f"{titles}\n{rule}"
    return f"{titles}||Latency\n{rule}++{'-' * 48}"


class Throughput:
    """One direction: `verb` is produced or consumed."""

    def __init__(self, verb: str, with_latency: bool = False) -> None:
        self.verb, self.with_latency = verb, with_latency
        self._total, self._before = Counter[str](), Counter[str]()  # messages, message_bytes, events, event_bytes
        self._interval = _Aggregate()
        self._latency = _Aggregate()

    def add_message(self, size: int) -> None:
        self._total["messages"] += 1
        self._total["message_bytes"] += size

    def add_event(self, size: int) -> None:
        self._total["events"] += 1
        self._total["event_bytes"] += size

    def add_latency(self, latency_ns: int) -> None:
        self._interval.add(latency_ns)
        self._latency.add(latency_ns)

    def format_row(self, seconds: float) -> str:
        """Return the line of the interval that ends now, `seconds` long."""
        delta, self._before = self._total - self._before, self._total.copy()
        line = f"{self.verb} |" + " ||".join(
            f"{grouped(int(count / seconds)):>14} |{grouped(count):>14} |{pretty_bytes(int(size / seconds)):>14}"
            for count, size in ((delta["messages"], delta["message_bytes"]), (delta["events"], delta["event_bytes"])))
        if self.with_latency:
            known, self._interval = self._interval, _Aggregate()
            line += (f" ||{pretty_time(known.minimum):>14} < {pretty_time(known.average):>14} < "
                     f"{pretty_time(known.maximum):>14}")
        return line

    def final_line(self) -> str:
        total = self._total
        text = (f"Final stats: {self.verb} {grouped(total['messages'])} messages [{pretty_bytes(total['message_bytes'])}] "
                f"in {grouped(total['events'])} events [{pretty_bytes(total['event_bytes'])}]")
        if total["message_bytes"] and total["event_bytes"]:
            text += f" (Protocol: {(total['event_bytes'] - total['message_bytes']) * 100 / total['event_bytes']:.4g}%)"
        if self._latency.count:
            text += f" ~ latency {{ {pretty_time(self._latency.minimum)} < {pretty_time(self._latency.maximum)} }}"
        return text


class _Aggregate:
    def __init__(self) -> None:
        self.count = self.minimum = self.maximum = self._sum = 0

    def add(self, value: int) -> None:
        self.minimum = value if not self.count else min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        self.count += 1
        self._sum += value

    @property
    def average(self) -> int:
        return self._sum // self.count if self.count else 0
