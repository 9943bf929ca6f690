"""Authentication and authorization: cookies, node tokens, roles, origins, delays after failed logins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bmqtwist.config.broker import ConsoleUser, Http
from bmqtwist.console.access import (
    SKEW_S,
    Caller,
    Cookies,
    Login,
    Logins,
    NodeRequest,
    NodeTokens,
    Refusal,
    UserRole,
    cookie_header,
    cookies_of,
    host_of,
    is_local,
    is_own_origin,
    proof_of,
    read_json,
    require,
)
from bmqtwist.console.audit import AGE_S_MAX, FILE, FILE_BYTES_MAX, FILES_MAX, PRINCIPALS_MAX, AuditLog
from bmqtwist.console.generations import LoginGenerations
from bmqtwist.console.pages import page_policy
from bmqtwist.console.server import local_path
from bmqtwist.limits import AUDIT_BURST, AUDIT_INTERVAL_S
from bmqtwist.report import FailedFiles

SECRET = b"s" * 32
WALL = 1_000_000.0
WHO = Caller("ada", UserRole.ADMIN)
ADA = ConsoleUser(name="ada", password_hash="$argon2id$1", role="admin")


def request_of(address: str, host: str, forwarded: str, cookie: str) -> tuple[str, Callable[[str], str | None]]:
    """Return the address and the headers of a request."""
    return address, {"host": host, "forwarded": forwarded, "cookie": f"bmq_session={cookie}"}.get


def audit_entry(action: str, target: str, outcome: str, reason: str = "") -> dict[str, object]:
    """Return an entry of the audit log."""
    return {"at": 5.0, "user": WHO.user, "role": WHO.role.label, "from": "127.0.0.1", "node": "n1", "action": action,
            "target": target, "reason": reason, "outcome": outcome}


def login(**changes: object) -> Login:
    given = {"user": "ada", "nonce": "n", "began": int(WALL), "seen": int(WALL), "proof": proof_of(ADA.password_hash),
             "generation": 0}
    return Login(**{**given, **changes})  # type: ignore[arg-type]


def cookies() -> Cookies:
    return Cookies(SECRET, 3600.0, 600.0, LoginGenerations())


def test_a_session_cookie_is_valid_until_its_age_or_idle_limit() -> None:
    book = cookies()
    assert book.read(book.write(login()), WALL + 599) == login()
    assert book.read(book.write(login()), WALL + 600) is None  # not used since
    late = login(seen=int(WALL) + 3500)
    assert book.read(book.write(late), WALL + 3599) == late and book.read(book.write(late), WALL + 3600) is None
    assert book.read(book.write(login(began=int(WALL) + 1000, seen=int(WALL) + 1000)), WALL) is None


def test_a_modified_session_cookie_is_invalid() -> None:
    book, good = cookies(), cookies().write(login())
    for at in range(len(good)):
        assert book.read(good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1:], WALL) is None
    assert Cookies(b"t" * 32, 3600.0, 600.0, LoginGenerations()).read(good, WALL) is None
    for nonsense in ("", ".", "a.b", good + "x", "x" * 5000, "\u20ac.\u20ac", good.split(".")[0]):
        assert book.read(nonsense, WALL) is None


def test_a_logout_ends_all_logins_of_the_user_and_a_login_of_another_version_is_invalid() -> None:
    book = cookies()
    book.generations.end("ada")
    assert book.read(book.write(login()), WALL) is None and book.read(book.write(login(user="bob")), WALL) is not None
    assert book.read(book.write(login(generation=1)), WALL) is not None
    assert book.read(str(book._logins.dumps(["ada", "n", int(WALL), int(WALL), "p"])), WALL) is None


def generations(folder: Path, failed: list[str] | None = None) -> LoginGenerations:
    return LoginGenerations(("ada", "bob"), str(folder), (failed if failed is not None else list[str]()).append)


def test_a_logout_survives_a_restart(tmp_path: Path) -> None:
    generations(tmp_path).end("ada")
    again = generations(tmp_path)
    assert again.has_file and (again.of("ada"), again.of("bob")) == (1, 0)
    assert (tmp_path / "console-logouts.json").stat().st_mode & 0o777 == 0o600


def test_generations_of_other_nodes_are_merged_by_the_higher_number(tmp_path: Path) -> None:
    book = generations(tmp_path)
    book.end("ada")
    for values in ({"ada": 0, "bob": 7, "eve": 3}, {"bob": True}, {"bob": 1 << 60}, {"bob": "9"}, {"bob": None}, None, [1]):
        book.merge(values)
    assert book.numbers == generations(tmp_path).numbers == {"ada": 1, "bob": 7}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_file_of_logouts_ends_the_logins_of_earlier_processes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "console-logouts.json").write_bytes(content)
    assert not generations(tmp_path).has_file
    assert not LoginGenerations(("ada",)).has_file, "without a file they end, too"


def test_logouts_that_cannot_be_written_are_reported_and_written_later(tmp_path: Path) -> None:
    failed = FailedFiles()
    book = LoginGenerations(("ada",), str(tmp_path / "later"), None, failed)
    book.end("ada")
    (_, (reason, retry)), = failed.items()
    assert book.of("ada") == 1 and "cannot be written" in reason
    (tmp_path / "later").mkdir()
    retry()
    assert not failed.items() and generations(tmp_path / "later").of("ada") == 1


def test_a_login_from_before_the_start_needs_complete_generations() -> None:
    book = Cookies(SECRET, 3600.0, 600.0, LoginGenerations(), WALL + 10)
    cookie = book.write(login())
    assert book.read(cookie, WALL + 20) is None
    assert book.read(book.write(login(began=int(WALL) + 10, seen=int(WALL) + 10)), WALL + 20) is not None
    book.generations.is_complete = True
    assert book.read(cookie, WALL + 20) is not None


def test_a_csrf_token_is_valid_for_one_login() -> None:
    book = cookies()
    assert book.is_csrf("n", book.csrf("n"))
    assert not book.is_csrf("m", book.csrf("n")) and not book.is_csrf("n", "") and not book.is_csrf("n", "\ud800")
    assert not Cookies(b"t" * 32, 1, 1, LoginGenerations()).is_csrf("n", book.csrf("n"))


REQUEST = NodeRequest("n1", "n2", "POST", "/api/v1/nodes/n2/stop?x=1", b"{}", "ada", "admin")


def check_token(tokens: NodeTokens, token: str, wall: float = WALL, **changes: object) -> NodeRequest | None:
    given = {"receiver": "n2", "method": "POST", "path": REQUEST.path, "body": b"{}", **changes}
    return tokens.check(token, NodeRequest("", **given), wall)  # type: ignore[arg-type]


def test_a_node_token_is_valid_for_one_request_once() -> None:
    token, there = NodeTokens(SECRET).make(REQUEST, WALL, "nonce"), NodeTokens(SECRET)
    assert check_token(there, token) == REQUEST
    assert check_token(there, token) is None  # a replayed token


@pytest.mark.parametrize("changes", [{"receiver": "n3"}, {"method": "GET"}, {"path": "/api/v1/nodes/n2/stop"},
                                     {"body": b'{"a":1}'}, {"wall": WALL + SKEW_S + 1}, {"wall": WALL - SKEW_S - 1}])
def test_a_node_token_is_invalid_for_another_request(changes: dict[str, object]) -> None:
    token = NodeTokens(SECRET).make(REQUEST, WALL, "nonce")
    assert check_token(NodeTokens(SECRET), token, **changes) is None  # type: ignore[arg-type]


def test_a_node_token_of_another_key_or_a_malformed_one_is_invalid() -> None:
    assert check_token(NodeTokens(SECRET), NodeTokens(b"t" * 32).make(REQUEST, WALL, "nonce")) is None
    forged = NodeTokens(SECRET).make(NodeRequest("n1", "n2", "POST", REQUEST.path, b"{}", "eve", "viewer"), WALL, "n")
    head, _, mac = NodeTokens(SECRET).make(REQUEST, WALL, "n").partition(".")
    assert check_token(NodeTokens(SECRET), f"{forged.partition('.')[0]}.{mac}") is None
    for nonsense in ("", ".", "e30.x", "W10.x", "bnVsbA.x", f"{head}.", "x" * 100_000, "\u20ac.\u20ac"):
        assert check_token(NodeTokens(SECRET), nonsense) is None


def test_without_users_requests_of_the_same_machine_have_the_local_role() -> None:
    logins = Logins({}, cookies(), UserRole.OPERATOR)
    for address, host in (("127.0.0.1", "localhost:8080"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]:80"),
                          ("::ffff:127.0.0.1", "LOCALHOST")):
        assert logins.identify(*request_of(address, host, "", ""), WALL).role is UserRole.OPERATOR


@pytest.mark.parametrize("address, host, forwarded", [
    ("10.0.0.5", "localhost", ""), ("127.0.0.1", "console.example", ""), ("127.0.0.1", "evil.example:8080", ""),
    ("127.0.0.1", "", ""), ("127.0.0.1", "localhost", "10.0.0.5"), ("127.0.0.1", "localhost@evil.example", ""),
    ("127.0.0.1", "localhost.evil.example", ""), ("127.0.0.1", "127.0.0.1.evil.example", ""), ("nonsense", "localhost", "")])
def test_without_users_other_requests_are_refused(address: str, host: str, forwarded: str) -> None:
    """Requests of other machines, names that resolve here by DNS rebinding, requests through a proxy."""
    with pytest.raises(Refusal) as refused:
        Logins({}, cookies(), UserRole.ADMIN).identify(*request_of(address, host, forwarded, ""), WALL)
    assert refused.value.status == 403


def test_a_reverse_proxy_without_headers_of_its_own_gives_no_access_by_default() -> None:
    """A bare `proxy_pass` connects from loopback, and names it as the host: the request equals one of this machine."""
    assert Http().local_role == "none"
    with pytest.raises(Refusal) as refused:
        Logins({}, cookies()).identify(*request_of("127.0.0.1", "127.0.0.1:8080", "", ""), WALL)
    assert refused.value.status == 403 and "localRole" in refused.value.reason


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_without_users_a_request_with_a_header_of_a_proxy_is_refused(name: str) -> None:
    headers = {"host": "localhost", name.lower(): "10.0.0.5"}
    with pytest.raises(Refusal):
        Logins({}, cookies(), UserRole.ADMIN).identify("127.0.0.1", headers.get, WALL)


def test_with_users_a_valid_login_is_required_also_on_the_same_machine() -> None:
    book = cookies()
    logins = Logins({"ada": ADA}, book)
    good = book.write(login())
    assert logins.identify(*request_of("10.1.1.1", "x", "", good), WALL) == Caller("ada", UserRole.ADMIN, "n", "", login())
    stale = [book.write(login(proof="other")), book.write(login(user="eve")), "", "nonsense"]
    for cookie in stale:  # changed password, removed user, no cookie, invalid cookie
        with pytest.raises(Refusal) as refused:
            logins.identify(*request_of("127.0.0.1", "localhost", "", cookie), WALL)
        assert refused.value.status == 401
    who = logins.identify(*request_of("10.1.1.1", "x", "", good), WALL)
    assert logins.is_still_valid(who, WALL + 100) and not logins.is_still_valid(who, WALL + 700)
    book.generations.end("ada")
    assert not logins.is_still_valid(who, WALL)


@pytest.mark.parametrize("has", UserRole)
@pytest.mark.parametrize("needs", UserRole)
def test_a_role_includes_the_permissions_of_lower_roles(has: UserRole, needs: UserRole) -> None:
    if has >= needs:
        require(Caller("x", has), needs)
    else:
        with pytest.raises(Refusal) as refused:
            require(Caller("x", has), needs)
        assert refused.value.status == 403 and needs.label in refused.value.reason


def test_an_origin_is_accepted_for_this_console_and_those_of_other_nodes() -> None:
    others = {"http://n2:8080", "https://ops.example"}
    for origin in ("http://n1:8080", "https://n1:8080", "http://n2:8080", "https://ops.example"):
        assert is_own_origin(origin, "n1:8080", others)
    for origin in ("http://n1:8081", "http://evil.example", "null", "", "file://", "http://n1:8080.evil.example",
                   "http://evil.example/?n1:8080", "https://n2:8080", "javascript://n1:8080"):
        assert not is_own_origin(origin, "n1:8080", others), origin
    assert not is_own_origin("http://", "", set())


def test_a_token_from_before_the_start_of_the_receiver_is_refused() -> None:
    """It may have been used before: the receiver has forgotten the tokens that it has accepted."""
    token = NodeTokens(SECRET).make(REQUEST, WALL, "nonce")
    assert check_token(NodeTokens(SECRET, WALL - 1.0), token) is not None
    assert check_token(NodeTokens(SECRET, WALL + 0.01), token) is None


def test_local_hosts_and_addresses_are_recognized() -> None:
    assert host_of("a:1") == "a" and host_of("[::1]:8") == "::1" and host_of("") == "" and host_of("a/b") == ""
    assert is_local("127.9.9.9") and is_local("localhost") and not is_local("0.0.0.0") and not is_local("")


@pytest.mark.parametrize("text", ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "evil",
                                  "javascript:alert(1)", "/x\r\nSet-Cookie: a=b", "/" + "x" * 3000, "", "///evil.example"])
def test_a_login_does_not_redirect_to_another_site(text: str) -> None:
    assert local_path(text) == ""


def test_a_login_redirects_to_the_requested_local_page() -> None:
    assert local_path("/bmq/queues?filter=a%20b&sort=uri#x") == "/bmq/queues?filter=a%20b&sort=uri#x"


def test_the_page_policy_allows_connections_to_known_consoles_only() -> None:
    policy = page_policy(["http://n2:80/bmq", "https://n3", "javascript:x", "", "http://a b", "http://x;script-src *",
                          "http://\u20ac"])
    assert policy.endswith("connect-src 'self' http://n2:80 ws://n2:80 https://n3 wss://n3")
    assert "default-src 'self'" in policy and "unsafe" not in policy
    assert page_policy([]).endswith("connect-src 'self'")


def test_cookie_headers_are_parsed_and_formatted() -> None:
    assert cookies_of("a=1; b=2=3; c; a=4") == {"a": "1", "b": "2=3"} and cookies_of("") == {}
    assert cookie_header("n", "v", "/bmq", True, 60.5) == "n=v; Path=/bmq; HttpOnly; SameSite=Lax; Max-Age=60; Secure"
    assert cookie_header("n", "v", "", False) == "n=v; Path=/; HttpOnly; SameSite=Lax"


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff"])
def test_a_request_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(body)


def test_the_audit_log_is_written_read_at_the_start_and_limited(tmp_path: Path) -> None:
    failed = FailedFiles()
    log = AuditLog(str(tmp_path), failed)
    for number in range(3):
        log.add(audit_entry("purge", "bmq://d/q\n" + "x" * 9000, "ok", f"because {number}"))
    written = (tmp_path / FILE).read_text().splitlines()
    assert len(written) == 3 and json.loads(written[2])["reason"] == "because 2" and len(written[2]) < 1000
    entries = [json.loads(line) for line in written]
    assert list(AuditLog(str(tmp_path), failed).entries) == list(log.entries) == entries
    with open(tmp_path / FILE, "ab") as file:
        file.truncate(FILE_BYTES_MAX)
    log.add(audit_entry("stop", "n2", "ok"))
    assert (tmp_path / f"{FILE}.1").stat().st_size == FILE_BYTES_MAX and (tmp_path / FILE).stat().st_size < 1000
    assert AuditLog(str(tmp_path), failed).entries[-1]["action"] == "stop" and not failed.items()
    assert not list(tmp_path.glob("*.new"))


def test_an_audit_log_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    """The entries of a failure are kept, up to a limit, and written when the file can be written again."""
    failed = FailedFiles()
    log = AuditLog(str(tmp_path / "later"), failed)
    for number in range(3):
        log.add(audit_entry("stop", f"n{number}", "ok"))
    (path, (reason, retry)), = failed.items()
    assert path.endswith(FILE) and "cannot be written" in reason and len(log.entries) == 3
    (tmp_path / "later").mkdir()
    retry()
    assert not failed.items() and (tmp_path / "later" / FILE).read_text().count("\n") == 3


def refusals(log: AuditLog, principal: str, count: int, at: float) -> None:
    for _ in range(count):
        log.add({**audit_entry("purge", "bmq://d/q", "refused: role"), "user": principal, "at": at}, principal)


def test_a_flood_of_refusals_does_not_displace_other_entries(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path), FailedFiles())
    log.add(audit_entry("purge", "bmq://d/q", "ok"))
    refusals(log, "vera", 40_000, 5.0)
    refusals(log, "olaf", 1, 5.0)
    assert [entry["user"] for entry in log.entries] == ["ada"] + ["vera"] * AUDIT_BURST + ["olaf"]
    refusals(log, "vera", 1, 5.0 + AUDIT_INTERVAL_S)
    assert log.entries[-1]["outcome"] == f"refused: role ({40_000 - AUDIT_BURST} similar entries before were left out)"
    refusals(log, "vera", 1, 5.0 + 2 * AUDIT_INTERVAL_S)
    assert log.entries[-1]["outcome"] == "refused: role"
    assert (tmp_path / FILE).stat().st_size < 10_000


def test_the_number_of_principals_with_a_limit_is_bounded() -> None:
    log = AuditLog("", FailedFiles())
    for number in range(PRINCIPALS_MAX + 10):
        refusals(log, f"u{number}", 1, 5.0)
    assert len(log._limits) == PRINCIPALS_MAX


def test_previous_audit_files_are_kept_by_number_and_age(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path), FailedFiles())

    def fill(at: float) -> None:
        with open(tmp_path / FILE, "ab") as file:
            file.truncate(FILE_BYTES_MAX)
        os.utime(tmp_path / FILE, (at, at))
        log.add({**audit_entry("stop", "n1", "ok"), "at": at})

    for number in range(FILES_MAX + 3):
        fill(1000.0 + number)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {FILE, *(f"{FILE}.{number}" for number in range(1, FILES_MAX + 1))}
    fill(1000.0 + AGE_S_MAX + FILES_MAX)
    old = [path for path in tmp_path.iterdir() if path.stat().st_mtime < 1000.0 + FILES_MAX - 1]
    assert old == [], "files above the age are deleted"
