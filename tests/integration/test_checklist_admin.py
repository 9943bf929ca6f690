"""Administration and statistics: broker.md 21.13."""

from __future__ import annotations

import json
import re

import pytest
from kit.client import payloads, refusal
from kit.world import World

spec = pytest.mark.spec


@pytest.mark.real
@spec("broker", 211)
def test_help_lists_the_commands_and_an_unknown_command_is_refused(world: World) -> None:
    """Both with text and with JSON answers."""
    assert world.admin("HELP").startswith("This process responds to the following CMD subcommands:\n    HELP\n")
    assert "help" in world.admin_json("HELP")
    assert world.admin("BOGUS").startswith("Unable to decode command (rc: -1, error: '")


@spec("broker", 212)
def test_answers_use_the_requested_encoding(world: World) -> None:
    """By prefix or member of the request; the default is text; an unknown encoding is an error."""
    compact = world.admin("ENCODING JSON_COMPACT CLUSTERS LIST")
    pretty = world.admin("ENCODING JSON_PRETTY CLUSTERS LIST")
    assert "\n" not in compact
    assert "\n    " in pretty
    assert json.loads(compact) == json.loads(pretty)
    assert world.admin('{"clusters": {"list": {}}, "encoding": "JSON_COMPACT"}') == compact
    assert world.admin('{"clusters": {"list": {}}, "encoding": "JSON_PRETTY"}') == pretty
    text = world.admin("CLUSTERS LIST")
    assert text.startswith("The following clusters are active:")
    assert world.admin("ENCODING TEXT CLUSTERS LIST") == text
    assert world.admin('{"clusters": {"list": {}}}') == text
    assert world.admin('{"clusters": {"list": {}}, "encoding": "TEXT"}') == text
    for command in ("ENCODING INCORRECT CLUSTERS LIST", '{"clusters": {"list": {}}, "encoding": "INCORRECT"}'):
        assert world.admin(command).startswith("Unable to decode command (rc: -1, error: '")


@spec("broker", 213)
def test_keywords_may_be_in_lower_case(world: World) -> None:
    """Names of domains and queues keep their case."""
    world.domain()
    assert world.admin("clusters list") == world.admin("CLUSTERS LIST")
    assert world.admin("domains domain d infos") == world.admin("DOMAINS DOMAIN d INFOS")
    assert world.admin("DOMAINS DOMAIN D INFOS") == "Domain 'D' doesn't exist"


@pytest.mark.real
@spec("broker", 214, 218)
def test_purging_a_queue_returns_the_number_of_removed_messages(world: World) -> None:
    """A second purge removes none, and a consumer gets no message."""
    world.domain()
    world.producer().post_all(b"1", b"2", b"3")
    assert "Purged 3 message(s)" in world.admin("DOMAINS DOMAIN d QUEUE q PURGE *")
    assert "Purged 0 message(s)" in world.admin("DOMAINS DOMAIN d QUEUE q PURGE *")
    assert world.new_payloads(world.consumer()) == []


@spec("broker", 215)
def test_purging_a_domain_counts_all_its_queues(world: World) -> None:
    world.domain()
    world.producer("bmq://d/one").post_all(b"1", b"2")
    world.producer("bmq://d/two").post_all(b"1", b"2", b"3")
    assert "Purged 5 message(s)" in world.admin("DOMAINS DOMAIN d PURGE")
    assert "Purged 0 message(s)" in world.admin("DOMAINS DOMAIN d PURGE")


@spec("broker", 216)
def test_purging_apps_one_by_one_then_the_domain(world: World) -> None:
    """The purge of the domain removes the remaining messages of baz."""
    world.domain("f", "fanout")
    world.producer("bmq://f/q").post_all(b"1", b"2")
    assert "Purged 2 message(s)" in world.admin("DOMAINS DOMAIN f QUEUE q PURGE foo")
    assert "Purged 2 message(s)" in world.admin("DOMAINS DOMAIN f QUEUE q PURGE bar")
    assert "Purged 2 message(s)" in world.admin("DOMAINS DOMAIN f PURGE")
    for command in ("QUEUE q PURGE foo", "QUEUE q PURGE bar", "QUEUE q PURGE baz", "PURGE"):
        assert "Purged 0 message(s)" in world.admin(f"DOMAINS DOMAIN f {command}")


@spec("broker", 217)
def test_purging_one_app_leaves_the_others_their_messages(world: World) -> None:
    """Also after a restart."""
    world.domain("f", "fanout")
    world.producer("bmq://f/q").post_all(b"1", b"2")
    world.admin("DOMAINS DOMAIN f QUEUE q PURGE foo")
    expected = {"foo": [], "bar": [b"1", b"2"], "baz": [b"1", b"2"]}
    for _ in range(2):
        consumers = {app: world.consumer("bmq://f/q", app) for app in expected}
        assert {app: world.new_payloads(c) for app, c in consumers.items()} == expected
        world.restart()


@spec("broker", 219)
def test_inactive_queues_can_be_purged_and_are_not_counted_as_active(world: World) -> None:
    """After a restart no client has opened them."""
    world.domain()
    world.producer("bmq://d/one").post_all(b"1", b"2")
    world.producer("bmq://d/two").post(b"1")
    world.restart()
    assert "ActiveQueues ..: 0" in world.admin("DOMAINS DOMAIN d INFOS")
    assert "Purged 2 message(s)" in world.admin("DOMAINS DOMAIN d QUEUE one PURGE *")
    assert "Purged 1 message(s)" in world.admin("DOMAINS DOMAIN d PURGE")
    world.producer("bmq://d/one")
    infos = world.admin("DOMAINS DOMAIN d INFOS")
    assert "ActiveQueues ..: 1" in infos
    assert "bmq://d/one" in infos


@spec("broker", 220)
def test_list_shows_the_requested_range(world: World) -> None:
    """A negative offset counts from the end, a negative count backwards."""
    world.domain("f", "fanout")
    guids = [guid.hex().upper() for guid in world.producer("bmq://f/q").post_all(b"1", b"22", b"333", b"4444")]
    world.admin("DOMAINS DOMAIN f QUEUE q PURGE foo")

    def listed(arguments: str) -> tuple[str, list[int]]:
        text = world.admin(f"DOMAINS DOMAIN f QUEUE q LIST {arguments}")
        return text.splitlines()[0], [guids.index(g) for g in re.findall(r"[0-9A-F]{32}", text)]

    assert listed("0 UNLIMITED") == ("Printing 4 message(s) [0-3 / 4] (total: 10  B)", [0, 1, 2, 3])
    assert listed("0 0")[1] == [0, 1, 2, 3]
    assert listed("1 2") == ("Printing 2 message(s) [1-2 / 4] (total: 5  B)", [1, 2])
    assert listed("-2 UNLIMITED")[1] == [2, 3]
    assert listed("3 -2")[1] == [1, 2]
    assert listed("bar 0 UNLIMITED")[1] == [0, 1, 2, 3]
    assert listed("foo 0 UNLIMITED")[1] == []


@spec("broker", 221)
def test_list_of_an_unknown_app_is_an_error(world: World) -> None:
    world.domain("f", "fanout")
    world.producer("bmq://f/q").post()
    assert world.admin("DOMAINS DOMAIN f QUEUE q LIST unknown 0 UNLIMITED") == "Invalid 'LIST' command: invalid APPID"


def subset(world: World, uri: str, **expected: int) -> dict[str, int]:
    """Return the expected queue metrics from a new snapshot."""
    world.advance(1.5)
    values = world.statistics(uri)["values"]
    return {name: values[name] for name in expected}


@spec("broker", 222)
def test_the_statistics_of_the_worked_example(world: World) -> None:
    """Three stages with exact numbers: 32 messages of 3 bytes, three apps."""
    world.domain("f", "fanout", queue_messages=1000, queue_bytes=1048576)
    uri = "bmq://f/q"
    world.producer(uri).post_all(*[b"msg"] * 32)
    first = {"queue_put_msgs_abs": 32, "queue_put_bytes_abs": 96, "queue_ack_msgs_abs": 32, "queue_msgs_current": 32,
             "queue_msgs_utilization_max": 3, "queue_producers_count": 1, "queue_cfg_msgs": 1000,
             "queue_cfg_bytes": 1048576, "queue_role": 1, "queue_nack_msgs_abs": 0, "queue_bytes_current": 96}
    assert subset(world, uri, **first) == first
    apps = world.statistics(uri)["appIds"]
    assert {app: apps[app]["values"]["queue_msgs_current"] for app in apps} == {"foo": 32, "bar": 32, "baz": 32}

    for app, count in (("foo", 32), ("bar", 22), ("baz", 11)):
        consumer = world.consumer(uri, app)
        consumer.confirm(*world.pushes(consumer)[:count])
    world.wait_idle()
    second = {"queue_push_msgs_abs": 96, "queue_push_bytes_abs": 288, "queue_confirm_msgs_abs": 65,
                  "queue_consumers_count": 3, "queue_msgs_current": 21, "queue_history_abs": 11}
    assert subset(world, uri, **second) == second
    apps = world.statistics(uri)["appIds"]
    assert {app: apps[app]["values"]["queue_msgs_current"] for app in apps} == {"foo": 0, "bar": 10, "baz": 21}

    assert "Purged 21 message(s)" in world.admin("DOMAINS DOMAIN f QUEUE q PURGE baz")
    third = {"queue_msgs_current": 10, "queue_history_abs": 22}
    assert subset(world, uri, **third) == third
    assert world.statistics(uri)["appIds"]["baz"]["values"]["queue_msgs_current"] == 0


@spec("broker", 223)
def test_too_many_snapshots_at_once_are_refused(world: World) -> None:
    """Four per snapshot interval are allowed; the fifth is refused."""
    answers = [world.admin("STAT SHOW") for _ in range(5)]
    too_often = [a for a in answers if a == "Cannot save the recent snapshot, trying to make snapshots too often"]
    assert len(too_often) == 1


@pytest.mark.real
@spec("broker", 224)
def test_a_command_and_its_answer_are_logged(world: World) -> None:
    """The log has the client, the command and the answer."""
    world.admin("CLUSTERS LIST")
    world.expect_log("Received command 'CLUSTERS LIST' [source: ")
    world.expect_log("Send response message")


@spec("broker", 225)
def test_removing_a_domain_in_two_steps(world: World) -> None:
    """Refused while a queue is open.

    Then purged. Opens are refused until the second step; afterwards the domain is empty.
    """
    world.domain()
    producer = world.producer()
    producer.post_all(b"1", b"2")
    assert "there are queues opened or opening" in world.admin("DOMAINS REMOVE d")
    producer.post(b"3")
    producer.client.disconnect()
    assert "Purged 3 message(s)" in world.admin("DOMAINS REMOVE d")
    refused = refusal(world.client().open, "bmq://d/q", write=1)
    assert (refused.category, refused.code, refused.message) == ("E_REFUSED", -10, "Domain is removing or removed")
    assert world.admin("DOMAINS REMOVE d FINALIZE") == "SUCCESS"
    consumer = world.consumer()
    assert world.new_payloads(consumer) == []
    world.producer().post(b"new")
    assert world.new_payloads(consumer) == [b"new"]
    for client in list(world.clients):
        if client.name != "admin":
            client.disconnect()
    world.admin("DOMAINS REMOVE d")
    (world.config.etc / "domains" / "d.json").unlink()
    assert world.admin("DOMAINS REMOVE d FINALIZE") == "SUCCESS"
    assert refusal(world.client().open, "bmq://d/q", write=1).category == "E_UNKNOWN"


@spec("broker", 226)
def test_removing_one_domain_leaves_another_intact_and_needs_its_first_step(world: World) -> None:
    """FINALIZE without the first step has no effect."""
    world.domain("a")
    world.domain("b")
    world.producer("bmq://a/q").client.disconnect()
    world.producer("bmq://b/q").post(b"kept")
    assert world.admin("DOMAINS REMOVE a FINALIZE") == "First round of DOMAINS REMOVE 'a' is not completed."
    world.admin("DOMAINS REMOVE a")
    assert world.admin("DOMAINS REMOVE a FINALIZE") == "SUCCESS"
    assert world.new_payloads(world.consumer("bmq://b/q")) == [b"kept"]


@pytest.mark.real
@spec("broker", 227)
def test_an_admin_client_that_disconnects_during_a_command_does_not_affect_others(world: World) -> None:
    world.domain()
    producer = world.producer()
    for _ in range(3):
        admin = world.connect("doomed", client_type="E_TCPADMIN")
        admin.negotiate()
        admin.send_request({"adminCommand": {"command": "DOMAINS DOMAIN d INFOS"}})
        admin.kill()
    producer.post(b"m")
    assert world.admin("CLUSTERS LIST").startswith("The following clusters")


def test_internals_shows_handles_apps_and_unconfirmed_counts(world: World) -> None:
    world.domain("f", "fanout")
    producer = world.producer("bmq://f/q", name="poster")
    foo = world.consumer("bmq://f/q", "foo", name="reader")
    producer.post_all(b"1", b"2")
    assert payloads(world.pushes(foo)) == [b"1", b"2"]
    text = world.admin("DOMAINS DOMAIN f QUEUE q INTERNALS")
    for expected in ("Queue Internals", "QueueHandleCatalog:", "2 handles:", "poster:4242", "reader:4242",
                     "UnconfirmedMessages ...: 2", "foo: status=alive", "bar: status=registered",
                     "Storage ...........: 2 messages", "Num virtual storages: 3"):
        assert expected in text, text


def test_admin_sessions_may_only_send_commands(world: World) -> None:
    """Other requests are dropped and logged."""
    world.domain()
    admin = world.client("admin2", client_type="E_TCPADMIN")
    admin.send_request({"openQueue": {"handleParameters": admin.handle_parameters("bmq://d/q", 0, write=1)}})
    assert admin.admin("CLUSTERS LIST").startswith("The following clusters")
    assert world.logged("#ADMCLIENT_")
