"""Stops from the console: of this node, at once or after a delay, and of all nodes in a rolling restart.

A delayed stop can be aborted until it begins; then clients lose their queues and other nodes are notified. In a rolling
restart nodes stop one at a time, each when the previous one is up again and the cluster is healthy; a supervisor or an
operator must start them again. The node that serves the console stops last, which ends the rolling restart's supervision.
Created by `service.py`, requested through `actions.py`; the stop itself is in `broker/graceful_stop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from twisted.internet.defer import maybeDeferred

from bmqtwist.console.access import Caller, Refusal
from bmqtwist.console.collector import DocumentCollector
from bmqtwist.console.documents import Document
from bmqtwist.view.stopping import STAGES

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

DELAY_SECONDS_MAX = 3600
STOP_STARTED = ("The stop has started and cannot be aborted: clients and other nodes have been notified. Start the node "
                "again after it has stopped.")
POLL_S = 1.0
SETTLE_POLLS = 3  # consecutive polls of a healthy cluster before the next node stops
STARTED_POLLS = 30  # polls of a stopped node until the console reports that it was not started again
StopNode = Callable[[str, str, Caller], Any]  # from node name, reason and user


class _Scheduled(Struct, frozen=True):
    """Scheduled stop: its delayed call, and the time of the request and of the stop in monotonic seconds."""

    call: Any
    since: float
    until: float
    reason: str
    by: str


class DelayedStop:
    """Stop of this node after a delay, within which it can be aborted."""

    def __init__(self, host: BrokerService) -> None:
        self._host = host
        self._scheduled: _Scheduled | None = None

    @property
    def _has_started(self) -> bool:
        return self._host.node.broker.shutdown is not None

    def request(self, reason: str, by: str, delay: int) -> None:
        """Stop in `delay` seconds. Refusal: a stop is already scheduled; LocalError: the node is starting or stopping."""
        if self._scheduled is not None:
            raise Refusal(409, f"{self._scheduled.by} has already scheduled a stop of this node: {self._scheduled.reason}")
        if delay <= 0 or self._has_started:
            self._host.stop_gracefully(reason, by)
            return
        now, _ = self._host.present_time()
        self._scheduled = _Scheduled(self._host.reactor.callLater(delay, self._begin), now, now + delay, reason, by)
        self._host.report.record_event("stop", f"stop of this node scheduled in {delay} s by {by}: {reason}")

    def _begin(self) -> None:
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is not None and not self._has_started:
            self._host.stop_gracefully(scheduled.reason, scheduled.by)

    def abort(self, by: str) -> None:
        """Cancel the scheduled stop. Refusal: no stop is scheduled, or it has begun."""
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is None:
            raise Refusal(409, STOP_STARTED if self._has_started else "No stop of this node is scheduled.")
        scheduled.call.cancel()
        self._host.report.record_event("stop", f"stop of this node aborted by {by}")

    def cancel(self) -> None:
        """Cancel the scheduled stop, if any, without a log line."""
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is not None:
            scheduled.call.cancel()

    @property
    def state(self) -> Document | None:
        """Progress in the form of `view.stopping.progress`; None = no stop is scheduled."""
        scheduled, (now, _) = self._scheduled, self._host.present_time()
        if scheduled is None:
            return None
        return {"stage": STAGES[0], "stages": STAGES, "seconds": now - scheduled.since, "clients": None,
                "reason": scheduled.reason, "by": scheduled.by, "partitions": [], "leads": False,
                "unconfirmed": None, "unanswered": None, "secondsLeft": max(0.0, scheduled.until - now), "peers": [],
                "done": False, "report": None, "abortable": True}


class RollingRestart:
    """Rolling restart of the cluster. `state`: its document; None = none has been started."""

    def __init__(self, reactor: Any, documents: DocumentCollector, stop_node: StopNode, report: Any) -> None:
        self._reactor, self._documents, self._stop_node, self._report = reactor, documents, stop_node, report
        self.state: Document | None = None
        self._remaining: list[str] = []
        self._reason = ""
        self._caller: Caller | None = None
        self._started_before = 0.0  # startedAt of the node that is being restarted
        self._healthy_polls = self._down_polls = 0
        self._call: Any = None

    def start(self, cluster: Mapping[str, Any], reason: str, caller: Caller) -> list[str]:
        """Start the restart, and return the nodes in order. Refusal: a restart is in progress, or the cluster is not
        healthy."""
        if self.state is not None and not self.state["done"]:
            raise Refusal(409, f"A rolling restart is in progress: {self.state['text']}.")
        problem = restart_obstacle(cluster)
        if problem:
            raise Refusal(409, f"The cluster is not healthy: {problem}")
        own = self._documents.name
        self._remaining = [node["name"] for node in cluster["nodes"] if node["name"] != own] + [own]
        self._reason, self._caller, self._healthy_polls = reason, caller, SETTLE_POLLS
        self.state = {"text": "beginning", "node": "", "left": list(self._remaining), "paused": "", "done": False,
                      "by": caller.user, "reason": reason}
        self._report.info("Rolling restart of %s by %s: %s", ", ".join(self._remaining), caller.user, reason)
        self._schedule_poll()
        return list(self._remaining)

    def abort(self, by: str) -> None:
        """Stop no further node; a stop in progress continues. Refusal: no rolling restart is in progress."""
        if self.state is None or self.state["done"]:
            raise Refusal(409, "No rolling restart is in progress.")
        self.stop()
        self._report.info("Rolling restart: aborted by %s", by)
        self.state.update(text=f"aborted by {by}", done=True, paused="")

    def stop(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()

    def _schedule_poll(self) -> None:
        self._call = self._reactor.callLater(POLL_S, self._poll)

    def _poll(self) -> None:
        state = self.state
        assert state is not None  # `start` was called
        self._documents.cluster().addCallbacks(partial(self._on_cluster, state),
                                               lambda failure: self._pause(state, str(failure.value)))

    def _is_current(self, state: Document) -> bool:
        """Return False if this restart was aborted while an answer was awaited; another one may have been started."""
        return state is self.state and not state["done"]

    def _on_cluster(self, state: Document, cluster: Mapping[str, Any]) -> None:
        if not self._is_current(state):
            return
        problem = restart_obstacle(cluster)
        node = next((each for each in cluster["nodes"] if each["name"] == state["node"]), None)
        if node is not None and node["startedAt"] is not None and node["startedAt"] <= self._started_before:
            problem = problem or f"{node['name']} has not stopped yet"
        self._down_polls = self._down_polls + 1 if node is not None and node["state"] == "down" else 0
        if self._down_polls > STARTED_POLLS:
            problem = (f"{state['node']} stopped {self._down_polls * POLL_S:.0f} s ago and has not been started again. "
                       "Start it to continue the rolling restart")
        self._healthy_polls = 0 if problem else self._healthy_polls + 1
        if problem:
            self._pause(state, problem)
            return
        state["paused"] = ""
        if self._healthy_polls < SETTLE_POLLS:
            self._schedule_poll()
            return
        if not self._remaining:
            state.update(text="done", node="", done=True)
            return
        name = self._remaining.pop(0)
        self._started_before = next(each["startedAt"] or 0.0 for each in cluster["nodes"] if each["name"] == name)
        state.update(node=name, left=list(self._remaining), text=f"restarting {name}")
        self._healthy_polls = 0
        caller = self._caller
        assert caller is not None  # as above
        maybeDeferred(self._stop_node, name, f"rolling restart: {self._reason}", caller).addCallbacks(
            partial(self._on_stop_answer, state), lambda failure: self._give_up(state, str(failure.value)))

    def _on_stop_answer(self, state: Document, answer: Any) -> None:
        status = answer[0] if isinstance(answer, tuple) else 200
        if status != 200:
            self._give_up(state, str(answer[1].get("error") or status))
        elif self._is_current(state):
            self._schedule_poll()

    def _pause(self, state: Document, why: str) -> None:
        if self._is_current(state):
            state["paused"] = why
            self._schedule_poll()

    def _give_up(self, state: Document, why: str) -> None:
        self._report.error("Rolling restart: %s", why)
        state.update(text=f"given up: {why}", done=True)


def restart_obstacle(cluster: Mapping[str, Any]) -> str:
    """Return the reason why no further node may stop now; empty = a node may stop."""
    not_up = [node["name"] for node in cluster["nodes"] if node["state"] != "up"]
    if not_up:
        return f"{', '.join(not_up)} {'is' if len(not_up) == 1 else 'are'} not up"
    if not cluster["leader"]["node"]:
        return "the cluster has no leader"
    for partition in cluster["partitions"]:
        if not partition["primary"]:
            return f"partition {partition['id']} has no primary"
        behind = [row["node"] for row in partition["replicas"] if row["role"] in ("healing", "down")]
        if behind:
            return f"{', '.join(behind)} {'is' if len(behind) == 1 else 'are'} catching up in partition {partition['id']}"
    return ""
