"""Exchange of login generations between the consoles of all nodes.

    a logout          sends the generations to all nodes (`server.py`)
    every EXCHANGE_S  each node requests the generations of all nodes, and keeps the higher number of each user
    after a start     a node refuses logins from before it, until every other node has answered: it may have missed a logout

`service.py` starts it if users and a key file are configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from bmqtwist.console.consoles import OtherConsoles
from bmqtwist.console.generations import LoginGenerations
from bmqtwist.view import cluster_facts

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

EXCHANGE_S = 10.0
LOGOUTS_PATH = "/api/v1/node/logouts"


class GenerationExchange:
    """Requests the generations of the other nodes every EXCHANGE_S."""

    def __init__(self, host: BrokerService, consoles: OtherConsoles, generations: LoginGenerations) -> None:
        self._host, self._consoles, self._generations = host, consoles, generations
        self._answered: set[str] = set()  # nodes that have answered since the start
        self._timer: Any = None

    def start(self) -> None:
        """Request the generations now, and again every EXCHANGE_S."""
        self._timer = self._host.reactor.callLater(EXCHANGE_S, self.start)
        self.request()

    def stop(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def request(self) -> None:
        """Request the generations of all other nodes."""
        self._on_answers(({}, {}))
        asked: Deferred[Any] = self._consoles.request_all(LOGOUTS_PATH)
        asked.addCallback(self._on_answers).addErrback(self._host.log_failure)

    def _on_answers(self, answers: tuple[Mapping[str, Mapping[str, object]], object]) -> None:
        for name, answer in answers[0].items():
            self._generations.merge(answer.get("generations"))
            self._answered.add(name)
        broker = self._host.node.broker
        others = set(cluster_facts.node_names(broker)) - {cluster_facts.name_of(broker)}
        if self._generations.has_file and others <= self._answered | cluster_facts.nodes_without_console(broker):
            self._generations.is_complete = True
