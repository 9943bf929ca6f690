"""Input and output forms of commands: properties, JSON lines, templates, escapes, percentiles."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.cli.admin import is_error
from bmqtwist.cli.latencies import Latencies
from bmqtwist.cli.payloads import BadInput, Properties, parse_json_line, parse_properties, split_stream
from bmqtwist.cli.textforms import FIELD_NAMES, compile_template, message_tree, unescape
from bmqtwist.errors import LocalError
from bmqtwist.sdk.message import Message, typed
from bmqtwist.wire.properties import PropertyType, encode


def message(payload: bytes, values: dict[str, object] | None = None, types: dict[str, PropertyType] | None = None,
            uri: str = "bmq://d.~t/q?id=a") -> Message:
    """Return a delivered message."""
    queue: Any = SimpleNamespace(uri=uri, codec=None)
    area = encode(typed(values, types), True) if values else b""
    return Message(queue, None, b"\x40" + bytes(15), area + payload, 2 if area else 0, 1 << 3 if area else 0)


def test_property_options_have_the_given_types() -> None:
    """The default type is string; a value may contain the separators."""
    found = parse_properties(("a=b=c:d", "n:int32=-5", "h:INT64=0x10", "c:char=-1", "t:bool=True", "f:bool=0",
                              "b:binary=00FF", "e="))
    assert found.values == {"a": "b=c:d", "n": -5, "h": 16, "c": -1, "t": True, "f": False, "b": b"\0\xff", "e": ""}
    assert {name: kind.name for name, kind in found.types.items()} == {
        "a": "STRING", "n": "INT32", "h": "INT64", "c": "CHAR", "t": "BOOL", "f": "BOOL", "b": "BINARY", "e": "STRING"}


@pytest.mark.parametrize(("text", "reason"), [
    ("a", "name=value"), ("=x", "name=value"), ("a:float=1", "'float' is not a property type"),
    ("a:int32=x", "not an integer"),
    ("a:bool=maybe", "true or false"), ("a:binary=0", "hexadecimal"), ("a:short=70000", "SHORT"),
    ("x" * 5000 + "=x", "name"),
    ("a:int64=9223372036854775808", "INT64"),
])
def test_an_invalid_property_option_is_refused(text: str, reason: str) -> None:
    """The error is raised before the first post."""
    with pytest.raises(LocalError, match=reason):
        parse_properties((text,))


@pytest.mark.parametrize(("line", "reason"), [
    (b"nonsense", "not JSON"), (b"[]", "an object is expected"), (b"{}", "exactly one of"),
    (b'{"payload": "x", "payloadBase64": "eA=="}', "exactly one of"), (b'{"payloadBase64": "?"}', "not base64"),
    (b'{"payloadBase64": 5}', "not base64"), (b'{"payload": "x", "properties": []}', "is not an object"),
    (b'{"payload": "x", "properties": {"n": 1.5}}', 'property "n"'),
    (b'{"payload": "x", "properties": {"n": null}}', 'property "n"'),
    (b'{"payload": "x", "properties": {"n": {"type": "CHAR", "value": 300}}}', "300"),
    (b'{"payload": "x", "properties": {"n": {"type": "INT32", "value": "5"}}}', "is not of type INT32"),
    (b'{"payload": "x", "properties": {"n": {"type": "BOOL", "value": 1}}}', "is not of type BOOL"),
    (b'{"payload": "x", "properties": {"n": {"type": "INT32", "value": true}}}', "is not of type INT32"),
    (b'{"payload": "x", "properties": {"n": {"value": 1}}}', "is not a property type"),
    (b'{"payload": "x", "properties": {"n": {"type": "BINARY", "valueBase64": "!"}}}', "n.valueBase64"),
    (b'{"payload": "x", "properties": {"n": 9223372036854775808}}', "INT64"), (b"\xff", "not JSON"),
])
def test_an_invalid_json_line_is_reported_with_line_number_and_reason(line: bytes, reason: str) -> None:
    """All errors are BadInput."""
    with pytest.raises(BadInput, match=reason) as failed:
        parse_json_line(line, Properties(), "line 7")
    assert str(failed.value).startswith("line 7: ")


@given(st.binary(min_size=1), st.dictionaries(st.from_regex(r"[a-zA-Z][a-zA-Z0-9]{0,9}", fullmatch=True), st.one_of(
    st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=9),
    st.binary(max_size=9).map(lambda raw: raw.decode("utf-8", "surrogateescape"))), max_size=5))
def test_a_message_printed_as_json_is_parsed_to_the_same_message(payload: bytes, values: dict[str, object]) -> None:
    """For arbitrary payloads and properties."""
    original = message(payload, values)
    line = compile_template("{json}\\n", print)(original)
    assert line is not None
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    post = parse_json_line(line, Properties(), "line 1")
    assert post.payload == payload and post.properties.values == original.properties
    assert post.properties.types == original.property_types


def test_properties_of_a_json_line_override_those_of_the_command_line() -> None:
    """Both value and type of the line are used."""
    base = parse_properties(("a:int32=1", "b:int32=2"))
    post = parse_json_line(b'{"payload": "x", "properties": {"a": "one"}}', base, "line 1")
    assert post.properties.values == {"a": "one", "b": 2} and post.properties.types == {"b": PropertyType.INT32}


def test_unknown_escapes_are_refused() -> None:
    """Escapes of control characters, of any byte, and of the backslash."""
    assert unescape("a\\n\\t\\r\\0\\\\\\xFFü") == b"a\n\t\r\0\\\xff\xc3\xbc"
    for text in ("\\", "\\y", "\\x", "\\xg0", "\\x1"):
        with pytest.raises(LocalError, match="is not an escape"):
            unescape(text)


def test_control_characters_of_messages_do_not_reach_a_terminal() -> None:
    """They could change its title, its clipboard or what it shows."""
    hostile = message("a\x1b]0;owned\x07\x9b2J\x7f\u202e\n\tü".encode() + b"\xff", {"p": "\x1b[2J"})
    shown = compile_template("\x1b[1m{payload}|{p.p}|{json}", print, to_terminal=True)(hostile)
    assert shown is not None
    assert shown.startswith(b"\x1b[1ma\\x1b]0;owned\\x07\\x9b2J\\x7f\\u202e\n\t\xc3\xbc\\xff|\\x1b[2J|{")
    assert shown.count(b"\x1b") == 1, "that of the template"
    assert b"\x1b]0;" in (compile_template("{payload}", print)(hostile) or b"")


def test_a_template_prints_every_field() -> None:
    """Fields without a value are empty."""
    full = message(b"\xff", {"s": "t", "b": b"\1", "o": False, "n": 7})
    print_all = compile_template("|".join(f"{{{name}}}" for name in FIELD_NAMES), print)
    fields = dict(zip(FIELD_NAMES, print_all(full).split(b"|"), strict=True))
    assert fields["payload"] == b"\xff" and fields["hex"] == b"ff" and fields["base64"] == b"/w=="
    assert (fields["domain"], fields["queue"], fields["app"]) == (b"d.~t", b"q", b"a")
    assert fields["guid"] == b"40" + b"0" * 30 and fields["size"] == b"1" and fields["time"] == b""
    assert compile_template("{p.s}{p.b}{p.o}{p.n}{p.none}\\n", print)(full) == b"t\1false7\n"
    assert print_all(message(b"x", uri="bmq://d/q")).startswith(b"x|")
    for wrong in ("{}", "{p.}", "{payload!r}", "{size:>5}", "{nope}", "{", "}"):
        with pytest.raises(LocalError):
            compile_template(wrong, print)


def test_an_unreadable_message_is_reported_and_not_printed() -> None:
    """The message is reported by its GUID, for each template."""
    broken = Message(message(b"x").queue, None, bytes(16), b"\0\0", 2, 0)
    reported: list[str] = []
    assert compile_template("{json}", reported.append)(broken) is None and "cannot be read" in reported[0]
    assert "payload" in message_tree(message(b"x"))


@given(st.lists(st.binary(max_size=5), max_size=6), st.sampled_from([b"\n", b"ab", b"\0"]))
def test_input_is_split_at_delimiters_independent_of_its_chunks(chunks: list[bytes], delimiter: bytes) -> None:
    """Chunks may end within a delimiter, which may have several bytes."""
    async def pieces(parts: list[bytes]) -> list[tuple[int, bytes]]:
        async def source() -> AsyncIterator[bytes]:
            for part in parts:
                yield part
        return [piece async for piece in split_stream(source(), delimiter)]

    whole = b"".join(chunks)
    found = asyncio.run(pieces(chunks))
    assert found == asyncio.run(pieces([whole]))
    wanted = whole.split(delimiter)
    assert [piece for _, piece in found] == (wanted if wanted[-1] else wanted[:-1])


def test_percentiles_are_accurate_to_one_percent() -> None:
    """The maximum is exact."""
    rng = random.Random(7)
    numbers = [int(rng.lognormvariate(14, 2)) + 1 for _ in range(5000)]
    histogram = Latencies("ack")
    for number in numbers:
        histogram.add(number)
    numbers.sort()
    for share in (0.5, 0.99, 0.999):
        exact = numbers[int(share * 5000) - 1]
        assert exact * 0.99 <= histogram.percentile(100 * share) <= exact * 1.02
    assert histogram.longest == numbers[-1] and histogram.figures_ms()["max"] == round(numbers[-1] / 1e6, 3)
    assert Latencies("ack").figures_ms() == {"p50": 0, "p99": 0, "p99.9": 0, "max": 0}


@pytest.mark.parametrize(("answer", "error"), [
    ("SUCCESS", False), ("", False), ("Quorum = 1", False), ("Quorum set to 1 from 0", False), ("No queue purged.", False),
    ("a table\nof lines", False), ('{"error":{"message":"no"}}', True), ('{"a":[{"error":{}}]}', True), ('{"a":1}', False),
    ("Domain 'x' doesn't exist", True), ("cluster 'x' not found !", True), ("Unable to decode command (rc: -1)", True),
    ("Purged 0 message(s):\n   NumBytes\nErrors encountered: \nSpecified appId", True),
])
def test_error_answers_of_a_broker_are_recognized(answer: str, error: bool) -> None:
    """The result determines the exit code of `bmq admin`."""
    assert is_error(answer) is error


def test_error_answers_in_a_recorded_session_of_the_original_are_recognized() -> None:
    """For every answer of a recorded session."""
    session = json.loads((Path(__file__).parent.parent.parent / "vectors" / "admin" / "session.json").read_text())
    errors = [each["command"] for each in session if is_error(each["answer"])]
    assert len(session) > 50 and errors == [
        "BOGUS", "ENCODING INCORRECT HELP", "DOMAINS DOMAIN t.prio QUEUE adm LIST zz 0 1",
        "DOMAINS DOMAIN t.fan QUEUE adm LIST nope 0 10", "DOMAINS DOMAIN t.nosuch INFOS",
        "DOMAINS DOMAIN t.prio QUEUE nosuch INTERNALS", "DOMAINS DOMAIN t.prio QUEUE nosuch PURGE *",
        "DOMAINS DOMAIN t.fan QUEUE adm PURGE nope", "DOMAINS DOMAIN t.fan QUEUE adm PURGE", "DOMAINS RECONFIGURE t.nosuch",
        "CLUSTERS CLUSTER zz STATUS", "CLUSTERS CLUSTER c3 STORAGE PARTITION 9 SUMMARY",
        "CLUSTERS CLUSTER c3 STORAGE PARTITION -2 SUMMARY", "CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM -1",
        "CLUSTERS CLUSTER c3 STORAGE REPLICATION SET ZZ 1", "DOMAINS REMOVE t.maxq FINALIZE", "DOMAINS REMOVE t.nosuch",
        "ENCODING JSON_COMPACT STAT GET ZZ", ""]
