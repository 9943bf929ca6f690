"""`bmq admin`: admin commands for a running broker.

Started by `main.py`. `adminclient.py` transports the commands; the broker parses and runs them in `admin/executor.py`.
"""

from __future__ import annotations

import json
import re
import sys
import time

import click

from bmqtwist.cli.connection import ConnectionOptions, connection_options
from bmqtwist.cli.exits import EXIT_NOT_ALL, Unreachable
from bmqtwist.errors import PeerError


@click.command(context_settings={"ignore_unknown_options": True})
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON on one line.")
@click.option("--pretty", is_flag=True, help="Print the answer as indented JSON.")
@click.option("--every", type=click.FloatRange(min=0.1), metavar="SECONDS",
              help="Repeat the COMMAND on one connection, until the broker closes it.")
@click.argument("command", nargs=-1)
def admin(connection: ConnectionOptions, as_json: bool, pretty: bool, every: float | None, command: tuple[str, ...]) -> None:
    """Run an admin COMMAND, for instance: bmq admin CLUSTERS LIST.

    Without a COMMAND, each line of standard input is a command. HELP lists all commands. A stopping broker accepts no new
    connections: start bmq admin --every 1 STOP STATUS before the stop to show its progress.
    """
    if every is not None and not command:
        raise click.UsageError("--every needs a COMMAND")
    failed = False
    try:
        with connection.open_admin() as client:
            if not command and sys.stdin.isatty():
                click.echo("bmq: one admin command per line; HELP lists them, Ctrl-D exits", err=True)
            lines = [" ".join(command)] if command else (line.strip() for line in sys.stdin)
            while every is not None:
                try:
                    click.echo(client.run(_with_encoding(" ".join(command), as_json, pretty)))
                except Unreachable as error:
                    click.echo(f"bmq: {error}", err=True)
                    return
                time.sleep(every)
            for line in lines:
                if line:
                    answer = client.run(_with_encoding(line, as_json, pretty))
                    click.echo(answer)
                    failed = failed or is_error(answer)
    except PeerError as error:
        raise Unreachable(f"{connection.broker_text} sent an invalid answer: {error}") from None
    if failed:
        raise SystemExit(EXIT_NOT_ALL)


def is_error(answer: str) -> bool:
    """Return whether an answer reports an error.

    An error in JSON is a member `error` at any depth. In text it is a known prefix, or a single line that matches none of
    the forms of a successful one-line answer.
    """
    try:
        return _has_error(json.loads(answer, strict=False))
    except ValueError:
        pass
    if answer.startswith(_ERROR_STARTS) or "\nErrors encountered:" in answer:
        return True
    line = answer.strip()
    return bool(line) and "\n" not in line and _GOOD_LINE.fullmatch(line) is None


_ERROR_STARTS = ("Error", "Unable to decode command", "Command not authorized", "Rollover failed")
_GOOD_LINE = re.compile(r"SUCCESS|[\w.]+ = .*|[\w.]+ set to .* from .*|Purged .*|No .*|[\w.]+: .*")


def _has_error(tree: object) -> bool:
    if isinstance(tree, dict):
        return "error" in tree or any(map(_has_error, tree.values()))
    return isinstance(tree, list) and any(map(_has_error, tree))


def _with_encoding(line: str, as_json: bool, pretty: bool) -> str:
    if pretty:
        return f"ENCODING JSON_PRETTY {line}"
    return f"ENCODING JSON_COMPACT {line}" if as_json else line
