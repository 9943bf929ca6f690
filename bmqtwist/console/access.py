"""Authentication and authorization of console requests. Time and randomness are arguments.

    no users configured    local requests have the role `http.localRole`, except through a proxy; all others are refused
    users                  a login in a signed cookie, and a role; each role includes the permissions of the lower roles
    another node           its token, which names the user of the original request

Cookies, CSRF tokens and node tokens are signed with different keys, which itsdangerous derives from one secret. Users
and durations of logins are configured (`config/broker.py: Http`); the role that an operation needs is declared with it
(`actions.py`). `server.py` checks each request with this module, `service.py` creates its parts; admin sessions and
clients are authorized in `security/`.
"""

from __future__ import annotations

import hmac
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import IntEnum
from hashlib import sha256
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from itsdangerous import BadData, Signer, URLSafeSerializer
from msgspec import Struct
from msgspec.structs import astuple, replace

from bmqtwist.config.broker import ConsoleUser
from bmqtwist.console.generations import LoginGenerations

SESSION_COOKIE = "bmq_session"
OPEN_NONCE = "open"  # nonce of requests without login, where no users are configured
SKEW_S = 30.0  # maximum difference of the clocks of two nodes
NONCES_MAX = 10_000  # nonces of node requests that are stored to detect a replay
TOKEN_CHARS_MAX = 1024  # of a cookie or node token: its content may be compressed
OPEN_SECRET = sha256(b"a bmqtwist console that is open on its machine").digest()  # of nodes without users
_SIGNING = {"key_derivation": "hmac", "digest_method": sha256}


class UserRole(IntEnum):
    """Role of a user; each role includes the permissions of the smaller ones."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """Name in lower case, as in the configuration."""
        return self.name.lower()


ROLES = {role.label: role for role in UserRole}


class Caller(Struct, frozen=True):
    """Authenticated sender of a request. `nonce`: of the login, for CSRF tokens; empty = another node, `node`, sent the
    request for the user."""

    user: str
    role: UserRole
    nonce: str = ""
    node: str = ""
    login: Login | None = None


class Refusal(Exception):
    """Refusal of a request: HTTP status and reason; `field`: the invalid argument."""

    def __init__(self, status: int, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.field = status, reason, field


OPEN_NOTICE = ("No users are configured: every user of this machine has the role %s. docs/console.md describes how to "
               "configure users.")
LOCAL_ONLY = ("This console has no users, so it accepts requests from its own machine only, and not through a proxy. "
            "Configure appConfig.bmqtwist.http.users (docs/console.md), or connect from 127.0.0.1.")
CLOSED = ("This console has no users. Configure appConfig.bmqtwist.http.users, or http.localRole to give a role to every "
          "user of this machine (docs/console.md).")
PROXY_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip", "via")


def is_local(address: str) -> bool:
    """Return whether an address, or the name in a Host header, means this machine."""
    if address == "localhost":
        return True
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def split_url(text: str) -> SplitResult:
    """Return the parts of a URL; all are empty if it is malformed."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


def host_of(header: str) -> str:
    """Return the name in a Host header without the port; "" = it is malformed."""
    return split_url(f"//{header}").hostname or "" if header and not set(header) & set("/@?# \\") else ""


class Logins:
    """Authentication of requests. `users`: by name; `cookies`: of their logins; `local_role`: of requests of this machine if
    there are no users, None = they are refused."""

    def __init__(self, users: Mapping[str, ConsoleUser], cookies: Cookies, local_role: UserRole | None = None) -> None:
        self.users, self.cookies, self._local_role = users, cookies, local_role

    @property
    def is_open(self) -> bool:
        return not self.users

    def identify(self, address: str, header: Callable[[str], str | None], wall: float) -> Caller:
        """Return the user of a request from `address` by its headers. Refusal 401: the login is missing or has expired; 403:
        the console has no users and the request is not local."""
        if self.is_open:
            if self._local_role is None:
                raise Refusal(403, CLOSED)
            forwarded = any(header(each) for each in PROXY_HEADERS)
            if forwarded or not is_local(address) or not is_local(host_of(header("host") or "")):
                raise Refusal(403, LOCAL_ONLY)
            return Caller("local", self._local_role, OPEN_NONCE)
        login = self.cookies.read(cookies_of(header("cookie") or "").get(SESSION_COOKIE, ""), wall)
        user = self.users.get(login.user) if login is not None else None
        if login is None or user is None or login.proof != proof_of(user.password_hash):
            raise Refusal(401, "Log in first: there is no login, or it has expired.")
        return Caller(user.name, ROLES[user.role], login.nonce, login=login)

    def is_still_valid(self, caller: Caller, wall: float) -> bool:
        """Return whether an earlier authentication is still valid."""
        return caller.login is None or self.cookies.is_valid(caller.login, wall)


def require(caller: Caller, role: UserRole) -> None:
    """Raise Refusal 403 unless the sender has at least the role."""
    if caller.role < role:
        raise Refusal(403, f"This requires the role {role.label}; {caller.user} has the role {caller.role.label}.")


def is_own_origin(origin: str, host: str, others: set[str]) -> bool:
    """Return whether a page of `origin` may open a WebSocket here: it was served by this console (`host`: the Host header)
    or by a console with an origin in `others`."""
    parts = split_url(origin)
    return parts.scheme in ("http", "https") and (bool(host) and parts.netloc == host or origin in others)


def origin_of(url: str) -> str:
    """Return the origin of a URL: scheme, host and port."""
    parts = split_url(url)
    return f"{parts.scheme}://{parts.netloc}"


class Login(Struct, frozen=True):
    """Login. `began`, `seen`: seconds since the epoch; `proof`: hash of the password hash at the time of the login;
    `generation`: of the user at that time."""

    user: str
    nonce: str
    began: int
    seen: int
    proof: str
    generation: int


class Cookies:
    """Signed cookies of logins, valid for `lifetime_s` after the login and `idle_s` after the last use, until the user logs
    out. `started`: logins from before this time (seconds since the epoch) need complete generations."""

    def __init__(self, secret: bytes, lifetime_s: float, idle_s: float, generations: LoginGenerations,
                 started: float = 0.0) -> None:
        self.lifetime_s, self.idle_s, self.generations, self._started = lifetime_s, idle_s, generations, int(started)
        self._logins = URLSafeSerializer(secret, "session", signer_kwargs=_SIGNING)
        self._csrf = Signer(secret, "csrf", key_derivation="hmac", digest_method=sha256)

    def write(self, login: Login) -> str:
        return str(self._logins.dumps(astuple(login)))

    def read(self, cookie: str, wall: float) -> Login | None:
        """Return the login in a cookie; None = the signature is invalid, or the login has expired or ended."""
        if len(cookie) > TOKEN_CHARS_MAX:
            return None
        try:
            login = Login(*self._logins.loads(cookie))
        except (BadData, UnicodeError, TypeError):  # TypeError: a login of another version
            return None
        return login if self.is_valid(login, wall) else None

    def is_valid(self, login: Login, wall: float) -> bool:
        return (login.generation >= self.generations.of(login.user)
                and (login.began >= self._started or self.generations.is_complete)
                and login.began <= wall + SKEW_S and wall - login.began < self.lifetime_s
                and wall - login.seen < self.idle_s)

    def csrf(self, nonce: str) -> str:
        """Return the CSRF token of a login, which pages send with every action."""
        return str(self._csrf.get_signature(nonce).decode())

    def is_csrf(self, nonce: str, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.csrf(nonce).encode())


def proof_of(password_hash: str) -> str:
    """Return a hash that changes with the password."""
    return sha256(password_hash.encode()).hexdigest()[:16]


def receiver_of(name: str, url: str) -> str:
    """Return the receiver of a node token: the name of a console and its origin, so that a broker that announces the name of
    another one receives no token that is valid there."""
    return f"{name} {origin_of(url)}"


class NodeRequest(Struct, frozen=True):
    """Request of one node to another: the content of a node token. `receiver`: see `receiver_of`; `user`, `role`: of the
    original request."""

    sender: str  # "" = unknown until the token is read
    receiver: str
    method: str
    path: str  # with query
    body: bytes
    user: str = ""
    role: str = ""


class NodeTokens:
    """Node tokens: each is signed for one request, contains its time, and is accepted once. `started`: start of this
    process, seconds since the epoch; an older token is refused, as it may have been used before the start."""

    def __init__(self, secret: bytes, started: float = 0.0) -> None:
        self._tokens, self._started = URLSafeSerializer(secret, signer_kwargs=_SIGNING), round(started, 3)  # as in `make`
        self._seen: OrderedDict[str, float] = OrderedDict()

    def make(self, request: NodeRequest, wall: float, nonce: str) -> str:
        content = [request.sender, round(wall, 3), nonce, request.user, request.role]
        return str(self._tokens.dumps(content, _signed_content(request)))

    def check(self, token: str, received: NodeRequest, wall: float) -> NodeRequest | None:
        """Return the request `received` with sender, user and role from its token; None = the token is not valid for it."""
        if len(token) > TOKEN_CHARS_MAX:
            return None
        try:
            sender, at, nonce, user, role = self._tokens.loads(token, _signed_content(received))
        except (BadData, ValueError, TypeError, RecursionError):  # malformed, or of another version
            return None
        if not isinstance(at, int | float) or not all(isinstance(each, str) for each in (sender, nonce, user, role)):
            return None
        if not (at >= self._started and abs(wall - at) <= SKEW_S) or nonce in self._seen:
            return None
        self._seen[nonce] = wall
        while len(self._seen) > NONCES_MAX or next(iter(self._seen.values())) < wall - 2 * SKEW_S:
            self._seen.popitem(last=False)
        return replace(received, sender=sender, user=user, role=role)


def _signed_content(request: NodeRequest) -> bytes:
    """Return the signed content of a token: receiver, method, path, query and body."""
    return json.dumps(["node", request.receiver, request.method, *_decode_path(request.path),
                       sha256(request.body).hexdigest()]).encode()


def _decode_path(path: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a path and its query without escapes."""
    parts = split_url(path)
    return unquote(parts.path), parse_qsl(parts.query, keep_blank_values=True)


def cookies_of(header: str) -> Mapping[str, str]:
    """Return the cookies of a request by name; the first one of a name is used."""
    found: dict[str, str] = {}
    for part in header.split(";")[:50]:
        name, equals, value = part.strip().partition("=")
        if equals:
            found.setdefault(name, value)
    return found


def cookie_header(name: str, value: str, path: str, secure: bool, lifetime_s: float | None = None) -> str:
    """Return a Set-Cookie header for an HttpOnly cookie. `lifetime_s` None = session cookie, 0 = delete it. A link on
    another site opens a page with the cookie; other requests of other sites arrive without it (SameSite=Lax), and actions
    need a token besides."""
    age = "" if lifetime_s is None else f"; Max-Age={int(lifetime_s)}"
    return f"{name}={value}; Path={path or '/'}; HttpOnly; SameSite=Lax{age}{'; Secure' if secure else ''}"


def read_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError with the reason."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("the body is not a JSON object")
    return found
