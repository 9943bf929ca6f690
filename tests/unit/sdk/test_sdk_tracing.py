"""Tracing: trace contexts in message properties; and the Prometheus collector."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count

import pytest
from kit import data_events as events
from kit.sdk_kit import FANOUT, Bench
from opentelemetry import trace as opentelemetry
from prometheus_client import CollectorRegistry, generate_latest

from bmqtwist.errors import LocalError
from bmqtwist.sdk import SessionOptions, tracing
from bmqtwist.sdk.prometheus import Collector
from bmqtwist.sdk.tracing import TraceContext
from bmqtwist.wire import properties
from bmqtwist.wire.application_data import unpack_data
from bmqtwist.wire.fast import sub_queue_ids

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), 1, "congo=t61rcWkgMzE")


def random_source(numbers: Iterator[int]) -> tracing.RandomBytes:
    return lambda size: bytes(size - 1) + bytes([next(numbers)])


def test_a_traceparent_is_parsed_and_formatted() -> None:
    assert tracing.parse(PARENT, "congo=t61rcWkgMzE") == CONTEXT
    assert CONTEXT.traceparent == PARENT and CONTEXT.sampled
    assert tracing.parse(PARENT[:-1] + "0") == TraceContext(CONTEXT.trace_id, CONTEXT.span_id, 0)


@pytest.mark.parametrize("text", [
    "", "00", PARENT.upper(), PARENT + "-more", PARENT + " ", " " + PARENT, PARENT[:-1], "ff" + PARENT[2:],
    f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[:-1]}g-{SPAN}-01", f"00_{TRACE}-{SPAN}-01",
    f"0-{TRACE}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01more", PARENT + "\n"])
def test_a_malformed_traceparent_is_ignored(text: str) -> None:
    assert tracing.parse(text, "a=1") is None


@pytest.mark.parametrize("text", [f"01-{TRACE}-{SPAN}-01", f"fe-{TRACE}-{SPAN}-01-what-ever", f"cc-{TRACE}-{SPAN}-09-"])
def test_a_traceparent_of_a_later_version_is_forwarded_as_version_0(text: str) -> None:
    found = tracing.parse(text)
    assert found is not None and found.traceparent == PARENT


def test_unknown_trace_flags_are_not_forwarded() -> None:
    found = tracing.parse(f"00-{TRACE}-{SPAN}-ff")
    assert found is not None and found.traceparent == f"00-{TRACE}-{SPAN}-03"


@pytest.mark.parametrize(("text", "plain"), [
    ("", ""), ("a=1", "a=1"), (" a=1 ,\tb=2 , ,", "a=1,b=2"), ("0t@sys=x y", "0t@sys=x y"), ("a/b-c_d*e=!~", "a/b-c_d*e=!~"),
    ("a=1,a=2", ""), ("A=1", ""), ("1a=1", ""), ("a=", ""), ("a", ""), ("a=1=2", ""), ("a=\t", ""), ("a=ä", ""),
    ("t@1s=x", ""), ("a" * 257 + "=1", ""), ("a=" + "x" * 257, ""), ("a=" + "x" * 256, "a=" + "x" * 256),
    (",".join(f"k{n}=1" for n in range(33)), ""), (",".join(f"k{n}=1" for n in range(32)),
                                                   ",".join(f"k{n}=1" for n in range(32)))])
def test_an_invalid_tracestate_is_dropped(text: str, plain: str) -> None:
    assert tracing.parse_state(text) == plain


def test_a_long_tracestate_loses_long_members_first_then_the_last_ones() -> None:
    short = [f"k{n}={'x' * 100}" for n in range(6)]
    assert tracing.parse_state(",".join(["long=" + "y" * 200, *short])) == ",".join(short[:4])
    assert tracing.parse_state(",".join(["long=" + "y" * 200, *short[:4]])) == ",".join(short[:4])


def test_span_ids_are_made_by_the_given_random_source_and_are_not_zero() -> None:
    made = tracing.start(random_source(iter((0, 7, 0, 0, 9))))
    assert (made.trace_id[-1], made.span_id[-1], made.traceparent[-2:]) == (7, 9, "03")
    child = CONTEXT.child(random_source(iter((0, 5))))
    assert (child.trace_id, child.span_id, child.state) == (CONTEXT.trace_id, bytes(7) + b"\5", CONTEXT.state)
    for wrong in ((bytes(16), bytes(7) + b"\1"), (b"x" * 15, b"x" * 8), (b"x" * 16, bytes(8)), (b"x" * 16, b"x")):
        with pytest.raises(LocalError):
            TraceContext(*wrong)


def posted_properties(bench: Bench) -> properties.Properties:
    """Return the properties of the last PUT."""
    put = bench.puts()[-1]
    area, _ = unpack_data(put.data, bool(put.flags & 2), put.compression, put.schema_id)
    return properties.decode(area, put.schema_id != 0) if area else {}


def test_posts_have_the_current_trace_context_only_with_the_trace_option() -> None:
    bench = Bench(SessionOptions(trace=tracing.ambient)).start()
    queue = bench.open()
    with tracing.use(CONTEXT):
        bench.post(queue, b"inside", values={"n": 1})
        assert {name: value for name, (_, value) in posted_properties(bench).items()} == {
            "n": 1, "traceparent": PARENT, "tracestate": CONTEXT.state}
        assert posted_properties(bench)["traceparent"][0] is properties.PropertyType.STRING
        bench.post(queue, b"their own", values={"traceparent": "mine"})
        assert posted_properties(bench) == {"traceparent": (properties.PropertyType.STRING, "mine")}
    bench.post(queue, b"outside")
    assert not bench.puts()[-1].flags & 2
    silent = Bench().start()
    with tracing.use(CONTEXT):
        silent.post(silent.open(), b"not asked for")
    assert not posted_properties(silent)


def test_the_trace_context_of_a_message_is_parsed_and_an_invalid_one_is_none() -> None:
    bench = Bench().start()
    bench.open(read=True)

    def push(values: properties.Properties) -> None:
        area = bytearray(properties.encode(values or {"x": (properties.PropertyType.INT32, 1)}, False))
        if not values:
            area[6] = 0xff  # the type of the first one
        bench.send_from_broker(events.encode_push([events.PushMessage(0, bytes(16), bytes(area) + b"payload", 2,
                                                         options=sub_queue_ids([1]))]))
    text, number = properties.PropertyType.STRING, properties.PropertyType.INT32
    push({"traceparent": (text, PARENT), "tracestate": (text, CONTEXT.state)})
    push({"traceparent": (text, PARENT), "tracestate": (number, 5)})
    push({"traceparent": (number, 5)})
    push({"other": (text, PARENT)})
    push({})  # properties that cannot be read
    found = [tracing.traceparent(message) for message in bench.messages]
    assert found == [CONTEXT, tracing.parse(PARENT), None, None, None]


def test_the_current_trace_context_ends_with_its_block() -> None:
    with tracing.use(CONTEXT):
        with tracing.use(None):
            assert tracing.ambient() is None
        assert tracing.ambient() is CONTEXT
    assert tracing.current() is None


def test_a_current_opentelemetry_span_takes_precedence() -> None:
    span = opentelemetry.NonRecordingSpan(opentelemetry.SpanContext(
        int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=opentelemetry.TraceFlags(1),
        trace_state=opentelemetry.TraceState([("congo", "t61rcWkgMzE")])))
    with tracing.use(tracing.start(random_source(count(1)))), opentelemetry.use_span(span):
        assert tracing.ambient() == CONTEXT


def test_without_opentelemetry_the_context_variable_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with tracing.use(CONTEXT):
        assert tracing.ambient() is CONTEXT


def test_the_prometheus_collector_exports_the_counters_of_all_sessions() -> None:
    one, two = Bench(acks_at_once=False).start(), Bench()
    queue = one.open()
    one.post(queue, b"a")
    one.post(queue, b"b")
    one.open(FANOUT)
    one.ack(one.puts()[0], status=2)

    class Session:
        """Minimal front."""

        def __init__(self, bench: Bench) -> None:
            self.counters = bench.core.counters
    collector, registry = Collector("session"), CollectorRegistry()
    registry.register(collector)
    first, second = Session(one), Session(two)
    collector.add(first, session="one")
    collector.add(second, session="two")
    for name, labels, value in (
            ("posts_total", {"session": "one"}, 2), ("posts_total", {"session": "two"}, 0),
            ("nacked_total", {"session": "one", "status": "limit_bytes"}, 1), ("unacked", {"session": "one"}, 1),
            ("queues", {"session": "one"}, 2), ("up", {"session": "one"}, 1), ("up", {"session": "two"}, 0),
            ("events_total", {"session": "one", "kind": "connected"}, 1)):
        assert registry.get_sample_value(f"bmqtwist_sdk_{name}", labels) == value, name
    text = generate_latest(registry).decode()
    assert text.count("# HELP bmqtwist_sdk_") == len(collector.describe()) == 20
    with pytest.raises(LocalError):
        collector.add(first, session="one")
    with pytest.raises(LocalError):
        collector.add(first, name="one")
    collector.remove(first)
    assert 'session="one"' not in generate_latest(registry).decode()
