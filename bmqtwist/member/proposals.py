"""Changes of the metadata that this node wants, whoever leads.

The leader proposes them to its log at once, unless it refuses (`Proposals.refusal`). Any other node asks the leader, and a
change counts as made when this node has applied the record. What a leader does not answer, or could not commit, it is asked
again, and so is the next one; a node that does not lead says so. After its patience a request has failed, and nobody knows
then what becomes of it.
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

PATIENCE_S = 15.0
REQUESTS_MAX = 10_000  # that wait for an answer


@dataclass(slots=True)
class _Request:
    change: Change
    told: OnDecided
    until: float
    proposed: bool = False  # to our own log: this node leads
    granted: Lsn | None = None  # it is committed there; this node has not seen that yet


class Proposals:
    """Of one cluster of several nodes. `leader`: who leads and may be asked, None = nobody; `retry`: seconds until one that
    does not answer is asked again."""

    def __init__(self, node_id: int, metadata: ClusterMetadata, links: ClusterLinks, host: Loop,
                 leader: Callable[[], int | None], timer_ns: Callable[[], int], retry: float) -> None:
        self._node_id, self._metadata, self._links, self._host = node_id, metadata, links, host
        self._leader, self._timer_ns, self._retry = leader, timer_ns, retry
        self.refusal: Callable[[Change], NotDone | None] = lambda change: None  # why a leader does not propose a change
        self._requests: dict[int, _Request] = {}
        self._numbers = timer_ns()  # no answer to an earlier run of this process fits

    def propose(self, change: Change, told: OnDecided, wall: int, patience: float = PATIENCE_S) -> None:
        """As `ClusterMetadata.propose`; `patience`: seconds that a leader is waited for."""
        if len(self._requests) >= REQUESTS_MAX:
            told(NotDone(f"{REQUESTS_MAX} changes of the metadata wait for the leader", False), wall)
            return
        self._numbers += 1
        number, now = self._numbers, self._host.now
        self._requests[number] = _Request(change, told, now + patience)
        self._ask(number, self._requests[number], wall)
        if number in self._requests:
            self._host.timers.at(now + min(patience, self._retry), partial(self._look_again, number))

    def _propose_here(self, change: Change, told: OnDecided, wall: int) -> None:
        refused = self.refusal(change)
        if refused is not None:
            told(refused, wall)
        else:
            self._metadata.propose(change, told, wall)
            self._host.performer.turn_due()

    def _ask(self, number: int, request: _Request, wall: int) -> None:
        leader = self._leader()
        if leader == self._node_id:
            if not request.proposed:
                request.proposed = True
                self._propose_here(request.change, partial(self._decided_here, number), wall)
        elif leader is not None:
            self._send(leader, _written(number, request.change))

    def _decided_here(self, number: int, outcome: Outcome, wall: int) -> None:
        """This node leads, or did: then the next leader is asked."""
        request = self._requests.get(number)
        if request is None:
            return
        request.proposed = False
        if not isinstance(outcome, NotDone) or not (outcome.unknown or outcome.code == NOT_LEADER):
            del self._requests[number]
            request.told(outcome, wall)

    def _send(self, node_id: int, value: MetadataRequest | MetadataAnswer) -> None:
        self._links.send(node_id, cluster_event(MetadataLogMessage.of(value)))

    def leader_changed(self) -> None:
        """Another node is to be asked, or the same one once more: what it was asked in an earlier term is forgotten."""
        wall = self._host.wall(self._host.now)
        for number, request in list(self._requests.items()):
            if request.granted is None:
                self._ask(number, request, wall)

    def received(self, sender: int, value: MetadataRequest | MetadataAnswer, wall: int) -> None:
        """Another node asks, or answers."""
        if isinstance(value, MetadataRequest):
            answer = partial(self._answer, sender, value.number)
            if self._leader() == self._node_id:
                self._propose_here(self._read(value), answer, wall)
            else:
                answer(NotDone(f"node {self._node_id} does not lead", False, NOT_LEADER), wall)
        else:
            self._answered(sender, value, wall)

    def _read(self, value: MetadataRequest) -> Change:
        added, removed = ([app_id for app_id, _ in apps] for apps in (value.added_app_ids, value.removed_app_ids))
        if value.unassign:
            return UnassignQueue(value.uri, value.key)
        if value.update:
            return UpdateApps(value.uri, added, removed, self._timer_ns())
        return AssignQueue(value.uri, added, self._timer_ns())

    def _answer(self, sender: int, number: int, outcome: Outcome, wall: int) -> None:
        if not isinstance(outcome, NotDone):
            term, sequence = self._metadata.log.applied
            self._send(sender, MetadataAnswer(number, elector_term=term, sequence_number=sequence))
        elif not outcome.unknown:  # else whoever leads next is asked again
            self._send(sender, MetadataAnswer(number, True, outcome.reason, outcome.code))

    def _answered(self, sender: int, answer: MetadataAnswer, wall: int) -> None:
        request = self._requests.get(answer.number)
        if request is None or answer.refused and (answer.code == NOT_LEADER or sender != self._leader()):
            return  # the next leader is asked, or this one once more
        if answer.refused and not self._is_so(request.change):
            del self._requests[answer.number]
            request.told(NotDone(answer.reason, False, answer.code), wall)
        else:
            request.granted = answer.elector_term, answer.sequence_number
            self.state_changed(wall)
        self._host.performer.turn_due()

    def state_changed(self, wall: int) -> None:
        """The metadata say something else now: perhaps what somebody waits for."""
        applied = self._metadata.log.applied
        for number, request in list(self._requests.items()):
            if request.granted is not None and request.granted <= applied:
                del self._requests[number]
                request.told(Done(self._metadata.state.queues.get(getattr(request.change, "uri", ""))), wall)

    def _is_so(self, change: Change) -> bool:
        """Whether a change that is refused has been made already: it was asked for twice."""
        known = self._metadata.state.queues.get(change.uri) if isinstance(change, UpdateApps) else None
        return isinstance(change, UpdateApps) and known is not None and (
            known.apps.keys() >= set(change.added) and not known.apps.keys() & set(change.removed))

    def _look_again(self, number: int, now: float) -> None:
        """Nothing has become of a request for a while."""
        request = self._requests.get(number)
        if request is None:
            return
        if now >= request.until:
            del self._requests[number]
            request.told(NotDone("no leader has answered in time", True), self._host.wall(now))
            return
        self._host.timers.at(min(request.until, now + self._retry), partial(self._look_again, number))
        self._ask(number, request, self._host.wall(now))


def _written(number: int, change: Change) -> MetadataRequest:
    if isinstance(change, UnassignQueue):
        return MetadataRequest(number, change.uri, unassign=True, key=change.key)
    if isinstance(change, UpdateApps):
        return MetadataRequest(number, change.uri, True, False, [(app_id, b"") for app_id in change.added],
                               [(app_id, b"") for app_id in change.removed])
    if isinstance(change, AssignQueue):
        return MetadataRequest(number, change.uri, False, False, [(app_id, b"") for app_id in change.app_ids])
    raise TypeError(f"nobody asks for {change}")
