"""A start rehearsed: what a broker would stumble on if it started now, found without changing anything.

    the ports      somebody else listens there
    the storage    ledger, partitions and domains are opened and recovered over an overlay, as a start would do it

A broker that runs from this configuration has both for itself: then there is nothing to rehearse, which is said.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterable

from bmqtwist.config.broker import Configuration
from bmqtwist.config.declare import Finding
from bmqtwist.config.load import BROKER_FILE, CLUSTERS_FILE, DomainReader, Loaded, with_lines
from bmqtwist.daemon.assemble import StartFailure, assemble
from bmqtwist.daemon.overlay import OverlayDisk
from bmqtwist.daemon.places import MEMBERS
from bmqtwist.daemon.process import MachineClock
from bmqtwist.errors import LocalError
from bmqtwist.link.session import Session
from bmqtwist.peers.identity import Identity
from bmqtwist.report import ListReport
from bmqtwist.storage.files import RealDisk, is_locked

_PORTS = "appConfig.networkInterfaces.tcpInterface"
_DOMAIN = re.compile(r"Domain '([^']*)' ")
_NOTHING = b"\0" * 6  # client id of GUIDs that nobody makes


def rehearse(loaded: Loaded) -> tuple[list[Finding], list[Finding]]:
    """(problems, warnings) of a start with a configuration that is good in itself."""
    configuration = loaded.configuration
    running = _running(configuration)
    if running:
        return [], with_lines(running, loaded.lines)
    problems, warnings = _storage(configuration)
    return with_lines(_ports(configuration) + problems, loaded.lines), with_lines(warnings, loaded.lines)


def _running(configuration: Configuration) -> list[Finding]:
    """Directories that a broker has for itself."""
    found = []
    for i, cluster in enumerate(configuration.clusters.my_clusters):
        for member, attribute in MEMBERS:
            path: str = getattr(cluster.partition_config, attribute)
            if is_locked(path):
                found.append(Finding(f"{configuration.directory}/{CLUSTERS_FILE}", 0,
                                     f"myClusters[{i}].partitionConfig.{member}",
                                     f'"{path}" is in use by a broker that runs: what is stored there and the ports were '
                                     "not looked at"))
    return found


# -- ports -------------------------------------------------------------------------------------------------------------


def _ports(configuration: Configuration) -> list[Finding]:
    """Ports at which somebody else listens, and addresses that are not of this machine."""
    file, app = f"{configuration.directory}/{BROKER_FILE}", configuration.app
    wanted = [(each.address, each.port, f"{_PORTS}.listeners[{i}].port") for i, each in enumerate(configuration.listeners)]
    if app.bmqtwist.http.port:
        wanted.append((app.bmqtwist.http.address, app.bmqtwist.http.port, "appConfig.bmqtwist.http.port"))
    for i, plugin in enumerate(app.stats.plugins):
        prometheus = plugin.prometheus_specific
        if prometheus is not None and plugin.publish_interval and prometheus.mode == "E_PULL":
            wanted.append((prometheus.host, prometheus.port, f"appConfig.stats.plugins[{i}].prometheusSpecific.port"))
    return [Finding(file, 0, where, why) for address, port, where in wanted if (why := _taken(address, port))]


def _taken(address: str, port: int) -> str:
    """Why nobody can listen there now; empty = one can."""
    try:
        found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as channel:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            channel.bind(place)
            channel.listen(1)
    except OSError as error:
        who = "somebody listens there already" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        return f"found {port}, but nobody can listen at '{address}:{port}': {who}"
    return ""


# -- storage -----------------------------------------------------------------------------------------------------------


class _Idle:
    """node.performer.Performer of a broker that never runs."""

    def turn_due(self) -> None:
        """There is none."""

    def clock(self) -> float:
        """It stands."""
        return 0.0

    def chance(self) -> float:
        """Of no interest."""
        return 0.5

    def dump(self, text: str) -> str:
        """Nothing is kept."""
        return ""

    def in_thread(self, *arguments: object) -> None:
        """Nothing is to survive."""

    authenticate = dial = in_thread

    def write(self, session: Session, parts: list[bytes]) -> int:
        """There are no sessions."""
        return 0

    def unread(self, session: Session) -> tuple[int, int]:
        """There are no sessions."""
        return 0, 0

    def finish(self, session: Session) -> None:
        """There are no sessions."""

    def read(self, session: Session, wanted: bool) -> None:
        """There are no sessions."""


def _storage(configuration: Configuration) -> tuple[list[Finding], list[Finding]]:
    """What opening and recovering all that is stored says."""
    if not all(os.path.isdir(place) for place in _places(configuration)):
        return [], []  # a first start: there is nothing yet
    file, report, clock = f"{configuration.directory}/{CLUSTERS_FILE}", ListReport(), MachineClock()
    disk = OverlayDisk(RealDisk())
    identity = Identity("bmqtwist", os.getpid(), configuration.app.host_name, _NOTHING, clock.now(),
                        clock.now() + clock.wall_offset)
    problems, warnings = [], []
    try:
        reader = DomainReader(configuration.directory)
        node = assemble(configuration, reader, disk, clock, _Idle(), identity, report)
        for i, cluster in enumerate(configuration.clusters.my_clusters):
            where = f"myClusters[{i}].partitionConfig"
            since = len(report.lines)
            try:
                node.open_cluster(cluster)
            except (LocalError, OSError) as failure:
                member = "numPartitions" if "numPartitions" in str(failure) else "location"
                problems.append(Finding(file, 0, f"{where}.{member}", str(failure)))
            for severity, text in report.lines[since:]:
                domain = _DOMAIN.search(text) if severity == "ALARM" and text.startswith("[DOMAIN]") else None
                if domain is not None:
                    problems.append(Finding(reader.path(domain[1]), 0, "definition.parameters", text))
                elif severity in ("ALARM", "PANIC"):
                    warnings.append(Finding(file, 0, f"{where}.location", f"a start would say: {text}"))
    except (StartFailure, LocalError) as failure:
        problems.append(Finding(file, 0, "myClusters", str(failure)))
    finally:
        disk.close()
    return problems, warnings


def _places(configuration: Configuration) -> Iterable[str]:
    for cluster in configuration.clusters.my_clusters:
        yield from (getattr(cluster.partition_config, attribute) for _, attribute in MEMBERS)
