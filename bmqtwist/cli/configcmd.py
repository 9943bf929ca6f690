"""`bmq config show` and `bmq config diff`: effective configuration of a broker with the origin of each value, and effective
differences of two configurations.

`config.load` and `config.compose` combine files, defaults and environment; this module lists the values of the result.
Paths are those of the files: `appConfig.hostName`; elements of an array are named by their name, id or key
(`myClusters[local].nodes[localhost]`), else by their position. Started by `main.py`; `bmq check` is in `check.py`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import click

from bmqtwist.cli.exits import EXIT_GOOD, EXIT_NOT_ALL, EXIT_USAGE
from bmqtwist.config.broker import AppConfig, Configuration
from bmqtwist.config.compose import ENVIRONMENT, REPLACED
from bmqtwist.config.declare import Finding, Section, camel_case
from bmqtwist.config.domain import DomainVariant
from bmqtwist.config.load import BROKER_FILE, CLUSTERS_FILE, DOMAINS_DIRECTORY, DomainReader, Lines, load
from bmqtwist.config.provider import ResolvedDomain, check_domain_text, normalise
from bmqtwist.config.text import MASK
from bmqtwist.report import ListReport

DEFAULT, FILE, VARIABLE, DERIVED = "default", "file", "environment", "derived"
START = "(at the start)"  # instead of a file name: values derived when the broker starts
_TCP = "appConfig.networkInterfaces.tcpInterface"
_IDENTITIES = ("name", "id", "key", "app_id")
_UNORDERED = ("appIDs", "enabled", "hosts", "actions")


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value. `origin`: its `kind` (DEFAULT, FILE, VARIABLE or DERIVED) with `line` or `variable`; `ignored`: the value
    has no effect in this broker."""

    file: str
    path: str
    value: Any
    origin: dict[str, str | int]
    secret: bool = False
    ignored: bool = False

    def tree(self) -> dict[str, Any]:
        """Return the JSON form; a secret is masked."""
        return {"value": MASK if self.secret else self.value, "origin": self.origin}

    @property
    def origin_text(self) -> str:
        if "line" in self.origin:
            return f"line {self.origin['line']}"
        return f"environment {self.origin['variable']}" if "variable" in self.origin else str(self.origin["kind"])


@dataclass(slots=True)
class EffectiveConfiguration:
    """An effective configuration. `domains`: names of its domains; `problems`: of domains that cannot be used."""

    entries: list[ConfigValue] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)


def effective_configuration(directory: str, environment: Mapping[str, str]) -> EffectiveConfiguration:
    """Return the configuration that a broker would use. Raises ConfigError if it would refuse to start."""
    loaded = load(directory, environment=environment)
    configuration, found = loaded.configuration, EffectiveConfiguration()
    variables = _environment_paths(configuration.app, environment)
    derived = _derived_paths(configuration.app)
    for file, root in ((BROKER_FILE, configuration.broker), (CLUSTERS_FILE, configuration.clusters)):
        lister = _ValueLister(file, f"{directory}/{file}", loaded.lines, variables, derived)
        found.entries += lister.list_values(root, "", "")
    found.entries += _startup_values(configuration)
    reader = DomainReader(directory)
    for name in reader.names():
        found.domains.append(name)
        found.entries += _domain_values(reader, name, found.problems)
    return found


def _startup_values(configuration: Configuration) -> Iterator[ConfigValue]:
    """Yield the values derived at the start: the broker's own nodes and its listeners."""
    for cluster, node in configuration.self_nodes.items():
        yield ConfigValue(START, f"selfNode[{cluster}]", node, {"kind": DERIVED})
    for listener in configuration.listeners:
        where = f"{'tls' if listener.tls else 'tcp'}://{listener.address}:{listener.port}"
        yield ConfigValue(START, f"listener[{listener.name}]", where, {"kind": DERIVED})


def _domain_values(reader: DomainReader, name: str, problems: list[Finding]) -> Iterator[ConfigValue]:
    lines: Lines = {}
    path = reader.path(name)
    variant = check_domain_text(reader.read(name), problems, [], lines)
    if variant is None:
        return
    before = variant
    definition = variant.definition
    if definition is not None:
        parameters = normalise(definition.parameters, ResolvedDomain(name, definition.location), ListReport())
        variant = DomainVariant(definition=dataclasses.replace(definition, parameters=parameters))
    file = f"{DOMAINS_DIRECTORY}/{name}.json"
    lister = _ValueLister(file, path, lines, {}, frozenset())
    written = {entry.path: entry.value for entry in lister.list_values(before, "", "")}
    derived = frozenset(entry.path for entry in lister.list_values(variant, "", "")
                        if written.get(entry.path) != entry.value)
    yield from _ValueLister(file, path, lines, {}, derived).list_values(variant, "", "")


def _environment_paths(app: AppConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the paths whose value comes from the environment, with the variable."""
    tcp = app.network_interfaces.tcp_interface
    port = "" if tcp is None or len(tcp.listeners) > 1 else f"{_TCP}.listeners[0].port" if tcp.listeners else f"{_TCP}.port"
    paths = {name: ".".join(("appConfig", *map(camel_case, attributes))) for name, attributes in REPLACED.items()}
    paths["port"] = port
    return {paths[name]: variable for variable, name in ENVIRONMENT.items() if environment.get(variable) and paths.get(name)}


def _derived_paths(app: AppConfig) -> frozenset[str]:
    """Return the paths with a derived value: the deprecated member for the port is that of the first listener."""
    tcp = app.network_interfaces.tcp_interface
    return frozenset({f"{_TCP}.port"} if tcp is not None and tcp.listeners else ())


@dataclass(frozen=True, slots=True)
class _ValueLister:
    """Lists the values of one file. `at`: path in the file with positions; `path`: path with names."""

    file: str
    full: str
    lines: Lines
    variables: Mapping[str, str]
    derived: frozenset[str]

    def list_values(self, value: Section, at: str, path: str, ignored: bool = False) -> Iterator[ConfigValue]:
        members = [(declared, getattr(value, declared.attribute)) for declared in value.DECLARED]
        if not members:
            yield self._make_value({}, at, path, False, ignored)
        for declared, inner in members:
            if inner is None:
                continue
            here = f"{at}.{declared.name}" if at else declared.name
            name = f"{path}.{declared.name}" if path else declared.name
            unused = ignored or bool(declared.ignored)
            if isinstance(inner, Section):
                yield from self.list_values(inner, here, name, unused)
            elif isinstance(inner, tuple) and inner and isinstance(inner[0], Section):
                for index, (key, each) in enumerate(zip(_unique_keys(inner), inner, strict=True)):
                    yield from self.list_values(each, f"{here}[{index}]", f"{name}[{key}]", unused)
            else:
                plain = list(inner) if isinstance(inner, tuple) else inner
                yield self._make_value(plain, here, name, declared.secret, unused)

    def _make_value(self, value: Any, at: str, path: str, secret: bool, ignored: bool) -> ConfigValue:
        line = self.lines.get((self.full, at), 0)
        origin: dict[str, str | int] = {"kind": DERIVED if at in self.derived else FILE if line else DEFAULT}
        if at in self.variables:
            origin = {"kind": VARIABLE, "variable": self.variables[at]}
        elif origin["kind"] == FILE:
            origin["line"] = line
        return ConfigValue(self.file, path, value, origin, secret, ignored)


def _unique_keys(elements: tuple[Any, ...]) -> list[str]:
    """Return unique keys of the elements: their names, ids or keys, else their positions."""
    for attribute in _IDENTITIES:
        keys = [str(getattr(each, attribute, "")) for each in elements]
        if all(keys) and len(set(keys)) == len(keys):
            return keys
    return [str(index) for index in range(len(elements))]


# -- differences ------------------------------------------------------------------------------------------------------

Change = tuple[str, str, ConfigValue | None, ConfigValue | None]  # file, path, left, right; None = absent


def find_differences(left: EffectiveConfiguration, right: EffectiveConfiguration,
                     with_ignored: bool = False) -> tuple[list[str], list[str], list[Change]]:
    """Return domains only in `right`, domains only in `left`, and the different values; with `with_ignored`
    also those of members without effect."""
    added = [name for name in right.domains if name not in left.domains]
    removed = [name for name in left.domains if name not in right.domains]
    alone = {f"{DOMAINS_DIRECTORY}/{name}.json" for name in (*added, *removed)}
    one, other = ({(each.file, each.path): each for each in side.entries
                   if each.file not in alone and (with_ignored or not each.ignored)} for side in (left, right))
    order = {file: index for index, file in enumerate(dict.fromkeys(file for file, _ in (*one, *other)))}
    changes = [(*key, one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))
               if _comparable_value(one.get(key)) != _comparable_value(other.get(key))]
    return added, removed, sorted(changes, key=lambda change: order[change[0]])


def _comparable_value(entry: ConfigValue | None) -> Any:
    if entry is None:
        return None
    if isinstance(entry.value, list) and entry.path.rpartition(".")[2] in _UNORDERED:
        return sorted(entry.value)
    return entry.value


_Directory = click.Path(exists=True, file_okay=False)
_COLUMN = 72  # where origins begin


@click.group()
def config() -> None:
    """Show the configuration a broker would run with, or compare two of them."""


@config.command()
@click.argument("directory", type=_Directory, default="etc")
@click.option("-k", "--key", "patterns", multiple=True, metavar="PATTERN",
              help="Only members whose path matches, for instance '*.messageTtl'. Repeatable.")
@click.option("--domain", "domains", multiple=True, help="Only the file of this domain. Repeatable.")
@click.option("--changed", is_flag=True, help="Omit default values.")
@click.option("--environment/--no-environment", default=True, help="Apply BMQ_* variables, as a start does.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def show(directory: str, patterns: tuple[str, ...], domains: tuple[str, ...], changed: bool, environment: bool,
         as_json: bool) -> None:
    """Show every value that a broker started with DIRECTORY [etc] would use, and its origin.

    Origins: a line of the file, a default, an environment variable, or derived from other values. Secrets are masked. Exit
    code 2 if a broker would refuse to start, or a domain cannot be used.
    """
    found = effective_configuration(directory, os.environ if environment else {})
    files = {f"domains/{name}.json" for name in domains}
    unknown = [name for name in domains if name not in found.domains]
    if unknown:
        raise click.UsageError(f"{directory} has no domain {unknown[0]}; it has {', '.join(found.domains) or 'none'}.")
    entries = [each for each in found.entries if (not files or each.file in files)
               and (not patterns or any(fnmatchcase(each.path, pattern) for pattern in patterns))
               and not (changed and each.origin["kind"] == DEFAULT)]
    if as_json:
        click.echo(json.dumps({"directory": directory, "values": [
            {"file": each.file, "path": each.path, **each.tree(), **({"ignored": True} if each.ignored else {})}
            for each in entries]}))
    else:
        for index, (file, group) in enumerate(groupby(entries, key=lambda each: each.file)):
            click.echo(f"{chr(10) if index else ''}{file}")
            for each in group:
                note = "  (no effect here)" if each.ignored else ""
                click.echo(f"  {f'{each.path} = {_value_text(each)}':<{_COLUMN}} {each.origin_text}{note}")
    if patterns and not entries:
        click.echo(f"bmq: no member matches {' or '.join(patterns)}", err=True)
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    raise SystemExit(EXIT_USAGE if found.problems else EXIT_GOOD)


@config.command()
@click.argument("left", type=_Directory)
@click.argument("right", type=_Directory)
@click.option("--all", "with_ignored", is_flag=True, help="Include members that have no effect in this broker.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def diff(left: str, right: str, with_ignored: bool, as_json: bool) -> None:
    """Show the effective differences between the configurations in LEFT and RIGHT.

    Explicit defaults and the order of members are not differences. The environment is not applied. Exit code 1 if the
    configurations differ, 2 if one of them cannot be used.
    """
    sides = [effective_configuration(directory, {}) for directory in (left, right)]
    added, removed, changes = find_differences(sides[0], sides[1], with_ignored)
    same = not (added or removed or changes)
    if as_json:
        click.echo(json.dumps({"same": same, "domainsAdded": added, "domainsRemoved": removed, "changes": [
            {"file": file, "path": path, "left": one and one.tree(), "right": other and other.tree()}
            for file, path, one, other in changes]}))
    else:
        for sign, names in (("-", removed), ("+", added)):
            for name in names:
                click.echo(f"{sign} domain {name}")
        for file, group in groupby(changes, key=lambda change: change[0]):
            click.echo(file)
            for _, path, one, other in group:
                click.echo(f"  {path}: {_value_text(one)} -> {_value_text(other)}")
        if same:
            click.echo("No difference.")
    problems = [problem for side in sides for problem in side.problems]
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    raise SystemExit(EXIT_USAGE if problems else EXIT_GOOD if same else EXIT_NOT_ALL)


def _value_text(entry: ConfigValue | None) -> str:
    return "absent" if entry is None else json.dumps(entry.tree()["value"], ensure_ascii=False)
