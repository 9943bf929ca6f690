"""Move of a domain between two clusters that this node is a proxy of, while clients have its queues open.

    move        opens the domain's queues at the new cluster and begins their drains at the old one, in slices
    move_now    the same for one queue, because a client opens it
    tick        once a second: observes the drains, and opens or closes consumers at the old cluster
    departures  domains that are still drained at this cluster

A queue keeps its clients and its `RelayQueue`. It has an `UpstreamQueue` at each cluster: the one at the new cluster takes
the PUTs; the clusters that it has left are read first, oldest first (`UpstreamQueue.sources`). `drain.py` decides when PUTs
and apps go to the next cluster. CONFIRMs go to the cluster that the app reads. Consumers have their counts, without
subscriptions, at the new cluster from the beginning; at the old cluster they are open only while an app has consumers.

Created by `proxy.py`; `broker/access.py` begins a move at DOMAINS RECONFIGURE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from bmqtwist.cluster.streams import AppStream, ChangeSubscriptions, Counts, OpenStream, StreamState
from bmqtwist.errors import Category, LocalError, Refused
from bmqtwist.ids import DEFAULT_APP_ID, domain_of
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.queue.domain import DomainRules
from bmqtwist.queue.relay import RelayQueue, Uplink
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
from bmqtwist.relay.relays import Relays, act_in_steps
from bmqtwist.relay.upstream_queue import UpstreamQueue

SOURCES_MAX = 4  # clusters that a queue reads in turn: earlier ones that are not drained yet, and its present one
_MOVED = Refused(Category.E_CANCELED, "The domain was moved to another cluster")


class Destination(Protocol):
    """A cluster that a domain moves to: a `proxy.ProxyCluster`."""

    name: str
    relays: Relays

    def adopt_domain(self, domain: DomainRules) -> DomainRules:
        """Return the domain at this cluster, with the settings of another cluster until an open is answered."""


@dataclass(slots=True)
class Departure:
    """A domain that was moved to the cluster `to` at `since`, monotonic seconds."""

    to: str
    since: float


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
                    _resume(opened.sources[-1], DEFAULT_APP_ID)
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
            _leave_source(self._relay, app_id)
        self._relays.release_surplus(self.opened)
        source = self.opened.source_of(app_id)
        _resume(source, app_id)
        source.relays.configure_app(source, app_id)

    def close_if_ended(self) -> None:
        """Close the queue here if nothing is read from this cluster any more."""
        if self.ended:
            self.opened.sources.remove(self.opened)
            self._relays.release_surplus(self.opened)

    def describe(self) -> str:
        """Return what the drain waits for."""
        if self.flushing:
            return f"ACKs of {len(self._machine.outstanding)} PUT(s)"
        return ", ".join(f"appId '{app_id}': {self._activity(app_id).value}" for app_id in self.apps)


class Moves:
    """Domains that leave one cluster."""

    def __init__(self, title: str, relays: Relays, loop: Loop) -> None:
        self._title, self._relays, self._loop = title, relays, loop
        self.departures: dict[str, Departure] = {}  # by domain
        self._waiting: dict[str, Destination] = {}  # queues to be moved in slices, by URI

    def check(self, domain: str) -> None:
        """Raise LocalError if a domain has been moved too often without being drained."""
        if any(len(opened.sources) >= SOURCES_MAX for opened in self._of(domain)):
            raise LocalError(f"Domain '{domain}' was moved {SOURCES_MAX - 1} times and its queues are not drained yet")

    def move(self, domain: str, to: Destination) -> None:
        """Open the queues of a domain at another cluster, in slices, and drain them here."""
        queues = self._of(domain)
        self._loop.report.info(f"{self._title}: Domain '{domain}' moves to {to.name}, {len(queues)} queue(s) are open")
        self.departures[domain] = Departure(to.name, self._loop.now)
        self._waiting.update((opened.name, to) for opened in queues)
        self._in_slices(queues, lambda opened: self.move_now(opened.name))

    def move_waiting(self, domain: str) -> None:
        """Move all queues of a domain that wait for their slices."""
        for uri in [each for each in self._waiting if domain_of(each) == domain]:
            self.move_now(uri)

    def move_now(self, uri: str) -> None:
        """Move a queue that waits for its slice; ignored if it does not."""
        to, opened = self._waiting.pop(uri, None), self._relays.opened.get(uri)
        if to is None or opened is None:
            return
        relay = opened.relay
        if relay is not None and relay.handles:
            relay.suspend_posts()
            relay.ample_quota = False
            move = QueueMove(opened, relay, self._relays, self._loop)
            opened.drain, opened.is_new = move, False
            del self._relays.opened[uri]
            self._relays.leaving[opened] = None
            _move_uplink(relay, to.relays.uplink, to.adopt_domain(relay.domain))
            to.relays.add(opened.uri, relay, opened.requested, opened.sources)
            move.close_if_ended()
        _cancel_opens(opened)

    def _in_slices(self, queues: list[UpstreamQueue], act: Callable[[UpstreamQueue], None]) -> None:
        if queues:
            self._loop.scheduler.start(Priority.ACTIVATION, self, act_in_steps(queues, act, self._relays.failed),
                                       self._relays.failed)

    def _of(self, domain: str) -> list[UpstreamQueue]:
        return [opened for opened in self._relays.opened.values() if opened.uri.qualified_domain == domain]

    def progress(self, domain: str, most: int) -> tuple[int, list[tuple[str, str]]]:
        """Return the number of a domain's queues that are not drained, and the first `most`: URIs and what they wait for."""
        waiting = [uri for uri in self._waiting if domain_of(uri) == domain]
        drains = [opened for opened in self._relays.leaving
                  if opened.uri.qualified_domain == domain and not _is_drained(opened)]
        shown = [(opened.name, opened.drain.describe()) for opened in drains[:most] if isinstance(opened.drain, QueueMove)]
        return len(waiting) + len(drains), (shown + [(uri, "its slice of the move") for uri in waiting])[:most]

    def tick(self, now: float) -> None:
        """Observe the drains; log the end of those of a domain."""
        if not self._loop.scheduler.has_job(Priority.ACTIVATION, self):
            self._in_slices(list(self._relays.leaving), self._observe)
        moving = {opened.uri.qualified_domain for opened in self._relays.leaving if not _is_drained(opened)} | {
            domain_of(uri) for uri in self._waiting}
        for domain, departure in list(self.departures.items()):
            if domain not in moving:
                del self.departures[domain]
                text = f"Domain '{domain}' is moved to {departure.to}, its queues are drained here"
                self._loop.report.info(f"{self._title}: {text} after {now - departure.since:.1f} s")
                self._loop.report.record_event("config", f"{self._title}: {text}", domain=domain)

    def _observe(self, opened: UpstreamQueue) -> None:
        _cancel_opens(opened)
        if isinstance(opened.drain, QueueMove):
            opened.drain.tick(self._loop.now)
        self._relays.release_surplus(opened)


def _move_uplink(relay: RelayQueue, uplink: Uplink, domain: DomainRules) -> None:
    """Send PUTs and CONFIRMs to another cluster from now on, pending PUTs included."""
    for put in relay.pending.values():
        relay.uplink.uncount_pending(put)
        uplink.count_pending(put)
    relay.uplink, relay.domain = uplink, domain


def _leave_source(relay: RelayQueue, app_id: str) -> None:
    """Prepare an app to read another cluster, whose PSNs are unrelated; CONFIRMs that wait for the old one are dropped."""
    relay.suspend_confirms(app_id)
    relay.held_confirms.pop(app_id, None)
    app = relay.apps.get(app_id)
    if app is not None:
        app.lease = app.sequence = 0


def _resume(source: UpstreamQueue, app_id: str) -> None:
    """Send waiting CONFIRMs of an app, and waiting PUTs with the default app, if its stream is open."""
    stream = source.streams.get(app_id)
    if stream is not None and stream.state is StreamState.OPEN:
        source.relays.on_stream_open(source, stream)


def _is_drained(opened: UpstreamQueue) -> bool:
    return opened.drain is None or opened.drain.ended


def _cancel_opens(opened: UpstreamQueue) -> None:
    """Refuse opens that were not sent; `broker/access.py` repeats them at the present cluster of the domain."""
    for stream in opened.streams.values():
        for each in stream.take_opens():
            each.answer(_MOVED)
