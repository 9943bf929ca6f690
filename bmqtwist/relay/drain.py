"""Drain of one queue at a cluster that its domain has left: a state machine without sockets.

After a proxy has moved a domain to another cluster (`moves.py`), the old cluster may owe ACKs of PUTs, and store messages
that consumers of the proxy have not confirmed.

```
   FLUSHING  PUTs that were sent to the old cluster have no ACK: later PUTs wait, at most FLUSH_S seconds
   DRAINING  PUTs go to the new cluster; each app reads the old one until nothing has arrived for QUIET_S seconds
   DRAINED   every app reads the next cluster
```

PUTs without an ACK at the end of FLUSHING are sent to the new cluster with the same GUID: if the old cluster has stored
them, consumers receive them twice. An app whose messages cannot be read, because the old cluster has been unreachable for
UNREACHABLE_S seconds, is abandoned: it reads the next cluster, and its messages remain in the old one. `moves.py` calls
`QueueDrain.step` for each ACK of the old cluster and once a second, and performs the outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import get_args

from bmqtwist.machine import check, table, to

FLUSH_S = 10.0  # for the ACKs of the old cluster
QUIET_S = 3.0  # without a message, an unconfirmed message or a change of consumers
UNREACHABLE_S = 60.0  # without an open stream at the old cluster


class DrainState(Enum):
    """State of a queue at the cluster that its domain has left."""

    FLUSHING = "PUTs that were sent to the old cluster have no ACK"
    DRAINING = "apps read the old cluster"
    DRAINED = "every app reads the next cluster"


class Activity(Enum):
    """Activity of an app at the old cluster."""

    ACTIVE = "messages arrive or are unconfirmed, or the stream is changing"
    QUIET = "consumers have confirmed everything, and nothing arrives"
    UNREACHABLE = "the stream is not open"
    UNREAD = "no consumer is subscribed, or an older cluster is read first"


@dataclass(frozen=True, slots=True)
class PutAnswered:
    """The old cluster has answered a PUT."""

    guid: bytes


@dataclass(frozen=True, slots=True)
class UpstreamLost:
    """The upstream node of the old cluster is disconnected: its ACKs do not arrive."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The activity of each app that reads the old cluster, at `now` (seconds, monotonic)."""

    now: float
    activities: Mapping[str, Activity]


@dataclass(frozen=True, slots=True)
class ReleasePosts:
    """Send PUTs to the new cluster, and close the producers at the old one."""


@dataclass(frozen=True, slots=True)
class SwitchApp:
    """Read the next cluster for an app. `abandoned`: the old one is unreachable."""

    app_id: str
    abandoned: bool


DrainInput = PutAnswered | UpstreamLost | Observed
DrainOutput = ReleasePosts | SwitchApp


class QueueDrain:
    """One queue. `outstanding`: GUIDs of PUTs without an ACK; `apps`: apps that read the old cluster, with the time since
    which they are quiet."""

    def __init__(self, outstanding: Collection[bytes], apps: Collection[str], now: float) -> None:
        self.outstanding, self.apps = set(outstanding), dict.fromkeys(apps, now)
        self._unreachable_since: dict[str, float] = {}
        self._flush_until = now + FLUSH_S
        self.state = DrainState.FLUSHING if outstanding else DrainState.DRAINING if apps else DrainState.DRAINED
        self._out: list[DrainOutput] = []

    def step(self, event: DrainInput) -> list[DrainOutput]:
        self._out = []
        before, kind = self.state, type(event)
        TABLE[before][kind].action(self, event)
        check(TABLE, before, kind, self.state)
        return self._out

    def _on_answered(self, event: PutAnswered) -> None:
        self.outstanding.discard(event.guid)
        if not self.outstanding:
            self._end_flush(event)

    def _on_flush_observed(self, event: Observed) -> None:
        self.apps = dict.fromkeys(self.apps, event.now)
        if event.now >= self._flush_until:
            self._end_flush(event)

    def _end_flush(self, event: DrainInput) -> None:
        self.outstanding.clear()
        self._out.append(ReleasePosts())
        self.state = DrainState.DRAINING if self.apps else DrainState.DRAINED

    def _on_observed(self, event: Observed) -> None:
        now = event.now
        for app_id, activity in event.activities.items():
            if activity is not Activity.QUIET:
                self.apps[app_id] = now
            if activity is not Activity.UNREACHABLE:
                self._unreachable_since[app_id] = now
            lost = now - self._unreachable_since.setdefault(app_id, now) >= UNREACHABLE_S
            if lost or now - self.apps[app_id] >= QUIET_S:
                del self.apps[app_id]
                self._out.append(SwitchApp(app_id, lost))
        if not self.apps:
            self.state = DrainState.DRAINED

    def _ignore(self, event: DrainInput) -> None:
        """Ignore a late event."""


S, D = DrainState, QueueDrain
TABLE = table(DrainState, get_args(DrainInput), {
    S.FLUSHING: {PutAnswered: to(D._on_answered, S.DRAINING, S.DRAINED),
                 UpstreamLost: to(D._end_flush, S.DRAINING, S.DRAINED),
                 Observed: to(D._on_flush_observed, S.DRAINING, S.DRAINED)},
    S.DRAINING: {PutAnswered: to(D._ignore), UpstreamLost: to(D._ignore), Observed: to(D._on_observed, S.DRAINED)},
    S.DRAINED: {PutAnswered: to(D._ignore), UpstreamLost: to(D._ignore), Observed: to(D._ignore)},
})
