"""Console of one broker, assembled: the site at `http.port`, and the publication of documents every PERIOD_S.

`tap.py` creates it if `http.port` is set; `daemon.service.BrokerService` starts and stops it as a `Companion`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks
from twisted.python.failure import Failure

from bmqtwist.console.access import OPEN_SECRET, ROLES, Cookies, Logins, NodeTokens, Refusal
from bmqtwist.console.audit import AuditLog
from bmqtwist.console.collector import DocumentCollector
from bmqtwist.console.consoles import PeerClient
from bmqtwist.console.demonstration import Demonstration
from bmqtwist.console.documents import Document, cluster_on_the_wire, queues_on_the_wire
from bmqtwist.console.exchange import GenerationExchange
from bmqtwist.console.generations import LoginGenerations
from bmqtwist.console.hub import Hub
from bmqtwist.console.live import LiveFactory, LiveResource
from bmqtwist.console.operation import OperationContext
from bmqtwist.console.pages import PageWriter, StaticFiles, find_directory
from bmqtwist.console.server import WebConsole
from bmqtwist.console.site import make_site
from bmqtwist.console.stops import DelayedStop, RollingRestart
from bmqtwist.console.topics import ClusterTopic, QueuesTopic, Topic
from bmqtwist.security.key_file import read_secret
from bmqtwist.view.cluster_facts import name_of

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

PERIOD_S = 0.3  # between two documents of a topic


class ConsoleService:
    """Console of one broker. `site`: the factory for its listener."""

    def __init__(self, host: BrokerService) -> None:
        self._host = host
        configuration = host.node.broker.configuration
        http = configuration.extension.http
        secret = read_secret(http.key_file)
        users = {user.name: user for user in http.users}
        log_file = configuration.broker.task_config.log_controller.file_name
        folder = str(Path(log_file).parent) if log_file else ""
        generations = LoginGenerations(users, folder if secret else "", host.report.error,
                                       host.report.failed_files)
        generations.is_complete = not secret  # else no login outlives the process
        cookies = Cookies(secret or os.urandom(32), http.session_hours * 3600.0, http.idle_minutes * 60.0, generations,
                          host.present_time()[1])
        logins = Logins(users, cookies, ROLES.get(http.local_role))
        tokens = NodeTokens(secret or OPEN_SECRET, host.present_time()[1]) if secret or not users else None
        self._client = PeerClient(host.reactor, name_of(host.node.broker), tokens, lambda: host.present_time()[1],
                                  host.run_in_steps)
        self.collector = DocumentCollector(host, self._client, folder)
        self.hub = Hub(lambda: os.urandom(9).hex(), self._publish_soon)
        audit = AuditLog(folder, host.report.failed_files)
        demonstration, delayed_stop = Demonstration(host), DelayedStop(host)
        restart = RollingRestart(host.reactor, self.collector,
                                 lambda node, reason, caller: context.stop_node(node, reason, caller), host.report)
        self._context = context = OperationContext(host, self.collector, self._client, audit, logins, demonstration,
                                                   restart, delayed_stop, http.prefix)
        self.collector.action_states = lambda: {
            "restart": restart.state and dict(restart.state), "stop": delayed_stop.state, "demo": demonstration.state}
        self._logins = logins
        self._exchange = GenerationExchange(host, self.collector.consoles, generations) if secret and users else None
        self._live = LiveFactory(host.reactor, self.hub, self._admit, lambda: host.present_time()[0])
        live: Any = LiveResource(self._live)  # type: ignore[no-untyped-call]
        self._web = WebConsole(
            context, lambda: os.urandom(18).hex(), tokens, live, StaticFiles(find_directory("web")),
            PageWriter(find_directory("templates"), bool(http.report_directory)))
        self.site = make_site(self._web.resource(), host)
        self._tick: Any = None
        self._busy = self._stopped = False

    def _admit(self, address: str, headers: Any) -> Any:
        return self._web.admit_websocket(address, headers)

    def start(self) -> None:
        self.collector.start()
        if self._exchange is not None:
            self._exchange.start()

    def stop(self) -> None:
        """Stop with the broker: subscribers receive a last document and reconnect to another node."""
        self._stopped = True
        if self._exchange is not None:
            self._exchange.stop()
        if self._tick is not None and self._tick.active():
            self._tick.cancel()
        self._context.demonstration.stop()
        self._context.delayed_stop.cancel()
        self._context.restart.stop()
        self._live.close()
        self.collector.stop()
        self._client.close()

    # -- subscribers ------------------------------------------------------------------------------------------------

    def _publish_soon(self) -> None:
        """Publish soon: a subscriber waits for its first document."""
        if self._busy or self._stopped:
            return
        if self._tick is not None and self._tick.active():
            self._tick.cancel()
        self._tick = self._host.reactor.callLater(0, self._publish)

    def _publish(self) -> None:
        self._live.close_ended_logins(lambda caller: self._logins.is_still_valid(caller, self._host.present_time()[1]))
        topics = self.hub.topics()
        if self._stopped or not topics:
            return
        self._busy = True
        DeferredList([self._publish_one(topic) for topic in topics]).addCallback(self._published).addErrback(
            self._host.log_failure)

    def _published(self, ignored: object) -> None:
        self._busy = False
        if not self._stopped and self.hub.topics():
            waiting = any(each.seen is None for subscriptions in self.hub.subscribers.values()
                          for each in subscriptions.values())
            self._tick = self._host.reactor.callLater(PERIOD_S / 4 if waiting else PERIOD_S, self._publish)

    @inlineCallbacks
    def _publish_one(self, topic: Topic) -> Any:
        try:
            document = yield self.collector.document(topic)
            self.hub.publish(topic, wire_form(topic, document))
        except Refusal as refusal:
            self.hub.refuse(topic, refusal)
        except Exception:
            self._host.log_failure(Failure())
            self.hub.refuse(topic, Refusal(500, "Internal error, see the log of this node."))

    def send_stop_result(self) -> Deferred[Any]:
        """Publish a last document to all subscribers; fires when it is sent."""
        topic = ClusterTopic()
        self.collector.invalidate()
        return self._publish_one(topic) if topic in self.hub.topics() else DeferredList([])


def wire_form(topic: Topic, document: Document) -> Document:
    """Return a document in the form that the WebSocket sends."""
    if isinstance(topic, ClusterTopic):
        return cluster_on_the_wire(document)
    return queues_on_the_wire(document) if isinstance(topic, QueuesTopic) else document
