"""Checks of a configuration directory before a broker starts with it (`--check`), and the import of plug-in classes.

Reads files, and opens neither ports nor storage; the trial start of `trial_start.py` does. Rules over several members
are in `config/compose.py`. The preflight of a stop is in `view/stopping.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from ipaddress import ip_address

from bmqtwist.config.broker import Configuration
from bmqtwist.config.compose import NO_OVERRIDES, Overrides
from bmqtwist.config.declare import ConfigError, Finding
from bmqtwist.config.load import BROKER_FILE, CLUSTERS_FILE, DomainReader, Lines, load, with_lines
from bmqtwist.config.provider import check_domain_text
from bmqtwist.daemon.directories import shared_directories, unusable_directories
from bmqtwist.errors import LocalError
from bmqtwist.limits import PUT_MESSAGE_BYTES_MAX
from bmqtwist.link.unauthenticated import parse_networks
from bmqtwist.logs.format import FileNames, Levels
from bmqtwist.report import ListReport
from bmqtwist.security.authenticators import build_security
from bmqtwist.security.key_file import read_secret
from bmqtwist.security.tls import ClientContext, ServerContext
from bmqtwist.storage.files import RealDisk

_EVERYWHERE = {"0.0.0.0", "::", ""}  # addresses that listen on all interfaces


def check(directory: str, command_line: Overrides = NO_OVERRIDES, environment: Mapping[str, str] | None = None,
          strict: bool = False) -> tuple[list[Finding], list[Finding]]:
    """Return (problems, warnings) of a directory, its domains and its security, as `--check` prints them.

    `strict`: every warning is a problem.
    """
    problems: list[Finding] = []
    warnings: list[Finding] = []
    clusters: set[str] | None = None
    try:
        loaded = load(directory, command_line, environment)
        warnings += loaded.warnings
        known = loaded.configuration.clusters
        clusters = {each.name for each in known.my_clusters} | {each.name for each in known.proxy_clusters}
        file, disk = f"{directory}/{CLUSTERS_FILE}", RealDisk()
        problems += with_lines([*unusable_directories(known.my_clusters, file, disk.unusable_reason),
                                *shared_directories(known.my_clusters, file, disk.identify),
                                *_check_network(loaded.configuration), *_check_ports(loaded.configuration),
                                *_check_log(loaded.configuration, disk.unusable_reason),
                                *_check_control(loaded.configuration, disk.unusable_reason)], loaded.lines)
        found = _check_security(loaded.configuration)
        problems += with_lines(found[0], loaded.lines)
        warnings += with_lines(found[1], loaded.lines)
    except ConfigError as error:
        problems += error.findings
    reader = DomainReader(directory)
    variants = {}
    for name in reader.names():
        lines: Lines = {}
        found = ([], [])
        variants[name] = check_domain_text(reader.read(name), *found, lines)
        problems += with_lines(found[0], lines)
        warnings += with_lines(found[1], lines)
    for name, variant in variants.items():
        if variant is None:
            continue
        path = reader.path(name)
        if variant.redirect is not None:
            target = variants.get(variant.redirect)
            if target is None or target.redirect is not None:
                problems.append(Finding(path, 0, "redirect", f'found "{variant.redirect}", expected the name of a '
                                        "domain that has a valid file and is no redirect"))
        elif clusters is not None and variant.definition is not None and variant.definition.location not in clusters:
            if reader.read_proxy_cluster(variant.definition.location).text is None:
                warnings.append(Finding(path, 0, "definition.location", f'found "{variant.definition.location}", '
                                        "which is no cluster of clusters.json"))
    return (problems + warnings, []) if strict else (problems, warnings)


def _check_security(configuration: Configuration) -> tuple[list[Finding], list[Finding]]:
    file, report, problems = f"{configuration.directory}/{BROKER_FILE}", ListReport(), []
    try:
        build_security(configuration.app, report, lambda seconds: None, find_class, lambda: 0.0)
    except LocalError as error:
        problems.append(Finding(file, 0, "appConfig.authentication", str(error)))
    try:
        read_secret(configuration.extension.http.key_file)
    except LocalError as error:
        problems.append(Finding(file, 0, "appConfig.bmqtwist.http.keyFile", str(error)))
    return problems, [Finding(file, 0, "appConfig.authentication", text) for severity, text in report.lines
                      if severity in ("WARN", "ALARM")]


def _check_network(configuration: Configuration) -> Iterator[Finding]:
    """Find malformed addresses, unusable certificates and an event limit below the largest message."""
    file, app = f"{configuration.directory}/{BROKER_FILE}", configuration.app
    for address, _, where in listening_addresses(configuration):
        if not _is_address(address):
            yield Finding(file, 0, f"{where}.address", f'found "{address}", expected an address or a host name')
    if app.tls_config is not None:
        try:
            expired = ServerContext(app.tls_config, app.bmqtwist.require_client_certificate).expired
            if app.tls_config.certificate_authority:
                ClientContext(app.tls_config)
        except LocalError as error:
            yield Finding(file, 0, "appConfig.tlsConfig", str(error))
        else:
            if expired:
                yield Finding(file, 0, "appConfig.tlsConfig.certificate", f'found "{app.tls_config.certificate}", which has '
                                                                          "expired")
    try:
        parse_networks(app.bmqtwist.reserved_addresses)
    except LocalError as error:
        yield Finding(file, 0, "appConfig.bmqtwist.reservedAddresses", str(error))
    least = app.bmqtwist.event_bytes_max
    if least < PUT_MESSAGE_BYTES_MAX:
        yield Finding(file, 0, "appConfig.bmqtwist.eventBytesMax", f"found {least}, expected at least one message, "
                      f"{PUT_MESSAGE_BYTES_MAX} B: larger ones would end the connection of their producer")


def listening_addresses(configuration: Configuration) -> list[tuple[str, int, str]]:
    """Return (address, port, configuration path) of each listener and, last, of the console; port 0: the console is off."""
    http, path = configuration.app.bmqtwist.http, "appConfig.networkInterfaces.tcpInterface"
    return [*((each.address, each.port, f"{path}.listeners[{i}]") for i, each in enumerate(configuration.listeners)),
            (http.address, http.port, "appConfig.bmqtwist.http")]


def _check_ports(configuration: Configuration) -> Iterator[Finding]:
    """Find ports that two listeners of one address share."""
    seen: dict[int, list[tuple[str, str]]] = {}
    for address, port, where in listening_addresses(configuration):
        for other, place in seen.get(port, []) if port else []:
            if address == other or {address, other} & _EVERYWHERE:
                yield Finding(f"{configuration.directory}/{BROKER_FILE}", 0, f"{where}.port",
                              f"found {port}, which is the port of {place}.port")
                break
        seen.setdefault(port, []).append((address, where))


def _check_log(configuration: Configuration, complaint: Callable[[str], str]) -> Iterator[Finding]:
    """Find an unwritable log and unknown severities."""
    file, settings = f"{configuration.directory}/{BROKER_FILE}", configuration.broker.task_config.log_controller
    where = "taskConfig.logController"
    if settings.file_name:
        if wrong := complaint(FileNames(settings.file_name).name_at(0.0, 0).rpartition("/")[0] or "."):
            yield Finding(file, 0, f"{where}.fileName", f'found "{settings.file_name}", but {wrong}')
    try:
        Levels(settings.logging_verbosity, settings.categories)
    except LocalError as error:
        yield Finding(file, 0, f"{where}.categories", str(error))


def _check_control(configuration: Configuration, complaint: Callable[[str], str]) -> Iterator[Finding]:
    """Find a control directory in which files cannot be created."""
    path = configuration.extension.control_directory
    if path and (wrong := complaint(path)):
        yield Finding(f"{configuration.directory}/{BROKER_FILE}", 0, "appConfig.bmqtwist.controlDirectory",
                      f'found "{path}", but {wrong}')


def _is_address(text: str) -> bool:
    """Return whether the text is an IP address or a possible host name: not digits and dots alone."""
    try:
        ip_address(text)
    except ValueError:
        return re.fullmatch(r"(?=.*[a-zA-Z])[-a-zA-Z0-9.]+", text) is not None
    return True


def find_class(dotted: str) -> Callable[..., object]:
    """Import the plug-in class `package.module.Class`. Raises LocalError if it does not exist."""
    module, _, name = dotted.rpartition(".")
    try:
        found = getattr(import_module(module), name) if module else None
    except (ImportError, AttributeError) as error:
        raise LocalError(f"{error}") from error
    if not callable(found):
        raise LocalError(f"'{dotted}' is neither built in nor package.module.Class")
    return found  # type: ignore[no-any-return]
