"""Passwords at rest: salted hashes in one line of text, and the comparison that takes its time.

    $scrypt$ln=<log2 n>,r=<r>,p=<p>$<salt, base64>$<hash, base64>    of the users of a BasicAuthenticator
    $argon2id$...                                                    of the users of the console (`http.users`)

A BasicAuthenticator may still have a password as it is, as the original's does: anything that does not start with
`$scrypt$` is compared literally. Salt is an argument; `bmq password` draws it, and argon2 its own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from bmqtwist.config.broker import PASSWORD_HASH_PREFIX
from bmqtwist.errors import LocalError

SALT_BYTES = 16
HASH_BYTES = 32
LOG2_N, R, P = 14, 8, 1  # 16 MiB and some 50 ms for one attempt
LOG2_N_MAX, R_MAX, P_MAX = 18, 16, 4  # what a configured hash may cost: 512 MiB at most
PASSWORD_BYTES_MAX = 1024  # longer ones are refused before they are hashed

_ARGON2 = PasswordHasher()  # its defaults: argon2id, 64 MiB, some 50 ms for one attempt
_LINE = re.compile(re.escape(PASSWORD_HASH_PREFIX) + r"ln=(\d{1,3}),r=(\d{1,3}),p=(\d{1,3})\$([^$]+)\$([^$]+)")


def make_hash(password: str, salt: bytes) -> str:
    """The line to write in place of `password`; `salt` is random, at least 16 bytes."""
    secret = _secret(password)
    if len(salt) < SALT_BYTES:
        raise LocalError(f"A salt has at least {SALT_BYTES} bytes.")
    digest = _digest(secret, salt, LOG2_N, R, P, HASH_BYTES)
    return f"{PASSWORD_HASH_PREFIX}ln={LOG2_N},r={R},p={P}${_text(salt)}${_text(digest)}"


def hash_for_console(password: str) -> str:
    """The line to write in `passwordHash` of a user of the console."""
    return _ARGON2.hash(_secret(password))


def matches_console_hash(hashed: str, password: str) -> bool:
    """Whether a password is the right one. Takes its time and memory: call it in a thread."""
    secret = password.encode("utf-8", "replace")
    try:
        return len(secret) <= PASSWORD_BYTES_MAX and _ARGON2.verify(hashed, password)
    except (Argon2Error, InvalidHashError, UnicodeEncodeError):
        return False


def _secret(password: str) -> bytes:
    secret = password.encode()
    if not secret or len(secret) > PASSWORD_BYTES_MAX:
        raise LocalError(f"A password has 1 to {PASSWORD_BYTES_MAX} bytes.")
    return secret


class StoredPassword:
    """What the configuration holds for one user; takes the line apart once, so that a bad one fails at start-up."""

    __slots__ = ("_cost", "_digest", "_literal", "_salt")

    def __init__(self, text: str) -> None:
        self._cost = (LOG2_N, R, P)
        self._salt = self._digest = self._literal = b""
        if not text.startswith(PASSWORD_HASH_PREFIX):
            self._literal = text.encode()
            return
        found = _LINE.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            self._salt, self._digest = _bytes(found[4]), _bytes(found[5])
        except (ValueError, Base64Error):
            raise LocalError(f"A password hash is not of the form {PASSWORD_HASH_PREFIX}ln=..,r=..,p=..$salt$hash; "
                             "make a new one with `bmq password`.") from None
        self._cost = (int(found[1]), int(found[2]), int(found[3]))
        limits = zip(self._cost, (LOG2_N_MAX, R_MAX, P_MAX), strict=True)
        if any(not 1 <= value <= most for value, most in limits) or len(self._salt) < 8 or len(self._digest) < 16:
            raise LocalError("A password hash has parameters out of range; make a new one with `bmq password`.")

    @property
    def is_hash(self) -> bool:
        """False for a password that stands in the configuration as it is."""
        return bool(self._digest)

    def matches(self, password: bytes) -> bool:
        """Whether `password` is the right one; takes the time of one hash for a hashed password."""
        if len(password) > PASSWORD_BYTES_MAX:
            return False
        if not self._digest:
            return hmac.compare_digest(password, self._literal)
        return hmac.compare_digest(_digest(password, self._salt, *self._cost, len(self._digest)), self._digest)


def _digest(secret: bytes, salt: bytes, log2_n: int, r: int, p: int, size: int) -> bytes:
    n = 1 << log2_n
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r + (1 << 20), dklen=size)


def _text(data: bytes) -> str:
    return b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4), validate=True)
