"""What shows that a request comes from who it says it does: signed cookies, CSRF tokens, and the tokens of other nodes.

Each has a key of its own, made of one secret. Time and randomness are arguments.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

SKEW_S = 30.0  # that the clocks of two nodes may differ by
NONCES_MAX = 10_000  # of nodes' requests that are remembered, so that none counts twice
ENDED_MAX = 10_000  # logins that ended before their time, and are remembered until then
COOKIE_CHARS_MAX = 1024
OPEN_SECRET = sha256(b"a bmqtwist console that is open on its machine").digest()  # of nodes that nobody logs in to


def subkey(secret: bytes, purpose: str) -> bytes:
    """The key for one purpose."""
    return hmac.digest(secret, purpose.encode(), "sha256")


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


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
        self._key, self.life_s, self.idle_s = subkey(secret, "session"), life_s, idle_s
        self._csrf = subkey(secret, "csrf")
        self._ended: OrderedDict[str, float] = OrderedDict()

    def write(self, login: Login) -> str:
        """The value of the cookie."""
        body = _text(json.dumps([login.user, login.nonce, login.began, login.seen, login.proof]).encode())
        return f"{body}.{self._sign(body)}"

    def read(self, cookie: str, wall: float) -> Login | None:
        """The login that a cookie stands for; None = it is none of ours, too old, or over."""
        body, dot, signature = cookie.partition(".")
        if len(cookie) > COOKIE_CHARS_MAX or not dot or not _same(signature, self._sign(body)):
            return None
        login = Login(*json.loads(_bytes(body)))
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
        return _text(hmac.digest(self._csrf, nonce.encode(), "sha256"))

    def is_csrf(self, nonce: str, token: str) -> bool:
        """Whether that is what came."""
        return _same(token, self.csrf(nonce))

    def _sign(self, body: str) -> str:
        return _text(hmac.digest(self._key, body.encode(), "sha256"))


def proof_of(password_hash: str) -> str:
    """Changes with the password."""
    return sha256(password_hash.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What the token of a node vouches for: who asks whom for what, and for whose sake."""

    sender: str
    receiver: str
    method: str
    path: str  # with its query
    body: bytes
    user: str = ""
    role: str = ""


class NodeTokens:
    """Tokens by which nodes know each other: a MAC over the request and its time. Each counts once."""

    def __init__(self, secret: bytes) -> None:
        self._key = subkey(secret, "node")
        self._seen: OrderedDict[str, float] = OrderedDict()

    def make(self, request: NodeRequest, wall: float, nonce: str) -> str:
        """The token of a request."""
        at = str(int(wall))
        head = _text(json.dumps([request.sender, at, nonce, request.user, request.role]).encode())
        return f"{head}.{self._mac(request, at, nonce)}"

    def check(self, token: str, receiver: str, method: str, path: str, body: bytes, wall: float) -> NodeRequest | None:
        """The request that a token vouches for; None = it does not."""
        head, _, mac = token.partition(".")
        try:
            sender, at, nonce, user, role = json.loads(_bytes(head))
            request = NodeRequest(sender, receiver, method, path, body, user, role)
            good = _same(mac, self._mac(request, at, nonce)) and abs(wall - int(at)) <= SKEW_S
        except (ValueError, TypeError):
            return None
        if not good or nonce in self._seen:
            return None
        self._seen[nonce] = wall
        while len(self._seen) > NONCES_MAX or next(iter(self._seen.values())) < wall - 2 * SKEW_S:
            self._seen.popitem(last=False)
        return request

    def _mac(self, request: NodeRequest, at: str, nonce: str) -> str:
        said = json.dumps([request.sender, request.receiver, request.method, *_meaning(request.path),
                           sha256(request.body).hexdigest(),
                           request.user, request.role, at, nonce])
        return _text(hmac.digest(self._key, said.encode(), "sha256"))


def _meaning(path: str) -> tuple[str, list[tuple[str, str]]]:
    """What a path with its query asks for, however it is escaped."""
    parts = urlsplit(path)
    return unquote(parts.path), parse_qsl(parts.query, keep_blank_values=True)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


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
