"""Composition root of the broker, for twistd and `bmqbrkr`; the only module that imports the reactor.

    twistd -n bmq --config etc         in the foreground
    twistd bmq --config etc            as a daemon (twistd.pid, twistd.log)
    twistd bmq --config etc --check    check the configuration and exit
    bmqbrkr etc                        BlazingMQ's command

`make_broker` builds a service from configuration, report and reactor, and adds the console, on which no other package
depends.

twistd finds it by `twisted/plugins/bmqtwist_plugin.py`. The service is in `daemon/service.py`, the wiring of a node in
`daemon/assemble.py`, the arguments of `bmqbrkr` in `cli/bmqbrkr.py`.
"""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from twisted.application.service import MultiService
from twisted.internet.defer import maybeDeferred
from twisted.logger import globalLogPublisher
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from bmqtwist import __version__
from bmqtwist.addresses import host_and_port
from bmqtwist.cli.bmqbrkr import EXIT_CONFIG, EXIT_START, main, start_panic
from bmqtwist.cli.check import run_check
from bmqtwist.config.compose import Overrides
from bmqtwist.config.load import Loaded, load
from bmqtwist.console.http import HealthEndpoints
from bmqtwist.console.site import make_site
from bmqtwist.daemon.directories import create_missing
from bmqtwist.daemon.service import BrokerService
from bmqtwist.errors import LocalError
from bmqtwist.logs.background import close, drain, nonblocking_stream
from bmqtwist.logs.observer import Logs
from bmqtwist.report import Report


class Options(UsageOptions):
    """Options of `twistd bmq`; they take precedence over the environment, which takes precedence over the files."""

    synopsis = "[options]"
    longdesc = "A BlazingMQ-compatible message broker over a directory of configuration files."
    optParameters: ClassVar[list[list[Any]]] = [
        ["config", "c", None, "Directory with bmqbrkrcfg.json, clusters.json and domains/."],
        ["instance-id", "i", None, "Name of this broker, instead of brokerInstanceName."],
        ["host-name", "H", None, "Host name of this broker, instead of hostName."],
        ["host-tags", "t", None, "Tags of the host, instead of hostTags."],
        ["host-data-center", "d", None, "Data center of the host, instead of hostDataCenter."],
        ["port", "p", None, "Port to listen at.", int],
        ["listen", "l", None, "Address to listen at, for listeners without an address."],
        ["durability", None, None, "none, group or always, instead of appConfig.bmqtwist.durability."],
        ["http-port", None, None, "Port of the console and metrics; 0 = off.", int],
        ["http-address", None, None, "Address of the console and metrics."]]
    optFlags: ClassVar[list[list[Any]]] = [
        ["check", None, "Check the configuration with all its domains, print problems, and exit."],
        ["strict", None, "Refuse to start with a configuration that has warnings."]]

    def opt_version(self) -> None:
        """Print the version and exit."""
        print(f"bmqtwist {__version__}")
        sys.exit(0)

    def postOptions(self) -> None:
        """Check the values without reading files."""
        if not self["config"]:
            raise UsageError("The option --config DIR is missing.")
        if not os.path.isdir(self["config"]):
            raise UsageError(f"There is no directory '{self['config']}'.")
        if self["durability"] not in (None, "none", "group", "always"):
            raise UsageError("--durability is none, group or always.")

    @property
    def overrides(self) -> Overrides:
        """The options that replace members of files."""
        return Overrides(instance_id=self["instance-id"], host_name=self["host-name"], host_tags=self["host-tags"],
                         host_data_center=self["host-data-center"], port=self["port"], listen_address=self["listen"],
                         durability=self["durability"], http_address=self["http-address"],
                         http_port=self["http-port"])


def makeService(options: Options) -> MultiService:
    """Return the service that twistd runs. Exits with code 2 if the configuration is invalid."""
    if options["check"]:
        raise SystemExit(run_check(options["config"], options.overrides, bool(options["strict"])))
    sys.stdout = nonblocking_stream(sys.stdout)  # twistd's log must not block on a slow reader
    try:
        loaded = load(options["config"], options.overrides, strict=bool(options["strict"]))
    except LocalError as error:
        print(f"PANIC [STARTUP] (-1): Failed to read the config:\n{error}", file=sys.stderr)
        raise SystemExit(EXIT_CONFIG) from None
    return TwistdBroker(loaded, bool(options.parent and options.parent.get("nodaemon")))


def make_broker(reactor: Any, loaded: Loaded, report: Report, directory: str | None) -> BrokerService:
    """Return the service of a broker with its console; `directory`: of the control pipe, None = no pipe."""
    return BrokerService(reactor, loaded.configuration, loaded.warnings, report, make_sites, directory)


def make_sites(service: BrokerService) -> list[tuple[str, Any, str, int]]:
    """Return (name, factory, address, port) of each HTTP site."""
    configuration = service.configuration
    http, sites = configuration.extension.http, []
    if http.port:
        from bmqtwist.console.service import ConsoleService  # imports its libraries only if needed

        console = ConsoleService(service)
        service.companions.append(console)
        sites.append(("Console", console.site, http.address, http.port))
    for plugin in configuration.app.stats.plugins:
        prometheus = plugin.prometheus_specific
        if prometheus is None or not plugin.publish_interval:
            continue
        if prometheus.mode != "E_PULL":
            service.report.warn("Metrics plug-in '%s': E_PUSH is not offered; configure E_PULL and scrape "
                                "http://%s/metrics", plugin.name, host_and_port(prometheus.host, prometheus.port))
            continue
        site = make_site(HealthEndpoints(service, service.log_failure, plugin).resource(), service)
        sites.append((f"Metrics plug-in '{plugin.name}'", site, prometheus.host, prometheus.port))
    return sites


class TwistdBroker(MultiService):
    """The broker under twistd. It is built by `startService`, after twistd has forked.

    twistd writes its log to standard output, as a daemon to its file. A failed start prints the reason and ends the process:
    in the foreground with the exit code of `bmqbrkr`, as a daemon by an exception, which twistd reports.
    """

    def __init__(self, loaded: Loaded, in_foreground: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._loaded, self._in_foreground = loaded, in_foreground
        self._logs: Logs | None = None
        self._alarms = nonblocking_stream(sys.stderr)
        self._output: Any = sys.stdout  # also of twistd's log

    def startService(self) -> None:
        from twisted.internet import reactor

        try:
            made = create_missing(self._loaded.configuration)
            self._logs = Logs(self._loaded.configuration.broker.task_config.log_controller, None, self._alarms)
            globalLogPublisher.addObserver(self._logs.observer)  # type: ignore[arg-type]
            for line in made:
                self._logs.report.info("%s", line)
            make_broker(reactor, self._loaded, self._logs.report, os.getcwd()).setServiceParent(self)  # type: ignore[no-untyped-call]
            super().startService()  # type: ignore[no-untyped-call]
        except LocalError as error:
            print(start_panic(error), file=sys.stderr, flush=True)
            drain(self._output)
            if self._in_foreground:
                raise SystemExit(EXIT_START) from None
            raise

    def stopService(self) -> Any:
        """Stop the broker, then close the log."""
        stopping = maybeDeferred(super().stopService)
        stopping.addBoth(self._close_logs)
        return stopping

    def _close_logs(self, result: Any) -> Any:
        if self._logs is not None:
            globalLogPublisher.removeObserver(self._logs.observer)  # type: ignore[arg-type]
            self._logs.close()
        close(self._alarms)
        drain(self._output)
        return result


def bmqbrkr() -> None:
    """Run the command `bmqbrkr`."""
    from twisted.internet import reactor

    sys.exit(main(sys.argv[1:], reactor, make_broker))
