"""Twisted service of one broker: the node of `assemble.py` with listeners, threads, control pipe and statistics log.

    open     lock storage directories, recover ledger and partitions      errors of a start are raised here
    listen   accept connections of broker and console                     `BMQbrkr started successfully`
    stop     close listeners, end deliveries, wait for CONFIRMs, close connections and files, release locks
                                                                          `BMQbrkr stopped (shutdown took ...)`

The Twisted application calls startService and, at SIGINT and SIGTERM, stopService.
"""

from __future__ import annotations

import contextlib
import fcntl
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

from bmqtwist import alarms
from bmqtwist.addresses import host_and_port
from bmqtwist.config.broker import Configuration
from bmqtwist.config.load import DomainReader
from bmqtwist.daemon.assemble import StartFailure, assemble
from bmqtwist.daemon.control_pipe import ControlPipe
from bmqtwist.daemon.directories import readable_by_others
from bmqtwist.daemon.process import MachineClock, process_state
from bmqtwist.daemon.statistics_log import StatisticsLog
from bmqtwist.daemon.systemd import Systemd
from bmqtwist.errors import LocalError
from bmqtwist.ids import make_client_id
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.loop.scheduler import Priority
from bmqtwist.peers.handshake import Identity
from bmqtwist.reactor.listening import listen
from bmqtwist.reactor.performer import ReactorPerformer
from bmqtwist.reactor.tcp import ConnectionFactory
from bmqtwist.report import RepeatLimiter, Report
from bmqtwist.security.exposure import START_WEIGHTS, exposures
from bmqtwist.security.tls import ClientContext, ServerContext
from bmqtwist.steps import Steps
from bmqtwist.storage.files import RealDisk
from bmqtwist.view import snapshots
from bmqtwist.view.metrics import WriteText, exposition_in_steps, json_in_steps, tables_in_steps, tree_in_steps
from bmqtwist.view.snapshot import BrokerState, ProcessState

PROCESS_NAME = "bmqbrkr"
PIPE, HISTORY = "bmqbrkr.ctl", "bmqbrkr.hist"  # in the control directory
BACKLOG = 1024  # listen backlog: connections that wait in the kernel
FILES_RESERVE = 256  # file descriptors reserved for journals, logs, the console and rollovers
DESCRIPTORS_MAX = 1 << 16  # file descriptors for which the table of the kernel has room from the start, 8 bytes each
STOP_POLL_S = 0.05
# Arguments of gc.set_threshold: a collection starts after 2,500 new containers, alternately of the youngest generation and
# of the two younger ones. A container takes 1 to 2 us, 20,000 of them 40 ms. `reactor/loop_lag.py` collects the oldest
# generation while the loop is idle.
COLLECT_AFTER_OBJECTS = 2_500, 0, 200_000
THREAD_WAITS_S = 0.001  # longest wait of a thread for the interpreter while the event loop is busy
REPORT_S = 2.0  # the console shows the report of a stop that it requested this long before it closes
DRAIN_SECONDS_MAX = 6.0  # timeout of the last output; `reactor.tcp` aborts connections before that


class Companion(Protocol):
    """Console of the process (`console.service.ConsoleService`): started when clients are served, stopped at the end."""

    def start(self) -> None: ...

    def send_stop_result(self) -> Deferred[Any]:
        """Send the result of the stop to all connected browsers; fires when it is sent."""

    def stop(self) -> None: ...


class BrokerService(Service):
    """One broker. `sites(service)` returns (name, factory, address, port) of further listeners, such as the console.

    `directory`: of the control pipe, if the configuration names none; None = no pipe.
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
        dispatcher = app.dispatcher_config
        self._files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.performer = ReactorPerformer(reactor, report, connections_max(self._configured_connections(), self._files_max),
                                          (app.authentication.min_threads, app.authentication.max_threads),
                                          dispatcher.warning_timeout_ms / 1000, dispatcher.alarm_timeout_ms / 1000)
        self.performer.admission.files_max = 0 if self._files_max == resource.RLIM_INFINITY else self._files_max
        self.node = assemble(configuration, DomainReader(configuration.directory), RealDisk(), clock, self.performer,
                             self.identity, report)
        self.broker = self.performer.broker = self.node.broker
        self.security = self.broker.security
        self.statistics = self.node.start_statistics(self.process)
        self._tls = ServerContext(app.tls_config, configuration.extension.require_client_certificate) if (
            app.tls_config and any(each.tls for each in configuration.listeners)) else None
        if app.tls_config and app.tls_config.certificate_authority:
            self.performer.client_context = ClientContext(app.tls_config)
        self._ports: list[Any] = []
        self._sites_ports: list[Any] = []  # open until the end of the stop
        self._stop_request: tuple[str, str] | None = None  # (reason, operator) of a stop by the console
        self.companions: list[Companion] = []
        self._systemd = Systemd({} if directory is None else os.environ)  # an embedded broker is not the service
        self._pipe: ControlPipe | None = None
        self._statistics_log: StatisticsLog | None = None
        self._failures = RepeatLimiter()  # lines of the log
        self.started = False  # clients are served
        self.on_opened: Callable[[], None] = lambda: None  # called before `BMQbrkr started successfully` is logged

    # -- start ------------------------------------------------------------------------------------------------------

    def startService(self) -> None:
        """Open, recover, listen. Raises StartFailure, after closing all that was opened."""
        super().startService()  # type: ignore[no-untyped-call]
        gc.disable()  # recovery creates a million permanent objects, which `tune_garbage_collector` traverses once
        try:
            self._start()
        except (LocalError, OSError) as error:
            self._close_after_failure()
            raise StartFailure(str(error)) from None
        finally:
            gc.enable()

    def _start(self) -> None:
        report = self.report
        for warning in self._warnings:
            report.warn("%s", warning)
        configured = self._configured_connections()
        if connections_max(configured, self._files_max) != configured:
            report.warn("Only %d connections are accepted (maxConnections: %d): the process may have %d open files, of "
                        "which %d are reserved for storage. Raise its limit (ulimit -n, LimitNOFILE=).",
                        self.performer.admission.connections_max, configured, self._files_max, FILES_RESERVE)
        if not self.configuration.app.plugins.enabled:
            report.alarm(alarms.PLUGIN_MISSING, "No plugin is enabled at all. Please double check if this is intended.")
        self._systemd.starting()
        expand_descriptor_table(self._files_max, self.performer.admission.connections_max)
        self.node.open()
        self.performer.start()
        self.node.start()
        printer = self.configuration.app.stats.printer
        if self.statistics.enabled and printer.print_interval:
            self._statistics_log = StatisticsLog(printer, time.time, report)
            self.broker.loop.timers.every(self.clock.now(), printer.print_interval, self._print_statistics)
        if self._systemd.enabled:
            self.broker.loop.timers.every(self.clock.now(), self._systemd.check_s, self._notify_systemd)
        self._open_ports()
        if self._directory is not None:
            self._open_pipe(self._directory)
        tune_garbage_collector()
        sys.setswitchinterval(THREAD_WAITS_S)  # a sync needs the interpreter twice: at its begin and at its end
        self.started = True
        for companion in self.companions:
            companion.start()
        self.performer.request_turn()  # starts the timers
        self.reactor.callWhenRunning(self._announce)

    def _configured_connections(self) -> int:
        interface = self.configuration.app.network_interfaces.tcp_interface
        return interface.max_connections if interface else 0

    def _open_pipe(self, directory: str) -> None:
        """Open the control pipe. A working directory that is read-only costs the pipe, not the start."""
        configured = self.configuration.extension.control_directory
        self._pipe = ControlPipe(self.reactor, os.path.join(configured or directory, PIPE),
                                 os.path.join(configured or directory, HISTORY), self._run_from_pipe, self.report)
        try:
            self._pipe.open()
        except OSError as error:
            text = f"The control pipe '{self._pipe.path}' cannot be created: {error.strerror or error}"
            if configured:
                raise LocalError(f"{text}.") from None
            self.report.warn("%s: this broker has none. Set appConfig.bmqtwist.controlDirectory.", text)

    def _announce(self) -> None:
        """Log the start; called when the reactor handles signals, so that a stop after these lines is graceful."""
        self.on_opened()
        self.report.info("BMQbrkr started successfully")
        self._systemd.ready(self.unready_reason())
        for cluster in self.broker.clusters.values():
            if not cluster.unavailable:
                self.report.info("Cluster (%s) is available", cluster.name)

    def _notify_systemd(self, now: float) -> None:
        stop = self.broker.shutdown
        self._systemd.tick(self.unready_reason() if stop is None else f"stopping: {stop.progress()}")

    def _open_ports(self) -> None:
        interface = self.configuration.app.network_interfaces.tcp_interface
        name = interface.name if interface is not None else "TCPInterface"
        factory = ConnectionFactory(self.performer)
        sites = self._sites(self)  # raises an error of their configuration before a client can connect
        for listener in self.configuration.listeners:
            for port in listen(self.reactor, factory, listener.address, listener.port, self._tls if listener.tls else None,
                               BACKLOG):
                self._ports.append(port)
                at = port.getHost()
                self.report.info("TCPSessionFactory '%s': successfully listening to '%s'%s", name,
                                 host_and_port(at.host, at.port), " with TLS" if listener.tls else "")
        for exposure in exposures(self.configuration, self.security, readable_by_others):
            if exposure.weight in START_WEIGHTS:
                self.report.warn("#SECURITY %s", exposure)
        for what, site, address, number in sites:
            for port in listen(self.reactor, site, address, number, None, BACKLOG):
                self._sites_ports.append(port)
                at = port.getHost()
                self.report.info("%s: listening to 'http://%s/'", what, host_and_port(at.host, at.port))
        self.performer.admission.ports = [*self._ports, *self._sites_ports]

    def _run_from_pipe(self, command: str, source: str, done: Callable[[AdminAnswer], None]) -> None:
        self.broker.commands.run(command, source, done)
        self.performer.request_turn()

    def reload(self) -> None:
        """Reopen statistics logs and reload certificates; the configuration stays."""
        self._systemd.reloading()
        try:
            if self._statistics_log is not None:
                self._statistics_log.reopen()
            contexts = [each for each in (self._tls, self.performer.client_context) if each is not None]
            for context in contexts:
                context.reload()
            if contexts:
                self.report.info("The certificates of tlsConfig are reloaded for new connections")
        except (LocalError, OSError) as error:
            self.report.error("Reload: %s. The files in use before stay in use.", error)
        self._systemd.ready(self.unready_reason())

    # -- statistics -------------------------------------------------------------------------------------------------

    def _print_statistics(self, now: float) -> None:
        log, loop = self._statistics_log, self.broker.loop
        if log is not None and log.files:
            loop.scheduler.start(Priority.COMMAND, log, self._print_in_steps(log, now), partial(
                loop.isolation.alarm, "The statistics log"), lambda texts: log.write(*texts))

    def _print_in_steps(self, log: StatisticsLog, now: float) -> Steps[tuple[str, str]]:
        """Return the texts of tables and JSON; empty = off."""
        yield from self.node.sample_in_steps(now)

        def printed(state: BrokerState) -> Steps[tuple[str, str]]:
            tables = text = ""
            if log.tables is not None:
                tables = yield from tables_in_steps(state, self.statistics)
            if log.json is not None:
                latencies = yield from snapshots.latencies_in_steps(self.broker)
                text = yield from json_in_steps((yield from tree_in_steps(state, self.statistics, latencies)))
            return tables, text
        return (yield from snapshots.snapshot_in_steps(self.broker, now, self.process(), printed))

    # -- for the console --------------------------------------------------------------------------------------------

    def short_status(self) -> dict[str, object]:
        """Return the short status of the broker, as JSON."""
        return snapshots.short_status(self.broker, self.clock.now(), self.unready_reason())

    def present_time(self) -> tuple[float, float]:
        """Return the present time: (monotonic seconds, seconds since the epoch)."""
        now = self.clock.now()
        return now, now + self.clock.wall_offset

    def process(self) -> ProcessState:
        return process_state(self.performer.lag.last, self.performer.lag.longest, self.performer.watchdog)

    def metrics(self, write: WriteText, prefix: str, instance: str) -> Steps[None]:
        """Write the present metrics for Prometheus, in steps."""
        now, queues_max = self.clock.now(), self.configuration.extension.http.metrics_queues_max
        yield from self.node.sample_in_steps(now)
        yield from snapshots.snapshot_in_steps(self.broker, now, self.process(), lambda state: exposition_in_steps(
            state, self.statistics, write, prefix, instance, queues_max))

    def run_in_steps(self, work: Steps[Any]) -> Deferred[Any]:
        """Run the work as a job; fires with its result."""
        done: Deferred[Any] = Deferred()
        self.broker.loop.scheduler.start(Priority.COMMAND, done, work, done.errback, done.callback)
        return done

    def limit_accepts(self) -> None:
        """Limit the connections that are accepted at a time."""
        self.performer.admission.limit_accepts()

    def start_http(self, owner: object, work: Steps[None], failed: Callable[[Exception], None]) -> None:
        """Run work of an HTTP connection as a job."""
        self.broker.loop.scheduler.add(Priority.HTTP, owner, work, failed)

    def unready_reason(self) -> str:
        """Return the reason why clients are not served; empty = they are."""
        if self.broker.shutdown is not None:
            return "stopping"
        if not self.started:
            return "starting"
        closed = [cluster.unready for cluster in self.broker.clusters.values() if cluster.unready]
        return f"partitions not available: {', '.join(closed)}" if closed else ""

    def log_failure(self, failure: Failure) -> None:
        """Log an unexpected exception of a console request, once per minute for each line of code that raises."""
        where = failure.frames[-1][1:3] if failure.frames else ()
        suffix = self._failures.suffix((failure.type, where), self.clock.now())
        if suffix is not None:
            self.report.error("Internal error in the console%s: %s", suffix, failure.getTraceback())

    # -- stop -------------------------------------------------------------------------------------------------------

    def stopService(self) -> Deferred[None] | None:
        """Stop gracefully; fires when connections and files are closed."""
        super().stopService()  # type: ignore[no-untyped-call]
        return self._stop() if self.started else None

    def stop_gracefully(self, reason: str, by: str) -> None:
        """Stop the process as a signal does. Raises LocalError if it is starting or stopping."""
        if not self.started or self._stop_request is not None:
            raise LocalError("This node is starting or stopping already")
        self._stop_request = reason, by
        self.report.info("Stop requested by '%s': %s", by, reason)
        self.reactor.callLater(0, self.reactor.stop)

    @inlineCallbacks
    def _stop(self) -> Any:
        begun = self.clock.now()
        reason, by = self._stop_request or ("", "")
        self.started = False
        self._systemd.stopping()
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
        for session in list(self.broker.sessions.open):  # unconfirmed messages stay stored, without the cost of an attempt
            self.performer.close_when_sent(session)
        while self.broker.sessions.open and self.clock.now() - now < DRAIN_SECONDS_MAX:
            yield deferLater(self.reactor, STOP_POLL_S)
        for companion in self.companions:
            yield companion.send_stop_result().addErrback(self.log_failure)
        if self._stop_request is not None:
            yield deferLater(self.reactor, REPORT_S)
        yield self._close_sites()
        self._close()
        self.report.info("BMQbrkr stopped (shutdown took %.5f seconds)", self.clock.now() - begun)

    @inlineCallbacks
    def _close_sites(self) -> Any:
        """Close the console, which shows the progress of the stop until its end."""
        ports, self._sites_ports = self._sites_ports, []
        for companion in self.companions:
            companion.stop()
        for port in ports:
            yield maybeDeferred(port.stopListening)

    def _close_after_failure(self) -> None:
        """Close all that was opened, after a failed start."""
        for port in self._ports:
            port.stopListening()
        self._ports = []
        self._close_sites().addErrback(self.log_failure)
        self._close()

    def _close(self) -> None:
        self.performer.stop()
        self.node.close()
        self._systemd.close()
        if self._statistics_log is not None:
            self._statistics_log.close()


def connections_max(wanted: int, files_max: int) -> int:
    """Return the limit of connections: `wanted` (0 = no limit), or the number of file descriptors minus FILES_RESERVE if
    that is lower."""
    if files_max == resource.RLIM_INFINITY:
        return wanted
    possible = max(1, files_max - FILES_RESERVE)
    return min(wanted, possible) if wanted else possible


def expand_descriptor_table(files_max: int, connections: int) -> None:
    """Make room for the descriptors of all connections, 0 = no limit. In a process with threads accept(2) waits 6 to 18 ms
    each time when the table of the kernel is full and doubles, at 256, 512, 1024 and so on descriptors."""
    wanted = min(connections + FILES_RESERVE if connections else DESCRIPTORS_MAX, DESCRIPTORS_MAX)
    last = (wanted if files_max == resource.RLIM_INFINITY else min(wanted, files_max)) - 1
    with contextlib.suppress(OSError), open(os.devnull, "rb") as file:  # a start does not need the room
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, last))  # the table keeps its size


def tune_garbage_collector() -> None:
    """Make collections rare: messages have no reference cycles, so that a collection finds little to free."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER_OBJECTS)
