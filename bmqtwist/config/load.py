"""From a configuration directory, the command line and the environment to a Configuration.

Reads `bmqbrkrcfg.json`, `clusters.json` and `domains/<name>.json`; everything it decides is in `declare` and
`compose`, so this module only touches files, the environment and the host's name.
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
FILE_BYTES_MAX = 16 << 20  # one configuration file


Lines = dict[tuple[str, str], int]


@dataclass(frozen=True)
class Loaded:
    """A configuration and what there is to say about its files, each thing once; `lines` by (file, path)."""

    configuration: Configuration
    warnings: tuple[Finding, ...]
    lines: Lines


def load(directory: str, command_line: Overrides = NO_OVERRIDES, environment: Mapping[str, str] | None = None,
         strict: bool = False) -> Loaded:
    """Read and check `bmqbrkrcfg.json` and `clusters.json` of a configuration directory.

    The command line wins over the environment ([os.environ]), the environment over the files. Raises ConfigError with
    every problem found; with `strict` every warning is a problem too.
    """
    notices: list[Finding] = []
    problems: list[Finding] = []
    lines: Lines = {}
    overrides = overrides_from(os.environ if environment is None else environment, problems).merged(command_line)
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
    """Findings of rules know their path only; the line is where that path, or what is left of it, stands."""
    found = []
    for finding in findings:
        path = finding.path
        while path and not finding.line and (finding.file, path) not in lines:
            path = path[:-1].rpartition("[")[0] if path.endswith("]") else path.rpartition(".")[0]
        found.append(finding if finding.line else replace(finding, line=lines.get((finding.file, path), 0)))
    return found


class DomainReader:
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def path(self, name: str) -> str:
        return f"{self.directory}/{DOMAINS_DIRECTORY}/{name}.json"

    def read(self, name: str) -> DomainFile:
        """The text of a domain's file, and what is wrong with it if there is none."""
        return self._file(self.path(name))

    def read_proxy_cluster(self, name: str) -> DomainFile:
        """`proxyclusters/<name>.json`: the second place where a proxy cluster may be defined."""
        return self._file(f"{self.directory}/proxyclusters/{name}.json")

    def _file(self, path: str) -> DomainFile:
        if not os.path.exists(path):  # False also for names that no file system takes
            return DomainFile(path, None, missing=True)
        try:
            return DomainFile(path, read_text(path))
        except OSError:
            return DomainFile(path, None)

    def stamp(self) -> int:
        """Changes when the configuration directory changes: its modification time in nanoseconds; 0 = unreadable."""
        try:
            return os.stat(self.directory).st_mtime_ns
        except OSError:
            return 0

    def names(self) -> list[str]:
        folder = Path(self.directory) / DOMAINS_DIRECTORY
        return sorted(path.name.removesuffix(".json") for path in folder.glob("*.json"))


def read_text(path: str) -> str:
    """A whole file as UTF-8 (a broken byte becomes U+FFFD); OSError where it cannot be read or is too large."""
    with open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise OSError(f"larger than {FILE_BYTES_MAX} bytes")
    return content.decode("utf-8", "replace")


def local_host_names() -> frozenset[str]:
    """Names and addresses by which an endpoint can mean this machine, in lower case; no name service is asked."""
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
