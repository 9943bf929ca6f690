"""One broker as a Twisted service: the node of `assemble.py` with what a process needs around it.

    open     storage directories locked, ledger and partitions recovered     what can fail does so here
    listen   broker and console take connections                             `BMQbrkr started successfully`
    stop     listeners closed, deliveries stop, confirms awaited, connections closed, files closed, locks released
                                                                             `BMQbrkr stopped (shutdown took ...)`

From the reactor: startService, stopService (through the application, at SIGINT and SIGTERM), `_announce`,
`_wait_for_stop`.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, inlineCallbacks, maybeDeferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from bmqtwist.config.broker import Configuration
from bmqtwist.config.load import DomainReader
from bmqtwist.daemon.assemble import StartFailure, assemble
from bmqtwist.daemon.control_pipe import ControlPipe
from bmqtwist.daemon.process import MachineClock, process_state
from bmqtwist.daemon.statistics_log import StatisticsLog
from bmqtwist.errors import LocalError
from bmqtwist.ids import make_client_id
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.loop.scheduler import Priority
from bmqtwist.peers.welcome import Identity
from bmqtwist.reactor.performer import ReactorPerformer, listen
from bmqtwist.reactor.tcp import ConnectionFactory
from bmqtwist.report import Report
from bmqtwist.security.authenticators import exposure_warnings
from bmqtwist.security.tls import ClientContext, ServerContext
from bmqtwist.steps import Steps, at_once
from bmqtwist.storage.files import RealDisk
from bmqtwist.view import snapshots
from bmqtwist.view.metrics import exposition_in_steps, json_in_steps, tables_in_steps, tree_in_steps
from bmqtwist.view.snapshot import BrokerState, ProcessState

PROCESS_NAME = "bmqbrkr"
PIPE, HISTORY = "bmqbrkr.ctl", "bmqbrkr.hist"  # in the working directory
BACKLOG = 1024  # connections the kernel keeps until we accept them
FILES_RESERVE = 256  # open files that connections never take: journals, logs, the console, what a rollover opens
STOP_POLL_S = 0.05
COLLECT_AFTER_OBJECTS = 2_500, 0, 200_000  # new containers between two collections, of the youngest generation and of the
# two younger ones by turns: each of them takes 1 to 2 us, 40 ms for 20,000; `reactor.performer` has the oldest one collected
# while there is little to do
THREAD_WAITS_S = 0.001  # for the interpreter, at most, while the loop is busy
REPORT_S = 2.0  # that the console goes on after a stop that was asked for there: somebody waits for its report
DRAIN_SECONDS_MAX = 6.0  # for connections to take their last bytes; `reactor.tcp` cuts them off before that


class Companion(Protocol):
    """The console: started once clients are served, stopped when the process ends."""

    def start(self) -> None: ...

    def last_words(self) -> Deferred[Any]:
        """The stop is over: fires when all who watch have been notified."""

    def stop(self) -> None: ...


class BrokerService(Service):
    """One broker. `sites(service)` makes further (name, factory, address, port) to listen at, the console for one.

    `directory` is where the control pipe is made; None = no pipe.
    """

    def __init__(self, reactor: Any, configuration: Configuration, warnings: Iterable[object], report: Report,
                 sites: Callable[[BrokerService], list[tuple[str, Any, str, int]]] = lambda service: [],
                 directory: str | None = None) -> None:
        self.reactor, self.configuration, self.report = reactor, configuration, report
        self._warnings, self._sites, self._directory = tuple(warnings), sites, directory
        app = configuration.app
        self.clock = clock = MachineClock()
        now, host = clock.now(), socket.gethostname()
        self.identity = Identity(PROCESS_NAME, os.getpid(), app.host_name or host,
                                 make_client_id(host, time.time_ns(), os.getpid(), 0), now, now + clock.wall_offset)
        interface = app.network_interfaces.tcp_interface
        dispatcher = app.dispatcher_config
        self._files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._connections_max = interface.max_connections if interface else 0
        self.performer = ReactorPerformer(reactor, report, connections_max(self._connections_max, self._files_max),
                                          (app.authentication.min_threads, app.authentication.max_threads),
                                          dispatcher.warning_timeout_ms / 1000, dispatcher.alarm_timeout_ms / 1000)
        self.performer.admission.files_max = 0 if self._files_max == resource.RLIM_INFINITY else self._files_max
        self.node = assemble(configuration, DomainReader(configuration.directory), RealDisk(), clock, self.performer,
                             self.identity, report)
        self.broker = self.performer.broker = self.node.broker
        self.security = self.broker.security
        self.statistics = self.node.observe(self.process)
        self._tls = ServerContext(app.tls_config) if app.tls_config and any(
            each.tls for each in configuration.listeners) else None
        if app.tls_config and app.tls_config.certificate_authority:
            self.performer.client_context = ClientContext(app.tls_config)
        self._ports: list[Any] = []
        self._sites_ports: list[Any] = []  # they go on until the stop is over
        self._stop_asked: tuple[str, str] | None = None  # why, and by whom, where not by a signal
        self.companions: list[Companion] = []
        self._pipe: ControlPipe | None = None
        self._statistics_log: StatisticsLog | None = None
        self.started = False  # clients are served
        self.opened: Callable[[], None] = lambda: None  # called when all is open, before the start is announced

    # -- start ------------------------------------------------------------------------------------------------------

    def startService(self) -> None:
        """Open, recover, listen. Raises StartFailure with everything closed again."""
        super().startService()  # type: ignore[no-untyped-call]
        gc.disable()  # recovery makes a million objects that all must stay; `calm_collector` looks at them once
        try:
            self._start()
        except (LocalError, OSError) as error:
            self._undo()
            raise StartFailure(str(error)) from None
        finally:
            gc.enable()

    def _start(self) -> None:
        report = self.report
        for warning in self._warnings:
            report.warn("%s", warning)
        if connections_max(self._connections_max, self._files_max) != self._connections_max:
            report.warn("Only %d connections are taken (maxConnections: %d): the process may have %d open files, of "
                        "which %d are kept for storage. Raise its limit (ulimit -n, LimitNOFILE=).",
                        self.performer.admission.connections_max, self._connections_max, self._files_max, FILES_RESERVE)
        if not self.configuration.app.plugins.enabled:
            report.alarm("PLUGIN_MISSING", "No plugin is enabled at all. Please double check if this is intended.")
        self.node.open()
        self.performer.start()
        self.node.start()
        printer = self.configuration.app.stats.printer
        if self.statistics.enabled and printer.print_interval:
            self._statistics_log = StatisticsLog(printer, time.time, report)
            self.broker.loop.timers.every(self.clock.now(), printer.print_interval, self._print_statistics)
        self._open_ports()
        if self._directory is not None:
            self._pipe = ControlPipe(self.reactor, os.path.join(self._directory, PIPE),
                                     os.path.join(self._directory, HISTORY), self._run_from_pipe, report)
            self._pipe.open()
        calm_collector()
        be_fair_to_threads()
        self.started = True
        for companion in self.companions:
            companion.start()
        self.performer.turn_due()  # from here on timers run, also where nobody connects
        self.reactor.callWhenRunning(self._announce)

    def _announce(self) -> None:
        """Signals are taken by now: whoever reads this may stop the broker, and it stops gracefully."""
        self.opened()
        self.report.info("BMQbrkr started successfully")
        for cluster in self.broker.clusters.values():
            if not cluster.unavailable:
                self.report.info("Cluster (%s) is available", cluster.name)

    def _open_ports(self) -> None:
        interface = self.configuration.app.network_interfaces.tcp_interface
        name = interface.name if interface is not None else "TCPInterface"
        factory = ConnectionFactory(self.performer)
        for listener in self.configuration.listeners:
            port = listen(self.reactor, factory, listener.address, listener.port, self._tls if listener.tls else None,
                          BACKLOG)
            self._ports.append(port)
            self.report.info("TCPSessionFactory '%s': successfully listening to '%s:%d'%s", name, listener.address,
                             port.getHost().port, " with TLS" if listener.tls else "")
        for text in exposure_warnings(self.configuration, self.security.open_to_anybody,
                                      self.security.authorizer is not None):
            self.report.warn("%s", text)
        for what, site, address, number in self._sites(self):
            port = listen(self.reactor, site, address, number, None, BACKLOG)
            self._sites_ports.append(port)
            self.report.info("%s: listening to 'http://%s:%d/'", what, address, port.getHost().port)
        self.performer.admission.ports = [*self._ports, *self._sites_ports]

    def _run_from_pipe(self, command: str, source: str, done: Callable[[AdminAnswer], None]) -> None:
        self.broker.commands.run(command, source, done)
        self.performer.turn_due()

    def reload(self) -> None:
        """Reopen what is moved or renewed outside: statistics logs and certificates. The configuration stays."""
        try:
            if self._statistics_log is not None:
                self._statistics_log.reopen()
            contexts = [each for each in (self._tls, self.performer.client_context) if each is not None]
            for context in contexts:
                context.reload()
            if contexts:
                self.report.info("The certificates of tlsConfig were read again: they count for new connections")
        except (LocalError, OSError) as error:
            self.report.error("Reload: %s. What was in use before stays.", error)

    # -- statistics -------------------------------------------------------------------------------------------------

    def _print_statistics(self, now: float) -> None:
        log, loop = self._statistics_log, self.broker.loop
        if log is not None and log.files:
            loop.scheduler.start(Priority.COMMAND, log, self._printed(log, now), partial(
                loop.contain.told, "The statistics log"), lambda texts: log.write(*texts))

    def _printed(self, log: StatisticsLog, now: float) -> Steps[tuple[str, str]]:
        """Tables and JSON; what is not wanted is empty."""
        yield from self.node.sampling(now)

        def printed(state: BrokerState) -> Steps[tuple[str, str]]:
            tables = text = ""
            if log.tables is not None:
                tables = yield from tables_in_steps(state, self.statistics)
            if log.json is not None:
                latencies = yield from snapshots.latencies_in_steps(self.broker)
                text = yield from json_in_steps((yield from tree_in_steps(state, self.statistics, latencies)))
            return tables, text
        return (yield from snapshots.seen_in_steps(self.broker, now, self.process(), printed))

    # -- for the console --------------------------------------------------------------------------------------------

    def state(self) -> BrokerState:
        """The broker now."""
        return at_once(snapshots.broker_in_steps(self.broker, self.clock.now(), self.process()))

    def moment(self) -> tuple[float, float]:
        """Seconds now: monotonic, and since the epoch."""
        now = self.clock.now()
        return now, now + self.clock.wall_offset

    def process(self) -> ProcessState:
        """What the operating system says of this process."""
        return process_state(self.performer.lag.last, self.performer.lag.longest, self.performer.watchdog)

    def metrics(self, prefix: str, instance: str) -> Steps[str]:
        """Its metrics now, for Prometheus, in steps."""
        now = self.clock.now()
        yield from self.node.sampling(now)
        return (yield from snapshots.seen_in_steps(self.broker, now, self.process(), lambda state: exposition_in_steps(
            state, self.statistics, prefix, instance)))

    def in_steps(self, work: Steps[Any]) -> Deferred[Any]:
        """What the work gives, which goes on in turns."""
        done: Deferred[Any] = Deferred()
        self.broker.loop.scheduler.start(Priority.COMMAND, done, work, done.errback, done.callback)
        return done

    def unready(self) -> str:
        """Why clients are not served; empty = they are."""
        if self.broker.shutdown is not None:
            return "stopping"
        if not self.started:
            return "starting"
        closed = [cluster.unready for cluster in self.broker.clusters.values() if cluster.unready]
        return f"partitions not available: {', '.join(closed)}" if closed else ""

    def log_failure(self, failure: Failure) -> None:
        """A request to the console failed by our mistake."""
        self.report.error("Internal error in the console: %s", failure.getTraceback())

    # -- stop -------------------------------------------------------------------------------------------------------

    def stopService(self) -> Deferred[None] | None:
        """Stop gracefully; fires when nothing is left open."""
        super().stopService()  # type: ignore[no-untyped-call]
        return self._stop() if self.started else None

    def stop_gracefully(self, reason: str, by: str) -> None:
        """Stop the process as a signal does. LocalError: that is under way."""
        if not self.started or self._stop_asked is not None:
            raise LocalError("This node is starting or stopping already")
        self._stop_asked = reason, by
        self.report.info("Stop asked for by '%s': %s", by, reason)
        self.reactor.callLater(0, self.reactor.stop)

    @inlineCallbacks
    def _stop(self) -> Any:
        begun = self.clock.now()
        reason, by = self._stop_asked or ("", "")
        self.started = False
        if self._pipe is not None:
            self._pipe.close()
        ports, self._ports, self.performer.admission.ports = self._ports, [], ()
        for port in ports:
            yield maybeDeferred(port.stopListening)
        self.broker.stop(begun, reason, by)
        while self.broker.shutdown is not None and not self.broker.shutdown.done:
            yield deferLater(self.reactor, STOP_POLL_S)
        now = self.clock.now()
        self.broker.turn(now)
        for session in list(self.broker.sessions.open):  # what they held stays stored, at no cost of an attempt
            self.performer.finish(session)
        while self.broker.sessions.open and self.clock.now() - now < DRAIN_SECONDS_MAX:
            yield deferLater(self.reactor, STOP_POLL_S)
        for companion in self.companions:
            yield companion.last_words().addErrback(self.log_failure)
        if self._stop_asked is not None:
            yield deferLater(self.reactor, REPORT_S)
        yield self._close_sites()
        self._close()
        self.report.info("BMQbrkr stopped (shutdown took %.5f seconds)", self.clock.now() - begun)

    @inlineCallbacks
    def _close_sites(self) -> Any:
        """The console goes last: who watches sees the stop until its end."""
        ports, self._sites_ports = self._sites_ports, []
        for companion in self.companions:
            companion.stop()
        for port in ports:
            yield maybeDeferred(port.stopListening)

    def _undo(self) -> None:
        """A start that failed: close whatever was opened."""
        for port in self._ports:
            port.stopListening()
        self._ports = []
        self._close_sites().addErrback(self.log_failure)
        self._close()

    def _close(self) -> None:
        self.performer.stop()
        self.node.close()
        if self._statistics_log is not None:
            self._statistics_log.close()


def connections_max(wanted: int, files_max: int) -> int:
    """How many connections are taken: as configured (0 = any number), but for the files that storage needs."""
    if files_max == resource.RLIM_INFINITY:
        return wanted
    possible = max(1, files_max - FILES_RESERVE)
    return min(wanted, possible) if wanted else possible


def calm_collector() -> None:
    """Collect seldom: messages hold no cycles, so nearly all a collection would find is what must stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER_OBJECTS)


def be_fair_to_threads() -> None:
    """A sync asks the busy loop twice for its turn, when it begins and when it is done: an ACK waits for both."""
    sys.setswitchinterval(THREAD_WAITS_S)
