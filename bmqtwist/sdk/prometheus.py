"""Prometheus collector of session counters, which reads them at each scrape. Extra: `prometheus`. Each field of `Counters`
with a text in `_HELP` is a metric: a gauge if its name ends in `_now`, else a counter.

    from prometheus_client import REGISTRY
    collector = Collector("session", "team")
    collector.add(session, session="orders", team="shop")
    REGISTRY.register(collector)

The counters are declared in `counters.py`; the metrics of the broker are in `view/metrics.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Protocol

from bmqtwist.errors import LocalError
from bmqtwist.sdk.counters import Counters

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as _error:
    raise ImportError("bmqtwist.sdk.prometheus needs prometheus-client: pip install 'bmqtwist[prometheus]'") from _error

_HELP = {
    "posts": "Posts accepted by the session.", "acked": "Posts acknowledged with success.",
    "nacked": "Failed posts, by status.", "sent_without_ack": "Posts sent without requesting an acknowledgement.",
    "unacked_now": "Posts without an outcome.", "unacked_bytes_now": "Bytes of posts without an outcome.",
    "retransmitted": "Posts sent again after a reconnect.", "messages": "Messages delivered.",
    "redelivered": "Messages marked as delivered before.", "inbox_now": "Messages that the application has not taken.",
    "confirms": "Confirmations sent.", "attempts": "Attempts to connect.", "losses": "Connections lost.",
    "reconnects": "Reconnects.", "bytes_in": "Bytes received.", "bytes_out": "Bytes sent.",
    "dropped": "Invalid events, and messages without an open queue.",
    "queues_now": "Open queues.", "events": "Session events, by kind.",
}
_BY = {"nacked": ("nacked_by_status", "status"), "events": ("events", "kind")}
_NAMES = [each.name for each in fields(Counters) if each.name in _HELP]


class HasCounters(Protocol):
    """A session of any front."""

    def counters(self) -> Counters:
        """Return a snapshot of the session's counters."""
        ...


class Collector:
    """Collects metrics `bmqtwist_sdk_...` of the added sessions; each session has a value for each label."""

    def __init__(self, *labels: str) -> None:
        self._labels = labels
        self._sessions: dict[tuple[str, ...], HasCounters] = {}

    def add(self, session: HasCounters, /, **labels: str) -> None:
        """Add a session with unique label values."""
        if labels.keys() != set(self._labels):
            raise LocalError(f"labels {', '.join(sorted(labels))}: give {', '.join(self._labels)}")
        key = tuple(labels[name] for name in self._labels)
        if key in self._sessions:
            raise LocalError(f"another session has the labels {labels}")
        self._sessions[key] = session

    def remove(self, session: HasCounters) -> None:
        """Remove a session; its metrics are no longer reported."""
        self._sessions = {key: each for key, each in self._sessions.items() if each is not session}

    def describe(self) -> list[Any]:
        """Called by a registry at registration: return families without samples."""
        return list(self._make_families([]))

    def collect(self) -> Iterator[Any]:
        """Called by a registry at each scrape: yield families with samples."""
        yield from self._make_families([(key, session.counters()) for key, session in list(self._sessions.items())])

    def _make_families(self, found: list[tuple[tuple[str, ...], Counters]]) -> Iterator[Any]:
        for name in _NAMES:
            now = name.removesuffix("_now")
            detail, label = _BY.get(name, ("", ""))
            make = GaugeMetricFamily if now != name else CounterMetricFamily
            family = make(f"bmqtwist_sdk_{now}", _HELP[name], labels=(*self._labels, *([label] if label else [])))
            for key, counters in found:
                if detail:
                    for kind, count in getattr(counters, detail).items():
                        family.add_metric((*key, kind.name.lower()), count)
                else:
                    family.add_metric(key, getattr(counters, name))
            yield family
        up = GaugeMetricFamily("bmqtwist_sdk_up", "1 with a connection to a broker, else 0.", labels=self._labels)
        for key, counters in found:
            up.add_metric(key, float(counters.state in ("restoring", "ready", "draining")))
        yield up
