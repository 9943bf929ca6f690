"""HTTP endpoints for liveness, readiness and metrics.

The endpoints need no login, only read, and show no secrets. Their cost does not depend on the number of queues, except that
of `/metrics`, which is a job. `server.WebConsole` adds pages, login and API to them; `tap.py` serves them alone at a
Prometheus listener. Connections and requests are limited in `site.py`.

    /livez     200 while the event loop runs
    /readyz    200 when clients are served, 503 with the reason otherwise
    /metrics   text format of Prometheus
    /          a short status as JSON, up to STATUS_AGE_S_MAX old
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klein import Klein
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from twisted.web.http import Request
from twisted.web.resource import Resource
from werkzeug.exceptions import HTTPException

from bmqtwist.console.scrapes import Scrapes
from bmqtwist.view.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from bmqtwist.config.broker import StatPlugin
    from bmqtwist.daemon.service import BrokerService

STATUS_AGE_S_MAX = 1.0
TEXT = "text/plain; charset=utf-8"


class HealthEndpoints:
    """Health and metrics endpoints; the routes belong to an instance, so that a process can contain several brokers.
    `plugin`: prefix of the metrics' names, and their label Instance."""

    app = Klein()

    def __init__(self, source: BrokerService, log: Callable[[Failure], None] | None = None,
                 plugin: StatPlugin | None = None) -> None:
        self._source, self._log = source, log
        prefix, instance = (plugin.namespace_prefix, plugin.instance_id) if plugin else ("", "")
        self._status, self._status_until = "", float("-inf")
        self._scrapes = Scrapes(lambda write: source.metrics(write, prefix, instance), source.run_in_steps,
                                lambda: source.present_time()[0])

    @app.route("/livez", methods=["GET"])
    def livez(self, request: Request) -> str:
        return _text(request, "ok\n")

    @app.route("/readyz", methods=["GET"])
    def readyz(self, request: Request) -> str:
        """Answer 200 if a load balancer may route clients to this broker."""
        reason = self._source.unready_reason()
        if reason:
            request.setResponseCode(503)
        return _text(request, f"{reason or 'ok'}\n")

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: Request) -> Deferred[Any]:
        _set_headers(request, CONTENT_TYPE)
        answer = self._scrapes.answer(request)
        if answer is not None:
            return answer
        request.setResponseCode(503)
        request.setHeader("Retry-After", "1")
        return succeed(_text(request, "Too many responses of /metrics are in progress.\n"))

    @app.route("/", methods=["GET"])
    def status(self, request: Request) -> str:
        """Answer with the short status."""
        now = self._source.present_time()[0]
        if now >= self._status_until:
            self._status = json.dumps(self._source.short_status(), indent=4) + "\n"
            self._status_until = now + STATUS_AGE_S_MAX
        return _text(request, self._status, "application/json")

    @app.handle_errors(HTTPException)
    def refused(self, request: Request, failure: Failure) -> str | bytes:
        error = failure.value
        assert isinstance(error, HTTPException)  # registered for HTTPException
        request.setResponseCode(error.code or 500)
        return _text(request, f"{error.name}\n")

    @app.handle_errors(Exception)
    def failed(self, request: Request, failure: Failure) -> str | bytes:
        if self._log is not None:
            self._log(failure)
        request.setResponseCode(500)
        return _text(request, "Internal Server Error\n")

    def resource(self) -> Resource:
        return self.app.resource()


def _set_headers(request: Request, content_type: str) -> None:
    request.setHeader(b"Content-Type", content_type.encode())
    request.setHeader(b"Cache-Control", b"no-store")
    request.setHeader(b"X-Content-Type-Options", b"nosniff")


def _text(request: Request, text: str, content_type: str = TEXT) -> str:
    _set_headers(request, content_type)
    return text
