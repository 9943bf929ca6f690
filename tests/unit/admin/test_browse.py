"""Inspection of stored messages, subscriptions and properties, and its admin commands; inspection consumes no message."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kit.admin_kit import Bench

from bmqtwist.errors import LocalError
from bmqtwist.queue.queue import Handle, Put
from bmqtwist.queue.root import RootQueue
from bmqtwist.steps import at_once
from bmqtwist.storage.message import Message
from bmqtwist.view import stored_queue, subscriptions
from bmqtwist.view.stored_queue import Selection, locate
from bmqtwist.view.subscriptions import preview_choice
from bmqtwist.view.typed_properties import as_tree, from_tree
from bmqtwist.wire.properties import PropertyType, encode

Q = "bmq://d/q"
F = "bmq://f/q"


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.write_domain()
    made.write_domain("f", "fanout")
    return made


def post(bench: Bench, handle: Handle, payload: bytes = b"payload", properties: dict[str, Any] | None = None,
         v2: bool = True, compress: bool = False) -> str:
    """Post a message like an SDK and return its printed GUID."""
    bench._guid += 1
    guid = bench._guid.to_bytes(16, "big")
    area = encode(from_tree(properties), v2) if properties else b""
    data = area + (zlib.compress(payload) if compress else payload)
    message = Message(guid, data, b"", bool(area), int(compress), int(v2 and bool(area)), crc32c(data), bench.now,
                      bench.broker.loop.wall(bench.now))
    assert handle.queue.post(Put(handle, message, 0, True), bench.now, bench.broker.loop.wall(bench.now)) == 0
    bench.turn()
    return guid.hex().upper()


def list_guids(bench: Bench, uri: str = Q, **asked: Any) -> list[str]:
    """Return the listed GUIDs."""
    page = at_once(stored_queue.messages_in_steps(bench.broker, uri, Selection(**asked)))
    return [row["guid"] for row in page["messages"]]


def drop_payloads(queue: RootQueue) -> None:
    """Drop cached payloads, so that they are read from DATA."""
    for message in queue.messages.values():
        queue.partition.state.drop_payload(message)


# -- lists ------------------------------------------------------------------------------------------------------------


def test_pages_of_messages_are_contiguous_in_both_directions(bench: Bench) -> None:
    writer = bench.open()
    guids = [post(bench, writer) for _ in range(7)]
    for newest in (False, True):
        found, after = list[str](), ""
        while after is not None:
            page = at_once(stored_queue.messages_in_steps(bench.broker, Q, Selection(after, 3, newest=newest)))
            assert page["total"] == 7 and page["role"] == "primary" and len(page["messages"]) <= 3
            found += [row["guid"] for row in page["messages"]]
            after = page["next"]
        assert found == (guids[::-1] if newest else guids)
    assert len(bench.queue().messages) == 7 and all(not handle.substreams for handle in bench.queue().handles)


def test_a_page_after_a_removed_message_begins_with_the_next_one(bench: Bench) -> None:
    writer, reader = bench.open(), bench.open(read=True)
    guids = [post(bench, writer) for _ in range(4)]
    bench.confirm(reader, 2)
    assert list_guids(bench, after=guids[0]) == guids[2:]
    assert list_guids(bench, after=guids[2]) == guids[3:]
    assert list_guids(bench, after=guids[3]) == []


def test_messages_are_selected_by_guid_and_by_time(bench: Bench) -> None:
    writer = bench.open()
    guids, wall_times = [], []
    for _ in range(5):
        guids.append(post(bench, writer))
        wall_times.append(bench.broker.loop.wall(bench.now))
        bench.advance(10.0)
    assert list_guids(bench, guid=guids[3].lower()) == [guids[3]]
    assert list_guids(bench, since=wall_times[2]) == guids[2:] and list_guids(bench, until=wall_times[2]) == guids[:2]
    assert list_guids(bench, since=wall_times[1], until=wall_times[4]) == guids[1:4]
    assert list_guids(bench, since=wall_times[1], until=wall_times[4], newest=True, limit=2) == [guids[3], guids[2]]
    assert list_guids(bench, since=wall_times[1], after=guids[2]) == guids[3:]
    assert list_guids(bench, since=wall_times[4] + 100) == []
    with pytest.raises(LocalError, match="has no message"):
        list_guids(bench, guid="00" * 16)
    for wrong in ("xyz", "00", "00" * 17):
        with pytest.raises(LocalError, match="is not a GUID"):
            list_guids(bench, guid=wrong)


def test_listing_an_unknown_or_invalid_queue_uri_is_an_error(bench: Bench) -> None:
    for uri, words in (("bmq://d/none", "not stored"), ("nonsense", "not the URI"), ("bmq://none/q", "not stored")):
        with pytest.raises(LocalError, match=words):
            list_guids(bench, uri)


def test_a_list_is_read_in_slices_and_omits_messages_confirmed_between_them(bench: Bench) -> None:
    writer, reader = bench.open(), bench.open(read=True)
    guids = [post(bench, writer, b"x" * 1000, {"n": 1}) for _ in range(6)]
    drop_payloads(bench.queue())
    steps = stored_queue.messages_in_steps(bench.broker, Q, Selection())
    next(steps)
    bench.confirm(reader, 4)
    assert [row["guid"] for row in at_once(steps)["messages"]] == [guids[0], *guids[4:]]


def test_a_page_is_limited_in_characters(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_queue, "LIST_CHARS_MAX", 5000)
    writer = bench.open()
    guids = [post(bench, writer, properties={"p": "x" * 3000}) for _ in range(5)]
    page = at_once(stored_queue.messages_in_steps(bench.broker, Q, Selection()))
    assert len(page["messages"]) == 2 and page["next"] == guids[1]
    assert page["messages"][1]["propertiesTruncated"]


# -- one message ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["in memory", "on disk"])
# Old-style properties with a compressed payload are stored inflated, so the case (False, True) does not exist.
@pytest.mark.parametrize(("v2", "compress"), [(True, True), (True, False), (False, False)])
def test_a_message_is_shown_with_properties_and_payload(bench: Bench, stored: str, v2: bool, compress: bool) -> None:
    payload, properties = b"\x00<script>" * 100, {
        "text": {"type": "string", "value": "a\u00e9"}, "big": {"type": "int64", "value": str(1 << 60)},
        "small": {"type": "int32", "value": -5}, "yes": {"type": "bool", "value": True},
        "raw": {"type": "binary", "value": base64.b64encode(b"\xff\x00").decode()}}
    guid = post(bench, bench.open(), payload, properties, v2, compress)
    if stored == "on disk":
        drop_payloads(bench.queue())
    row = at_once(stored_queue.messages_in_steps(bench.broker, Q, Selection()))["messages"][0]
    whole = at_once(stored_queue.message_in_steps(bench.broker, Q, guid))
    assert row["properties"] == whole["properties"] == properties
    assert base64.b64decode(whole["payload"]) == payload and whole["payloadBytes"] == len(payload)
    assert not whole["truncated"] and "problem" not in whole
    assert whole["compression"] == ("zlib" if compress else "none")
    assert at_once(stored_queue.payload_in_steps(bench.broker, Q, guid)) == payload
    short = at_once(stored_queue.message_in_steps(bench.broker, Q, guid, 10))
    assert base64.b64decode(short["payload"]) == payload[:10] and short["truncated"]
    assert json.loads(json.dumps(whole)) == whole


def test_a_long_payload_is_read_in_slices(bench: Bench) -> None:
    payload = bytes(range(256)) * 4096
    guid = post(bench, bench.open(), payload)
    drop_payloads(bench.queue())
    steps, count = stored_queue.payload_in_steps(bench.broker, Q, guid), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as over:
            assert over.value == payload
            break
    assert count >= 3


def test_a_compressed_payload_is_inflated_only_up_to_the_shown_length(bench: Bench) -> None:
    guid = post(bench, bench.open(), bytes(32 << 20), compress=True)
    whole = at_once(stored_queue.message_in_steps(bench.broker, Q, guid, 100))
    assert whole["truncated"] and whole["payloadBytes"] is None and base64.b64decode(whole["payload"]) == bytes(100)


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x00" * 8, bytes(range(64))])
@pytest.mark.parametrize("schema", [0, 1])
@pytest.mark.parametrize("compression", [0, 1, 7])
def test_a_malformed_message_is_shown_with_its_problem(bench: Bench, data: bytes, schema: int, compression: int) -> None:
    writer = bench.open()
    message = Message(b"g" * 16, data, b"", True, compression, schema, crc32c(data), bench.now, 0)
    writer.queue.post(Put(writer, message, 0, True), bench.now, bench.broker.loop.wall(bench.now))
    bench.turn()
    guid = (b"g" * 16).hex()
    assert "problem" in at_once(stored_queue.messages_in_steps(bench.broker, Q, Selection()))["messages"][0]
    assert at_once(stored_queue.message_in_steps(bench.broker, Q, guid))["problem"]
    with pytest.raises(LocalError):
        at_once(stored_queue.payload_in_steps(bench.broker, Q, guid))


def test_a_message_whose_checksum_does_not_match_is_shown_as_damaged(bench: Bench) -> None:
    guid = post(bench, bench.open(), b"x" * 100)
    drop_payloads(bench.queue())
    bench.queue().messages[bytes.fromhex(guid)].crc ^= 1
    assert "damaged" in at_once(stored_queue.message_in_steps(bench.broker, Q, guid))["problem"]


# -- state for each app ---------------------------------------------------------------------------------------------------


def app_states(bench: Bench, guid: str) -> dict[str, tuple[str, list[str]]]:
    row = at_once(stored_queue.messages_in_steps(bench.broker, F, Selection(guid=guid)))["messages"][0]
    return {app["appId"]: (app["state"], app["to"]) for app in row["apps"]}


def test_a_message_shows_its_state_and_consumer_for_each_app(bench: Bench) -> None:
    writer = bench.open(F)
    first = bench.open(F, "foo", read=True, name="one")
    bench.open(F, "bar", read=True, name="two", expression="n > 5")
    guid = post(bench, writer, properties={"n": 3})
    assert app_states(bench, guid) == {"foo": ("delivered", ["one"]), "bar": ("pending", []), "baz": ("pending", [])}
    row = at_once(stored_queue.messages_in_steps(bench.broker, F, Selection()))["messages"][0]
    assert [app.get("why") for app in row["apps"]] == [None, "matches no subscription", "no consumer"]
    bench.confirm(first)
    assert app_states(bench, guid)["foo"] == ("confirmed", [])
    found = at_once(stored_queue.messages_in_steps(bench.broker, F, Selection()))
    assert found["messages"][0]["apps"][0]["at"] == bench.broker.loop.wall(bench.now)
    assert len(bench.queue(F).messages) == 1


# -- subscriptions ------------------------------------------------------------------------------------------------------


def test_an_expression_is_evaluated_on_the_newest_messages(bench: Bench) -> None:
    writer = bench.open()
    guids = [post(bench, writer, properties={"n": number}) for number in range(5)] + [post(bench, writer)]
    found = at_once(subscriptions.evaluate_in_steps(bench.broker, Q, "n >= 3", last=4))
    assert (found["valid"], found["properties"], found["examined"], found["matched"]) == (True, ["n"], 4, 2)
    assert [(each["guid"], each["matches"], each["reason"]) for each in found["results"]] == [
        (guids[5], False, "the message has no property n"), (guids[4], True, ""), (guids[3], True, ""),
        (guids[2], False, "it is false, or compares values of different types")]
    assert not bench.queue().messages[bytes.fromhex(guids[0])].properties, "decoded properties are not retained"


@pytest.mark.parametrize(("text", "offset", "length"), [
    ("n >", 2, 1), ("n > > 3", 4, 1), ('"\u00e9" == n && foo bar', 16, 3), ("", 0, 0), ("n > 99999999999999999999", 4, 20),
    ("1 < 2", 0, 1)])
def test_an_invalid_expression_reports_offset_and_length_of_its_error(bench: Bench, text: str, offset: int,
                                                                      length: int) -> None:
    bench.open()
    found = at_once(subscriptions.evaluate_in_steps(bench.broker, Q, text, {"n": 1}))
    if not text:
        assert found["valid"], "an empty expression matches all"
        return
    assert not found["valid"] and found["results"] == []
    assert (found["error"]["offset"], found["error"]["length"]) == (offset, length)


@given(st.text(max_size=40))
def test_any_expression_text_is_valid_or_has_an_error_within_the_text(text: str) -> None:
    found = at_once(subscriptions.evaluate_in_steps(_BENCH.broker, Q, text, {"n": 1}))
    assert found["valid"] == (found["error"] is None)
    if found["error"]:
        assert 0 <= found["error"]["offset"] <= len(text)


_BENCH = Bench()
_BENCH.write_domain()
_BENCH.queue()


def test_given_properties_are_evaluated_and_routed_to_a_consumer(bench: Bench) -> None:
    bench.open(read=True, name="high", expression="n > 5")
    bench.open(read=True, name="low", expression="n <= 5")
    for number, name in ((7, "high"), (3, "low")):
        found = at_once(subscriptions.evaluate_in_steps(bench.broker, Q, "", {"n": {"type": "int32", "value": number}}))
        routed = found["results"][0]["routing"]
        assert [(each["appId"], each["outcome"], each["to"]) for each in routed] == [("__default", "consumer", name)]
    found = at_once(subscriptions.evaluate_in_steps(bench.broker, Q, "m == 1", {"m": 1}))
    assert found["results"][0]["matches"] and found["results"][0]["routing"][0]["outcome"] == "aside"


def test_testing_a_subscription_does_not_change_the_round_robin_order(bench: Bench) -> None:
    """A hundred tests between two messages do not change the round-robin order."""
    readers = [bench.open(read=True, name=f"r{number}", limit=10) for number in range(3)]
    writer, order = bench.open(), list[str]()
    for _ in range(6):
        expected = at_once(subscriptions.evaluate_in_steps(bench.broker, Q, "", {"n": 1}))["results"][0]["routing"][0]["to"]
        for _ in range(100):
            at_once(subscriptions.evaluate_in_steps(bench.broker, Q, "", {"n": 1}))
        before = [len(reader.client.got) for reader in readers]  # type: ignore[attr-defined]
        post(bench, writer)
        taken = [reader for reader, count in zip(readers, before, strict=True)
                 if len(reader.client.got) > count]  # type: ignore[attr-defined]
        assert [reader.client.description for reader in taken] == [expected]
        order.append(expected)
    assert order == ["r0", "r1", "r2"] * 2


@given(st.lists(st.tuples(st.sampled_from(["", "n > 1", "n < 3"]), st.integers(0, 2), st.integers(0, 2)), max_size=5),
       st.integers(0, 4))
def test_the_predicted_consumer_is_the_one_that_the_router_chooses(consumers: list[tuple[str, int, int]],
                                                                   number: int) -> None:
    bench = Bench()
    bench.write_domain()
    for index, (expression, limit, _) in enumerate(consumers):
        bench.open(read=True, name=f"r{index}", limit=limit, expression=expression)
    app = bench.queue().active[0]
    router = app.current_router()
    for _ in range(4):
        predicted = preview_choice(router, {"n": number})
        assert router.choose({"n": number}) == predicted


# -- properties as JSON ---------------------------------------------------------------------------------------------------


_VALUES = st.one_of(
    st.tuples(st.just(PropertyType.BOOL), st.booleans()),
    st.tuples(st.just(PropertyType.INT64), st.integers(-2**63, 2**63 - 1)),
    st.tuples(st.just(PropertyType.CHAR), st.integers(-128, 127)),
    st.tuples(st.just(PropertyType.BINARY), st.binary(max_size=20)),
    st.tuples(st.just(PropertyType.STRING), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)))


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10), _VALUES, max_size=5))
def test_properties_are_unchanged_by_a_round_trip_through_json(properties: dict[str, Any]) -> None:
    tree, cut = as_tree(properties, 1 << 20)
    assert not cut and from_tree(json.loads(json.dumps(tree))) == properties


def test_properties_that_are_not_utf8_make_json_that_can_be_encoded() -> None:
    tree, _ = as_tree({"a\udcff": (PropertyType.STRING, "x\udc80")}, 100)
    assert json.dumps(tree, ensure_ascii=False).encode()


@pytest.mark.parametrize("wrong", [
    {"a": None}, {"a": 1.5}, {"a": {"type": "int32", "value": "x"}}, {"a": {"type": "int32", "value": "1_0"}},
    {"a": {"type": "no", "value": 1}}, {"a": {"value": {}}}, {"a": {"type": "binary", "value": "%"}},
    {"a": {"type": "bool", "value": 3}}, {"a": []}, {str(n): 1 for n in range(300)}])
def test_invalid_properties_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="propert"):
        from_tree(wrong)


# -- commands -----------------------------------------------------------------------------------------------------------


def test_message_and_subscription_commands_answer_as_text_and_as_json(bench: Bench) -> None:
    guids = [post(bench, bench.open(), b"hello", {"n": number}) for number in range(3)]
    queue = "DOMAINS DOMAIN d QUEUE q "
    text = bench.run(queue + "MESSAGES 2")
    assert "2 of 3 messages, at the primary" in text and guids[1] in text and f"more after {guids[1]}" in text
    tree = json.loads(bench.run(f"ENCODING JSON_COMPACT {queue}MESSAGES {guids[0]} 5"))["messages"]
    assert [row["guid"] for row in tree["messages"]] == guids[1:]
    assert [row["guid"] for row in json.loads(bench.run(f"ENCODING JSON_COMPACT {queue}MESSAGES -2"))["messages"]["messages"]
            ] == [guids[2], guids[1]]
    assert "68 65 6c 6c 6f" in (text := bench.run(f"{queue}MESSAGE {guids[0]}")) and "n (int64): 0" in text
    assert json.loads(bench.run(f"ENCODING JSON_PRETTY {queue}MESSAGE {guids[0]}"))["message"]["payloadBytes"] == 5
    assert "2 of 3 messages match" in bench.run(queue + "SUBSCRIPTION n >= 1")
    assert bench.run(queue + "SUBSCRIPTION n >= && 1").splitlines()[1] == "     ^^"
    by_json = {"domains": {"domain": {"name": "d", "command": {"queue": {"name": "q", "command": {
        "subscription": {"expression": "n == 2"}}}}}}, "encoding": "JSON_COMPACT"}
    assert json.loads(bench.run(json.dumps(by_json)))["subscription"]["matched"] == 1
    assert "has no message" in bench.run(f"{queue}MESSAGE {'0' * 32}")
    assert len(bench.queue().messages) == 3


def test_commands_show_preflight_replicas_terms_events_alarms_and_log(bench: Bench) -> None:
    assert "quorum DOES NOT SURVIVE" in (text := bench.run("STOP PREFLIGHT")) and "the only node" in text
    assert json.loads(bench.run("ENCODING JSON_COMPACT STOP PREFLIGHT"))["stopPreflight"]["quorumSurvives"] is False
    assert "n1: primary, 0 records behind" in bench.run("CLUSTERS CLUSTER c3 STORAGE REPLICAS")
    assert bench.run("CLUSTERS CLUSTER c3 STATE ELECTOR TERMS").startswith("Cluster (c3): LEADER, leader n1, term 1")
    assert bench.run("EVENTS") == "There are no events.\n" and bench.run("ALARMS") == "There are no alarms.\n"
    assert json.loads(bench.run("ENCODING JSON_COMPACT EVENTS 5")) == {"events": []}
    assert bench.run("ALARM 1 CLEAR") == "There is no alarm '1'"
    assert "Received command 'LOG TAIL 3'" in bench.run("LOG TAIL 3")
    assert "cluster 'no' not found !" in bench.run("CLUSTERS CLUSTER no STORAGE REPLICAS")


def test_a_queue_of_this_node_is_located_by_its_uri(bench: Bench) -> None:
    bench.open()
    assert locate(bench.broker, "bmq://d/q").root is bench.queue()
