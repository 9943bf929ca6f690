"""Pure parts of `bmq shell`: parser, commands, output texts, statistics, settings."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.cli.latencies import Latencies, pretty_time
from bmqtwist.cli.shell import commands, printing
from bmqtwist.cli.shell.commands import (
    LINE_CHARS_MAX,
    Flags,
    Property,
    ShellCommandError,
    UnparsableCommand,
    parse,
    parse_dump,
    parse_flags,
    read_subscription,
    select_guids,
    split_line,
)
from bmqtwist.cli.shell.log_output import RecordFormat
from bmqtwist.cli.shell.message_series import SeriesContent, SeriesParameters
from bmqtwist.cli.shell.printing import command_text, name_and_code, outcome_text, payload_excerpt
from bmqtwist.cli.shell.settings import ShellSettings, read_list, read_profile
from bmqtwist.cli.shell.throughput import Throughput, format_header
from bmqtwist.errors import LocalError
from bmqtwist.queue.describe import message_dump
from bmqtwist.sdk.results import EventKind, Result, SessionEvent
from bmqtwist.wire import properties
from bmqtwist.wire.properties import PropertyType

URI = "bmq://d/q"


# -- lines -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("line", "members"), [
    ("v", {}),
    ("  v  ", {}),
    ('v a="x"', {"a": "x"}),
    ('v a = "x" b= "y" c ="z"', {"a": "x", "b": "y", "c": "z"}),
    ('v a "x" b [1]', {"a": "x", "b": [1]}),
    ('v "a"="x"', {"a": "x"}),
    ('v a="x = y [z] \\" {" b=1', {"a": 'x = y [z] " {', "b": 1}),
    ('v a=["p=1", "[q]"] b={"c": [{"d": "}"}]}', {"a": ["p=1", "[q]"], "b": {"c": [{"d": "}"}]}}),
    ("v a=true b=false c=null d=-5 e=1.5", {"a": True, "b": False, "c": None, "d": -5, "e": 1.5}),
    ("v uri=bmq://d/q?id=foo b=1", {"uri": "bmq://d/q?id=foo", "b": 1}),
    ('v a="tab\tin"', {"a": "tab\tin"}),
    ("v a=NaN b=-Infinity", {"a": "NaN", "b": "-Infinity"}),
])
def test_a_line_is_parsed_into_verb_and_members(line: str, members: dict[str, object]) -> None:
    assert split_line(line) == ("v", members)


@pytest.mark.parametrize(("line", "words"), [
    ("", "begins with a command"), ("=", "begins with a command"),
    ("v a", "'a' has no value"), ("v a=", "'a' has no value"), ("v a b=1", "'a' has no value"),
    ('v a="x', "character 5: Unterminated string"), ('v a=["x"', "delimiter"), ("v a={x}", "property name"),
    ('v a="x"b="y"', "character 8: a blank is missing"), ('v a="x", b="y"', "a blank is missing"),
    ('v a=1 a=2', "'a' is given twice"), ('v ]="x"', "a name is expected"), ("v ,", "a name is expected"),
    ("v a=" + "[" * 100_000, "character 5"),
])
def test_the_error_of_a_malformed_line_has_its_position(line: str, words: str) -> None:
    with pytest.raises(UnparsableCommand, match=words.replace("[", "\\[")):
        split_line(line)


def test_a_line_above_the_length_limit_is_refused() -> None:
    with pytest.raises(UnparsableCommand, match="more than"):
        split_line("x" * (LINE_CHARS_MAX + 1))


_values = st.recursive(st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
                       lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
_names = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,9}", fullmatch=True)


@given(st.dictionaries(_names, _values, max_size=5), st.sampled_from(["=", " = ", " =", "= "]))
def test_members_written_as_json_are_parsed_to_the_same_values(members: dict[str, object], equals: str) -> None:
    line = " ".join(["verb", *(f"{name}{equals}{json.dumps(value)}" for name, value in members.items())])
    assert split_line(line) == ("verb", members)


_MEMBERS = st.sampled_from(["uri", "flags", "payload", "guid", "async", "subscriptions", "messageProperties", "msgSize",
                            "eventsCount", "postInterval", "file", "messages", "timeout", "max-unconfirmed-bytes"])


def _parse_or_refuse(line: str) -> None:
    try:
        command = parse(line)
    except ShellCommandError as error:
        assert str(error)
    else:
        if command is not None:
            command_text(command[1])


@given(st.text(max_size=200))
def test_any_line_is_a_command_or_a_command_error(line: str) -> None:
    _parse_or_refuse(line)


@given(st.sampled_from(commands.VERBS), st.text(alphabet='"[]{}=,:\\ abé0-9+*/\ud800', max_size=80))
def test_any_text_after_a_verb_is_a_command_or_a_command_error(verb: str, rest: str) -> None:
    _parse_or_refuse(f"{verb} {rest}")


@given(st.sampled_from(commands.VERBS), st.dictionaries(_MEMBERS, _values | st.just(URI) | st.just("read,ack"), max_size=5))
def test_any_member_value_is_a_command_or_a_command_error(verb: str, members: dict[str, object]) -> None:
    _parse_or_refuse(" ".join([verb, *(f"{name}={json.dumps(value)}" for name, value in members.items())]))


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    for number in ("9" * 5000, "[" + "9" * 5000 + "]", "1e999"):
        with pytest.raises(ShellCommandError):
            parse(f'open uri="{URI}" flags="read" consumerPriority={number}')


# -- commands ----------------------------------------------------------------------------------------------------------

READING = {"maxUnconfirmedMessages": 1024, "maxUnconfirmedBytes": 33554432, "consumerPriority": 0, "subscriptions": ()}


def test_commands_have_the_defaults_of_the_original() -> None:
    assert parse(f'open uri="{URI}" flags="READ,ack"') == (
        "open", {"uri": URI, "flags": "READ,ack", "async": False, **READING})
    assert parse(f'batch-post uri="{URI}"') == (
        "batch-post", {"uri": URI, "payload": (), "msgSize": 1024, "eventSize": 1, "eventsCount": 0, "postInterval": 1000,
                       "postRate": 1, "autoIncremented": ""})
    assert parse("list") == ("list", {"uri": None})
    assert parse("start async=true") == ("start", {"async": True})
    assert parse("") is parse("   ") is parse("# open") is None
    for verb in ("bye", "quit", "q", "exit"):
        assert parse(verb) == ("bye", {})


def test_members_are_parsed_with_their_types() -> None:
    command = parse(f'post uri="{URI}" payload=["a","b"] compressionAlgorithmType="ZLIB" '
                    'messageProperties=[{"name":"x","value":"10","type":"E_INT"},{"name":"s","value":"t"}]')
    assert command == ("post", {"uri": URI, "payload": ("a", "b"), "async": False, "compressionAlgorithmType": "ZLIB",
                                "messageProperties": (Property("x", 10, PropertyType.INT32),
                                                      Property("s", "t", PropertyType.STRING))})
    command = parse(f'open uri="{URI}" flags="read" max-unconfirmed-messages=5 subscriptions='
                    '[{"expression": "x > 0", "correlationId": 7, "consumerPriority": 2}]')
    assert command == ("open", {"uri": URI, "flags": "read", "async": False, **READING, "maxUnconfirmedMessages": 5,
                                "subscriptions": ({"correlationId": 7, "expression": "x > 0", "maxUnconfirmedMessages": None,
                                                   "maxUnconfirmedBytes": None, "consumerPriority": 2},)})
    assert _members(f'post uri="{URI}" payload="one"')["payload"] == ("one",)
    assert _members(f'batch-post uri="{URI}" postInterval=1.0')["postInterval"] == 1
    assert _members(f'confirm uri="{URI}" guid="+2"') == {"uri": URI, "guid": "+2"}


def _members(line: str) -> dict[str, Any]:
    command = parse(line)
    assert command is not None
    return command[1]


@pytest.mark.parametrize(("value", "kind", "expected"), [
    ('"true"', "E_BOOL", True), ("false", "E_BOOL", False), ('"-128"', "E_CHAR", -128), ("32767", "E_SHORT", 32767),
    ('"9223372036854775807"', "E_INT64", 2 ** 63 - 1), ('"é"', "E_BINARY", "é".encode()), ("5", "E_STRING", "5"),
])
def test_message_properties_of_every_type_are_parsed(value: str, kind: str, expected: object) -> None:
    (found,) = _members(f'post uri="{URI}" payload="p" messageProperties=[{{"name":"x","value":{value},"type":"{kind}"}}]'
                        )["messageProperties"]
    assert found.value == expected
    properties.encode({"x": (found.kind, found.value)}, True)


@pytest.mark.parametrize(("line", "words"), [
    ("opne", "Unknown command: opne, did you mean 'open'"), ("zzz", "Unknown command: zzz, see 'help'"),
    ("journal n=1", "`bmq storage`"), ("openStorage path=x", "`bmq storage`"), ("d next", "`bmq storage`"),
    ("open", "'uri' is mandatory"), ("post payload=[]", "'uri' is mandatory"),
    (f"load-post uri={URI}", "'file' is mandatory"),
    (f"confirm uri={URI}", "'guid' is mandatory"), (f"post uri={URI}", "'payload' is mandatory"),
    ('open uri="x" flags="read"', "The uri ('x') is not valid: Invalid scheme"),
    (f'open uri="{URI}" flags="read,foo,bar"', "Invalid flag(s) 'foo','bar'"),
    (f"open uri={URI} flags=read nonsense=1", "unknown name 'nonsense': the names are uri, flags"),
    ("help me=1", "the command has no members"),
    (f"close uri={URI} async=1", "async: true or false is expected"),
    (f"close uri={URI} async=\"true\"", "async: true or false is expected"),
    (f"batch-post uri={URI} msgSize=-1", "msgSize: a number from 0"),
    (f"batch-post uri={URI} msgSize=x", "msgSize: a whole number"),
    (f"batch-post uri={URI} msgSize=1.5", "msgSize: a whole number"),
    (f"open uri={URI} flags=read consumerPriority=99999999999", "consumerPriority: a number from"),
    (f"post uri={URI} payload=[1]", "payload: text in quotes"),
    (f'post uri={URI} payload="\\ud800"', "payload: half a surrogate pair"),
    (f'post uri={URI} payload="p" messageProperties=[1]', "a list of objects"),
    (f'post uri={URI} payload="p" messageProperties=[{{"value": "1"}}]', "needs a name"),
    (f'post uri={URI} payload="p" messageProperties=[{{"name": "x"}}]', "'x' needs a value"),
    (f'post uri={URI} payload="p" messageProperties=[{{"name":"x","value":"1","type":"INT"}}]', "the types are E_STRING"),
    (f'post uri={URI} payload="p" messageProperties=[{{"name":"x","value":"y","type":"E_INT"}}]', "a whole number"),
    (f'post uri={URI} payload="p" messageProperties=[{{"name":"x","value":"2147483648","type":"E_INT"}}]', "a number from"),
])
def test_the_error_of_an_invalid_command_names_its_cause(line: str, words: str) -> None:
    with pytest.raises(ShellCommandError) as caught:
        parse(line)
    assert words in str(caught.value)


def test_flags_are_case_insensitive() -> None:
    assert parse_flags("READ, write,Ack") == Flags(True, True, True)
    assert not parse_flags("").any and not parse_flags("ack").any


def test_guids_are_selected_with_the_syntax_of_the_original() -> None:
    known = [bytes([number]) * 16 for number in range(1, 6)]
    assert select_guids("*", known) == known
    assert select_guids("+2", known) == known[:2]
    assert select_guids("-2", known) == known[3:]
    assert select_guids("+9", known) == select_guids("-9", known) == known
    assert select_guids("+0", known) == select_guids("-0", known) == []
    assert select_guids("03" * 16, known) == [known[2]]
    for guid, words in (("AB" * 16, "NOT found"), ("x", "not a valid GUID"), ("+", "not a valid"), ("-1x", "not a valid")):
        with pytest.raises(ShellCommandError, match=words):
            select_guids(guid, known)


# -- texts -------------------------------------------------------------------------------------------------------------

def test_results_have_the_codes_of_the_original_for_each_request() -> None:
    assert outcome_text(Result.SUCCESS) == "SUCCESS (0)"
    assert name_and_code(Result.REFUSED, "open") == ("REFUSED", -6)
    assert name_and_code(Result.ALREADY_IN_PROGRESS, "open") == ("ALREADY_IN_PROGRESS", 101)
    assert name_and_code(Result.ALREADY_IN_PROGRESS, "configure") == ("ALREADY_IN_PROGRESS", 100)
    assert name_and_code(Result.INVALID_QUEUE, "close") == ("UNKNOWN_QUEUE", -100)
    assert name_and_code("INVALID_FLAGS", "open") == ("INVALID_FLAGS", -101)
    assert name_and_code("QUEUE_READONLY", "pack") == ("QUEUE_READONLY", -101)
    assert all(isinstance(name_and_code(result)[1], int) for result in Result)


def test_commands_and_events_are_printed_in_brackets() -> None:
    command = _members(f'post uri="{URI}" payload=["a"] messageProperties=[{{"name":"x","value":"1","type":"E_INT"}}]')
    assert command_text(command) == (
        f'[ uri = "{URI}" payload = [ "a" ] async = false compressionAlgorithmType = "none" messageProperties = '
        '[ [ name = "x" value = "1" type = E_INT ] ] ]')
    assert command_text(_members("list")) == "[ uri = NULL ]"
    assert printing.session_event_text(SessionEvent(EventKind.CONNECTION_LOST, message="gone")) == (
        '[ type = "SESSION" sessionEventType = CONNECTION_LOST statusCode = 0 result = SUCCESS correlationId = '
        '[ * unset * ] errorDescription = "gone" ]')
    assert printing.message_event_text("PUSH", [URI, URI]) == f'[ type = "MESSAGE" rawEventType = PUSH queue = {URI} ]'


def test_an_excerpt_of_a_payload_has_no_control_characters() -> None:
    assert payload_excerpt(b"\x1b[2J\n\xff" + b"x" * 100) == ".[2J.\ufffd" + "x" * 26


def _record(message: str) -> logging.LogRecord:
    record = logging.LogRecord("BMQ.SHELL", logging.WARNING, "/a/file.py", 12, "%s", (message,), None)
    record.created, record.thread, record.process = 1795254397.1234565, 255, 7
    return record


def test_log_formats_equal_those_of_the_original() -> None:
    assert RecordFormat("%d (%t) %s %F:%l %m\\n").format(_record("hello")) == (
        "21NOV2026_09:46:37.123 (255) WARN file.py:12 hello\n")
    assert RecordFormat("%D %i %I %O %p %T %c %f %u%%\n\\\\").format(_record("")) == (
        "21NOV2026_09:46:37.123456 2026-11-21T09:46:37+00:00 2026-11-21T09:46:37.123+00:00 "
        "2026-11-21T09:46:37.123456+00:00 7 FF BMQ.SHELL /a/file.py %\n\\")
    assert RecordFormat("%m").format(_record("a\x1b[2J\nb%d")) == "a\\x1b[2J\nb%d"


# -- figures -----------------------------------------------------------------------------------------------------------

def test_latencies_have_three_digits_and_percentiles() -> None:
    latencies = Latencies("ack")
    for value in range(1, 101):
        latencies.add(value * 1_000_000 + 999)
    latencies.add(-5)
    assert (latencies.count, latencies.minimum, latencies.maximum) == (100, 1_000_000, 100_000_000)
    assert (latencies.percentile(50), latencies.percentile(99), latencies.percentile(100)) == (
        50_000_000, 99_000_000, 100_000_000)
    assert latencies.average == 50_500_000


@given(st.lists(st.integers(0, 10 ** 13), min_size=1))
def test_a_latency_report_is_consistent(values: list[int]) -> None:
    latencies = Latencies("end2end")
    for value in values:
        latencies.add(value)
    report = json.loads(json.dumps(latencies.report_tree()))
    assert list(report) == ["origin", "min", "max", "avg", "median", "95percentile", "96percentile", "97percentile",
                            "98percentile", "99percentile", "dataPoints"]
    points = {int(latency): times for latency, times in report["dataPoints"].items()}
    assert sum(points.values()) == len(values)
    assert report["min"] == min(points) <= report["median"] <= report["95percentile"] <= report["99percentile"]
    assert report["99percentile"] <= report["max"] == max(points)
    assert report["min"] <= report["avg"] <= report["max"]
    assert max(values) * 0.99 - 1 <= report["max"] <= max(values)


def test_a_report_without_latencies_has_zeros() -> None:
    report = Latencies("ack").report_tree()
    assert (report["min"], report["max"], report["avg"], report["median"], report["dataPoints"]) == (0, 0, 0, 0, {})


def test_durations_are_printed_in_the_largest_unit_that_fits() -> None:
    assert [pretty_time(10 ** power) for power in (0, 3, 6, 9, 12, 15, 18)] == [
        "1 ns", "1.00 us", "1.00 ms", "1.00 s", "16.67 m", "1.65 w", "1653.44 w"]


def test_interval_figures_cover_only_the_messages_of_the_interval() -> None:
    figures = Throughput("consumed", True)
    assert len({line.index("||Latency") for line in format_header(True).splitlines()[:1]}) == 1
    for _ in range(2000):
        figures.add_message(512)
    figures.add_event(1_100_000)
    figures.add_latency(1_000)
    figures.add_latency(3_000)
    row = figures.format_row(2.0)
    assert [part.strip() for part in row.replace("||", "|").split("|")] == [
        "consumed", "1,000", "2,000", "500.00 KB", "0", "1", "537.11 KB", "1.00 us <        2.00 us <        3.00 us"]
    assert "|             0 |             0 |" in figures.format_row(1.0)
    assert figures.final_line() == ("Final stats: consumed 2,000 messages [1000.00 KB] in 1 events [1.05 MB] "
                               "(Protocol: 6.909%) ~ latency { 1.00 us < 3.00 us }")


# -- what is posted ----------------------------------------------------------------------------------------------------

def test_payloads_of_a_series_have_the_configured_form() -> None:
    assert SeriesContent(SeriesParameters(msg_size=30)).payload(0, 0) == b"ABCDEFGHIJKLMNOPQRSTUVWXYZABCD"
    assert SeriesContent(SeriesParameters(msg_size=10, latency="epoch")).payload(0, 258) == b"\0\0\0\0\0\0\1\2AB"
    assert SeriesContent(SeriesParameters(pattern="msg")).payload(41, 0) == b"msg000000041"
    content = SeriesContent(SeriesParameters(payloads=(b"a", b"b")))
    assert [content.payload(number, 0) for number in range(3)] == [b"a", b"b", b"a"]


def test_properties_of_a_series_are_incremented() -> None:
    content = SeriesContent(SeriesParameters(properties=(Property("x", 1, PropertyType.INT32),), auto_incremented="n",
                                             pub_sub_modulo=3))
    values, types = content.properties(7)
    assert values == {"x": 1, "n": 7, "AUTO_PUBSUB_PROPERTY": 1}
    assert types == {"x": PropertyType.INT32, "n": PropertyType.INT64, "AUTO_PUBSUB_PROPERTY": PropertyType.INT64}
    for plan in (SeriesParameters(post_rate=0), SeriesParameters(event_size=0), SeriesParameters(msg_size=0),
                 SeriesParameters(payloads=(b"a", b""))):
        with pytest.raises(LocalError):
            plan.check()


def test_a_dump_file_is_parsed_to_its_message() -> None:
    area = properties.encode({"x": (PropertyType.INT32, 10), "b": (PropertyType.BINARY, bytes(range(50)))}, True)
    payload = bytes(range(256))
    found, values = parse_dump(message_dump(area + payload, True, 0, 1))
    assert found == payload
    assert values == {"x": (PropertyType.INT32, 10), "b": (PropertyType.BINARY, bytes(range(50)))}
    assert parse_dump(message_dump(b"hello world!", False, 0, 0)) == (b"hello world!", {})


@pytest.mark.parametrize(("text", "words"), [
    ("", "a dump begins with"), ("hello", "a dump begins with"), ("Message Properties:\n\n[ ]\n", "hexdump:' is missing"),
    ("Application Data:\n\nfoo\n", "line 3: not a line of a hexdump"),
    ("Application Data:\n\n     0:   6865G C6   |x|\n", "not a line"),
    ("Application Data:\n\n  0: 68656C6C6F |h|\n", "not a line"),
    ("Application Data:\n\n     0:   68   |h|\n(5 more bytes)\n", "only a part"),
    ("Message Properties:\n\n[ ]\n\n\nMessage Properties hexdump:\n\n  0: 1B00 |..|\n\nMessage Payload:\n\n",
     "cannot be read"),
])
def test_a_file_that_is_not_a_dump_is_refused(text: str, words: str) -> None:
    with pytest.raises(ShellCommandError, match=words):
        parse_dump(text)


@given(st.text() | st.text().map("Application Data:\n\n".__add__))
def test_any_dump_text_is_a_message_or_a_command_error(text: str) -> None:
    try:
        parse_dump(text)
    except ShellCommandError:
        pass


# -- settings ----------------------------------------------------------------------------------------------------------

AUTO = ShellSettings(mode="auto", queue_uri=URI, queue_flags="read,write")


def _settings_with(**changes: object) -> ShellSettings:
    from dataclasses import replace

    return replace(AUTO, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "words"), [
    ({"mode": "x"}, "use one of cli, auto"), ({"latency": "x"}, "latency 'x'"), ({"verbosity": "x"}, "verbosity 'x'"),
    ({"mode": "storage"}, "`bmq storage`"), ({"storage": "x"}, "`bmq storage`"),
    ({"queue_uri": ""}, "--queueuri"), ({"queue_uri": "x"}, "queueuri 'x'"), ({"queue_flags": "ack"}, "--queueflags"),
    ({"queue_flags": "x"}, "Invalid flag"), ({"msg_size": -1}, "msgSize -1"), ({"msg_size": 0}, "at least 1"),
    ({"msg_size": 7, "latency": "epoch"}, "at least 8 with --latency"), ({"latency_report": "x"}, "needs --latency"),
    ({"latency": "epoch", "sequential_message_pattern": "m"}, "leaves no room"), ({"timeout_sec": 0}, "at least one second"),
    ({"max_unconfirmed": "5"}, "messages:bytes"), ({"events_count": "5m"}, "as in 30s"),
    ({"post_rate": 0}, "nothing is posted"), ({"event_size": 0}, "nothing is posted"),
    ({"no_session_event_handler": True}, "for mode cli"), ({"subscriptions": ({"expression": "x >"},)}, "x >"),
    ({"msg_size": 1 << 40}, "use 0 to"), ({"auto_pub_sub_modulo": 5000}, "use 0 to"),
])
def test_invalid_settings_are_refused_with_the_cause(changes: dict[str, object], words: str) -> None:
    _settings_with().check()
    with pytest.raises(LocalError) as caught:
        _settings_with(**changes).check()
    assert words in str(caught.value)


def test_an_events_count_with_a_time_unit_is_converted_to_events() -> None:
    assert _settings_with(events_count="30").count == (30, 0.0)
    assert _settings_with(events_count="3s", post_interval=10, post_rate=2).count == (600, 0.0)
    assert _settings_with(events_count="3S", post_interval=0).count == (0, 3.0)
    assert _settings_with(max_unconfirmed=" 5 : 10 ").unconfirmed == (5, 10)


def test_a_profile_is_unchanged_by_reading_and_writing() -> None:
    text = json.dumps({"mode": "auto", "queueUri": URI, "eventsCount": 5, "dumpMsg": True, "unknown": 1, "log": None,
                       "messageProperties": [{"name": "x", "value": "1", "type": "E_INT"}],
                       "subscriptions": [{"expression": "x > 0", "correlationId": 4}]})
    settings = read_profile(text, ShellSettings())
    assert (settings.mode, settings.queue_uri, settings.events_count, settings.dump_msg) == ("auto", URI, "5", True)
    assert settings.message_properties == (Property("x", 1, PropertyType.INT32),)
    assert settings.subscriptions == (read_subscription({"correlationId": 4, "expression": "x > 0"}),)
    assert read_profile(json.dumps(settings.profile()), ShellSettings()) == settings
    for wrong in ("x", "[]", '{"mode": 5.5}', '{"dumpMsg": "yes"}', '{"messageProperties": 5}', '{"msgSize": true}'):
        with pytest.raises(LocalError):
            read_profile(wrong, ShellSettings())


@given(st.text(max_size=50) | _values.map(json.dumps))
def test_any_profile_text_is_valid_or_a_local_error(text: str) -> None:
    for read in (lambda: read_profile(text, ShellSettings()).check(), lambda: read_list("messageProperties", text),
                 lambda: read_list("subscriptions", text)):
        try:
            read()
        except LocalError:
            pass


@given(st.dictionaries(st.sampled_from(sorted(ShellSettings().profile())), _values))
def test_any_profile_member_is_valid_or_a_local_error(tree: dict[str, object]) -> None:
    try:
        read_profile(json.dumps(tree), ShellSettings()).check()
    except LocalError:
        pass


def test_each_automatic_subscription_selects_one_remainder() -> None:
    options = _settings_with(auto_pub_sub_modulo=3, max_unconfirmed="5:1000").queue_options()
    assert [(each.expression, each.max_unconfirmed_messages) for each in options.subscriptions] == [
        (f"AUTO_PUBSUB_PROPERTY == {number}", 5) for number in range(3)]
