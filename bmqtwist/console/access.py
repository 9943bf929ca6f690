"""Who may ask for what: pure decisions about one request.

    no users configured    whoever is on this machine may do everything, through no proxy; everybody else is refused
    users                  a login; a role, of which each may do what those below it may
    another node           its token, which names the user for whose sake it asks
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from urllib.parse import urlsplit

from bmqtwist.config.broker import ConsoleUser
from bmqtwist.console.tokens import Cookies, Login, proof_of

OPEN_NONCE = "open"  # stands for the login that is not asked for
FREE_FAILURES = 3  # logins that may fail before the next one has to wait
WAIT_SECONDS_MAX = 60.0
FORGET_S = 900.0  # after the last failure
TRACKED_MAX = 10_000  # addresses and names whose failures are counted


class Role(IntEnum):
    """What somebody may do: all that those of a smaller number may, and more."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """As it is configured."""
        return self.name.lower()


ROLES = {role.word: role for role in Role}


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody who may ask. `nonce`: of the login, for CSRF tokens; empty = the request came from `node`."""

    user: str
    role: Role
    nonce: str = ""
    node: str = ""
    login: Login | None = None


@dataclass(frozen=True, slots=True)
class Asker:
    """What a request says about who it comes from; header values, empty = there is none."""

    address: str
    host: str
    forwarded: str
    cookie: str


class Refusal(Exception):
    """A request is refused: a status of HTTP, and why, for people; `field`: the argument that is to blame."""

    def __init__(self, status: int, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.field = status, reason, field


OPEN_NOTICE = ("No users are configured: whoever is on this machine may do everything here. docs/console.md says how "
               "to configure them.")
NOT_HERE = ("This console has no users, so it is open on its own machine alone, and not through a proxy. Configure "
            "appConfig.bmqtwist.http.users (docs/console.md), or ask from 127.0.0.1.")


def is_local(address: str) -> bool:
    """Whether an address, or the name in a Host header, means this machine."""
    if address == "localhost":
        return True
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    return urlsplit(f"//{header}").hostname or "" if header and not set(header) & set("/@?# \\") else ""


class Doorkeeper:
    """Decides who somebody is. `users`: by name; `cookies`: of their logins."""

    def __init__(self, users: Mapping[str, ConsoleUser], cookies: Cookies) -> None:
        self.users, self.cookies = users, cookies

    @property
    def is_open(self) -> bool:
        """Whether nobody logs in."""
        return not self.users

    def identify(self, asker: Asker, wall: float) -> Who:
        """Who asks; Refusal 401: nobody is logged in; 403: nobody can be, from there."""
        if self.is_open:
            if asker.forwarded or not is_local(asker.address) or not is_local(host_of(asker.host)):
                raise Refusal(403, NOT_HERE)
            return Who("local", Role.ADMIN, OPEN_NONCE)
        login = self.cookies.read(asker.cookie, wall) if asker.cookie else None
        user = self.users.get(login.user) if login is not None else None
        if login is None or user is None or login.proof != proof_of(user.password_hash):
            raise Refusal(401, "Log in first: nobody is logged in, or the login has ended.")
        return Who(user.name, ROLES[user.role], login.nonce, login=login)

    def still(self, who: Who, wall: float) -> bool:
        """Whether who was identified a while ago still counts."""
        return who.login is None or self.cookies.is_valid(who.login, wall)


def require(who: Who, role: Role) -> None:
    """Refusal 403 unless somebody may do what takes a role."""
    if who.role < role:
        raise Refusal(403, f"This takes the role {role.word}; {who.user} has the role {who.role.word}.")


def origin_is_ours(origin: str, host: str, others: set[str]) -> bool:
    """Whether a page of that origin may open a WebSocket here: it was served under the Host that is asked now, or by a
    console that we know (`others`: their origins)."""
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and (bool(host) and parts.netloc == host or origin in others)


def origin_of(url: str) -> str:
    """The origin of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


class LoginLimiter:
    """Who fails to log in waits, longer each time: counted by address and by name."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def wait(self, address: str, name: str, now: float) -> float:
        """How many seconds are left until the next attempt counts."""
        return max(self._left(key, now) for key in self._keys(address, name))

    def failed(self, address: str, name: str, now: float) -> None:
        """An attempt has failed."""
        for key in self._keys(address, name):
            count, last = self._failures.pop(key, (0, now))
            self._failures[key] = (1 if now - last > FORGET_S else count + 1), now
        while len(self._failures) > TRACKED_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, name: str) -> None:
        """The right password was given."""
        for key in self._keys(address, name):
            self._failures.pop(key, None)

    def _left(self, key: tuple[str, str], now: float) -> float:
        count, last = self._failures.get(key, (0, 0.0))
        if count <= FREE_FAILURES:
            return 0.0
        return max(0.0, last + min(WAIT_SECONDS_MAX, 2.0 ** (count - FREE_FAILURES)) - now)

    def _keys(self, address: str, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return ("address", address), ("name", name[:64])
