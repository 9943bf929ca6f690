"""`bmq password`: hash of a password, for the settings of a BasicAuthenticator or for a user of the console.

Started by `main.py`; `security/passwords.py` makes and compares the hashes.
"""

from __future__ import annotations

import os
import sys

import click

from bmqtwist.errors import LocalError
from bmqtwist.security.passwords import SALT_BYTES, hash_for_console, make_hash


@click.command()
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--console", is_flag=True, help="Make an argon2 hash, for http.users of the console.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def password(from_stdin: bool, console: bool, as_json: bool) -> None:
    """Make the hash of a password, for the settings of a BasicAuthenticator or for a user of the console."""
    try:
        if from_stdin:
            secret = sys.stdin.readline().rstrip("\r\n")
        else:
            secret = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        secret.encode()
    except UnicodeError:
        raise LocalError("The password is not UTF-8.") from None
    hashed = hash_for_console(secret) if console else make_hash(secret, os.urandom(SALT_BYTES))
    click.echo(f'{{"hash": "{hashed}"}}' if as_json else hashed)
