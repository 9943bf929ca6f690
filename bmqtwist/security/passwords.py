"""Stored passwords: salted hashes as one line of text, and their comparison: about 250 ms (scrypt) or 50 ms (argon2).

    $scrypt$ln=<log2 n>,r=<r>,p=<p>$<salt, base64>$<hash, base64>    of the users of a BasicAuthenticator
    $argon2id$...                                                    of the users of the console (`http.users`)

A BasicAuthenticator also accepts plain-text passwords, as the original's does: a text without the prefix `$scrypt$` is
compared literally. A password that has matched is compared by a keyed hash from then on, so that clients reconnect and renew
their credentials without that cost. The salt is an argument, which `bmq password` generates; argon2 generates its own.
`authenticators.py` compares passwords of clients, `console/server.py` those of console users.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from hashlib import sha256

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from bmqtwist.config.broker import PASSWORD_HASH_PREFIX
from bmqtwist.errors import LocalError

SALT_BYTES = 16
HASH_BYTES = 32
LOG2_N, R, P = 14, 8, 5  # 16 MiB and about 250 ms per comparison: a cost that OWASP recommends
WORK = (R * P) << LOG2_N
LOG2_N_MAX, R_MAX, P_MAX = 18, 16, 16  # limits of a configured hash: at most 512 MiB
PASSWORD_BYTES_MAX = 1024  # longer passwords are refused before hashing

_ARGON2 = PasswordHasher()  # defaults: argon2id, 64 MiB, about 50 ms per comparison
_LINE = re.compile(re.escape(PASSWORD_HASH_PREFIX) + r"ln=(\d{1,3}),r=(\d{1,3}),p=(\d{1,3})\$([^$]+)\$([^$]+)")


def make_hash(password: str, salt: bytes) -> str:
    """Return the hash of a password for a BasicAuthenticator; `salt`: at least 16 random bytes."""
    secret = _secret(password)
    if len(salt) < SALT_BYTES:
        raise LocalError(f"A salt must have at least {SALT_BYTES} bytes.")
    digest = _digest(secret, salt, LOG2_N, R, P, HASH_BYTES)
    return f"{PASSWORD_HASH_PREFIX}ln={LOG2_N},r={R},p={P}${_to_base64(salt)}${_to_base64(digest)}"


def hash_for_console(password: str) -> str:
    """Return the hash of a password for `passwordHash` of a console user."""
    return _ARGON2.hash(_secret(password))


def matches_console_hash(hashed: str, password: str) -> bool:
    """Return whether a password matches. Takes 50 ms and 64 MiB: call it in a thread."""
    secret = password.encode("utf-8", "replace")
    try:
        return len(secret) <= PASSWORD_BYTES_MAX and _ARGON2.verify(hashed, password)
    except (Argon2Error, InvalidHashError, UnicodeEncodeError):
        return False


def _secret(password: str) -> bytes:
    secret = password.encode()
    if not secret or len(secret) > PASSWORD_BYTES_MAX:
        raise LocalError(f"A password must have 1 to {PASSWORD_BYTES_MAX} bytes.")
    return secret


class StoredPassword:
    """Password of one user in the configuration, parsed once, so that an invalid hash fails at start-up."""

    __slots__ = ("_cost", "_digest", "_literal", "_matched", "_salt")

    def __init__(self, text: str) -> None:
        self._cost = (LOG2_N, R, P)
        self._salt = self._digest = self._literal = self._matched = b""
        if not text.startswith(PASSWORD_HASH_PREFIX):
            self._literal = sha256(text.encode()).digest()
            return
        found = _LINE.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            self._salt, self._digest = _from_base64(found[4]), _from_base64(found[5])
        except (ValueError, Base64Error):
            raise LocalError(f"A password hash must have the form {PASSWORD_HASH_PREFIX}ln=..,r=..,p=..$salt$hash; "
                             "create one with `bmq password`.") from None
        self._cost = (int(found[1]), int(found[2]), int(found[3]))
        limits = zip(self._cost, (LOG2_N_MAX, R_MAX, P_MAX), strict=True)
        if any(not 1 <= value <= most for value, most in limits) or len(self._salt) < 8 or len(self._digest) < 16:
            raise LocalError("A password hash has parameters out of range; create a new one with `bmq password`.")

    @property
    def is_hash(self) -> bool:
        """False for a plain-text password."""
        return bool(self._digest)

    @property
    def work(self) -> int:
        """Cost of a comparison, in blocks of scrypt."""
        log2_n, r, p = self._cost
        return (r * p) << log2_n

    def unmatched(self) -> StoredPassword:
        """Return a hash of the same cost that no password matches."""
        made = StoredPassword("")
        made._cost, made._salt, made._digest = self._cost, self._salt, bytes(len(self._digest))
        return made

    def matches(self, password: bytes) -> bool:
        """Return whether `password` matches. A hash takes about 250 ms the first time, and for another password.
        The time does not depend on the length of a plain-text password."""
        if len(password) > PASSWORD_BYTES_MAX:
            return False
        if not self._digest:
            return hmac.compare_digest(sha256(password).digest(), self._literal)
        keyed = hmac.digest(self._salt + self._digest, password, "sha256")
        if self._matched and hmac.compare_digest(keyed, self._matched):
            return True
        if not hmac.compare_digest(_digest(password, self._salt, *self._cost, len(self._digest)), self._digest):
            return False
        self._matched = keyed
        return True


def _digest(secret: bytes, salt: bytes, log2_n: int, r: int, p: int, size: int) -> bytes:
    n = 1 << log2_n
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r + (1 << 20), dklen=size)


def _to_base64(data: bytes) -> str:
    return b64encode(data).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4), validate=True)
