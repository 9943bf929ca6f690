"""Loader of a configuration directory, with command line and environment, into a Configuration.

It reads `bmqbrkrcfg.json`, `clusters.json`, `domains/<name>.json`, the environment and the host's name; `declare` and
`compose` contain the rules. Members and defaults are declared in `broker.py`, `clusters.py` and `domain.py`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bmqtwist.config.broker import BrokerConfig, Configuration
from bmqtwist.config.clusters import Clusters
from bmqtwist.config.compose import NO_OVERRIDES, Overrides, compose, overrides_from
from bmqtwist.config.declare import ConfigError, Finding, Section, decode_text
from bmqtwist.config.provider import DomainFile

BROKER_FILE, CLUSTERS_FILE, DOMAINS_DIRECTORY = "bmqbrkrcfg.json", "clusters.json", "domains"
T = TypeVar("T", bound=Section)
FILE_BYTES_MAX = 16 << 20  # size of one configuration file


Lines = dict[tuple[str, str], int]


@dataclass(frozen=True)
class Loaded:
    """A configuration with the warnings about its files; `lines`: line of each member by (file, path)."""

    configuration: Configuration
    warnings: tuple[Finding, ...]
    lines: Lines


def load(directory: str, command_line: Overrides = NO_OVERRIDES, environment: Mapping[str, str] | None = None,
         strict: bool = False) -> Loaded:
    """Read and check `bmqbrkrcfg.json` and `clusters.json` of a configuration directory.

    The command line takes precedence over the environment (default os.environ), the environment over the files. Raises
    ConfigError with all problems; with `strict`, warnings are problems.
    """
    notices: list[Finding] = []
    problems: list[Finding] = []
    lines: Lines = {}
    overrides = overrides_from(os.environ if environment is None else environment, command_line, problems, notices)
    broker = _read(BrokerConfig, f"{directory}/{BROKER_FILE}", notices, problems, lines)
    clusters = _read(Clusters, f"{directory}/{CLUSTERS_FILE}", notices, problems, lines)
    if broker is None or clusters is None or problems:
        raise ConfigError(problems)
    try:
        configuration = compose(directory, broker, clusters, overrides, local_host_names(), notices)
    except ConfigError as error:
        raise ConfigError(with_lines(error.findings, lines)) from None
    notices = with_lines(notices, lines)
    if strict and notices:
        raise ConfigError(notices)
    return Loaded(configuration, tuple(notices), lines)


def with_lines(findings: Iterable[Finding], lines: Lines) -> list[Finding]:
    """Add lines to findings that have a path only: the line of that path, or of its nearest present parent."""
    found = []
    for finding in findings:
        path = finding.path
        while path and not finding.line and (finding.file, path) not in lines:
            path = path[:-1].rpartition("[")[0] if path.endswith("]") else path.rpartition(".")[0]
        found.append(finding if finding.line else replace(finding, line=lines.get((finding.file, path), 0)))
    return found


class DomainReader:
    """`provider.DomainSource` that reads the files below `directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def path(self, name: str) -> str:
        return f"{self.directory}/{DOMAINS_DIRECTORY}/{name}.json"

    def read(self, name: str) -> DomainFile:
        """Read the file of a domain."""
        return self._file(self.path(name))

    def read_proxy_cluster(self, name: str) -> DomainFile:
        """Read `proxyclusters/<name>.json`, the alternative to an entry in proxyClusters."""
        return self._file(f"{self.directory}/proxyclusters/{name}.json")

    def _file(self, path: str) -> DomainFile:
        if not os.path.exists(path):  # False also for names that are invalid in the file system
            return DomainFile(path, None, missing=True)
        try:
            return DomainFile(path, read_text(path))
        except OSError:
            return DomainFile(path, None)

    def stamp(self) -> int:
        """Return the modification time of the configuration directory in nanoseconds; 0 = unreadable."""
        try:
            return os.stat(self.directory).st_mtime_ns
        except OSError:
            return 0

    def names(self) -> list[str]:
        folder = Path(self.directory) / DOMAINS_DIRECTORY
        return sorted(path.name.removesuffix(".json") for path in folder.glob("[!.]*.json"))  # no hidden files of editors


def read_text(path: str) -> str:
    """Read a file as UTF-8; invalid bytes become U+FFFD. Raises OSError if it is unreadable or too large."""
    with open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise OSError(f"larger than {FILE_BYTES_MAX} bytes")
    return content.decode("utf-8", "replace")


def local_host_names() -> frozenset[str]:
    """Return names and addresses of this machine in endpoints, in lower case, without a query to a name service."""
    name = socket.gethostname().lower()
    return frozenset({name, name.partition(".")[0], "localhost", "127.0.0.1", "::1"})


def _read(cls: type[T], path: str, notices: list[Finding], problems: list[Finding], lines: Lines) -> T | None:
    try:
        return decode_text(cls, read_text(path), path, notices, lines)
    except OSError as error:
        problems.append(Finding(path, 0, "", f"cannot be read: {error.strerror or error}"))
    except ConfigError as error:
        problems += error.findings
    return None
