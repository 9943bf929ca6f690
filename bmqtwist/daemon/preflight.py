"""What can be said of a configuration directory before a broker starts with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from bmqtwist.config.broker import Configuration
from bmqtwist.config.compose import NO_OVERRIDES, Overrides
from bmqtwist.config.declare import ConfigError, Finding
from bmqtwist.config.load import BROKER_FILE, CLUSTERS_FILE, DomainReader, Lines, load, with_lines
from bmqtwist.config.provider import check_domain_text
from bmqtwist.daemon.places import shared_places
from bmqtwist.errors import LocalError
from bmqtwist.report import ListReport
from bmqtwist.security.authenticators import build_security
from bmqtwist.storage.files import RealDisk


def check(directory: str, command_line: Overrides = NO_OVERRIDES, environment: Mapping[str, str] | None = None,
          strict: bool = False) -> tuple[list[Finding], list[Finding]]:
    """(problems, warnings) of a directory, its domains and its security: what `--check` prints. Raises nothing.

    With `strict` every warning is a problem.
    """
    problems: list[Finding] = []
    warnings: list[Finding] = []
    clusters: set[str] | None = None
    try:
        loaded = load(directory, command_line, environment)
        warnings += loaded.warnings
        known = loaded.configuration.clusters
        clusters = {each.name for each in known.my_clusters} | {each.name for each in known.proxy_clusters}
        problems += with_lines(shared_places(known.my_clusters, f"{directory}/{CLUSTERS_FILE}", RealDisk().identify),
                               loaded.lines)
        said = _check_security(loaded.configuration)
        problems += with_lines(said[0], loaded.lines)
        warnings += with_lines(said[1], loaded.lines)
    except ConfigError as error:
        problems += error.findings
    reader = DomainReader(directory)
    variants = {}
    for name in reader.names():
        lines: Lines = {}
        said = ([], [])
        variants[name] = check_domain_text(reader.read(name), *said, lines)
        problems += with_lines(said[0], lines)
        warnings += with_lines(said[1], lines)
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
        build_security(configuration.app, report, lambda seconds: None, find_class)
    except LocalError as error:
        problems.append(Finding(file, 0, "appConfig.authentication", str(error)))
    return problems, [Finding(file, 0, "appConfig.authentication", text) for severity, text in report.lines
                      if severity in ("WARN", "ALARM")]


def find_class(dotted: str) -> Callable[..., object]:
    """The class `package.module.Class`, for plug-ins of one's own. LocalError: there is none."""
    module, _, name = dotted.rpartition(".")
    try:
        found = getattr(import_module(module), name) if module else None
    except (ImportError, AttributeError) as error:
        raise LocalError(f"{error}") from error
    if not callable(found):
        raise LocalError(f"'{dotted}' is neither built in nor package.module.Class")
    return found  # type: ignore[no-any-return]
