"""Passwords of the console's users: argon2 hashes, as `http.users[].passwordHash` holds them."""

from __future__ import annotations

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from bmqtwist.errors import LocalError
from bmqtwist.security.passwords import PASSWORD_BYTES_MAX

_HASHER = PasswordHasher()  # its defaults: argon2id, 64 MiB, some 50 ms for one attempt


def hash_for_console(password: str) -> str:
    """The line to write in `passwordHash`."""
    if not 0 < len(password.encode()) <= PASSWORD_BYTES_MAX:
        raise LocalError(f"A password has 1 to {PASSWORD_BYTES_MAX} bytes.")
    return _HASHER.hash(password)


def matches(hashed: str, password: str) -> bool:
    """Whether a password is the right one. Takes its time and memory: call it in a thread."""
    if len(password.encode("utf-8", "replace")) > PASSWORD_BYTES_MAX:
        return False
    try:
        return _HASHER.verify(hashed, password)
    except (Argon2Error, InvalidHashError, UnicodeEncodeError):
        return False
