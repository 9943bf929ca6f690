"""Stops from the console: of this node, at once or after a delay, and of all nodes in a rolling restart.

A delayed stop can be aborted until it begins: then clients lose their queues, and other nodes are notified. In a rolling
restart nodes stop one at a time, each once the previous one is back and the cluster is well; a supervisor or a person must
start them again. The node that serves goes last; it is restarted, but does not see that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from twisted.internet.defer import maybeDeferred

from bmqtwist.console.access import Refusal, Who
from bmqtwist.console.collector import Collector
from bmqtwist.console.documents import Document
from bmqtwist.view.stopping import STAGES

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

DELAY_SECONDS_MAX = 3600
BEGUN = ("The stop has begun: clients and other nodes have been told, so it cannot be aborted. Start the node again once it "
         "has stopped.")
POLL_S = 1.0
SETTLE_POLLS = 3  # that all is well, one after the other, until the next node stops
STARTED_POLLS = 30  # until it is said that nothing has started a node again
StopNode = Callable[[str, str, Who], Any]  # its name, the reason, who wants it


class _Waiting(Struct, frozen=True):
    call: Any
    since: float
    until: float
    reason: str
    by: str


class DelayedStop:
    """The stop of the node of `host`, after a delay within which it can be aborted."""

    def __init__(self, host: BrokerService) -> None:
        self._host = host
        self._waiting: _Waiting | None = None

    @property
    def _begun(self) -> bool:
        return self._host.node.broker.shutdown is not None

    def ask(self, reason: str, by: str, delay: int) -> None:
        """Stop in so many seconds. Refusal: it is to stop already; LocalError: it is starting or stopping."""
        if self._waiting is not None:
            raise Refusal(409, f"This node is to stop already, as {self._waiting.by} wants: {self._waiting.reason}")
        if delay <= 0 or self._begun:
            self._host.stop_gracefully(reason, by)
            return
        now, _ = self._host.moment()
        self._waiting = _Waiting(self._host.reactor.callLater(delay, self._over), now, now + delay, reason, by)
        self._host.report.note("stop", f"this node is to stop in {delay} s, by {by}: {reason}")

    def _over(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self._begun:
            self._host.stop_gracefully(waiting.reason, waiting.by)

    def abort(self, by: str) -> None:
        """It does not stop. Refusal: it is not to, or it is too late."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            raise Refusal(409, BEGUN if self._begun else "This node is not to stop.")
        waiting.call.cancel()
        self._host.report.note("stop", f"the stop of this node is aborted by {by}")

    def end(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.call.cancel()

    @property
    def state(self) -> Document | None:
        """As `view.stopping.progress` would have it; None = nothing waits."""
        waiting, (now, _) = self._waiting, self._host.moment()
        if waiting is None:
            return None
        return {"stage": STAGES[0], "stages": STAGES, "seconds": now - waiting.since, "clients": None,
                "reason": waiting.reason, "by": waiting.by, "partitions": [], "leads": False,
                "unconfirmed": None, "unanswered": None, "secondsLeft": max(0.0, waiting.until - now), "peers": [],
                "done": False, "report": None, "abortable": True}


class RollingRestart:
    """One at a time. `state`: what is shown of it; None = there is none."""

    def __init__(self, reactor: Any, documents: Collector, stop_node: StopNode, report: Any) -> None:
        self._reactor, self._documents, self._stop_node, self._report = reactor, documents, stop_node, report
        self.state: Document | None = None
        self._left: list[str] = []
        self._reason = ""
        self._who: Who | None = None
        self._stopped_at = 0.0  # startedAt of the node that is restarted
        self._well = self._away = 0  # polls
        self._call: Any = None

    def begin(self, cluster: Mapping[str, Any], reason: str, who: Who) -> list[str]:
        """Begin: the nodes in their order. Refusal: one is under way, or the cluster is not well."""
        if self.state is not None and not self.state["done"]:
            raise Refusal(409, f"A rolling restart is under way: {self.state['text']}.")
        wrong = troubles(cluster)
        if wrong:
            raise Refusal(409, f"The cluster is not well: {wrong}")
        own = self._documents.name
        self._left = [node["name"] for node in cluster["nodes"] if node["name"] != own] + [own]
        self._reason, self._who, self._well = reason, who, SETTLE_POLLS
        self.state = {"text": "beginning", "node": "", "left": list(self._left), "paused": "", "done": False, "by": who.user,
                      "reason": reason}
        self._report.info("Rolling restart of %s by %s: %s", ", ".join(self._left), who.user, reason)
        self._later()
        return list(self._left)

    def abort(self, by: str) -> None:
        """No further node is stopped; one that stops does so. Refusal: there is nothing to abort."""
        if self.state is None or self.state["done"]:
            raise Refusal(409, "No rolling restart is under way.")
        self.stop()
        self._report.info("Rolling restart: aborted by %s", by)
        self.state.update(text=f"aborted by {by}", done=True, paused="")

    def stop(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()

    def _later(self) -> None:
        self._call = self._reactor.callLater(POLL_S, self._poll)

    def _poll(self) -> None:
        self._documents.cluster().addCallbacks(self._seen, lambda failure: self._pause(str(failure.value)))

    def _seen(self, cluster: Mapping[str, Any]) -> None:
        state = self.state
        assert state is not None  # `begin` was called
        if state["done"]:
            return  # aborted meanwhile
        wrong = troubles(cluster)
        node = next((each for each in cluster["nodes"] if each["name"] == state["node"]), None)
        if node is not None and node["startedAt"] is not None and node["startedAt"] <= self._stopped_at:
            wrong = wrong or f"{node['name']} has not stopped yet"
        self._away = self._away + 1 if node is not None and node["state"] == "down" else 0
        if self._away > STARTED_POLLS:
            wrong = (f"{state['node']} has stopped, and nothing has started it again for {self._away * POLL_S:.0f} s. "
                     "Start it: the restart goes on by itself then")
        self._well = 0 if wrong else self._well + 1
        if wrong:
            self._pause(wrong)
            return
        state["paused"] = ""
        if self._well < SETTLE_POLLS:
            self._later()
            return
        if not self._left:
            state.update(text="done", node="", done=True)
            return
        name = self._left.pop(0)
        self._stopped_at = next(each["startedAt"] or 0.0 for each in cluster["nodes"] if each["name"] == name)
        state.update(node=name, left=list(self._left), text=f"{name} is restarted")
        self._well = 0
        who = self._who
        assert who is not None  # as above
        maybeDeferred(self._stop_node, name, f"rolling restart: {self._reason}", who).addCallbacks(
            self._asked, lambda failure: self._give_up(str(failure.value)))

    def _asked(self, answer: Any) -> None:
        status = answer[0] if isinstance(answer, tuple) else 200
        if status != 200:
            self._give_up(str(answer[1].get("error") or status))
        elif self.state is not None and not self.state["done"]:
            self._later()

    def _pause(self, why: str) -> None:
        if self.state is not None and not self.state["done"]:
            self.state["paused"] = why
            self._later()

    def _give_up(self, why: str) -> None:
        if self.state is not None:
            self._report.error("Rolling restart: %s", why)
            self.state.update(text=f"given up: {why}", done=True)


def troubles(cluster: Mapping[str, Any]) -> str:
    """Why no further node may stop now; empty = it may."""
    away = [node["name"] for node in cluster["nodes"] if node["state"] != "up"]
    if away:
        return f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} not up"
    if not cluster["leader"]["node"]:
        return "no node leads"
    for partition in cluster["partitions"]:
        if not partition["primary"]:
            return f"partition {partition['id']} has no primary"
        behind = [row["node"] for row in partition["replicas"] if row["role"] in ("healing", "down")]
        if behind:
            return f"{', '.join(behind)} {'catches' if len(behind) == 1 else 'catch'} up in partition {partition['id']}"
    return ""
