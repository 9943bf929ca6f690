"""`bmq config show` and `bmq config diff`: what a broker would run with, and how two configurations differ in effect."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import click

from bmqtwist.cli.effective import DEFAULT, Entry, Origin, differences, effective
from bmqtwist.cli.exits import EXIT_GOOD, EXIT_NOT_ALL, EXIT_USAGE

_Directory = click.Path(exists=True, file_okay=False)
_COLUMN = 72  # where origins begin


@click.group()
def config() -> None:
    """Show the configuration a broker would run with, or compare two of them."""


@config.command()
@click.argument("directory", type=_Directory, default="etc")
@click.option("-k", "--key", "patterns", multiple=True, metavar="PATTERN",
              help="Only members whose path matches, for instance '*.messageTtl'. Repeatable.")
@click.option("--domain", "domains", multiple=True, help="Only this domain's file. Repeatable.")
@click.option("--changed", is_flag=True, help="Leave out defaults.")
@click.option("--environment/--no-environment", default=True, help="Whether BMQ_* variables count, as at a start.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def show(directory: str, patterns: tuple[str, ...], domains: tuple[str, ...], changed: bool, environment: bool,
         as_json: bool) -> None:
    """Show every value that a broker started with DIRECTORY [etc] would use, and where it comes from.

    Origins: the line of the file, a default, a variable of the environment, or derived from other values. Secrets are
    masked. Exit code 2 if a broker would not start with it, or a domain cannot be used.
    """
    found = effective(directory, os.environ if environment else {})
    files = {f"domains/{name}.json" for name in domains}
    unknown = [name for name in domains if name not in found.domains]
    if unknown:
        raise click.UsageError(f"{directory} has no domain {unknown[0]}; it has {', '.join(found.domains) or 'none'}.")
    entries = [each for each in found.entries if (not files or each.file in files)
               and (not patterns or any(fnmatchcase(each.path, pattern) for pattern in patterns))
               and not (changed and each.origin.kind == DEFAULT)]
    if as_json:
        click.echo(json.dumps({"directory": directory, "values": [_tree(each) for each in entries]}))
    else:
        for index, (file, group) in enumerate(groupby(entries, key=lambda each: each.file)):
            click.echo(f"{chr(10) if index else ''}{file}")
            for each in group:
                note = "  (no effect here)" if each.ignored else ""
                click.echo(f"  {f'{each.path} = {_text(each)}':<{_COLUMN}} {each.origin}{note}")
    if patterns and not entries:
        click.echo(f"bmq: no member matches {' or '.join(patterns)}", err=True)
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    raise SystemExit(EXIT_USAGE if found.problems else EXIT_GOOD)


@config.command()
@click.argument("left", type=_Directory)
@click.argument("right", type=_Directory)
@click.option("--all", "with_ignored", is_flag=True, help="Also members that have no effect in this broker.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def diff(left: str, right: str, with_ignored: bool, as_json: bool) -> None:
    """Say how the configuration in RIGHT differs from that in LEFT, in effect.

    A default that is written out is no difference, nor is the order of members. The environment does not count. Exit
    code 1 if they differ, 2 if one of them cannot be used.
    """
    sides = [effective(directory, {}) for directory in (left, right)]
    found = differences(sides[0], sides[1], with_ignored)
    if as_json:
        click.echo(json.dumps({"same": found.same, "domainsAdded": found.added, "domainsRemoved": found.removed,
                               "changes": [{"file": each.file, "path": each.path, "left": _side(each.left),
                                            "right": _side(each.right)} for each in found.changes]}))
    else:
        for name in found.removed:
            click.echo(f"- domain {name}")
        for name in found.added:
            click.echo(f"+ domain {name}")
        for file, group in groupby(found.changes, key=lambda each: each.file):
            click.echo(file)
            for each in group:
                click.echo(f"  {each.path}: {_text(each.left)} -> {_text(each.right)}")
        if found.same:
            click.echo("No difference.")
    problems = [problem for side in sides for problem in side.problems]
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    raise SystemExit(EXIT_USAGE if problems else EXIT_GOOD if found.same else EXIT_NOT_ALL)


def _text(entry: Entry | None) -> str:
    return "absent" if entry is None else json.dumps(entry.shown, ensure_ascii=False)


def _origin(origin: Origin) -> dict[str, Any]:
    tree: dict[str, Any] = {"kind": origin.kind}
    if origin.line:
        tree["line"] = origin.line
    if origin.variable:
        tree["variable"] = origin.variable
    return tree


def _tree(entry: Entry) -> dict[str, Any]:
    tree = {"file": entry.file, "path": entry.path, "value": entry.shown, "origin": _origin(entry.origin)}
    return {**tree, "ignored": True} if entry.ignored else tree


def _side(entry: Entry | None) -> dict[str, Any] | None:
    return None if entry is None else {"value": entry.shown, "origin": _origin(entry.origin)}
