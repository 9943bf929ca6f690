"""Merge of the subscriptions of one app's consumers into the stream parameters that a relay sends upstream.

For each expression, the consumers with the highest priority become one consumer with the sums of their counts and of their
limits of unconfirmed messages. So the share of a consumer does not depend on the number of nodes between it and the primary.
Called by `relay/upstream_queue.py`, before a configure request to the upstream broker.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmqtwist.queue.handles import COUNT_MAX
from bmqtwist.queue.queue import PRIORITY_INVALID, ConsumerSpec

CREDIT_MAX = 2**62  # upper bound of a sum, messages or bytes


class SubscriptionIds:
    """Ids of one queue's subscriptions at the upstream: one for each app and expression. `apps`: appIds by id."""

    def __init__(self) -> None:
        self._next = 1
        self._ids: dict[tuple[str, str], int] = {}
        self.apps: dict[int, str] = {}

    def id_of(self, app_id: str, text: str) -> int:
        """Return the id of an app's subscription with this expression."""
        key = app_id, text
        if key not in self._ids:
            self._ids[key], self.apps[self._next] = self._next, app_id
            self._next += 1
        return self._ids[key]

    def retain_only(self, app_id: str, texts: Iterable[str]) -> None:
        """Drop the ids of an app's subscriptions with other expressions."""
        kept = frozenset(texts)
        for key in [key for key in self._ids if key[0] == app_id and key[1] not in kept]:
            del self.apps[self._ids.pop(key)]


def merge(app_id: str, specs: Iterable[ConsumerSpec], ids: SubscriptionIds) -> tuple[ConsumerSpec, ...]:
    """Return one subscription per expression, in order of their first occurrence."""
    highest: dict[str, list[ConsumerSpec]] = {}
    for spec in specs:
        if spec.priority == PRIORITY_INVALID:
            continue
        text = spec.expression if spec.expression_version else ""
        best = highest.get(text)
        if best is None or spec.priority > best[0].priority:
            highest[text] = [spec]
        elif spec.priority == best[0].priority:
            best.append(spec)
    return tuple(ConsumerSpec(ids.id_of(app_id, text), each[0].expression_version if text else 0, text, each[0].priority,
                              min(COUNT_MAX, sum(spec.count for spec in each)),
                              min(CREDIT_MAX, sum(spec.max_messages for spec in each)),
                              min(CREDIT_MAX, sum(spec.max_bytes for spec in each)))
                 for text, each in highest.items())
