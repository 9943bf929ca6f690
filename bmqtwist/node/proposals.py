"""Changes of the metadata that this node wants, whoever leads.

The leader proposes them to its log at once. Any other node asks the leader, and a change counts as made when this node sees
it committed. A request that a leader did not answer goes to the next one; after a while it has failed, and nobody knows
then what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bmqtwist.cluster.changes import AssignQueue, Change, UnassignQueue, UpdateApps
from bmqtwist.cluster.log_events import Done, NotDone, Outcome
from bmqtwist.cluster.state import app_infos
from bmqtwist.errors import Category, Refused
from bmqtwist.node.links import ClusterLinks
from bmqtwist.node.metadata import ClusterMetadata, Told
from bmqtwist.node.performer import Performer
from bmqtwist.node.timers import Timers
from bmqtwist.wire.cluster_schema import ClusterMessage, MetadataAnswer, MetadataLogMessage, MetadataRequest
from bmqtwist.wire.control import ControlMessage, encode_event
from bmqtwist.wire.schema import Status

PATIENCE_S = 15.0
REQUESTS_MAX = 10_000  # that wait for an answer


class ProposalHost(Protocol):
    """The broker, as far as proposals need it."""

    performer: Performer
    timers: Timers
    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""


@dataclass(slots=True)
class _Request:
    change: Change
    told: Told
    asked: int | None = None  # the leader that was asked, and is to answer
    granted: bool = False  # it is committed; this node has not seen it yet


class Proposals:
    """Of one cluster of several nodes. `leader`: who leads and may be asked, None = nobody."""

    def __init__(self, node_id: int, metadata: ClusterMetadata, links: ClusterLinks, host: ProposalHost,
                 leader: Callable[[], int | None], timer_ns: Callable[[], int]) -> None:
        self._node_id, self._metadata, self._links, self._host = node_id, metadata, links, host
        self._leader, self._timer_ns = leader, timer_ns
        self.may_assign: Callable[[str], Refused | None] = lambda uri: None  # why a queue cannot be assigned
        self._requests: dict[int, _Request] = {}
        self._numbers = 0

    def propose(self, change: Change, told: Told, wall: int) -> None:
        """As `ClusterMetadata.propose`."""
        if self._leader() == self._node_id:
            self._metadata.propose(change, told, wall)
            return
        if len(self._requests) >= REQUESTS_MAX:
            told(NotDone(f"{REQUESTS_MAX} changes of the metadata wait for the leader", False), wall)
            return
        self._numbers += 1
        self._requests[self._numbers] = _Request(change, told)
        self._host.timers.at(self._host.now + PATIENCE_S, partial(self._expired, self._numbers))
        self._ask(self._numbers, self._requests[self._numbers])

    def _ask(self, number: int, request: _Request) -> None:
        leader = self._leader()
        if leader is None:
            return
        if leader == self._node_id:
            del self._requests[number]
            self._metadata.propose(request.change, request.told, self._host.wall(self._host.now))
            self._host.performer.turn_due()
            return
        request.asked = leader
        self._send(leader, "request", _written(number, request.change))

    def _send(self, node_id: int, choice: str, value: MetadataRequest | MetadataAnswer) -> None:
        self._links.send(node_id, encode_event(ControlMessage(None, "clusterMessage", ClusterMessage(
            "metadataLogMessage", MetadataLogMessage(choice, value)))))

    def leader_changed(self) -> None:
        """Whoever was asked may not be the one to ask any more."""
        leader = self._leader()
        for number, request in list(self._requests.items()):
            if not request.granted and request.asked != leader:
                request.asked = None
                self._ask(number, request)

    def received(self, sender: int, message: ClusterMessage, wall: int) -> bool:
        """Another node asks, or answers; False: it says something else."""
        value = message.value.value if message.choice == "metadataLogMessage" else None
        if isinstance(value, MetadataRequest):
            change = self._read(value)
            answer = partial(self._answer, sender, value.number)
            if self._leader() == self._node_id:
                refused = self.may_assign(value.uri) if isinstance(change, AssignQueue) else None
                if refused is not None:
                    answer(NotDone(refused.message, False, refused), wall)
                else:
                    self._metadata.propose(change, answer, wall)
            return True
        if isinstance(value, MetadataAnswer):
            self._answered(sender, value, wall)
            return True
        return False

    def _read(self, value: MetadataRequest) -> Change:
        added, removed = ([app.app_id for app in apps] for apps in (value.added_app_ids, value.removed_app_ids))
        if value.unassign:
            return UnassignQueue(value.uri)
        if value.update:
            return UpdateApps(value.uri, added, removed, self._timer_ns())
        return AssignQueue(value.uri, added, self._timer_ns())

    def _answer(self, sender: int, number: int, outcome: Outcome, wall: int) -> None:
        refused = isinstance(outcome, NotDone)
        reason = outcome.reason if isinstance(outcome, NotDone) else ""
        if isinstance(outcome, NotDone) and outcome.unknown:
            return  # whoever leads next is asked again
        told = outcome.refused if isinstance(outcome, NotDone) else None
        self._send(sender, "answer", MetadataAnswer(number, refused, reason, Status(
            told.category, told.code, told.message) if told is not None else None))

    def _answered(self, sender: int, answer: MetadataAnswer, wall: int) -> None:
        request = self._requests.get(answer.number)
        if request is None or request.asked != sender:
            return
        if answer.refused:
            del self._requests[answer.number]
            told = answer.told
            request.told(NotDone(answer.reason, False, Refused(
                told.category or Category.E_UNKNOWN, told.message, told.code) if told is not None else None), wall)
        else:
            request.granted = True
            self.state_changed(wall)
        self._host.performer.turn_due()

    def state_changed(self, wall: int) -> None:
        """The metadata say something else now: perhaps what somebody waits for."""
        for number, request in list(self._requests.items()):
            if request.granted and self._is_seen(request.change):
                del self._requests[number]
                uri = getattr(request.change, "uri", "")
                request.told(Done(self._metadata.state.queues.get(uri)), wall)

    def _is_seen(self, change: Change) -> bool:
        known = self._metadata.state.queues.get(getattr(change, "uri", ""))
        if isinstance(change, UnassignQueue):
            return known is None
        if isinstance(change, UpdateApps):
            return known is None or known.apps.keys() >= set(change.added) and not known.apps.keys() & set(change.removed)
        return known is not None

    def _expired(self, number: int, now: float) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.told(NotDone(f"no leader has answered within {PATIENCE_S:g} s", True), self._host.wall(now))


def _written(number: int, change: Change) -> MetadataRequest:
    if isinstance(change, UnassignQueue):
        return MetadataRequest(number, change.uri, unassign=True)
    if isinstance(change, UpdateApps):
        return MetadataRequest(number, change.uri, True, False, app_infos(dict.fromkeys(change.added, b"")),
                               app_infos(dict.fromkeys(change.removed, b"")))
    if isinstance(change, AssignQueue):
        return MetadataRequest(number, change.uri, False, False, app_infos(dict.fromkeys(change.app_ids, b"")))
    raise TypeError(f"nobody asks for {change}")
