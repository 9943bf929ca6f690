"""Client of the console of a broker process: requests, logins, and the updates on a WebSocket.

Used by tests/integration and tests/soak/security; a console in memory is in `console.py`, frames are in `websocket.py`.
"""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

from kit.console import PASSWORDS
from kit.merge_patch import apply_patch
from kit.websocket import CLOSE, Frames, request, text_frame

ANSWER_SECONDS_MAX = 30.0


class Tab:
    """Client of the console at `url`, with at most one login and one WebSocket; it connects from `address`."""

    def __init__(self, url: str, address: str = "127.0.0.1") -> None:
        self.url, self.host = url, urlsplit(url).netloc
        self.socket: socket.socket | None = None
        self.document: dict[str, Any] = {}
        self.cookie = ""  # of a login
        self.headers: dict[str, str] = {}  # of the last answer
        self._frames, self._address = Frames(), address

    def ask(self, path: str, method: str = "GET", body: Any = None,
            headers: dict[str, str] | None = None, encoding: str = "utf-8") -> tuple[int, Any]:
        """Send a request; return the status and the answer, decoded if it is JSON. `encoding`: of the answer's text."""
        connection = self._connect()
        try:
            connection.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body),
                               {"Cookie": self.cookie, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode(encoding)
            self.headers = dict(answer.headers)
            return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Request an action with the token of the page."""
        return self.ask(path, "POST", body, {"X-CSRF-Token": self.csrf(), "Content-Type": "application/json"})

    def csrf(self) -> str:
        """Return the token of the page."""
        return between(self.ask("/", headers={"Accept": "text/html"})[1], '<meta name="csrf" content="')

    def log_in(self, name: str, password: str = "") -> int:
        """Log in as a user, by default with the password of the kit; later requests are those of this user. Returns the
        status of the login, 303 = logged in; 0 = no answer."""
        with suppress(OSError, http.client.HTTPException):
            status, page = self.ask("/login", headers={"Accept": "text/html", "Cookie": ""})
            if status != 200:
                return status
            form = {"user": name, "password": password or PASSWORDS[name], "csrf": between(page, 'name="csrf" value="'),
                    "next": "/"}
            status, _ = self.ask("/login", "POST", urlencode(form), {
                "Content-Type": "application/x-www-form-urlencoded", "Cookie": self._sent_cookie(),
                "Origin": f"http://{self.host}"})
            if status == 303:
                self.cookie = self._sent_cookie()
            return status
        return 0

    def log_out(self) -> int:
        """Log out, and return the status; the cookie is kept."""
        return self.ask("/logout", "POST", "", {"X-CSRF-Token": self.csrf(), "Origin": f"http://{self.host}"})[0]

    def cluster(self) -> Any:
        """Return the document of the cluster."""
        return self.ask("/api/v1/cluster")[1]

    def open_websocket(self, **subscription: Any) -> None:
        """Open the WebSocket and subscribe, by default to the cluster. OSError: it is refused."""
        name, _, port = self.host.partition(":")
        self.socket = socket.create_connection((name, int(port)), ANSWER_SECONDS_MAX, (self._address, 0))
        self.socket.sendall(request("/api/v1/live", {"Host": self.host, "Origin": f"http://{self.host}",
                                                     "Cookie": self.cookie}))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (byte := self.socket.recv(1)):
                raise ConnectionError(f"the console closed the connection: {head[:100]!r}")
            head += byte
        if not head.startswith(b"HTTP/1.1 101 "):
            raise ConnectionError(f"the console refuses the WebSocket: {head[:100]!r}")
        self.subscribe(**{"id": 1, "subscribe": "cluster", **subscription})

    def subscribe(self, **subscription: Any) -> None:
        """Send a subscription."""
        assert self.socket is not None
        self.socket.sendall(text_frame(**subscription))

    def messages(self) -> list[dict[str, Any]]:
        """Read the next frames; return their messages. EOFError: the end of the connection."""
        assert self.socket is not None
        data = self.socket.recv(1 << 16)
        frames = self._frames.feed(data)
        if not data or any(opcode == CLOSE for opcode, _ in frames):
            raise EOFError
        return [json.loads(payload) for opcode, payload in frames if opcode == 1]

    def read_frames(self) -> bool:
        """Apply the next messages to the document; return False at the end of the connection."""
        try:
            for message in self.messages():
                self.document = message["snapshot"] if "snapshot" in message else apply_patch(self.document,
                                                                                              message["patch"])
        except EOFError:
            return False
        return True

    def close(self) -> None:
        """Close the WebSocket."""
        if self.socket is not None:
            self.socket.close()

    def _connect(self) -> http.client.HTTPConnection:
        host, _, port = self.host.partition(":")
        return http.client.HTTPConnection(host, int(port), ANSWER_SECONDS_MAX, (self._address, 0))

    def _sent_cookie(self) -> str:
        return self.headers.get("Set-Cookie", "").partition(";")[0]


def between(text: str, before: str) -> str:
    """Return the text between `before` and the next quote; "" = there is none."""
    return text.partition(before)[2].partition('"')[0]
