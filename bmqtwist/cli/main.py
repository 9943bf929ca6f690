"""The command `bmq`: talk to a broker, look at a configuration, make a password.

Exit codes: 0 good, 1 the broker answered with an error, 2 a bad command line or configuration, 3 no broker there,
4 the broker does not want us.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from bmqtwist import __version__
from bmqtwist.cli.adminclient import AdminClient, NotAllowed, Unreachable, client_context
from bmqtwist.cli.check import run_check
from bmqtwist.cli.storage import storage
from bmqtwist.errors import LocalError, PeerError
from bmqtwist.node.passwords import SALT_BYTES, make_hash

EXIT_ERROR_ANSWER, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_ALLOWED = 1, 2, 3, 4
PORT = 30114


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-v", "--version", message="bmqtwist %(version)s")
def main() -> None:
    """A BlazingMQ-compatible message broker: its tools."""


main.add_command(storage)


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--host", default="127.0.0.1", show_default=True, envvar="BMQ_HOST", help="Where the broker is.")
@click.option("--port", default=PORT, show_default=True, envvar="BMQ_PORT", type=click.IntRange(1, 65535))
@click.option("--json", "as_json", is_flag=True, help="Answer as JSON on one line.")
@click.option("--pretty", is_flag=True, help="Answer as indented JSON.")
@click.option("--timeout", default=30.0, show_default=True, help="Seconds to wait for each answer.")
@click.option("--user", envvar="BMQ_USER", help="Authenticate as this user (BASIC).")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False),
              help="File with the password; else BMQ_PASSWORD, else it is asked for.")
@click.option("--tls", is_flag=True, help="Connect with TLS.")
@click.option("--ca", type=click.Path(exists=True, dir_okay=False), help="Certificates to check the broker's against.")
@click.option("--insecure", is_flag=True, help="Do not check the broker's certificate.")
@click.argument("command", nargs=-1)
def admin(host: str, port: int, as_json: bool, pretty: bool, timeout: float, user: str | None,
          password_file: str | None, tls: bool, ca: str | None, insecure: bool, command: tuple[str, ...]) -> None:
    """Run an admin COMMAND, for instance: bmq admin CLUSTERS LIST.

    Without a COMMAND every line of standard input is one.
    """
    password = _password(password_file) if user else ""
    failed = False
    try:
        context = client_context(ca, insecure) if tls or ca or insecure else None
        with AdminClient(host, port, timeout, context) as client:
            if user:
                client.authenticate("BASIC", f"{user}:{password}".encode())
            client.negotiate()
            lines = [" ".join(command)] if command else (line.strip() for line in sys.stdin)
            for line in lines:
                if line:
                    answer = client.run(_encoded(line, as_json, pretty))
                    click.echo(answer)
                    failed = failed or is_error(answer)
    except Unreachable as error:
        _fail(error, EXIT_UNREACHABLE)
    except NotAllowed as error:
        _fail(error, EXIT_NOT_ALLOWED)
    except PeerError as error:
        _fail(LocalError(f"{host}:{port} answered with something we do not understand: {error}"), EXIT_UNREACHABLE)
    except LocalError as error:
        _fail(error, EXIT_USAGE)
    if failed:
        raise SystemExit(EXIT_ERROR_ANSWER)


@main.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--strict", is_flag=True, help="Warnings are errors.")
def check(directory: str, strict: bool) -> None:
    """Look at the configuration in DIRECTORY with all its domains."""
    raise SystemExit(run_check(directory, strict=strict))


@main.command()
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from standard input.")
def password(from_stdin: bool) -> None:
    """Make the hash of a password, for the settings of a BasicAuthenticator."""
    if from_stdin:
        secret = sys.stdin.readline().rstrip("\r\n")
    else:
        secret = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    try:
        click.echo(make_hash(secret, os.urandom(SALT_BYTES)))
    except LocalError as error:
        _fail(error, EXIT_USAGE)


def is_error(answer: str) -> bool:
    """Whether an answer tells of a failure: the text form says it first, the JSON form has the member `error`."""
    if answer.startswith(("Error", "Unable to decode command", "Command not authorized")):
        return True
    try:
        tree = json.loads(answer)
    except ValueError:
        return False
    return isinstance(tree, dict) and "error" in tree


def _encoded(line: str, as_json: bool, pretty: bool) -> str:
    if pretty:
        return f"ENCODING JSON_PRETTY {line}"
    return f"ENCODING JSON_COMPACT {line}" if as_json else line


def _password(password_file: str | None) -> str:
    if password_file is not None:
        return Path(password_file).read_text(encoding="utf-8").splitlines()[0]
    known = os.environ.get("BMQ_PASSWORD")
    return known if known is not None else str(click.prompt("Password", hide_input=True, err=True))


def _fail(error: Exception, code: int) -> None:
    click.echo(f"bmq: {error}", err=True)
    sys.exit(code)
