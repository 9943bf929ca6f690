"""Console without a broker: serves the pages, scripted documents and live patches, and simulates actions.

    python -m browser.fake_console --name n1 --port 9001 --scene good --node n2=http://127.0.0.1:9002 ...

`conftest.py` starts one process for each node; the documents are in `scripted.py`.
"""

from __future__ import annotations

import argparse
import json
import mimetypes
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jinja2
import treq
from autobahn.twisted.resource import WebSocketResource
from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from klein import Klein
from twisted.internet import reactor, task
from twisted.web.server import Site

from bmqtwist.alarms import CATALOGUE
from browser.scripted import Script, patch, wire
from browser.scripted_clients import NO_CONSOLE

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "": "overview",
    "partitions": "partitions",
    "queues": "queues",
    "queue": "queue",
    "nodes": "nodes",
    "node": "node",
    "elections": "elections",
    "topology": "topology",
    "clients": "clients",
    "domains": "domains",
    "storage": "storage",
    "alarms": "alarms",
    "audit": "audit",
}
ROLES = ("viewer", "operator", "admin")
CSRF = "the-token-of-this-session"
SAMPLE_SECONDS = 0.25


class FakeConsole:
    """Routes of one fake console."""

    app = Klein()

    def __init__(self, script: Script, options: argparse.Namespace) -> None:
        self.script, self.options, self.silent = script, options, False
        self.pages = jinja2.Environment(
            loader=jinja2.FileSystemLoader(ROOT / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        self.live: set[Live] = set()
        self.requests = Counter[str]()  # of documents, by path
        factory = WebSocketServerFactory()
        factory.protocol = lambda: Live(self)
        factory.setProtocolOptions(autoPingInterval=0)
        self.socket = WebSocketResource(factory)

    # --- pages ---

    @app.route("/", defaults={"path": ""})
    @app.route("/<path>")
    def page(self, request: Any, path: str) -> bytes:
        """Answer with a page and its first document."""
        if path == "login":
            failed = request.method == b"POST"
            request.setResponseCode(403 if failed else 200)
            return self._html(request, "login", error="The name or the password is wrong." if failed else "", next="/")
        if path not in PAGES:
            request.setResponseCode(404)
            return self._html(request, "message", title="Not found", text="There is no such page.")
        data = None if self.options.bare else self.script.cluster(time.time())
        text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        return self._html(request, PAGES[path], page=PAGES[path], data=text)

    def _html(self, request: Any, template: str, **more: str) -> bytes:
        peers = " ".join(f"{url} {url.replace('http', 'ws', 1)}" for url in self.script.urls.values())
        request.setHeader("Content-Type", "text/html; charset=utf-8")
        request.setHeader(
            "Content-Security-Policy",
            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
            f"img-src 'self' data:; connect-src 'self' {peers}",
        )
        known = {
            "prefix": "",
            "csrf": CSRF,
            "user": self.options.user,
            "role": self.options.role,
            "version": "1.0",
            "cluster_name": "c",
            "notice": ""
            if self.options.user
            else "No users are configured: every user of this machine has full access.",
            "data": "{}",
            "page": template,
        }
        return self.pages.get_template(f"{template}.html").render({**known, **more}).encode()

    @app.route("/static/<path:path>")
    def static(self, request: Any, path: str) -> bytes:
        """Answer with a file of web/."""
        file = (ROOT / "web" / path).resolve()
        if not file.is_relative_to(ROOT / "web") or not file.is_file():
            request.setResponseCode(404)
            return b""
        request.setHeader("Content-Type", mimetypes.guess_type(file.name)[0] or "application/octet-stream")
        request.setHeader("Cache-Control", "no-cache")
        return file.read_bytes()

    # --- documents ---

    @app.route("/api/v1/live")
    def websocket(self, request: Any) -> Any:
        """Open the WebSocket for live documents."""
        return self.socket

    @app.route("/api/v1/<path:path>", methods=["GET"])
    def document(self, request: Any, path: str) -> bytes:
        """Answer with a document of the API."""
        script, now = self.script, time.time()
        self.requests[path] += 1
        given = {name.decode(): values[0].decode() for name, values in request.args.items()}
        if path.startswith("nodes/") and path.endswith("/preflight"):
            return _json(request, script.preflight(unquote(path.split("/")[1])))
        if path == "message/payload":
            return b"the payload"
        answers: dict[str, Callable[[], Any]] = {
            "cluster": lambda: script.cluster(now),
            "elections": lambda: script.elections(now),
            "messages": lambda: script.messages(now, given["uri"], given.get("after", ""), given.get("guid", "")),
            "message": lambda: script.message(now, given["guid"]),
            "alarms": lambda: {"alarms": script.alarms(now)},
            "alarms/catalogue": lambda: {"alarms": [kind.tree() for kind in CATALOGUE.values()]},
            "audit": lambda: {"entries": list(reversed(script.audit))},
            "clients": lambda: {"clients": script.clients(), "missing": {script.proxy_names[1]: NO_CONSOLE}},
            "config": lambda: {"node": given["node"], "config": script.config(given["node"])},
            "domains": lambda: {"domains": script.domains(), "missing": {}},
            "domain": lambda: script.domain(given["name"], given["node"]),
            "storage": lambda: script.storage(given["node"]),
            "storage/records": lambda: script.records(now),
            "storage/journal": lambda: script.journal(now, int(given.get("before", 0)), given.get("kind", "")),
            "storage/compare": lambda: script.compare(),
            "requests": lambda: dict(self.requests),
            "log": lambda: {"lines": script.log(now, given.get("level", "TRACE"), int(given.get("lines", 200)))},
        }
        if path not in answers:
            return _json(request, {"error": "There is no such document."}, 404)
        return _json(request, answers[path]())

    # --- actions ---

    @app.route("/api/v1/<path:path>", methods=["POST"])
    def action(self, request: Any, path: str) -> Any:
        """Simulate an action of the API."""
        if request.getHeader("X-CSRF-Token") != CSRF:
            return _json(request, {"error": "The token of the session is missing."}, 403)
        body = json.loads(request.content.read() or b"{}")
        parts, now = [unquote(part) for part in path.split("/")], time.time()
        wanted = (
            "admin"
            if path in ("queues/purge", "rolling-restart") or parts[-1] == "reconfigure"
            else "viewer"
            if path == "subscriptions/test"
            else "operator"
        )
        if ROLES.index(self.options.role) < ROLES.index(wanted):
            return _json(request, {"error": f"Requires the role {wanted}."}, 403)
        if path != "subscriptions/test":
            self._apply_everywhere(
                {
                    "audit": {
                        "at": now,
                        "user": self.options.user,
                        "role": self.options.role,
                        "from": "127.0.0.1",
                        "node": self.script.serving,
                        "action": path,
                        "target": parts[1] if len(parts) > 2 else body.get("uri"),
                        "reason": body.get("reason"),
                        "outcome": "ok",
                    }
                }
            )
        if parts[0] == "nodes" and parts[-1] == "stop":
            if body.get("confirm") != parts[1]:
                return _json(request, {"error": "This is not the name of the node.", "field": "confirm"}, 400)
            begins = now + (body.get("delay") or 0)
            given = {"reason": body["reason"], "by": self.options.user}
            self._apply_everywhere({"stop": parts[1], "at": begins, "given": given})
        elif parts[-1] == "abort-stop":
            self._apply_everywhere({"abort": parts[1]})
        elif path == "alarms":
            node = body["node"] or self.script.serving
            self._apply_everywhere({"raise": {**body, "kind": "operator", "node": node, "id": f"{node}:77", "raisedAt": now,
                                              "count": 1}})
        elif parts[0] == "alarms":
            self._apply_everywhere({parts[2]: parts[1], "by": self.options.user, "at": now})
        elif parts[0] == "partitions" and parts[-1] == "move":
            self._apply_everywhere({"move": int(parts[1]), "to": body["to"]})
        elif path == "queues/purge":
            self._apply_everywhere({"purged": True})
            return _json(request, {"ok": True, "messages": 1234, "bytes": 99_000})
        elif parts[0] == "demo":
            self._apply_everywhere({"demo": parts[1] == "start", "by": self.options.user or "local"})
        elif parts[0] == "domains":
            return _json(request, self.script.reconfigure(parts[1]))
        elif path == "publish":
            return _json(
                request,
                {
                    "ok": True,
                    "results": [{"guid": f"{n:032X}", "status": "SUCCESS", "ms": 1} for n in range(body["count"])],
                    "failed": 0,
                    "error": None,
                },
            )
        elif path == "subscriptions/test":
            return _json(request, _test_subscription(body))
        return _json(request, {"ok": True})

    @app.route("/control", methods=["POST"])
    def control(self, request: Any) -> bytes:
        """Change the state of the script; called by tests and by the other fake consoles."""
        self._apply(json.loads(request.content.read()))
        return b"ok"

    def _apply_everywhere(self, change: dict[str, Any]) -> None:
        """Apply a change to the script here and at the other fake consoles."""
        self._apply(change)
        for name, url in self.script.urls.items():
            if name != self.script.serving:
                treq.post(f"{url}/control", json=change).addErrback(lambda failure: None)

    def _apply(self, change: dict[str, Any]) -> None:
        script = self.script
        if "scene" in change:
            self.script = Script(change["scene"], script.serving, script.urls, script.began)
        if "stop" in change:
            script.begin_stop(change["stop"], change["at"], change["given"])
            if change["stop"] == script.serving:
                reactor.callLater(change["at"] - time.time() + 5, reactor.stop)  # type: ignore[attr-defined]
        if "abort" in change:
            script.stops.pop(change["abort"], None)
        if "acknowledge" in change:
            script.acknowledged[change["acknowledge"]] = change["by"] or "local"
        if "demo" in change:
            script.demo_by = change["by"] if change["demo"] else ""
        if "raise" in change:
            script.raised.append({**change["raise"], "acknowledgedBy": None, "clearedAt": None})
        if "clear" in change:
            script.cleared[change["clear"]] = change["at"]
        if "move" in change:
            script.moved[change["move"]] = change["to"]
        if "audit" in change:
            script.audit.append(change["audit"])
        if "purged" in change:
            script.purged = True
        if "truncated" in change:
            script.truncated = change["truncated"]
        if "silent" in change:
            self.silent = change["silent"]
        if "drop" in change:
            for each in list(self.live):
                each.dropConnection(abort=True)

    def sample(self) -> None:
        """Send patches to all pages."""
        if not self.silent:
            for each in list(self.live):
                each.push()


class Live(WebSocketServerProtocol):  # type: ignore[misc]
    """WebSocket of one page."""

    def __init__(self, console: FakeConsole) -> None:
        super().__init__()
        self._console = console
        self._topics: dict[int, tuple[Callable[[], Any], int, Any]] = {}

    def onOpen(self) -> None:
        """Called by Autobahn when the WebSocket is open."""
        self._console.live.add(self)

    def onClose(self, wasClean: bool, code: int, reason: str) -> None:
        """Called by Autobahn when the WebSocket is closed."""
        self._console.live.discard(self)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Called by Autobahn for a message of the page."""
        message = json.loads(payload)
        if "unsubscribe" in message:
            self._topics.pop(message["unsubscribe"], None)
            return
        number, console = message["id"], self._console
        make: dict[str, Callable[[], Any]] = {
            "cluster": lambda: console.script.cluster(time.time()),
            "elections": lambda: console.script.elections(time.time()),
            "queue": lambda: console.script.queue(time.time(), message["uri"]),
            "queues": lambda: console.script.queues(
                time.time(), *(message[name] for name in ("filter", "sort", "order", "offset", "limit"))
            ),
        }
        document = make[message["subscribe"]]()
        if document is None:
            self._send({"id": number, "error": "There is no such queue.", "field": "uri"})
            return
        self._topics[number] = (make[message["subscribe"]], 1, wire(document))
        self._send({"id": number, "seq": 1, "snapshot": wire(document), "stream": str(id(self))})

    def push(self) -> None:
        """Send the changes since the previous document of each topic."""
        for number, (make, seq, old) in list(self._topics.items()):
            new = wire(make() or {})
            self._topics[number] = (make, seq + 1, new)
            self._send({"id": number, "seq": seq + 1, "patch": patch(old, new)})

    def _send(self, message: dict[str, Any]) -> None:
        if self.state == self.STATE_OPEN:
            self.sendMessage(json.dumps(message).encode())


def _test_subscription(body: dict[str, Any]) -> dict[str, Any]:
    if "=" in body["expression"] and "==" not in body["expression"]:
        return {
            "ok": True,
            "valid": False,
            "error": {"message": "= is no operator: did you mean ==?", "offset": body["expression"].index("="), "length": 1},
            "properties": [],
            "results": [],
            "matched": 0,
            "examined": 0,
        }
    results = [
        {
            "guid": f"{n:032X}",
            "matches": n % 2 == 0,
            "reason": "" if n % 2 == 0 else "price is 99",
            "routing": [{"appId": "billing", "outcome": "consumer", "to": "ada@host-7"}],
        }
        for n in range(4)
    ]
    return {
        "ok": True,
        "valid": True,
        "error": None,
        "properties": ["price"],
        "results": results,
        "matched": 2,
        "examined": 4,
    }


def _json(request: Any, document: Any, code: int = 200) -> bytes:
    request.setResponseCode(code)
    request.setHeader("Content-Type", "application/json")
    return json.dumps(document).encode()


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="n1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--scene", default="good")
    parser.add_argument("--role", default="admin")
    parser.add_argument("--user", default="")
    parser.add_argument("--bare", action="store_true", help="pages without a first document")
    parser.add_argument("--node", action="append", default=[], help="NAME=URL of each node, this one too")
    options = parser.parse_args()
    urls = dict(each.split("=", 1) for each in options.node) or {"n1": f"http://127.0.0.1:{options.port}"}
    console = FakeConsole(Script(options.scene, options.name, urls, time.time() - 120), options)
    reactor.listenTCP(options.port, Site(console.app.resource()), interface="127.0.0.1")  # type: ignore[attr-defined]
    task.LoopingCall(console.sample).start(SAMPLE_SECONDS, now=False)
    print("ready", flush=True)
    reactor.run()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
