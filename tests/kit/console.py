"""Console of a broker in memory for tests: requests pass its HTTP site without a port, with a clock that tests advance.

Used by tests/unit/console; the pages in a browser are tested with `browser/fake_console.py`, the client side of a WebSocket
is in `websocket.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from treq.testing import StubTreq
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from bmqtwist.console.access import OPEN_SECRET, NodeRequest, NodeTokens, receiver_of
from bmqtwist.console.service import ConsoleService
from bmqtwist.errors import LocalError
from bmqtwist.steps import at_once
from bmqtwist.view import snapshots
from bmqtwist.view.snapshot import ProcessState
from kit.memory import MemoryWorld

PASSWORDS = {"vera": "seeing is believing", "olaf": "operators operate", "ada": "all of it"}
ROLES = {"vera": "viewer", "olaf": "operator", "ada": "admin"}


@cache
def users() -> tuple[dict[str, str], ...]:
    """Return the configuration of one user of each role, with password hashes of minimal cost."""
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    return tuple({"name": name, "passwordHash": hasher.hash(password), "role": ROLES[name]}
                 for name, password in PASSWORDS.items())


class InlinePool:
    """A thread pool that calls functions in the current thread."""

    def callInThreadWithCallback(self, done: Callable[[bool, Any], None], work: Callable[..., Any], *args: Any,
                                 **options: Any) -> None:
        """Call `work`, then `done` with its result, as the pool of Twisted does."""
        try:
            result = work(*args, **options)
        except Exception:
            done(False, Failure())
        else:
            done(True, result)


class ManualReactor(Clock):
    """A clock that tests advance, with a thread pool that uses no threads."""

    def getThreadPool(self) -> InlinePool:
        """Return the pool without threads."""
        return InlinePool()

    def callFromThread(self, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Call the function without delay."""
        call(*args, **options)


@dataclass
class Answer:
    """Response to a request."""

    status: int
    text: str
    headers: dict[str, str]
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        """Return the body, decoded from JSON."""
        return json.loads(self.text)


def run_http(work: Generator[None, None, None], failed: Callable[[Exception], None]) -> None:
    """Run a job of an HTTP connection without interruption."""
    try:
        at_once(work)
    except Exception as error:
        failed(error)


class ConsoleHost:
    """Host of the console: the interface between console and process, with a broker in memory."""

    def __init__(self, world: MemoryWorld) -> None:
        self._world, self.reactor = world, ManualReactor()
        self.node = world.assembled
        self.stops: list[tuple[str, str]] = []
        self.failures: list[Failure] = []
        self.report = world.report

    def present_time(self) -> tuple[float, float]:
        """Return (monotonic time, wall time) of the world plus the time of the reactor, in s."""
        now = self._world.now + self.reactor.seconds()
        return now, now + self._world.clock.wall_offset

    def process(self) -> ProcessState:
        """Return fixed values of a process."""
        return ProcessState(memory_resident=1 << 20)

    def stop_gracefully(self, reason: str, by: str) -> None:
        """Record the request to stop; raises LocalError for a second one."""
        if self.stops:
            raise LocalError("the broker is stopping")
        self.stops.append((reason, by))

    def short_status(self) -> dict[str, object]:
        """Return the short status of the broker."""
        return snapshots.short_status(self.node.broker, self.present_time()[0], "")

    def limit_accepts(self) -> None:
        """Nothing is accepted."""

    def start_http(self, owner: object, work: Generator[None, None, None], failed: Callable[[Exception], None]) -> None:
        """Run the steps without interruption."""
        run_http(work, failed)

    def metrics(self, write: Callable[[str], object], prefix: str, instance: str) -> Generator[None, None, None]:
        """Write no metrics."""
        yield

    def run_in_steps(self, work: Generator[None, None, str]) -> Deferred[str]:
        """Run the steps without interruption."""
        return execute(at_once, work)

    def unready_reason(self) -> str:
        """Return no reason: the broker is ready."""
        return ""

    def log_failure(self, failure: Failure) -> None:
        """Record an internal error."""
        self.failures.append(failure)


class ConsoleWorld:
    """A broker in memory with its console."""

    def __init__(self, root: Path, http: Mapping[str, Any] | None = None, **options: Any) -> None:
        members = {"port": 1, "localRole": "admin", **(http or {})}
        self.world = MemoryWorld(root, app={"bmqtwist": {"http": members}}, **options)
        self.host = ConsoleHost(self.world)
        self.service = ConsoleService(self.host)  # type: ignore[arg-type]
        self.service.start()
        self.cookies: dict[str, str] = {}
        self.csrf = ""

    def advance(self, seconds: float = 0.0) -> None:
        """Run the broker and the console until they are idle, then advance the reactor."""
        for _ in range(50):
            self.host.reactor.advance(0)
            self.world.advance(0.0)
        self.host.reactor.advance(seconds)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None,
            host: str = "127.0.0.1:1") -> Answer:
        """Send a request and return the response."""
        sent = {"Host": host, **(headers or {})}
        if self.cookies:
            sent.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        found: list[Any] = []
        client: Any = StubTreq(self.service.site.resource)  # with its own cookie jar
        client.request(method, f"http://{host}{path}", headers=sent, data=body, allow_redirects=False).addBoth(found.append)
        for _ in range(200):
            client.flush()
            self.host.reactor.advance(0)
            self.world.advance(0.0)
            if found:
                break
        response = found[0]
        if isinstance(response, Failure):
            response.raiseException()
        text: list[str] = []
        client.text_content(response).addCallback(text.append)
        client.flush()
        raw = list(response.headers.getAllRawHeaders())
        cookies = dict(value.decode().partition(";")[0].partition("=")[::2] for name, values in raw
                       if name.lower() == b"set-cookie" for value in values)
        return Answer(response.code, text[0], {name.decode().lower(): values[0].decode() for name, values in raw}, cookies)

    def page(self, path: str, **options: Any) -> Answer:
        """Request a page, as a browser does."""
        return self.ask(path, headers={"Accept": "text/html", **options.pop("headers", {})}, **options)

    def post(self, path: str, document: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """Request an action, as the script of a page does."""
        sent = {"X-CSRF-Token": self.csrf, "Content-Type": "application/json", **(headers or {})}
        return self.ask(path, "POST", json.dumps(document).encode(), {name: value for name, value in sent.items() if value})

    def log_in(self, name: str, password: str | None = None) -> Answer:
        """Log in with the form of the login page, and keep the cookies."""
        self.cookies.clear()  # a user who is logged in is redirected
        form = self.page("/login")
        self.cookies.update(form.cookies)
        csrf = between(form.text, 'name="csrf" value="', '"')
        body = "&".join(f"{key}={value.replace(' ', '+')}" for key, value in
                        (("user", name), ("password", PASSWORDS.get(name, "") if password is None else password),
                         ("csrf", csrf), ("next", "/queues")))
        answer = self.ask("/login", "POST", body.encode(), {"Content-Type": "application/x-www-form-urlencoded"})
        self.cookies.update(answer.cookies)
        if answer.status == 303:
            self.read_csrf()
        return answer

    def read_csrf(self) -> None:
        """Read the CSRF token from the overview page."""
        self.csrf = between(self.page("/").text, '<meta name="csrf" content="', '"')

    def as_node(self, sender: str, method: str, path: str, body: bytes = b"", tokens: NodeTokens | None = None,
                user: str = "",
                role: str = "", nonce: str = "n", receiver: str = "n1", url: str = "http://127.0.0.1:1") -> Answer:
        """Send a request with a token, as the console of another node does."""
        wall = self.host.present_time()[1]
        request = NodeRequest(sender, receiver_of(receiver, url), method, path, body, user, role)
        token = (tokens or NodeTokens(OPEN_SECRET)).make(request, wall, nonce)
        return self.ask(path, method, body or None, {"X-Bmqtwist-Node": token, "Content-Type": "application/json"})


def between(text: str, before: str, after: str) -> str:
    """Return the text between two texts."""
    _, found, rest = text.partition(before)
    assert found, f"no {before!r} in {text[:2000]}"
    return rest.partition(after)[0]
