"""`bmq admin`: commands for a running broker."""

from __future__ import annotations

import json
import re
import sys
import time

import click

from bmqtwist.cli.connection import Connection, connection_options
from bmqtwist.cli.exits import EXIT_NOT_ALL, Unreachable
from bmqtwist.errors import PeerError


@click.command(context_settings={"ignore_unknown_options": True})
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Answer as JSON on one line.")
@click.option("--pretty", is_flag=True, help="Answer as indented JSON.")
@click.option("--every", type=click.FloatRange(min=0.1), metavar="SECONDS",
              help="Run the COMMAND again and again on one connection, until the broker ends it.")
@click.argument("command", nargs=-1)
def admin(connection: Connection, as_json: bool, pretty: bool, every: float | None, command: tuple[str, ...]) -> None:
    """Run an admin COMMAND, for instance: bmq admin CLUSTERS LIST.

    Without a COMMAND every line of standard input is one. HELP lists what there is. A broker that stops takes no new
    connections: bmq admin --every 1 STOP STATUS, begun before, shows how far it is.
    """
    if every is not None and not command:
        raise click.UsageError("--every needs a COMMAND")
    failed = False
    try:
        with connection.admin() as client:
            if not command and sys.stdin.isatty():
                click.echo("bmq: admin commands, one a line; HELP lists them, Ctrl-D ends", err=True)
            lines = [" ".join(command)] if command else (line.strip() for line in sys.stdin)
            while every is not None:
                try:
                    click.echo(client.run(_encoded(" ".join(command), as_json, pretty)))
                except Unreachable as gone:
                    click.echo(f"bmq: {gone}", err=True)
                    return
                time.sleep(every)
            for line in lines:
                if line:
                    answer = client.run(_encoded(line, as_json, pretty))
                    click.echo(answer)
                    failed = failed or is_error(answer)
    except PeerError as error:
        raise Unreachable(f"{connection.where} answered with something we do not understand: {error}") from None
    if failed:
        raise SystemExit(EXIT_NOT_ALL)


def is_error(answer: str) -> bool:
    """Whether an answer tells of a failure.

    In JSON somewhere is a member `error`. As text a failure is a line that is none of the forms a success takes on one
    line, or stands behind some words.
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


def _encoded(line: str, as_json: bool, pretty: bool) -> str:
    if pretty:
        return f"ENCODING JSON_PRETTY {line}"
    return f"ENCODING JSON_COMPACT {line}" if as_json else line
