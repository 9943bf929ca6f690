"""Pages and API of the console over a broker in memory: content, actions, permissions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kit.console import PASSWORDS, ConsoleWorld, between, users
from twisted.internet.defer import succeed

from bmqtwist import alarms
from bmqtwist.console.access import NodeTokens, UserRole
from bmqtwist.console.exchange import EXCHANGE_S
from bmqtwist.console.pages import PAGES
from bmqtwist.console.routes import ROUTES, Route, openapi
from bmqtwist.console.server import WebConsole
from bmqtwist.errors import LocalError
from bmqtwist.security.key_file import read_secret
from bmqtwist.view import cluster_facts

SECRET = "0123456789abcdef0123456789abcdef"
HOSTILE = "</script><script>alert(1)</script>"
NAMES = {"node": "n1", "partition": "0", "alarm": "n1:1", "domain": "d"}
URI = "bmq://d/q"
# Valid arguments of each action, so that only a missing role can cause a refusal.
BODIES: dict[str, dict[str, Any]] = {
    "stop": {"confirm": "n1", "reason": "r"}, "move": {"to": "n1"}, "purge": {"uri": URI, "confirm": URI, "reason": "r"},
    "publish": {"uri": URI, "payload": "x"}, "test_subscription": {"uri": URI, "expression": "x > 1"},
    "rolling_restart": {"reason": "r"}, "node_rows": {"uris": [URI]}, "end_login": {"nonce": "x"},
    "raise_alarm": {"text": "t"}}


def path_of(route: Route) -> str:
    """Return the path of a route with arguments."""
    return re.sub(r"<(?:int:)?(\w+)>", lambda found: NAMES[found[1]], route.path)


@pytest.fixture
def console(tmp_path: Path) -> ConsoleWorld:
    """Console without users, of a broker with a queue of three messages."""
    return filled(ConsoleWorld(tmp_path))


@pytest.fixture
def guarded(tmp_path: Path) -> ConsoleWorld:
    """Console with users and a key file."""
    key = tmp_path / "key"
    key.write_text(SECRET)
    return filled(ConsoleWorld(tmp_path / "broker", {"users": list(users()), "keyFile": str(key)}))


def filled(console: ConsoleWorld) -> ConsoleWorld:
    world = console.world
    world.domain("d")
    producer = world.producer(URI)
    for number in range(3):
        producer.post(b"message %d" % number)
    world.run()
    return console


# -- documents --------------------------------------------------------------------------------------------------------


def test_the_cluster_document_shows_the_state_of_the_node(console: ConsoleWorld) -> None:
    found = console.ask("/api/v1/cluster").json
    assert found["servedBy"] == "n1" and found["name"] == "c3" and found["verdict"]["level"] == "good"
    (node,) = found["nodes"]
    assert node["state"] == "up" and node["leader"] and node["primaryFor"] == [0, 1] and node["sessions"] == 1
    assert node["url"] == "http://127.0.0.1:1" and node["memoryBytes"] == 1 << 20
    assert [(row["uri"], row["messages"]) for row in found["queuesTop"]] == [(URI, 3)]
    assert sum(partition["messages"] for partition in found["partitions"]) == 3


def test_rates_are_available_from_the_second_request(console: ConsoleWorld) -> None:
    assert console.ask("/api/v1/cluster").json["rates"]["put"] is None
    producer = console.world.producer(URI)
    for number in range(10):
        producer.post(b"%d" % number)
    console.world.run()
    console.advance(2.0)
    found = console.ask("/api/v1/cluster").json
    assert found["rates"]["put"] == 6.5 and found["queuesTop"][0]["messages"] == 13
    assert found["ackLatencyMs"]["p50"] is not None


def test_without_requests_only_the_history_is_sampled(console: ConsoleWorld) -> None:
    collector = console.service.collector
    for _ in range(4):
        console.advance(5.0)
    assert len(collector.sampler.history) == 4 and collector.local.book.visited == 0
    delays = console.host.reactor.getDelayedCalls()
    assert len(delays) == 1  # the next row
    assert console.ask("/api/v1/cluster").json["history"][-1][5:7] == [3, collector.sampler.history[-1][7]]
    assert collector.local.book.visited > 0
    for _ in range(100):
        console.advance(0.1)
    visited = collector.local.book.visited
    for _ in range(100):
        console.advance(0.1)
    assert collector.local.book.visited == visited and len(console.host.reactor.getDelayedCalls()) == 1


def test_queues_are_filtered_sorted_and_paged(console: ConsoleWorld) -> None:
    for number in range(12):
        console.world.producer(f"bmq://d/other{number:02}").post(b"x")
    console.world.run()
    console.advance(1.0)
    found = console.ask("/api/v1/queues?filter=OTHER&sort=uri&order=asc&offset=3&limit=4").json
    assert found["total"] == 12 and found["offset"] == 3
    assert [row["uri"] for row in found["rows"]] == [f"bmq://d/other{number:02}" for number in range(3, 7)]
    assert console.ask("/api/v1/queues").json["rows"][0]["uri"] == URI  # the deepest first
    assert console.ask("/api/v1/queues?sort=nonsense").status == 400


def test_a_queue_is_shown_with_its_producers_and_consumers(console: ConsoleWorld) -> None:
    consumer = console.world.consumer(URI)
    console.world.run()
    found = console.ask(f"/api/v1/queue?uri={URI}").json
    assert found["messages"] == 3 and found["primary"] == "n1" and found["history"][-1][1] == 3
    assert found["consumers"][0]["unconfirmed"] == 3 and len(found["producers"]) == 1 and found["apps"][0]["messages"] == 3
    assert len(found["tree"]["children"]) == 2 and found["tree"]["unconfirmed"] == 3
    assert consumer is not None
    assert console.ask("/api/v1/queue?uri=bmq://d/none").status == 404
    assert console.ask("/api/v1/queue?uri=nonsense").json["field"] == "uri"


def test_deliveries_are_counted_for_each_subscription(console: ConsoleWorld) -> None:
    def subscriptions() -> list[dict[str, Any]]:
        (consumer,) = console.ask(f"/api/v1/queue?uri={URI}").json["consumers"]
        return list(consumer["subscriptions"])

    consumer = console.world.consumer(URI)
    console.world.run()
    (before,) = subscriptions()
    assert (before["expression"], before["given"], before["givenRate"]) == ("", 3, None)
    assert "flow" not in before
    for each in consumer.take(3):
        consumer.confirm(each)
    console.world.producer(URI).post(b"one more")
    console.world.run()
    console.advance(2.0)
    (after,) = subscriptions()
    assert (after["given"], after["unconfirmed"]) == (4, 1), "confirmed messages are counted, too"
    assert 0.4 <= after["givenRate"] <= 0.6


def test_messages_are_shown_without_being_consumed(console: ConsoleWorld) -> None:
    found = console.ask(f"/api/v1/messages?uri={URI}&limit=2").json
    assert len(found["messages"]) == 2 and found["next"]
    rest = console.ask(f"/api/v1/messages?uri={URI}&after={found['next']}").json
    assert len(rest["messages"]) == 1
    guid = found["messages"][0]["guid"]
    whole = console.ask(f"/api/v1/message?uri={URI}&guid={guid}").json
    assert whole["guid"] == guid and not whole["truncated"]
    saved = console.ask(f"/api/v1/message/payload?uri={URI}&guid={guid}")
    assert saved.text == "message 0" and saved.headers["content-disposition"] == f'attachment; filename="{guid}.bin"'
    assert saved.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in saved.headers["content-security-policy"]
    assert console.ask("/api/v1/queues").json["rows"][0]["messages"] == 3


def test_clients_log_configuration_and_domain_are_shown_without_secrets(guarded: ConsoleWorld) -> None:
    guarded.log_in("vera")
    assert len(guarded.ask("/api/v1/clients").json["clients"]) == 1
    config = guarded.ask("/api/v1/config").text
    assert "passwordHash" in config and "argon2" not in config and SECRET not in config
    assert guarded.ask("/api/v1/domain?name=d").json["config"]["mode"] == {"priority": {}}
    assert guarded.ask("/api/v1/domain?name=none").status == 404
    assert guarded.ask("/api/v1/elections").json["terms"] is not None
    assert guarded.ask("/api/v1/log?lines=5").status == 200
    assert guarded.ask("/api/v1/events").status == 200


def test_all_retained_events_are_returned_in_pages(console: ConsoleWorld) -> None:
    for number in range(300):
        console.world.report.record_event("queue", f"event {number}")
    found, after = list[str](), 0.0
    while after is not None:
        page = console.ask(f"/api/v1/events?limit=70&after={after!r}").json
        found += [each["text"] for each in page["events"]]
        after = page["next"]
    assert [text for text in found if text.startswith("event ")] == [f"event {number}" for number in range(300)]
    assert len(console.ask("/api/v1/events?limit=120").json["events"]) == 120


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_served_with_its_data_and_a_content_security_policy(console: ConsoleWorld, path: str) -> None:
    answer = console.page(path)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
    data = json.loads(between(answer.text, '<script type="application/json" id="data">', "</script>"))
    assert data["servedBy"] == "n1"
    assert not re.search(r"<script(?![^>]*(src=|application/json))", answer.text)
    assert not re.search(r"\son\w+=|style=", answer.text)
    assert "No users are configured" in answer.text


def test_the_root_returns_a_short_json_status_to_programs(console: ConsoleWorld) -> None:
    assert console.ask("/").json["name"] == "bmqtwist"
    for path in ("/livez", "/readyz"):
        assert console.ask(path).status == 200


def test_markup_in_texts_of_clients_is_escaped(console: ConsoleWorld) -> None:
    """Names of clients, apps and domains and texts of alarms may contain markup."""
    console.world.report.alarm(alarms.DOMAIN_NOT_LOADED, f"Domain '{HOSTILE}' is strange")
    client = console.world.connect("client")
    client.identity["processName"] = HOSTILE
    client.negotiate()
    console.advance(1.0)
    page = console.page("/")
    assert "<script>alert" not in page.text and "alert(1)" in page.text
    data = json.loads(between(page.text, '<script type="application/json" id="data">', "</script>"))
    assert HOSTILE in data["alarms"][0]["text"]
    answer = console.ask("/api/v1/clients")
    assert answer.headers["content-type"] == "application/json" and answer.headers["x-content-type-options"] == "nosniff"
    assert any("alert(1)" in row["client"] for row in answer.json["clients"])
    for path in (f"/queues?filter={HOSTILE}", f"/login?next={HOSTILE}", f"/{HOSTILE}", f"/api/v1/queue?uri={HOSTILE}"):
        answer = console.page(path)
        assert "<script>alert" not in answer.text or answer.headers["content-type"] == "application/json", path


def test_only_static_files_of_the_console_are_served(console: ConsoleWorld) -> None:
    found = console.ask("/static/style.css")
    assert found.status == 200 and found.headers["content-type"].startswith("text/css")
    assert console.ask("/static/app.js").headers["content-type"].startswith("text/javascript")
    assert console.ask("/static/style.css", headers={"If-None-Match": found.headers["etag"]}).status == 304
    for path in ("/static/../setup.cfg", "/static/%2e%2e/setup.cfg", "/static/..%2fsetup.cfg",
                 "/static/%2e%2e%2f%2e%2e%2fetc/passwd",
                 "/static//etc/passwd", "/static/pages/../../setup.cfg", "/static/..%5csetup.cfg", "/static/.", "/static/",
                 "/static/%00", "/static/style.css%00.js", "/static/style.css/", "/static/~root",
                 "/static/./style.css/../../x"):
        answer = console.ask(path)
        assert answer.status in (404, 308) and "[metadata]" not in answer.text and "root:" not in answer.text, path


def test_the_report_is_linked_if_its_directory_is_configured(console: ConsoleWorld, tmp_path: Path) -> None:
    """Users of the console receive it unchanged, and scripts in it are disabled."""
    assert "/report" not in console.page("/").text and console.page("/report").status == 404
    key, reports = tmp_path / "key", tmp_path / "reports"
    key.write_text(SECRET)
    reports.mkdir()
    guarded = ConsoleWorld(tmp_path / "other", {"users": list(users()), "keyFile": str(key),
                                                "reportDirectory": str(reports)})
    assert guarded.page("/report").status == 303
    guarded.log_in("vera")
    assert 'href="/report"' in guarded.page("/").text
    none = guarded.page("/report")
    assert none.status == 404 and "bmq pipeline report" in none.text
    (reports / "report.html").write_text("<h1>What the broker did</h1>")
    found = guarded.page("/report")
    assert found.status == 200 and found.text == "<h1>What the broker did</h1>"
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert "sandbox" in found.headers["content-security-policy"]


def test_the_openapi_description_lists_all_routes(console: ConsoleWorld) -> None:
    described = console.ask("/api/v1/openapi.json").json
    offered = {(re.sub(r"<(?:int:)?(\w+)>", r"{\1}", rule.rule), method.lower())
               for rule in WebConsole.app.url_map.iter_rules()
               for method in rule.methods - {"HEAD", "OPTIONS"} if rule.rule.startswith("/api/")
               and rule.rule != "/api/v1/live"}
    between_nodes = {(route.path, route.method.lower()) for route in ROUTES if route.between_nodes}
    assert {(path, method) for path, operations in described["paths"].items()
            for method in operations} == offered - between_nodes
    for route in ROUTES:
        if route.method == "GET" and not route.between_nodes and not route.download and not any(
                each.required for each in route.arguments):
            answer = console.ask(path_of(route))
            assert answer.status == 200, answer.text
            operation = described["paths"][re.sub(r"<(?:int:)?(\w+)>", r"{\1}", route.path)]["get"]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert set(schema["required"]) <= answer.json.keys()
    assert openapi("/bmq")["servers"] == [{"url": "/bmq"}]


# -- actions ----------------------------------------------------------------------------------------------------------


def test_purging_a_queue_requires_its_name_and_a_reason(console: ConsoleWorld) -> None:
    console.read_csrf()
    assert console.post("/api/v1/queues/purge", {"uri": URI, "confirm": "bmq://d/x",
                                                 "reason": "r"}).json["field"] == "confirm"
    assert console.post("/api/v1/queues/purge", {"uri": URI, "confirm": URI}).json["field"] == "reason"
    assert console.post("/api/v1/queues/purge", {"uri": URI, "confirm": URI, "reason": "r", "app": "none"}).status == 409
    answer = console.post("/api/v1/queues/purge", {"uri": URI, "confirm": URI, "reason": "too old"})
    assert (answer.status, answer.json["ok"], answer.json["messages"]) == (200, True, 3)
    entries = console.ask("/api/v1/audit").json["entries"]
    assert [(each["action"], each["outcome"]) for each in entries][0] == ("purge", "ok") and len(entries) == 4
    assert entries[0]["reason"] == "too old" and entries[0]["target"] == URI and entries[0]["node"] == "n1"
    assert entries[1]["outcome"].startswith("refused: ")


def test_names_with_quotes_cannot_inject_another_command(console: ConsoleWorld) -> None:
    console.read_csrf()
    answer = console.post("/api/v1/queues/purge", {"uri": URI, "confirm": URI, "reason": "r",
                                                   "app": '*"}}}}}} DOMAINS DOMAIN d PURGE'})
    assert answer.status == 409 and console.ask("/api/v1/queues").json["rows"][0]["messages"] == 3


def test_stopping_a_node_requires_its_name_and_a_reason(console: ConsoleWorld) -> None:
    console.read_csrf()
    assert console.post("/api/v1/nodes/n1/stop", {"confirm": "n2", "reason": "r"}).json["field"] == "confirm"
    assert console.post("/api/v1/nodes/none/stop", {"confirm": "none", "reason": "r"}).status == 404
    assert console.post("/api/v1/nodes/n1/stop", {"confirm": "n1", "reason": "r"}).json == {"ok": True}
    assert console.host.stops == [("r", "local")]
    again = console.post("/api/v1/nodes/n1/stop", {"confirm": "n1", "reason": "r"})
    assert (again.status, again.json["error"]) == (409, "the broker is stopping")
    assert "quorumSurvives" in console.ask("/api/v1/nodes/n1/preflight").json


def test_messages_are_published_and_expressions_tested(console: ConsoleWorld) -> None:
    console.read_csrf()
    answer = console.post("/api/v1/publish", {"uri": URI, "payload": "aGVsbG8=", "encoding": "base64", "count": 2,
                                              "properties": {"x": {"type": "int32", "value": 7}}})
    assert answer.status == 200 and [each["status"] for each in answer.json["results"]] == ["SUCCESS"] * 2
    console.advance(1.0)
    assert console.ask("/api/v1/queues").json["rows"][0]["messages"] == 5
    tried = console.post("/api/v1/subscriptions/test", {"uri": URI, "expression": "x > 5"}).json
    assert tried["ok"] and tried["matched"] == 2
    wrong = console.post("/api/v1/subscriptions/test", {"uri": URI, "expression": "x > > 5"}).json
    assert not wrong["valid"] and wrong["error"]
    for body, field in (({"uri": URI, "payload": "x", "encoding": "base64"}, "payload"),
                        ({"uri": URI, "encoding": "x"}, "encoding"),
                        ({"uri": URI, "count": 101}, "count"), ({"uri": URI, "properties": []}, "properties"),
                        ({"uri": URI, "payload": 5}, "payload"), ({"uri": "x"}, "uri")):
        answer = console.post("/api/v1/publish", body)
        assert (answer.status, answer.json["field"]) == (400, field)


def test_alarms_are_acknowledged_and_cleared(console: ConsoleWorld) -> None:
    console.world.report.alarm(alarms.WRITE_FAILED, "Partition [0] is nearly full")
    console.advance(1.0)
    (alarm,) = console.ask("/api/v1/alarms").json["alarms"]
    assert alarm["id"] == "n1:1" and not alarm["acknowledgedBy"]
    console.read_csrf()
    assert console.post("/api/v1/alarms/n1%3A1/acknowledge", {}).json == {"ok": True}
    console.advance(1.0)
    assert console.ask("/api/v1/alarms").json["alarms"][0]["acknowledgedBy"] == "local"
    assert console.post("/api/v1/alarms/n1:1/clear", {}).status == 200
    for ident, status in (("n1:99", 409), ("1", 404), ("other:1", 404)):
        assert console.post(f"/api/v1/alarms/{ident}/acknowledge", {}).status == status


def test_an_alarm_raised_by_an_operator_is_logged_and_listed(console: ConsoleWorld) -> None:
    console.read_csrf()
    text = f"Rack 7 burns {HOSTILE}\nand 100 % of it is lost"
    assert console.post("/api/v1/alarms", {"text": text, "category": "FIRE", "severity": "PANIC"}).json == {"ok": True}
    (alarm,) = console.ask("/api/v1/alarms").json["alarms"]
    assert (alarm["category"], alarm["severity"], alarm["node"]) == ("FIRE", "PANIC", "n1")
    assert alarm["text"] == f"Rack 7 burns {HOSTILE}\\x0aand 100 % of it is lost (raised by local)"
    assert console.world.report.texts("PANIC") == [f"[FIRE] operator: {alarm['text']}"], "the alarm is logged in one line"
    assert console.post("/api/v1/alarms", {"text": "Check rack 7"}).status == 200
    console.advance(1.0)
    alarms = {each["category"]: each for each in console.ask("/api/v1/alarms").json["alarms"]}
    assert alarms["OPERATOR"]["severity"] == "ALARM"
    assert console.post(f"/api/v1/alarms/{alarms['FIRE']['id']}/clear", {}).status == 200
    done = [(entry["action"], entry["target"], entry["reason"]) for entry in console.ask("/api/v1/audit").json["entries"]]
    assert done[1:] == [("raise_alarm", "ALARM OPERATOR", "Check rack 7"),
                        ("raise_alarm", "PANIC FIRE", text.replace("\n", "\\x0a"))]


def test_raising_an_alarm_requires_the_operator_role(guarded: ConsoleWorld) -> None:
    guarded.log_in("vera")
    assert guarded.post("/api/v1/alarms", {"text": "Rack 7 burns"}).status == 403
    guarded.log_in("olaf")
    assert guarded.post("/api/v1/alarms", {"text": "Rack 7 burns"}, {"X-CSRF-Token": "wrong"}).status == 403
    assert guarded.ask("/api/v1/alarms").json["alarms"] == []
    assert guarded.post("/api/v1/alarms", {"text": "Rack 7 burns"}).status == 200
    assert [each["text"] for each in guarded.ask("/api/v1/alarms").json["alarms"]] == ["Rack 7 burns (raised by olaf)"]


@pytest.mark.parametrize("body, status, field", [
    ({}, 400, "text"), ({"text": "  "}, 400, "text"), ({"text": "x" * 1001}, 400, "text"), ({"text": 7}, 400, "text"),
    ({"text": "t", "category": "lower"}, 400, "category"), ({"text": "t", "category": "A" * 65}, 400, "category"),
    ({"text": "t", "category": "A]\n[B"}, 400, "category"), ({"text": "t", "category": "QUEUE_STUCK"}, 400, "category"),
    ({"text": "t", "severity": "INFO"}, 400, "severity"), ({"text": "t", "node": "n9"}, 404, "node")])
def test_an_invalid_alarm_of_an_operator_is_refused(console: ConsoleWorld, body: dict[str, Any], status: int,
                                                    field: str) -> None:
    console.read_csrf()
    answer = console.post("/api/v1/alarms", body)
    assert (answer.status, answer.json["field"]) == (status, field)
    assert console.ask("/api/v1/alarms").json["alarms"] == []


def test_a_domain_is_reconfigured_at_every_node(console: ConsoleWorld) -> None:
    console.read_csrf()
    assert console.post("/api/v1/domains/d/reconfigure", {}).json == {"ok": True,
                                                                      "nodes": [{"node": "n1", "ok": True, "error": ""}]}
    answer = console.post("/api/v1/domains/none/reconfigure", {}).json
    assert not answer["ok"] and answer["nodes"][0]["error"]


def test_operations_that_need_several_nodes_are_refused_with_the_reason(console: ConsoleWorld) -> None:
    console.read_csrf()
    answer = console.post("/api/v1/partitions/0/move", {"to": "n1"})
    assert answer.status == 409 and "one node" in answer.json["error"]
    assert console.post("/api/v1/partitions/0/move", {"to": "nowhere"}).status == 404
    assert console.post("/api/v1/partitions/99/rollover", {}).status == 404
    assert console.post("/api/v1/partitions/0/rollover", {}).json == {"ok": True}


# -- permissions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", PASSWORDS)
@pytest.mark.parametrize("route", [route for route in ROUTES if not route.between_nodes], ids=lambda route: route.name)
def test_each_route_requires_its_role(guarded: ConsoleWorld, route: Route, user: str) -> None:
    assert guarded.log_in(user).status == 303
    role = {"vera": UserRole.VIEWER, "olaf": UserRole.OPERATOR, "ada": UserRole.ADMIN}[user]
    path = path_of(route)
    if route.method == "POST":
        answer = guarded.post(path, BODIES.get(route.name, {}))
    else:
        answer = guarded.ask(path)
    assert (answer.status == 403) == (role < route.role), answer.text
    if role < route.role:
        assert f"requires the role {route.role.label}" in answer.json["error"] and not guarded.host.stops
        (entry, *_) = guarded.ask("/api/v1/audit").json["entries"]
        assert entry["user"] == user and entry["outcome"].startswith("refused")
    assert not guarded.host.failures


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_each_route_requires_a_login(guarded: ConsoleWorld, route: Route) -> None:
    body = json.dumps(BODIES.get(route.name, {})).encode() if route.method == "POST" else None
    answer = guarded.ask(path_of(route), route.method, body, {"Content-Type": "application/json", "X-CSRF-Token": "x"})
    assert answer.status == 401 and answer.json["error"]


@pytest.mark.parametrize("headers, status", [
    ({"X-CSRF-Token": ""}, 403), ({"X-CSRF-Token": "wrong"}, 403), ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Content-Type": "text/plain"}, 400),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 400), ({"Origin": "http://127.0.0.1:1"}, 200)])
@pytest.mark.parametrize("who", ["local", "ada"])
def test_requests_of_another_origin_or_without_csrf_token_are_refused(console: ConsoleWorld, guarded: ConsoleWorld,
                                                                      headers: dict[str, str], status: int,
                                                                      who: str) -> None:
    asked = console if who == "local" else guarded
    if who == "ada":
        asked.log_in("ada")
    else:
        asked.read_csrf()
    answer = asked.post("/api/v1/nodes/n1/stop", {"confirm": "n1", "reason": "r"}, headers)
    assert answer.status == status, answer.text
    assert bool(asked.host.stops) == (status == 200)


def test_the_csrf_token_of_another_login_is_refused(guarded: ConsoleWorld) -> None:
    guarded.log_in("olaf")
    stolen = guarded.csrf
    guarded.log_in("ada")
    assert guarded.csrf != stolen
    assert guarded.post("/api/v1/nodes/n1/stop", {"confirm": "n1", "reason": "r"}, {"X-CSRF-Token": stolen}).status == 403


def test_a_login_requires_the_right_password(guarded: ConsoleWorld) -> None:
    answer = guarded.log_in("ada")
    assert answer.status == 303 and answer.headers["location"] == "/queues"
    header = guarded.ask("/", headers={"Accept": "text/html"})
    assert header.status == 200 and "ada" in header.text
    other = guarded.cookies.copy()
    guarded.cookies.clear()
    for name, password in (("ada", "wrong"), ("ada", ""), ("unknown", "all of it"), ("", "")):
        refused = guarded.log_in(name, password)
        assert refused.status == 403 and "The name or the password is wrong." in refused.text
        assert "bmq_session" not in refused.cookies
    assert [entry["outcome"] for entry in (guarded.cookies.update(other),
                                           guarded.ask("/api/v1/audit").json["entries"])[1]] == [
        "refused"] * 4 + ["ok"]


def test_a_login_requires_the_csrf_token_and_cookie_of_its_form(guarded: ConsoleWorld) -> None:
    good = b"user=ada&password=all+of+it&csrf="
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    form = guarded.page("/login")
    csrf = between(form.text, 'name="csrf" value="', '"').encode()
    assert guarded.ask("/login", "POST", good + csrf, headers).status == 403  # without the cookie of the form
    guarded.cookies.update(form.cookies)
    assert guarded.ask("/login", "POST", good, headers).status == 403
    assert guarded.ask("/login", "POST", good + csrf, {**headers, "Origin": "http://evil.example"}).status == 403
    assert guarded.ask("/login", "POST", good + csrf, headers).status == 303


def test_failed_logins_are_delayed(guarded: ConsoleWorld) -> None:
    seen = [guarded.log_in("ada", "wrong").status for _ in range(6)]
    assert seen == [403, 403, 403, 403, 429, 429]
    assert guarded.log_in("ada").status == 429  # the right password is refused during the delay, too
    guarded.host.reactor.advance(2.0)
    assert guarded.log_in("ada").status == 303


def test_a_login_expires(guarded: ConsoleWorld) -> None:
    guarded.log_in("ada")
    for _ in range(23):  # with a request each half hour the login lasts 12 hours
        guarded.host.reactor.advance(1800.0)
        answer = guarded.ask("/api/v1/node")
        assert answer.status == 200
        guarded.cookies.update(answer.cookies)
    guarded.host.reactor.advance(1800.0)
    assert guarded.ask("/api/v1/node").status == 401
    guarded.log_in("ada")
    guarded.host.reactor.advance(3600.0)
    assert guarded.ask("/api/v1/node").status == 401  # the idle limit
    shown = guarded.page("/partitions?x=1")
    assert shown.status == 303 and shown.headers["location"] == "/login?next=%2Fpartitions%3Fx%3D1"


def test_a_logout_invalidates_the_session_cookie(guarded: ConsoleWorld) -> None:
    guarded.log_in("ada")
    stolen, csrf = guarded.cookies.copy(), guarded.csrf
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert guarded.ask("/logout", "POST", b"csrf=wrong", form).status == 403
    assert guarded.ask("/api/v1/node").status == 200
    assert guarded.ask("/logout", "POST", f"csrf={csrf}".encode(), form).headers["location"] == "/login"
    guarded.cookies = stolen
    assert guarded.ask("/api/v1/node").status == 401


def test_a_logout_is_sent_to_other_nodes_and_received_from_them(guarded: ConsoleWorld) -> None:
    guarded.log_in("ada")
    tokens = NodeTokens(SECRET.encode())
    body = b'{"generations":{"olaf":3,"unknown":1}}'
    assert guarded.as_node("n2", "POST", "/api/v1/node/logouts", body, tokens).json == {"ok": True}
    assert guarded.ask("/api/v1/node").status == 200
    found = guarded.as_node("n2", "GET", "/api/v1/node/logouts", tokens=tokens, nonce="m").json
    assert found == {"generations": {"olaf": 3}}
    guarded.as_node("n2", "POST", "/api/v1/node/logouts", b'{"generations":{"ada":1}}', tokens, nonce="o")
    assert guarded.ask("/api/v1/node").status == 401
    guarded.log_in("ada")
    assert guarded.ask("/api/v1/node").status == 200


def test_a_copied_cookie_is_refused_after_a_logout_and_a_restart(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET)
    http = {"users": list(users()), "keyFile": str(tmp_path / "key")}
    first = ConsoleWorld(tmp_path / "broker", http)
    first.log_in("ada")
    kept = first.cookies.copy()
    again = ConsoleWorld(tmp_path / "broker", http)
    again.cookies = kept.copy()
    assert again.ask("/api/v1/node").status == 200, "a restart alone keeps the login"
    first.ask("/logout", "POST", f"csrf={first.csrf}".encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    last = ConsoleWorld(tmp_path / "broker", http)
    last.cookies = kept.copy()
    assert last.ask("/api/v1/node").status == 401


def test_a_node_that_was_down_accepts_earlier_logins_when_all_other_nodes_have_answered(
        guarded: ConsoleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """n2 and n3 may know a logout that this node missed."""
    generations, exchange = guarded.service._logins.cookies.generations, guarded.service._exchange
    assert exchange is not None and generations.is_complete, "there are no other nodes"
    generations.is_complete = False
    monkeypatch.setattr(cluster_facts, "node_names", lambda broker: ["n1", "n2", "n3", "n4"])
    monkeypatch.setattr(cluster_facts, "nodes_without_console", lambda broker: {"n4"})
    answers: dict[str, Any] = {"n2": {"generations": {"ada": 2}}}
    monkeypatch.setattr(exchange._consoles, "request_all", lambda path: succeed((answers, {"n3": "no answer"})))
    exchange.request()
    assert generations.of("ada") == 2 and not generations.is_complete
    answers["n3"] = {"generations": {"ada": 1}}
    guarded.host.reactor.advance(EXCHANGE_S)
    assert generations.of("ada") == 2 and generations.is_complete


def test_session_cookies_are_httponly_and_samesite(guarded: ConsoleWorld) -> None:
    raw = guarded.log_in("ada").headers["set-cookie"]
    assert "HttpOnly" in raw and "SameSite=Lax" in raw


@pytest.mark.parametrize("host", ["console.example", "evil.example:1"])
def test_without_users_requests_with_another_host_name_are_refused(console: ConsoleWorld, host: str) -> None:
    """Names that resolve to this machine by DNS rebinding."""
    for path in ("/", "/queues"):
        answer = console.page(path, host=host)
        assert answer.status == 403 and "This console has no users" in answer.text
    assert console.ask("/api/v1/cluster", host=host).status == 403
    assert console.ask("/livez", host=host).status == 200
    assert console.ask("/api/v1/cluster", headers={"X-Forwarded-For": "10.0.0.9"}).status == 403


def test_without_a_local_role_pages_api_and_node_tokens_are_refused(tmp_path: Path) -> None:
    """The secret of open consoles is public: a token of it must not replace the login."""
    closed = ConsoleWorld(tmp_path, {"localRole": "none"})
    assert closed.page("/").status == closed.ask("/api/v1/cluster").status == 403
    assert closed.as_node("n2", "GET", "/api/v1/node").status == 403
    assert closed.ask("/livez").status == 200


def test_a_node_token_has_at_most_the_local_role(tmp_path: Path) -> None:
    console = ConsoleWorld(tmp_path, {"localRole": "viewer"})
    body = b'{"confirm":"n1","reason":"r"}'
    assert console.as_node("n2", "POST", "/api/v1/nodes/n1/stop", body, user="x", role="admin").status == 403
    assert console.as_node("n2", "GET", "/api/v1/node", nonce="m").status == 200


@pytest.mark.parametrize(("trusted", "shown"), [([], "TRANSPORT"), (["10.9.9.9"], "TRANSPORT"), (None, "192.0.2.7")])
def test_the_forwarded_address_is_used_from_trusted_proxies_only(tmp_path: Path, trusted: list[str] | None,
                                                                 shown: str) -> None:
    """A client must not choose the address in the audit log and in the delays of logins."""
    plain = ConsoleWorld(tmp_path / "a", {"users": list(users())})
    plain.log_in("ada", "wrong")
    own = plain.service._context.audit.entries[-1]["from"]
    console = ConsoleWorld(tmp_path / "b", {"users": list(users()), "url": "http://127.0.0.1:1",
                                            "trustedProxies": [own] if trusted is None else trusted})
    form = console.page("/login")
    console.cookies.update(form.cookies)
    csrf = between(form.text, 'name="csrf" value="', '"')
    console.ask("/login", "POST", f"user=ada&password=x&csrf={csrf}".encode(), {"X-Forwarded-For": "1.1.1.1, 192.0.2.7"})
    assert console.service._context.audit.entries[-1]["from"] == (own if shown == "TRANSPORT" else shown)


def newest_entry(console: ConsoleWorld) -> dict[str, Any]:
    return dict(console.service._context.audit.entries[-1])


def test_a_refused_action_is_recorded_with_its_target(guarded: ConsoleWorld) -> None:
    guarded.log_in("vera")
    purge = {"uri": URI, "confirm": URI, "reason": "r"}
    assert guarded.post("/api/v1/queues/purge", purge).status == 403
    assert (newest_entry(guarded)["action"], newest_entry(guarded)["target"]) == ("purge", URI)
    assert guarded.post("/api/v1/nodes/n1/stop", {"confirm": "n1", "reason": "r"}).status == 403
    assert newest_entry(guarded)["target"] == "n1"
    assert guarded.ask("/api/v1/rolling-restart", "POST", b"x", {"X-CSRF-Token": guarded.csrf}).status == 403
    assert newest_entry(guarded)["target"] == "/api/v1/rolling-restart"


def test_a_viewer_cannot_flush_the_audit_log(guarded: ConsoleWorld) -> None:
    guarded.log_in("vera")
    for _ in range(60):
        guarded.post("/api/v1/queues/purge", {"uri": URI, "confirm": URI, "reason": "r"})
    assert len(guarded.service._context.audit.entries) < 30


def test_a_mistyped_login_name_is_not_recorded(guarded: ConsoleWorld) -> None:
    """It may be a password."""
    guarded.log_in("my secret password", "x")
    assert newest_entry(guarded)["user"] == "(unknown user)" and "secret" not in str(newest_entry(guarded))
    guarded.log_in("ada", "wrong")
    assert newest_entry(guarded)["user"] == "ada"


def test_a_forged_node_token_is_recorded(guarded: ConsoleWorld) -> None:
    assert guarded.as_node("n2", "GET", "/api/v1/node", tokens=NodeTokens(b"x" * 32)).status == 403
    found = newest_entry(guarded)
    assert (found["action"], found["target"], found["outcome"]) == ("node token", "/api/v1/node", "refused")


# -- other nodes ------------------------------------------------------------------------------------------------------


def test_a_node_is_authenticated_by_its_token(guarded: ConsoleWorld) -> None:
    tokens, others = NodeTokens(SECRET.encode()), NodeTokens(b"x" * 32)
    assert guarded.as_node("n2", "GET", "/api/v1/node", tokens=tokens).json["name"] == "n1"
    assert guarded.as_node("n2", "GET", "/api/v1/node/clients", tokens=tokens, nonce="m").status == 200
    assert guarded.as_node("n2", "GET", "/api/v1/node", tokens=others, nonce="o").status == 403
    assert guarded.as_node("n2", "GET", "/api/v1/node", tokens=tokens, nonce="p", receiver="n3").status == 403
    assert guarded.as_node("n2", "GET", "/api/v1/node").status == 403  # the key of open consoles
    for url in ("http://evil:1", "https://127.0.0.1:1", "http://127.0.0.1:2"):  # relayed by a broker with the name of n1
        assert guarded.as_node("n2", "GET", "/api/v1/node", tokens=tokens, nonce=url, url=url).status == 403


def test_a_node_request_has_the_role_of_the_user_that_it_names(guarded: ConsoleWorld) -> None:
    tokens, body = NodeTokens(SECRET.encode()), b'{"confirm":"n1","reason":"r"}'
    path = "/api/v1/nodes/n1/stop"
    assert guarded.as_node("n2", "POST", path, body, tokens, nonce="a").status == 403  # without a user
    assert guarded.as_node("n2", "POST", path, body, tokens, "vera", "viewer", "b").status == 403
    assert guarded.as_node("n2", "POST", path, body, tokens, "olaf", "operator", "c").json == {"ok": True}
    assert guarded.host.stops == [("r", "olaf")]
    guarded.log_in("ada")
    entry = guarded.ask("/api/v1/audit").json["entries"][1]
    assert entry["user"] == "olaf" and entry["from"].endswith("by n2")


def test_routes_between_nodes_are_refused_to_users(console: ConsoleWorld) -> None:
    console.read_csrf()
    assert console.ask("/api/v1/node/clients").status == 403
    assert console.post("/api/v1/node/rows", {"uris": [URI]}).status == 403
    rows = console.as_node("n2", "POST", "/api/v1/node/rows",
                           json.dumps({"uris": [URI, "bmq://d/none"]}).encode()).json["rows"]
    assert [row["uri"] for row in rows] == [URI]
    found = console.as_node("n2", "GET", "/api/v1/node/queues?filter=&sort=messages&order=desc&upto=5", nonce="x").json
    assert found == {"total": 1, "entries": [[3, URI]]}


def test_a_forwarded_request_is_not_forwarded_again(console: ConsoleWorld) -> None:
    answer = console.as_node("n2", "GET", "/api/v1/log?node=n9", user="x", role="admin")
    assert answer.status == 404
    assert console.ask("/api/v1/log?node=n1&lines=x").json["field"] == "lines"


# -- prefix, size, errors ---------------------------------------------------------------------------------------------


def test_with_a_prefix_pages_are_served_with_and_without_it(tmp_path: Path) -> None:
    console = filled(ConsoleWorld(tmp_path, {"prefix": "/ops/bmq", "url": "https://ops.example/ops/bmq"}))
    for path in ("/ops/bmq/partitions", "/partitions"):
        page = console.page(path)
        assert page.status == 200 and 'href="/ops/bmq/static/style.css"' in page.text
    assert console.ask("/ops/bmq/api/v1/cluster").json["nodes"][0]["url"] == "https://ops.example/ops/bmq"
    assert console.ask("/ops/bmqx/api/v1/cluster").status == 404
    page = console.page("/partitions", headers={"X-Forwarded-Prefix": "/other/"})
    assert 'href="/other/static/style.css"' in page.text
    for hostile in ("//evil.example", '/"><script>', "/a b", "http://evil.example"):
        answer = console.page("/partitions", headers={"X-Forwarded-Prefix": hostile})
        assert 'href="/ops/bmq/static/style.css"' in answer.text


@pytest.mark.parametrize("configured", [True, False])
def test_behind_a_proxy_that_removes_the_prefix_a_login_returns_to_the_page(tmp_path: Path, configured: bool) -> None:
    """The prefix is configured, or a trusted proxy reports it; the path arrives without it."""
    settings: dict[str, Any] = {"prefix": "/bmq"} if configured else {"trustedProxies": ["127.0.0.1"]}
    console = filled(ConsoleWorld(tmp_path, {"users": list(users()), **settings}))
    sent = {} if configured else {"X-Forwarded-Prefix": "/bmq"}
    if not configured:
        own = ConsoleWorld(tmp_path / "own", {"users": list(users())})
        own.log_in("ada", "wrong")
        settings["trustedProxies"] = [own.service._context.audit.entries[-1]["from"]]
        console = filled(ConsoleWorld(tmp_path / "trusted", {"users": list(users()), **settings}))
    refused = console.page("/queues?sort=name", headers=sent)
    assert refused.status == 303
    location = refused.headers["location"]
    assert location == "/bmq/login?next=%2Fbmq%2Fqueues%3Fsort%3Dname"
    form = console.page(location.removeprefix("/bmq"), headers=sent)
    assert 'action="/bmq/login"' in form.text and "Path=/bmq;" in form.headers["set-cookie"]
    console.cookies.update(form.cookies)
    body = f"user=ada&password={PASSWORDS['ada'].replace(' ', '+')}&next=%2Fbmq%2Fqueues%3Fsort%3Dname&csrf=" + between(
        form.text, 'name="csrf" value="', '"')
    done = console.ask("/login", "POST", body.encode(), {"Content-Type": "application/x-www-form-urlencoded", **sent})
    assert (done.status, done.headers["location"]) == (303, "/bmq/queues?sort=name")
    assert "Path=/bmq;" in done.headers["set-cookie"]


def test_a_user_who_is_logged_in_sees_no_login_form(guarded: ConsoleWorld) -> None:
    """Another tab has logged in meanwhile."""
    guarded.log_in("ada")
    answer = guarded.page("/login?next=%2Fqueues%3Fsort%3Dname")
    assert (answer.status, answer.headers["location"]) == (303, "/queues?sort=name")
    assert guarded.page("/login?next=https%3A%2F%2Fevil.example").headers["location"] == "/"


def test_without_a_configured_prefix_the_forwarded_prefix_is_ignored(console: ConsoleWorld) -> None:
    assert 'href="/static/style.css"' in console.page("/partitions", headers={"X-Forwarded-Prefix": "/other"}).text


def test_an_internal_error_is_logged_with_details_and_answered_without(console: ConsoleWorld,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(console.service.collector, "elections", broken)
    answer = console.ask("/api/v1/elections")
    assert answer.status == 500 and "secret" not in answer.text
    assert console.host.failures[0].getErrorMessage() == "secret detail"


def test_unknown_paths_and_methods_are_refused_with_a_short_text(console: ConsoleWorld) -> None:
    assert console.ask("/api/v1/none").status == 404 and "openapi.json" in console.ask("/api/v1/none").json["error"]
    assert console.ask("/none").text == "Not Found\n"
    assert console.ask("/api/v1/cluster", "POST", b"{}").status == 405 and console.ask("/", "DELETE").status == 405
    assert console.ask("/api/v1/live").status == 426
    for body in (b"", b"[]", b"{", b"\xff"):
        console.read_csrf()
        answer = console.ask("/api/v1/publish", "POST", body,
                             {"X-CSRF-Token": console.csrf, "Content-Type": "application/json"})
        assert answer.status == 400


def test_a_key_file_must_contain_a_long_enough_secret(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    assert read_secret(str(path)) == SECRET.encode() and read_secret("") == b""
    path.write_text("short")
    with pytest.raises(LocalError, match="has 5 bytes"):
        read_secret(str(path))
    with pytest.raises(LocalError, match="cannot be read"):
        read_secret(str(tmp_path / "none"))


def test_the_console_url_of_a_lost_node_is_kept(
        console: ConsoleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the lost node reconnects here and is accepted because its origin is known."""
    monkeypatch.setattr("bmqtwist.console.consoles.cluster_facts.peer_urls", lambda broker: {"n2": "http://n2:1"})
    console.advance(5.0)
    console.advance()
    monkeypatch.setattr("bmqtwist.console.consoles.cluster_facts.peer_urls", lambda broker: {})
    assert console.service.collector.consoles.urls() == {"n2": "http://n2:1"}
