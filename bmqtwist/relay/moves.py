"""Move of a domain between two clusters that this node is a proxy of, while clients have its queues open.

    move        opens the domain's queues at the new cluster and begins their drains at the old one
    tick        once a second: observes the drains, and opens or closes consumers at the old cluster
    departures  domains that are still drained at this cluster

A queue keeps its clients and its `RelayQueue`. It has an `UpstreamQueue` at each cluster: the one at the new cluster takes the
PUTs, and those at the clusters that it has left are read first, oldest first (`UpstreamQueue.sources`). `drain.py` decides when
PUTs and apps go to the next cluster. CONFIRMs go to the cluster that the app reads. Consumers have their counts, without
subscriptions, at the new cluster from the beginning; at the old cluster they are open only while an app has consumers.

Created by `proxy.py`; `broker/access.py` begins a move at DOMAINS RECONFIGURE.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bmqtwist.cluster.streams import AppStream, ChangeSubscriptions, Counts, OpenStream, StreamState
from bmqtwist.errors import Category, LocalError, Refused
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.loop.loop import Loop
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.drain import (
    Activity,
    DrainInput,
    DrainState,
    Observed,
    PutAnswered,
    QueueDrain,
    ReleasePosts,
    SwitchApp,
    UpstreamLost,
)
from bmqtwist.relay.relays import Relays
from bmqtwist.relay.upstream_queue import UpstreamQueue

SOURCES_MAX = 4  # clusters that a queue reads in turn: its present one, and those that are not drained yet
_MOVED = Refused(Category.E_CANCELED, "The domain was moved to another cluster")


@dataclass(slots=True)
class Departure:
    """A domain that was moved to the cluster `to` at `since`, monotonic seconds; `queues` were open."""

    to: str
    since: float
    queues: int


class QueueMove:
    """`upstream_queue.Drain` of one queue; `opened`: the queue at the cluster that it leaves."""

    def __init__(self, opened: UpstreamQueue, relay: RelayQueue, relays: Relays, loop: Loop) -> None:
        self.opened, self._relays, self._loop, self._relay = opened, relays, loop, relay
        outstanding = relay.pending if opened.upstream is not None and not relay.broadcast else ()
        self._machine = QueueDrain(outstanding, relay.apps, loop.now)
        self._pushed: set[str] = set()  # apps that have received messages since the last tick

    # -- upstream_queue.Drain -------------------------------------------------------------------------------------------

    @property
    def apps(self) -> Collection[str]:
        """Apps that still read this cluster."""
        return self._machine.apps

    @property
    def flushing(self) -> bool:
        """True while PUTs that were sent to this cluster have no ACK."""
        return self._machine.state is DrainState.FLUSHING

    @property
    def ended(self) -> bool:
        """True once nothing is read from this cluster any more."""
        return self._machine.state is DrainState.DRAINED

    def awaits(self, guid: bytes) -> bool:
        """Return whether the ACK of this PUT is expected from this cluster."""
        return guid in self._machine.outstanding

    def on_answered(self, guid: bytes) -> None:
        """Handle the ACK or NACK of a PUT."""
        self._step(PutAnswered(guid))

    def on_upstream_lost(self) -> None:
        """Handle the loss of the upstream node."""
        self._step(UpstreamLost())

    def note_pushes(self, targets: Collection[tuple[str, int | None]]) -> None:
        """Note that apps received a message."""
        self._pushed.update(app_id for app_id, _ in targets)

    # -- the drain ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Adapt the consumers at this cluster to the clients, then observe the apps."""
        for app_id in self.apps:
            stream, app = self._relays.stream_of(self.opened, app_id), self._relay.apps.get(app_id)
            if app is not None and app.substreams and not stream.counts.read and stream.is_idle:
                self._open(stream)
            self._relays.configure_app(self.opened, app_id)
        self._step(Observed(now, {app_id: self._activity(app_id) for app_id in self.apps}))
        self._pushed.clear()

    def _open(self, stream: AppStream) -> None:
        """Open a consumer here again: an app has consumers again."""
        def answered(value: object) -> None:
            if not isinstance(value, Refused):
                self._relays.step(self.opened, stream, ChangeSubscriptions(
                    self.opened.merged_subscriptions(stream.app_id)))
        self._relays.step(self.opened, stream, OpenStream(Counts(1, 0), answered, lambda: True))

    def _activity(self, app_id: str) -> Activity:
        opened, stream, app = self.opened, self._relays.stream_of(self.opened, app_id), self._relay.apps.get(app_id)
        if not opened.reads(app_id):
            return Activity.UNREAD
        if opened.upstream is None or stream.state is not StreamState.OPEN:
            return Activity.UNREACHABLE
        if app is None or not any(each.subscriptions for each in app.substreams):
            return Activity.UNREAD
        configured = not stream.is_changing and bool(stream.configured)
        if (not configured or app_id in self._pushed or app.pending_returns or app.oldest_undelivered()
                or any(each.unconfirmed for each in app.substreams)):
            return Activity.ACTIVE
        return Activity.QUIET

    def _step(self, event: DrainInput) -> None:
        before, opened = self._machine.state, self.opened
        for output in self._machine.step(event):
            match output:
                case ReleasePosts():
                    self._relays.release_surplus(opened)
                    opened.sources[-1].relays.resume(opened.sources[-1], DEFAULT_APP_ID)
                case SwitchApp():
                    self._switch(output.app_id, output.abandoned)
        if self._machine.state is not before:
            opened.transition_log.record(self._loop.now, before.name, self._machine.state.name, type(event).__name__)
            self.close_if_ended()

    def _switch(self, app_id: str, abandoned: bool) -> None:
        if abandoned:
            self._loop.report.warn(f"{self.opened.name}: appId '{app_id}' no longer waits for the cluster "
                                   f"that its domain has left: it is unreachable, and its messages remain there")
        if not self._relay.broadcast:
            self._relay.leave_upstream(app_id)
        self._relays.release_surplus(self.opened)
        source = self.opened.source_of(app_id)
        source.relays.resume(source, app_id)
        source.relays.configure_app(source, app_id)

    def close_if_ended(self) -> None:
        """Close the queue here if nothing is read from this cluster any more."""
        if self.ended:
            self.opened.sources.remove(self.opened)
            self._relays.release_surplus(self.opened)

    def describe(self) -> str:
        """Return what the drain waits for."""
        if self.flushing:
            return f"{len(self._machine.outstanding)} PUTs without ACK"
        return ", ".join(f"appId '{app_id}': {self._activity(app_id).value}" for app_id in self.apps)


class Moves:
    """Domains that leave one cluster."""

    def __init__(self, title: str, relays: Relays, loop: Loop) -> None:
        self._title, self._relays, self._loop = title, relays, loop
        self.departures: dict[str, Departure] = {}  # by domain

    def check(self, domain: str) -> None:
        """Raise LocalError if a domain has been moved too often without being drained."""
        if any(len(opened.sources) >= SOURCES_MAX for opened in self._of(domain)):
            raise LocalError(f"Domain '{domain}' was moved {SOURCES_MAX - 1} times and its queues are not drained yet")

    def move(self, domain: str, target: Relays, to: DomainRules) -> None:
        """Open the queues of a domain at another cluster, and drain them here. `to`: the domain at that cluster."""
        queues = self._of(domain)
        self._loop.report.info(f"{self._title}: Domain '{domain}' moves to {to.cluster}, {len(queues)} queue(s) are open")
        self.departures[domain] = Departure(to.cluster, self._loop.now, len(queues))
        for opened in queues:
            relay = opened.relay
            if relay is not None and relay.handles:
                relay.suspend_posts()
                relay.ample_quota = False
                move = QueueMove(opened, relay, self._relays, self._loop)
                self._relays.leave(opened, move)
                relay.move_uplink(target.uplink, to)
                target.add(opened.uri, relay, opened.requested, opened.sources)
                move.close_if_ended()
            _cancel_opens(opened)

    def _of(self, domain: str) -> list[UpstreamQueue]:
        return [opened for opened in self._relays.opened.values() if opened.uri.qualified_domain == domain]

    def drains(self, domain: str) -> list[QueueMove]:
        """Return the drains of a domain's queues that have not ended."""
        return [opened.drain for opened in self._relays.leaving
                if opened.uri.qualified_domain == domain and isinstance(opened.drain, QueueMove) and not opened.drain.ended]

    def tick(self, now: float) -> None:
        """Observe the drains; log the end of those of a domain."""
        for opened in list(self._relays.leaving):
            _cancel_opens(opened)
            if isinstance(opened.drain, QueueMove):
                opened.drain.tick(now)
            self._relays.release_surplus(opened)
        for domain, departure in list(self.departures.items()):
            if not self.drains(domain):
                del self.departures[domain]
                text = f"Domain '{domain}' is moved to {departure.to}, its queues are drained here"
                self._loop.report.info(f"{self._title}: {text} after {now - departure.since:.1f} s")
                self._loop.report.record_event("config", f"{self._title}: {text}", domain=domain)


def _cancel_opens(opened: UpstreamQueue) -> None:
    """Refuse opens that were not sent; `broker/access.py` repeats them at the present cluster of the domain."""
    for stream in opened.streams.values():
        for each in stream.take_opens():
            each.answer(_MOVED)
