"""What shows that a request comes from who it says it does: signed cookies, CSRF tokens, and the tokens of other nodes.

Each has a key of its own, which itsdangerous derives from one secret and a purpose. Time and randomness are arguments.
"""

from __future__ import annotations

import hmac
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from itsdangerous import BadData, Signer, URLSafeSerializer

SKEW_S = 30.0  # that the clocks of two nodes may differ by
NONCES_MAX = 10_000  # of nodes' requests that are remembered, so that none counts twice
ENDED_MAX = 10_000  # logins that ended before their time, and are remembered until then
COOKIE_CHARS_MAX = 1024
OPEN_SECRET = sha256(b"a bmqtwist console that is open on its machine").digest()  # of nodes that nobody logs in to


_SIGNING = {"key_derivation": "hmac", "digest_method": sha256}


@dataclass(frozen=True, slots=True)
class Login:
    """One login. `began`, `seen`: seconds since the epoch; `proof`: of the password that it was made with."""

    user: str
    nonce: str
    began: int
    seen: int
    proof: str


class Cookies:
    """Logins as cookies: signed, and valid for `life_s` from the login, `idle_s` from the last use."""

    def __init__(self, secret: bytes, life_s: float, idle_s: float) -> None:
        self.life_s, self.idle_s = life_s, idle_s
        self._logins = URLSafeSerializer(secret, "session", signer_kwargs=_SIGNING)
        self._csrf = Signer(secret, "csrf", key_derivation="hmac", digest_method=sha256)
        self._ended: OrderedDict[str, float] = OrderedDict()

    def write(self, login: Login) -> str:
        """The value of the cookie."""
        return str(self._logins.dumps(astuple(login)))

    def read(self, cookie: str, wall: float) -> Login | None:
        """The login that a cookie stands for; None = it is none of ours, too old, or over."""
        if len(cookie) > COOKIE_CHARS_MAX:
            return None
        try:
            login = Login(*self._logins.loads(cookie))
        except (BadData, UnicodeError):
            return None
        return login if self.is_valid(login, wall) else None

    def is_valid(self, login: Login, wall: float) -> bool:
        """Whether a login still counts."""
        return (login.nonce not in self._ended and login.began <= wall + SKEW_S and wall - login.began < self.life_s
                and wall - login.seen < self.idle_s)

    def end(self, nonce: str, wall: float) -> None:
        """A login is over here before its time."""
        self._ended[nonce] = wall + self.life_s
        while len(self._ended) > ENDED_MAX or next(iter(self._ended.values())) < wall:
            self._ended.popitem(last=False)

    def csrf(self, nonce: str) -> str:
        """What a page of that login sends with everything that changes something."""
        return str(self._csrf.get_signature(nonce).decode())

    def is_csrf(self, nonce: str, token: str) -> bool:
        """Whether that is what came."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.csrf(nonce).encode())


def proof_of(password_hash: str) -> str:
    """Changes with the password."""
    return sha256(password_hash.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What the token of a node vouches for: who asks whom for what, and for whose sake."""

    sender: str  # "" = not known yet
    receiver: str
    method: str
    path: str  # with its query
    body: bytes
    user: str = ""
    role: str = ""


class NodeTokens:
    """Tokens by which nodes know each other: signed with a key for one request, they hold its time. Each counts once."""

    def __init__(self, secret: bytes) -> None:
        self._tokens = URLSafeSerializer(secret, signer_kwargs=_SIGNING)
        self._seen: OrderedDict[str, float] = OrderedDict()

    def make(self, request: NodeRequest, wall: float, nonce: str) -> str:
        """The token of a request."""
        return str(self._tokens.dumps([request.sender, int(wall), nonce, request.user, request.role], _purpose(request)))

    def check(self, token: str, asked: NodeRequest, wall: float) -> NodeRequest | None:
        """The request with who sends it and for whose sake, as a token says; None = the token is not for it. `asked`: the
        request as it came."""
        try:
            sender, at, nonce, user, role = self._tokens.loads(token, _purpose(asked))
        except (BadData, UnicodeError):
            return None
        if abs(wall - at) > SKEW_S or nonce in self._seen:
            return None
        self._seen[nonce] = wall
        while len(self._seen) > NONCES_MAX or next(iter(self._seen.values())) < wall - 2 * SKEW_S:
            self._seen.popitem(last=False)
        return replace(asked, sender=sender, user=user, role=role)


def _purpose(request: NodeRequest) -> bytes:
    """What a token is good for: one receiver, method, path, query and body."""
    return json.dumps(["node", request.receiver, request.method, *_meaning(request.path),
                       sha256(request.body).hexdigest()]).encode()


def _meaning(path: str) -> tuple[str, list[tuple[str, str]]]:
    """What a path with its query asks for, however it is escaped."""
    parts = urlsplit(path)
    return unquote(parts.path), parse_qsl(parts.query, keep_blank_values=True)


def cookies_of(header: str) -> Mapping[str, str]:
    """The cookies of a request by name; the first of each name counts."""
    found: dict[str, str] = {}
    for part in header.split(";")[:50]:
        name, equals, value = part.strip().partition("=")
        if equals:
            found.setdefault(name, value)
    return found


def cookie_header(name: str, value: str, path: str, secure: bool, life_s: float | None = None) -> str:
    """A Set-Cookie that scripts and other sites cannot use. `life_s` None = until the browser ends, 0 = it is taken back."""
    age = "" if life_s is None else f"; Max-Age={int(life_s)}"
    return f"{name}={value}; Path={path or '/'}; HttpOnly; SameSite=Strict{age}{'; Secure' if secure else ''}"


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object; ValueError with what is wrong."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("the body is no JSON object")
    return found
