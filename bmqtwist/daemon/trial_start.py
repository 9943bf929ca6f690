"""Trial start: finds the errors that a start would have, and changes no file (`bmq check`, `bmqbrkr --check`).

    ports      must be free on this machine
    storage    ledger, partitions and domains are opened and recovered over an overlay, as in a start

Checks that need no ports and no storage are in `preflight.py`; `cli/check.py` calls it first, then `trial_start`. If a
running broker has locked a configured directory, neither ports nor storage are checked, and a warning says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import cast

from bmqtwist.config.broker import Configuration
from bmqtwist.config.declare import Finding
from bmqtwist.config.load import BROKER_FILE, CLUSTERS_FILE, DomainReader, Loaded, with_lines
from bmqtwist.daemon.assemble import assemble
from bmqtwist.daemon.directories import configured_directories
from bmqtwist.daemon.overlay import OverlayDisk
from bmqtwist.daemon.preflight import listening_addresses
from bmqtwist.daemon.process import MachineClock
from bmqtwist.errors import LocalError
from bmqtwist.loop.performer import Performer
from bmqtwist.peers.handshake import Identity
from bmqtwist.reactor.listening import open_sockets
from bmqtwist.report import ListReport
from bmqtwist.storage.files import RealDisk, is_locked

_DOMAIN = re.compile(r"Domain '([^']*)' ")
_NO_CLIENT_ID = b"\0" * 6  # a trial start creates no GUIDs


def trial_start(loaded: Loaded) -> tuple[list[Finding], list[Finding]]:
    """Return (problems, warnings) of a trial start with a valid configuration."""
    configuration = loaded.configuration
    file, mine = f"{configuration.directory}/{CLUSTERS_FILE}", configuration.clusters.my_clusters
    running = [Finding(file, 0, where, f'"{path}" is in use by a running broker: storage and ports were not checked')
               for where, path in configured_directories(mine) if is_locked(path)]
    if running:
        return [], with_lines(running, loaded.lines)
    problems, warnings = list(_ports(configuration)), list[Finding]()
    if all(os.path.isdir(path) for _, path in configured_directories(mine)):  # else it is the first start
        _recover(configuration, file, problems, warnings)
    return with_lines(problems, loaded.lines), with_lines(warnings, loaded.lines)


def _ports(configuration: Configuration) -> Iterator[Finding]:
    """Find ports that are in use, and addresses of other machines."""
    wanted = [(address, port, f"{where}.port") for address, port, where in listening_addresses(configuration)]
    if not wanted[-1][1]:
        wanted.pop()  # the console is off
    for i, plugin in enumerate(configuration.app.stats.plugins):
        prometheus = plugin.prometheus_specific
        if prometheus is not None and plugin.publish_interval and prometheus.mode == "E_PULL":
            wanted.append((prometheus.host, prometheus.port, f"appConfig.stats.plugins[{i}].prometheusSpecific.port"))
    for address, port, where in wanted:
        if why := _listen_error(address, port):
            yield Finding(f"{configuration.directory}/{BROKER_FILE}", 0, where, why)


def _listen_error(address: str, port: int) -> str:
    """Return the reason why a process cannot listen at the address now; empty = it can."""
    try:
        for channel in open_sockets(address, port, 1):
            channel.close()
    except LocalError as error:
        return f"found {port}: {error}"
    return ""


class _NullPerformer:
    """`loop.performer.Performer` of the trial start, whose broker runs no turn."""

    def __getattr__(self, name: str) -> Callable[..., float]:
        return lambda *arguments: 0.0


def _recover(configuration: Configuration, file: str, problems: list[Finding], warnings: list[Finding]) -> None:
    """Open and recover the storage over an overlay."""
    report, clock, disk, idle = ListReport(), MachineClock(), OverlayDisk(RealDisk()), cast(Performer, _NullPerformer())
    identity = Identity("bmqtwist", os.getpid(), configuration.app.host_name, _NO_CLIENT_ID, clock.now(),
                        clock.now() + clock.wall_offset)
    reader = DomainReader(configuration.directory)
    try:
        node = assemble(configuration, reader, disk, clock, idle, identity, report)
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
                    warnings.append(Finding(file, 0, f"{where}.location", f"a start would report: {text}"))
    except LocalError as failure:
        problems.append(Finding(file, 0, "myClusters", str(failure)))
    finally:
        disk.close()
