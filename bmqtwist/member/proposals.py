"""Proposals of metadata changes from any node of a cluster.

The leader proposes a change to its own log, unless it refuses it (`Proposals.refusal`). Any other node sends the leader
a request; the change is complete when this node has applied its record. Requests without an answer are repeated, also
to the next leader; a node that is not the leader answers NOT_LEADER (`cluster/log_events.py`). After its timeout a
request has failed with unknown outcome.

`queue_changes.py` calls `propose`; `dispatch.py` passes requests and answers of other nodes. The leader's
log is `metadata.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bmqtwist.cluster.changes import AssignQueue, Change, UnassignQueue, UpdateApps
from bmqtwist.cluster.log_events import NOT_LEADER, Done, NotDone, Outcome
from bmqtwist.loop.loop import Loop
from bmqtwist.member.metadata import ClusterMetadata, OnDecided
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.wire.cluster_schema import Lsn, MetadataAnswer, MetadataLogMessage, MetadataRequest
from bmqtwist.wire.control import cluster_event

REQUEST_SECONDS_MAX = 15.0
REQUESTS_MAX = 10_000  # without an answer


@dataclass(slots=True)
class _Request:
    change: Change
    on_decided: OnDecided
    until: float
    proposed: bool = False  # to this node's own log, as leader
    granted: Lsn | None = None  # committed at the leader; this node has not applied it yet


class Proposals:
    """Proposals in a cluster of several nodes. `leader()`: the active leader or None; `retry`: seconds until a request
    without an answer is repeated."""

    def __init__(self, node_id: int, metadata: ClusterMetadata, links: ClusterLinks, loop: Loop,
                 leader: Callable[[], int | None], timer_ns: Callable[[], int], retry: float) -> None:
        self._node_id, self._metadata, self._links, self._loop = node_id, metadata, links, loop
        self._leader, self._timer_ns, self._retry = leader, timer_ns, retry
        self.refusal: Callable[[Change], NotDone | None] = lambda change: None  # the reason why a leader refuses a change
        self._requests: dict[int, _Request] = {}
        self._numbers = timer_ns()  # answers to an earlier run of this process do not match

    def propose(self, change: Change, on_decided: OnDecided, wall: int, timeout: float = REQUEST_SECONDS_MAX) -> None:
        """Propose a change; `on_decided` receives the outcome. `timeout`: seconds until it fails with unknown outcome."""
        if len(self._requests) >= REQUESTS_MAX:
            on_decided(NotDone(f"{REQUESTS_MAX} changes of the metadata wait for the leader", False), wall)
            return
        self._numbers += 1
        number, now = self._numbers, self._loop.now
        self._requests[number] = _Request(change, on_decided, now + timeout)
        self._submit(number, self._requests[number], wall)
        if number in self._requests:
            self._loop.timers.at(now + min(timeout, self._retry), partial(self._repeat_or_expire, number))

    def _propose_here(self, change: Change, on_decided: OnDecided, wall: int) -> None:
        refused = self.refusal(change)
        if refused is not None:
            on_decided(refused, wall)
        else:
            self._metadata.propose(change, on_decided, wall)
            self._loop.performer.request_turn()

    def _submit(self, number: int, request: _Request, wall: int) -> None:
        leader = self._leader()
        if leader == self._node_id:
            if not request.proposed:
                request.proposed = True
                self._propose_here(request.change, partial(self._on_decided_here, number), wall)
        elif leader is not None:
            self._send(leader, _request_of(number, request.change))

    def _on_decided_here(self, number: int, outcome: Outcome, wall: int) -> None:
        """Handle the outcome in this node's own log; if it lost leadership, the next leader receives the request."""
        request = self._requests.get(number)
        if request is None:
            return
        request.proposed = False
        if not isinstance(outcome, NotDone) or not (outcome.unknown or outcome.code == NOT_LEADER):
            del self._requests[number]
            request.on_decided(outcome, wall)

    def _send(self, node_id: int, value: MetadataRequest | MetadataAnswer) -> None:
        self._links.send_control(node_id, cluster_event(MetadataLogMessage.of(value)))

    def on_leader_changed(self) -> None:
        """Send all requests to a new leader; requests of an earlier term are lost."""
        wall = self._loop.wall(self._loop.now)
        for number, request in list(self._requests.items()):
            if request.granted is None:
                self._submit(number, request, wall)

    def on_message(self, sender: int, value: MetadataRequest | MetadataAnswer, wall: int) -> None:
        """Handle a request of another node, or the leader's answer."""
        if isinstance(value, MetadataRequest):
            answer = partial(self._send_answer, sender, value.number)
            if self._leader() == self._node_id:
                self._propose_here(self._change_of(value), answer, wall)
            else:
                answer(NotDone(f"node {self._node_id} does not lead", False, NOT_LEADER), wall)
        else:
            self._on_answer(sender, value, wall)

    def _change_of(self, value: MetadataRequest) -> Change:
        added, removed = ([app_id for app_id, _ in apps] for apps in (value.added_app_ids, value.removed_app_ids))
        if value.unassign:
            return UnassignQueue(value.uri, value.key)
        if value.update:
            return UpdateApps(value.uri, added, removed, self._timer_ns())
        return AssignQueue(value.uri, added, self._timer_ns())

    def _send_answer(self, sender: int, number: int, outcome: Outcome, wall: int) -> None:
        if not isinstance(outcome, NotDone):
            term, sequence = self._metadata.log.applied
            self._send(sender, MetadataAnswer(number, elector_term=term, sequence_number=sequence))
        elif not outcome.unknown:  # else the requester asks the next leader
            self._send(sender, MetadataAnswer(number, True, outcome.reason, outcome.code))

    def _on_answer(self, sender: int, answer: MetadataAnswer, wall: int) -> None:
        request = self._requests.get(answer.number)
        if request is None or answer.refused and (answer.code == NOT_LEADER or sender != self._leader()):
            return  # the request is repeated
        if answer.refused and not self._is_made(request.change):
            del self._requests[answer.number]
            reason = f"leader {self._links.name(sender)} refuses: {answer.reason}"
            request.on_decided(NotDone(reason, False, answer.code), wall)
        else:
            request.granted = answer.elector_term, answer.sequence_number
            self.on_state_changed(wall)
        self._loop.performer.request_turn()

    def on_state_changed(self, wall: int) -> None:
        """Complete the requests whose records have been applied."""
        applied = self._metadata.log.applied
        for number, request in list(self._requests.items()):
            if request.granted is not None and request.granted <= applied:
                del self._requests[number]
                request.on_decided(Done(self._metadata.state.queues.get(getattr(request.change, "uri", ""))), wall)

    def _is_made(self, change: Change) -> bool:
        """Return whether a refused change was already made, by an earlier copy of the request."""
        known = self._metadata.state.queues.get(change.uri) if isinstance(change, UpdateApps) else None
        return isinstance(change, UpdateApps) and known is not None and (
            known.apps.keys() >= set(change.added) and not known.apps.keys() & set(change.removed))

    def _repeat_or_expire(self, number: int, now: float) -> None:
        """Repeat a request without an answer, or fail it after its timeout."""
        request = self._requests.get(number)
        if request is None:
            return
        if now >= request.until:
            del self._requests[number]
            request.on_decided(NotDone("no leader has answered in time", True), self._loop.wall(now))
            return
        self._loop.timers.at(min(request.until, now + self._retry), partial(self._repeat_or_expire, number))
        self._submit(number, request, self._loop.wall(now))


def _request_of(number: int, change: Change) -> MetadataRequest:
    if isinstance(change, UnassignQueue):
        return MetadataRequest(number, change.uri, unassign=True, key=change.key)
    if isinstance(change, UpdateApps):
        return MetadataRequest(number, change.uri, True, False, [(app_id, b"") for app_id in change.added],
                               [(app_id, b"") for app_id in change.removed])
    if isinstance(change, AssignQueue):
        return MetadataRequest(number, change.uri, False, False, [(app_id, b"") for app_id in change.app_ids])
    raise TypeError(f"{change} cannot be requested from the leader")
