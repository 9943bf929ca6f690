"""`bmq password`: the hash of a password, for the settings of a BasicAuthenticator."""

from __future__ import annotations

import os
import sys

import click

from bmqtwist.security.passwords import SALT_BYTES, make_hash


@click.command()
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def password(from_stdin: bool, as_json: bool) -> None:
    """Make the hash of a password, for the settings of a BasicAuthenticator."""
    if from_stdin:
        secret = sys.stdin.readline().rstrip("\r\n")
    else:
        secret = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    hashed = make_hash(secret, os.urandom(SALT_BYTES))
    click.echo(f'{{"hash": "{hashed}"}}' if as_json else hashed)
