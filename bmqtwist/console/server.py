"""HTTP server of the console: pages, static files, login, JSON API and WebSocket, with the health and metrics endpoints.

    health, metrics     without login
    pages               with login, else a redirection to /login
    /api/v1/...         by the table of `routes.py`, after authorization
    /static/...         without login: the files contain no secrets

The paths of pages are in `pages.py`, durations of logins are configured (`config/broker.py: Http`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from klein import Klein
from msgspec.structs import replace
from twisted.internet.defer import Deferred, DeferredSemaphore, inlineCallbacks, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.web.http import Request
from twisted.web.resource import IResource, Resource
from werkzeug.exceptions import HTTPException

from bmqtwist.console import access, pages
from bmqtwist.console.actions import REFUSALS, reason_of
from bmqtwist.console.consoles import TOKEN_HEADER, as_body
from bmqtwist.console.documents import compact, for_script
from bmqtwist.console.exchange import LOGOUTS_PATH
from bmqtwist.console.http import HealthEndpoints
from bmqtwist.console.operation import (
    ApiCall,
    Download,
    OperationContext,
    Route,
    add_audit_entry,
    audit_call,
    perform,
    target_of,
)
from bmqtwist.console.routes import ROUTES
from bmqtwist.security.login_limiter import LoginLimiter
from bmqtwist.security.passwords import matches_console_hash
from bmqtwist.view.cluster_facts import own_url

LOGIN_COOKIE = "bmq_login"
RENEW_S = 60  # a used cookie is renewed when it is older than this
CHECKS_AT_ONCE = 2  # concurrent verifications of passwords: each takes 64 MiB
CHECKS_MAX = 16  # waiting and running verifications
NAME_CHARS_MAX, PASSWORD_CHARS_MAX, NEXT_CHARS_MAX = 64, 1024, 2000
HTML, JSON = "text/html; charset=utf-8", "application/json"
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
LOGIN_REFUSED = "The name or the password is wrong."
UNKNOWN_USER = "(unknown user)"  # in the audit log: a mistyped name may be a password
UNKNOWN_NODE = "(unknown node)"


class WebConsole(HealthEndpoints):
    """Pages and API of the console, with health and metrics. `nonce` returns a random text; `tokens`: of other nodes, None =
    no key is configured; `live`: the WebSocket."""

    app = Klein()

    def __init__(self, context: OperationContext, nonce: Callable[[], str], tokens: access.NodeTokens | None,
                 live: IResource, files: pages.StaticFiles, writer: pages.PageWriter) -> None:
        super().__init__(context.host, context.host.log_failure)
        self._context, self._nonce, self._tokens, self._live = context, nonce, tokens, live
        self._files, self._writer = files, writer
        self._host, self._collector, self._logins = context.host, context.collector, context.logins
        self._cookies, self._http = self._logins.cookies, self._host.node.broker.configuration.extension.http
        self._limiter, self._checks = LoginLimiter(), DeferredSemaphore(CHECKS_AT_ONCE)
        self._secure = self._http.url.startswith("https:")

    def resource(self) -> Resource:
        return Prefixed(self.app.resource(), self._http.prefix)

    # -- files and pages --------------------------------------------------------------------------------------------

    @app.route("/static/<path:name>", methods=["GET"])
    def static(self, request: Request, name: str) -> bytes:
        found = self._files.find(name)
        if found is None:
            return self._answer(request, 404, b"Not Found\n", "text/plain; charset=utf-8")
        request.setHeader("ETag", found.tag)
        request.setHeader("Cache-Control", "no-cache")
        for header, value in pages.HEADERS.items():
            request.setHeader(header, value)
        request.setHeader("Content-Type", found.content_type)
        if request.getHeader("If-None-Match") == found.tag:
            request.setResponseCode(304)
            return b""
        return found.content

    @inlineCallbacks
    def page(self, request: Request, path: str) -> Any:
        """Answer with a page, or a redirection to the login; at / programs receive the short status."""
        if path == "/" and "text/html" not in (request.getHeader("Accept") or ""):
            return self.status(request)
        try:
            caller = self._identify(request)
            self._renew(request, caller)
            document = yield self._collector.cluster()
        except access.Refusal as refusal:
            return self._refuse_page(request, refusal)
        notice = access.OPEN_NOTICE % caller.role.label if caller.nonce == access.OPEN_NONCE else ""
        return self._page(request, 200, pages.PAGES[path], caller, csrf=self._cookies.csrf(caller.nonce), notice=notice,
                          data=for_script(document), cluster_name=document["name"])

    @app.route("/report", methods=["GET"])
    def report(self, request: Request) -> bytes:
        """Answer with the last page of `bmq pipeline report`."""
        try:
            self._renew(request, self._identify(request))
        except access.Refusal as refusal:
            return self._refuse_page(request, refusal)
        content = pages.read_report(self._http.report_directory)
        if content is None:
            return self._message(request, 404, "No report", "There is no report yet: `bmq pipeline report` writes it into "
                                 "http.reportDirectory.")
        request.setHeader("Content-Security-Policy", pages.REPORT_POLICY)
        return self._answer(request, 200, content, HTML, policy=False)

    def _refuse_page(self, request: Request, refusal: access.Refusal) -> bytes:
        """Redirect to the login, or show the reason of the refusal."""
        if refusal.status == 401:
            prefix = self._prefix(request)
            back = quote(f"{prefix}{self._path_with_query(request)}"[:NEXT_CHARS_MAX], safe="")
            return self._redirect(request, f"{prefix}/login?next={back}")
        return self._message(request, refusal.status, "Access refused", refusal.reason)

    def _page(self, request: Request, status: int, page: str, caller: access.Caller | None = None, **values: str) -> bytes:
        request.setHeader("Content-Security-Policy", pages.page_policy(self._collector.consoles.urls().values()))
        text = self._writer.write(page, self._prefix(request), caller, **values)
        return self._answer(request, status, text.encode(), HTML, policy=False)

    def _message(self, request: Request, status: int, title: str, text: str) -> bytes:
        return self._page(request, status, "message", title=title, text=text)

    def _prefix(self, request: Request) -> str:
        """Return the prefix of all paths and cookies in the browser: that of a reverse proxy which removes it from the path,
        or the configured one."""
        if not self._http.prefix and request.getClientAddress().host not in self._http.trusted_proxies:
            return ""
        forwarded = request.getHeader("X-Forwarded-Prefix")
        if forwarded is not None and len(forwarded) <= 200 and _PREFIX.fullmatch(forwarded.rstrip("/")):
            return str(forwarded).rstrip("/")
        return self._http.prefix

    # -- authentication ---------------------------------------------------------------------------------------------

    def _identify(self, request: Request) -> access.Caller:
        return self._logins.identify(request.getClientAddress().host, request.getHeader, self._host.present_time()[1])

    def admit_websocket(self, address: str, headers: Mapping[str, str]) -> access.Caller:
        """Return the user who opens a WebSocket. Raises Refusal."""
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if origin:
            others = {access.origin_of(url) for url in (*self._collector.consoles.urls().values(), self._http.url) if url}
            if not access.is_own_origin(origin, host, others):
                raise access.Refusal(403, "pages of another origin must not connect here")
        caller = self._logins.identify(address, headers.get, self._host.present_time()[1])
        if not origin and caller.nonce != access.OPEN_NONCE:
            raise access.Refusal(403, "the header Origin is missing")
        return caller

    def _renew(self, request: Request, caller: access.Caller) -> None:
        """Renew the cookie of a login, so that it does not expire while in use."""
        login, wall = caller.login, self._host.present_time()[1]
        if login is not None and wall - login.seen >= RENEW_S:
            self._set_session(request, replace(login, seen=int(wall)))

    def _set_session(self, request: Request, login: access.Login) -> None:
        value = self._cookies.write(login)
        request.cookies.append(access.cookie_header(access.SESSION_COOKIE, value, self._prefix(request), self._secure,
                                                    self._cookies.lifetime_s).encode())

    def _address(self, request: Request) -> str:
        """Return the address of the client; a trusted reverse proxy reports it in X-Forwarded-For."""
        address = str(request.getClientAddress().host)
        forwarded = (request.getHeader("X-Forwarded-For") or "").rpartition(",")[2].strip()
        return forwarded if address in self._http.trusted_proxies and access.is_address(forwarded) else address

    def _same_site(self, request: Request) -> bool:
        """Return whether a page of this console sent the form, according to the browser's headers."""
        origin = request.getHeader("Origin")
        if origin is not None and origin != "null":
            ours = {access.origin_of(self._http.url)} if self._http.url else set[str]()
            return access.is_own_origin(origin, request.getHeader("Host") or "", ours)
        return origin is None and request.getHeader("Sec-Fetch-Site") in (None, "same-origin", "none")

    # -- login ------------------------------------------------------------------------------------------------------

    @app.route("/login", methods=["GET"])
    def login_form(self, request: Request) -> bytes:
        next_path = _argument(request, "next")
        try:
            self._identify(request)
        except access.Refusal:
            return self._login_page(request, 200, "", next_path)
        return self._redirect(request, local_path(next_path) or f"{self._prefix(request)}/")

    def _login_page(self, request: Request, status: int, error: str, next_path: str) -> bytes:
        nonce = self._nonce()
        request.cookies.append(access.cookie_header(LOGIN_COOKIE, nonce, self._prefix(request), self._secure).encode())
        return self._page(request, status, "login", csrf=self._cookies.csrf(f"login {nonce}"), next=local_path(next_path),
                          error=error)

    @app.route("/login", methods=["POST"])
    @inlineCallbacks
    def login(self, request: Request) -> Any:
        now, wall = self._host.present_time()
        form = _form(request)
        name, password, next_path = form.get("user", "")[:NAME_CHARS_MAX], form.get("password", ""), form.get("next", "")
        address = self._address(request)
        nonce = access.cookies_of(request.getHeader("Cookie") or "").get(LOGIN_COOKIE, "")
        if not nonce or not self._same_site(request) or not self._cookies.is_csrf(f"login {nonce}", form.get("csrf", "")):
            return self._login_page(request, 403, "The login form is invalid or has expired. Try again.", next_path)
        wait = self._limiter.wait_seconds(address, name, now)
        if wait > 0:
            request.setHeader("Retry-After", str(int(wait) + 1))
            return self._login_page(request, 429, f"Too many failed logins. Try again in {int(wait) + 1} s.", next_path)
        if len(self._checks.waiting) + CHECKS_AT_ONCE - self._checks.tokens >= CHECKS_MAX:
            return self._login_page(request, 503, "Too many logins are in progress. Try again later.", next_path)
        self._limiter.on_attempt(address, name, now)
        user = self._logins.users.get(name)
        known = user or next(iter(self._logins.users.values()), None)  # equal time for an unknown name
        good = known is not None and len(password) <= PASSWORD_CHARS_MAX and (
            yield self._checks.run(deferToThreadPool, self._host.reactor, self._host.reactor.getThreadPool(),
                                   matches_console_hash, known.password_hash, password))
        if not good or user is None:
            refused = access.Caller(user.name if user is not None else UNKNOWN_USER, access.UserRole.VIEWER)
            add_audit_entry(self._context, refused, address, "login", "", "refused")
            return self._login_page(request, 403, LOGIN_REFUSED, next_path)
        self._limiter.on_success(address, name)
        caller = access.Caller(user.name, access.ROLES[user.role])
        add_audit_entry(self._context, caller, address, "login", "", "ok")
        proof = access.proof_of(user.password_hash)
        generation = self._cookies.generations.of(user.name)
        self._set_session(request, access.Login(user.name, self._nonce(), int(wall), int(wall), proof, generation))
        request.cookies.append(access.cookie_header(LOGIN_COOKIE, "", self._prefix(request), self._secure, 0).encode())
        return self._redirect(request, local_path(next_path) or f"{self._prefix(request)}/")

    @app.route("/logout", methods=["POST"])
    def logout(self, request: Request) -> bytes:
        """End all logins of a user at all nodes."""
        try:
            caller = self._identify(request)
        except access.Refusal:
            return self._redirect(request, f"{self._prefix(request)}/login")
        token = request.getHeader("X-CSRF-Token") or _form(request).get("csrf", "")
        if not self._same_site(request) or not self._cookies.is_csrf(caller.nonce, token):
            return self._message(request, 403, "Not logged out", "The form is invalid or has expired.")
        if caller.login is not None:
            generations = self._cookies.generations
            generations.end(caller.user)
            sent = self._collector.consoles.request_all(LOGOUTS_PATH, as_body({"generations": generations.numbers}))
            sent.addErrback(self._host.log_failure)
            add_audit_entry(self._context, caller, self._address(request), "logout", "", "ok")
        prefix = self._prefix(request)
        request.cookies.append(access.cookie_header(access.SESSION_COOKIE, "", prefix, self._secure, 0).encode())
        return self._redirect(request, f"{prefix}/login")

    # -- the API ----------------------------------------------------------------------------------------------------

    @app.route("/api/v1/live", methods=["GET"])
    def open_live(self, request: Request) -> IResource:
        return self._live

    def operate(self, route: Route, request: Request, arguments: Mapping[str, Any]) -> Deferred[bytes]:
        """Authorize and perform a request of the API, write it into the audit log, and return the answer."""
        calls: list[ApiCall] = []

        def start() -> Any:
            calls.append(self._admit(route, request, arguments))
            return perform(self._context, calls[0])

        def on_done(answer: Any) -> bytes:
            if calls:
                audit_call(self._context, calls[0], "ok")
            if isinstance(answer, Download):
                request.setHeader("Content-Disposition", f'attachment; filename="{answer.name}"')
                return self._answer(request, 200, answer.content, "application/octet-stream")
            return self._json(request, 200, answer)

        def on_failed(failure: Failure) -> bytes:
            error = failure.value
            if isinstance(error, REFUSALS):
                error = access.Refusal(409, reason_of(error))
            if not isinstance(error, access.Refusal):
                self._host.log_failure(failure)
                error = access.Refusal(500, "Internal error, see the log of this node.")
            if calls:
                audit_call(self._context, calls[0], f"refused: {error.reason}")
            elif route.method == "POST":
                self._log_refused(route, request, arguments, error)
            return self._json(request, error.status, {"error": error.reason, "field": error.field})

        return maybeDeferred(start).addCallbacks(on_done, on_failed)

    def _log_refused(self, route: Route, request: Request, arguments: Mapping[str, Any], refusal: access.Refusal) -> None:
        """Write a refused action of a user into the audit log."""
        try:
            caller = self._identify(request)
        except access.Refusal:
            return  # not authenticated: not in the audit log
        try:
            given = access.read_json(_body(request))
        except ValueError:
            given = {}
        target = target_of({**given, **arguments}) or self._path_with_query(request)
        add_audit_entry(self._context, caller, self._address(request), route.name, target, f"refused: {refusal.reason}")

    def _admit(self, route: Route, request: Request, arguments: Mapping[str, Any]) -> ApiCall:
        """Authenticate, authorize and parse a request. Raises Refusal."""
        body = _body(request)
        path = self._path_with_query(request)
        caller = self._identify_for(route, request, path, body)
        access.require(caller, route.role)
        if route.between_nodes and not caller.node:
            raise access.Refusal(403, "Only nodes may send this request.")
        if route.method == "POST":
            if not caller.node:
                self._check_page(request, caller)
            try:
                given = access.read_json(body)
            except ValueError as error:
                raise access.Refusal(400, f"The request is invalid: {error}.") from None
        else:
            given = {name: _argument(request, name) or None for name in (each.name for each in route.arguments)}
        missing = next((each.name for each in route.arguments if each.required and given.get(each.name) in (None, "")), "")
        if missing:
            raise access.Refusal(400, f"{missing} is missing.", missing)
        return ApiCall(route, caller, {**given, **arguments}, path, body, self._address(request))

    def _identify_for(self, route: Route, request: Request, path: str, body: bytes) -> access.Caller:
        token = request.getHeader(TOKEN_HEADER)
        if token is None:
            caller = self._identify(request)
            if route.method == "GET":
                self._renew(request, caller)
            return caller
        tokens, name = self._tokens, self._collector.name
        most = self._identify(request).role if self._logins.is_open else access.UserRole.ADMIN
        receiver = access.receiver_of(name, own_url(self._host.node.broker))
        request_of = access.NodeRequest("", receiver, route.method, path, body)
        found = tokens.check(token, request_of, self._host.present_time()[1]) if tokens is not None else None
        if found is None:
            sender = access.Caller(UNKNOWN_NODE, access.UserRole.VIEWER)
            add_audit_entry(self._context, sender, self._address(request), "node token", path, "refused")
            raise access.Refusal(403, f"{name} does not accept the token: http.keyFile differs, the clocks differ by "
                                 "more than 30 s, or the token is for another node or URL.")
        role = min(most, access.ROLES.get(found.role, access.UserRole.VIEWER))
        return access.Caller(found.user or f"node {found.sender}", role, node=found.sender)

    def _check_page(self, request: Request, caller: access.Caller) -> None:
        if not self._cookies.is_csrf(caller.nonce, request.getHeader("X-CSRF-Token") or ""):
            raise access.Refusal(403, "The header X-CSRF-Token is missing or wrong: load the page again.")
        if not self._same_site(request):
            raise access.Refusal(403, "Pages of another origin must not send actions.")
        if (request.getHeader("Content-Type") or "").partition(";")[0].strip().lower() != JSON:
            raise access.Refusal(400, "The Content-Type must be application/json.")

    def _path_with_query(self, request: Request) -> str:
        """Return the path below the prefix, with query."""
        uri = request.uri.decode("ascii", "replace")
        prefix = self._http.prefix
        return uri.removeprefix(prefix) if prefix and uri.startswith(f"{prefix}/") else uri

    # -- answers ----------------------------------------------------------------------------------------------------

    def _json(self, request: Request, status: int, document: object) -> bytes:
        return self._answer(request, status, compact(document).encode(), JSON)

    def _redirect(self, request: Request, path: str) -> bytes:
        request.setHeader("Location", path)
        return self._answer(request, 303, b"", "text/plain; charset=utf-8")

    def _answer(self, request: Request, status: int, content: bytes, content_type: str, policy: bool = True) -> bytes:
        request.setResponseCode(status)
        request.setHeader("Content-Type", content_type)
        request.setHeader("Cache-Control", "no-store")
        if policy:
            request.setHeader("Content-Security-Policy", pages.DATA_POLICY)
        for header, value in pages.HEADERS.items():
            request.setHeader(header, value)
        return content

    @app.handle_errors(HTTPException)
    def refused(self, request: Request, failure: Failure) -> bytes:
        error = failure.value
        assert isinstance(error, HTTPException)  # registered for HTTPException
        if _path_of(request).startswith("/api/"):
            return self._json(request, error.code or 500,
                              {"error": f"{error.name}: see /api/v1/openapi.json."})
        return self._answer(request, error.code or 500, f"{error.name}\n".encode(), "text/plain; charset=utf-8")

    @app.handle_errors(Exception)
    def failed(self, request: Request, failure: Failure) -> bytes:
        self._host.log_failure(failure)
        return self._answer(request, 500, b"Internal Server Error\n", "text/plain; charset=utf-8")


def _serve(route: Route) -> Callable[..., Any]:
    def serve(self: WebConsole, request: Request, **arguments: Any) -> Any:
        return self.operate(route, request, arguments)

    serve.__name__ = f"operate_{route.name}"
    return serve


def _show(path: str) -> Callable[..., Any]:
    def show(self: WebConsole, request: Request) -> Any:
        return self.page(request, path)

    show.__name__ = f"page_{pages.PAGES[path]}"
    return show


for _path, _answer in (("/livez", HealthEndpoints.livez), ("/readyz", HealthEndpoints.readyz),
                       ("/metrics", HealthEndpoints.metrics)):
    WebConsole.app.route(_path, methods=["GET"])(_answer)
for _route in ROUTES:
    WebConsole.app.route(_route.path, methods=[_route.method])(_serve(_route))
for _page in pages.PAGES:
    WebConsole.app.route(_page, methods=["GET"])(_show(_page))


class Prefixed(Resource):
    """Serves paths with and without the prefix: a reverse proxy may remove it or not."""

    isLeaf = True

    def __init__(self, inner: Any, prefix: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inner, self._segments = inner, [unquote(part).encode() for part in prefix.split("/") if part]

    def render(self, request: Any) -> Any:
        """Called by twisted.web: remove the prefix from the path, and render the resource below."""
        count = len(self._segments)
        if count and request.postpath[:count] == self._segments:
            request.postpath = request.postpath[count:] or [b""]
        return self._inner.render(request)


def _path_of(request: Request) -> str:
    segments: list[bytes] = request.postpath  # type: ignore[attr-defined]
    return "/" + b"/".join(segments).decode("utf-8", "replace")


def _body(request: Request) -> bytes:
    if request.content is None:
        return b""
    request.content.seek(0)
    return bytes(request.content.read())


def _argument(request: Request, name: str) -> str:
    values = (request.args or {}).get(name.encode())
    return values[0].decode("utf-8", "replace") if values else ""


def _form(request: Request) -> dict[str, str]:
    """Return the fields of a submitted form."""
    if request.content is None:
        return {}
    request.content.seek(0)
    try:
        fields = parse_qs(request.content.read().decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}


def local_path(text: str) -> str:
    """Return the text if it is a path of this console, else ""."""
    parts = access.split_url(text.replace("\\", "/"))
    good = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return text if good and text.isprintable() and len(text) <= NEXT_CHARS_MAX else ""
