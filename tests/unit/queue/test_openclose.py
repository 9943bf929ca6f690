"""Open, configure and close of handles: refused requests change nothing; accepted ones change the expected state only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.engine_kit import WALL, Client, Engine, got, spec_of

from bmqtwist.errors import Category, Refused
from bmqtwist.limits import RESERVED_ID_MIN
from bmqtwist.queue.handles import COUNT_MAX, OpenRequest, check_open, close_queue, configure, open_queue
from bmqtwist.queue.queue import FLAG_READ, FLAG_WRITE, PRIORITY_INVALID, Handle


def request(q_id: int = 1, sub_id: int = 0, app: str | None = None, flags: int = FLAG_READ, read: int = 1,
            write: int = 0, admin: int = 0) -> OpenRequest:
    return OpenRequest(q_id, sub_id, app, flags, read, write, admin)


def queue_state(engine: Engine) -> Any:
    """Return all state that open and close may change."""
    queue = engine.queue
    return ([(id(h), h.flags, h.read_count, h.write_count, h.merges, h.closing,
              [(s.sub_id, s.app_id, s.read_count, list(s.subscriptions), list(s.unconfirmed))
               for s in h.substreams.values()]) for h in queue.handles],
            [(a.app_id, a.alarmed, list(a.substreams), len(a.current_router().subscriptions)) for a in queue.apps.values()],
            list(engine.report.lines), list(engine.touched))


def refusal(engine: Engine | None, call: Callable[..., Any], *arguments: Any) -> tuple[str, int, str]:
    """Return category, code and text of the refusal; check that it changed nothing."""
    before = queue_state(engine) if engine else None
    with pytest.raises(Refused) as caught:
        call(*arguments)
    if engine:
        after = queue_state(engine)
        assert (after[0], after[1], after[3]) == (before[0], before[1], before[3])
    return caught.value.category.name, caught.value.code, caught.value.message


@pytest.mark.parametrize("wrong, words", [
    (request(read=0, flags=0), "At least one of ([read|write]) Count must be >0"),
    (request(read=0, write=-1, flags=0), "At least one of ([read|write]) Count must be >0"),
    (request(admin=1, flags=FLAG_READ | 1), "adminCount must be 0"),
    (request(read=1, write=-1), "readCount and writeCount must be >= 0"),
    (request(flags=0), "Read flag and readCount must both be set accordingly"),
    (request(flags=FLAG_READ | FLAG_WRITE, read=0, write=1), "Read flag and readCount must both be set accordingly"),
    (request(flags=FLAG_READ | FLAG_WRITE), "Write flag and writeCount must both be set accordingly"),
    (request(write=1), "Write flag and writeCount must both be set accordingly"),
    (request(q_id=RESERVED_ID_MIN), "qId must not be set from the reserved queue ids range"),
    (request(sub_id=RESERVED_ID_MIN), "subId must not be set from the reserved queue ids range"),
    (request(app="foo", flags=FLAG_WRITE, read=0, write=1),
     "AppId should not be specified in the URI if queue is opened in write mode")])
def test_an_open_with_inconsistent_parameters_is_refused(wrong: OpenRequest, words: str) -> None:
    assert refusal(None, check_open, wrong) == ("E_INVALID_ARGUMENT", 0, words)


@pytest.mark.parametrize("right", [
    request(), request(q_id=RESERVED_ID_MIN - 1, sub_id=RESERVED_ID_MIN - 1), request(app="foo"),
    request(app="__default", flags=FLAG_WRITE, read=0, write=1), request(flags=FLAG_READ | FLAG_WRITE, write=3)])
def test_an_open_with_consistent_parameters_is_accepted(right: OpenRequest) -> None:
    check_open(right)


@pytest.mark.parametrize("app", [None, "__default"])
def test_opening_a_fanout_queue_for_reading_requires_an_app_id(app: str | None) -> None:
    engine = Engine("fanout", ("foo",))
    assert refusal(engine, open_queue, engine.queue, Client("c"), None, request(app=app)) == (
        "E_UNKNOWN", -1, "Reader of a fanout queue requires an appId to be specified.")


@pytest.mark.parametrize("mode", ["priority", "broadcast"])
@pytest.mark.parametrize("app, sub_id", [("foo", 0), ("foo", 1), ("__default", 1)])
def test_opening_a_queue_of_another_mode_with_an_app_id_is_refused(mode: str, app: str, sub_id: int) -> None:
    engine = Engine(mode, in_memory=mode == "broadcast")
    assert refusal(engine, open_queue, engine.queue, Client("c"), None, request(app=app, sub_id=sub_id))[2] == \
        "AppId should not be specified when opening a non-fanout queue"


@pytest.mark.parametrize("mode", ["priority", "broadcast"])
def test_a_client_may_name_the_default_substream_of_a_queue_of_another_mode(mode: str) -> None:
    engine = Engine(mode, in_memory=mode == "broadcast")
    handle = open_queue(engine.queue, Client("c"), None, request(app="__default"))
    assert [substream.app_id for substream in handle.substreams.values()] == ["__default"]


def test_the_limits_of_producers_and_consumers_include_all_clients() -> None:
    engine = Engine(max_consumers=2, max_producers=1)
    reader = engine.open(read=1)
    engine.open(write=1)
    both = request(flags=FLAG_READ | FLAG_WRITE, read=2, write=1)
    assert refusal(engine, open_queue, engine.queue, Client("c"), None, both) == (
        "E_UNKNOWN", -1, "Client would exceed the limit of 1 producer(s) and the limit of 2 consumer(s)")
    engine.open(read=1, handle=reader)
    assert "2 consumer(s)" in refusal(engine, open_queue, engine.queue, Client("c"), None, request())[2]
    engine.leave(reader)
    engine.open(read=2)


def test_a_handle_refuses_opens_beyond_the_counter_limit_of_the_original() -> None:
    engine = Engine()
    handle = engine.open(read=COUNT_MAX)
    assert refusal(engine, open_queue, engine.queue, handle.client, handle, request()) == (
        "E_REFUSED", -1, "Reached maximum read/write/admin counters for a queue")


def test_a_substream_id_cannot_be_opened_for_another_app() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    handle = engine.open(read=1, app="foo", sub_id=1)
    assert refusal(engine, open_queue, engine.queue, handle.client, handle, request(app="bar", sub_id=1)) == (
        "E_INVALID_ARGUMENT", -1, "Invalid handle parameters specified")


def test_opens_of_one_handle_add_to_its_counts() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    handle = engine.open(read=1, app="foo", sub_id=1)
    assert not handle.merges
    engine.open(read=2, app="foo", sub_id=1, handle=handle)
    engine.open(read=1, app="bar", sub_id=2, handle=handle)
    engine.open(write=1, handle=handle)
    assert (handle.read_count, handle.write_count, handle.flags) == (4, 1, FLAG_READ | FLAG_WRITE)
    assert [s.read_count for s in handle.substreams.values()] == [3, 1] and handle.merges
    assert list(engine.queue.handles) == [handle]


def test_substreams_share_a_push_only_while_each_has_one_subscription() -> None:
    """With two subscription ids, the order of messages of one consumer could not be kept."""
    engine = Engine("fanout", ("foo", "bar"))
    handle = engine.open(read=1, app="foo", sub_id=1)
    engine.open(read=1, app="bar", sub_id=2, handle=handle)
    engine.configure(handle, spec_of(1, "x > 0"), spec_of(2, "x < 0"), app="foo")
    assert not handle.merges
    handle.client.is_broker = True
    engine.configure(handle, spec_of(1, "x > 0"), spec_of(2, "x < 0"), app="foo")
    assert handle.merges, "a broker keeps the order of each app"
    handle.client.is_broker = False
    engine.configure(handle, spec_of(3), app="foo")
    assert handle.merges
    close_queue(handle, request(sub_id=2), False, WALL)
    assert not handle.merges


def test_an_unregistered_app_raises_one_alarm_and_receives_no_message() -> None:
    engine = Engine("fanout", ("foo",))
    first, second = engine.reader("new"), engine.reader("new")
    engine.post(b"1")
    assert got(first) == got(second) == [] and engine.log("FANOUT_UNREGISTERED_APPID") == 1
    engine.leave(first)
    engine.leave(second)
    assert list(engine.queue.apps) == ["foo"]
    engine.reader("new")
    assert engine.log("FANOUT_UNREGISTERED_APPID") == 2


def test_a_configure_for_an_app_that_is_not_open_is_refused_for_readers_only() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    reader, writer = engine.open(read=1, app="foo"), engine.open(write=1)
    assert refusal(engine, configure, reader, "bar", [spec_of()]) == ("E_UNKNOWN", 0, "No queue with specified appId")
    configure(writer, "bar", [spec_of()])
    assert not engine.queue.apps["bar"].current_router().groups


@pytest.mark.parametrize("spec", [{"priority": PRIORITY_INVALID, "count": 1}, {"priority": 0, "count": 0}])
def test_a_configure_with_inconsistent_priority_and_count_is_refused(spec: dict[str, int]) -> None:
    engine = Engine()
    reader = engine.reader()
    assert refusal(engine, configure, reader, "", [spec_of(2), spec_of(3, **spec)]) == (
        "E_UNKNOWN", -1, "Attempting to configure stream with invalid priority.")


def test_a_configure_with_an_invalid_expression_keeps_the_old_subscriptions() -> None:
    engine = Engine()
    reader = engine.reader()
    category, code, words = refusal(engine, configure, reader, "", [spec_of(2, "x > 1"), spec_of(3, "x >")])
    assert category == "E_INVALID_ARGUMENT" and code and words.startswith('Invalid subscription expression "x >": ')
    engine.post(b"1")
    assert got(reader) == [b"1"]


def test_an_expression_without_a_version_is_ignored() -> None:
    engine = Engine()
    reader = engine.reader(x="x >", version=0)
    engine.post(b"1")
    assert got(reader) == [b"1"]


def test_a_configure_without_consumers_stops_deliveries() -> None:
    for specs in ([], [spec_of(1, priority=PRIORITY_INVALID, count=0)]):
        engine = Engine()
        reader = engine.reader()
        engine.configure(reader, *specs)
        engine.post(b"1")
        assert got(reader) == []
        engine.configure(reader, spec_of())
        engine.turn()
        assert got(reader) == [b"1"]


def test_unconfirmed_messages_count_against_reconfigured_limits() -> None:
    engine = Engine()
    reader = engine.reader(m=10)
    guids = engine.post(*[b"%d" % number for number in range(11)])
    engine.configure(reader, spec_of(2, m=10))
    engine.turn()
    assert got(reader) == [b"%d" % number for number in range(10)]
    engine.confirm(reader, guids[0])
    assert got(reader) == [], "nine of ten: delivery resumes at eight"
    engine.confirm(reader, guids[1])
    assert got(reader) == [b"10"]


@pytest.mark.parametrize("wrong, category, words", [
    (request(read=0), "E_INVALID_ARGUMENT", "At least one of [read|write|admin]Count must be > 0"),
    (request(sub_id=9), "E_UNKNOWN", "No subStream of the queue with specified subId"),
    (request(read=2), "E_UNKNOWN", "Failed to release handle."),
    (request(read=0, write=2), "E_UNKNOWN", "Failed to release handle."),
    (request(admin=1), "E_UNKNOWN", "Failed to release handle."),
    (request(read=1, write=-1), "E_UNKNOWN", "Failed to release handle.")])
def test_a_close_of_more_than_was_opened_is_refused(wrong: OpenRequest, category: str, words: str) -> None:
    engine = Engine()
    handle = engine.open(read=1)
    engine.open(write=1, handle=handle)
    found = refusal(engine, close_queue, handle, wrong, True, WALL)
    assert (found[0], found[2]) == (category, words)


def test_closing_a_substream_of_a_writer_is_refused() -> None:
    engine = Engine()
    found = refusal(engine, close_queue, engine.open(write=1), request(), False, WALL)
    assert found[2] == "Failed to release handle."


def test_a_close_subtracts_its_counts_and_the_last_one_ends_the_handle() -> None:
    engine = Engine()
    handle = engine.open(read=2)
    engine.open(write=1, handle=handle)
    assert not close_queue(handle, request(read=1), False, WALL)
    assert not close_queue(handle, request(read=0, write=1), False, WALL)
    assert not handle.flags & FLAG_WRITE and handle.read_count == 1 and not handle.closing
    assert close_queue(handle, request(read=1), False, WALL)
    assert handle.closing and not engine.queue.handles and not engine.queue.apps["__default"].substreams


def test_a_final_close_ends_the_handle_independent_of_its_counts() -> None:
    engine = Engine()
    handle = engine.reader()
    engine.open(read=4, handle=handle)
    engine.post(b"1")
    assert close_queue(handle, request(read=1), True, WALL) and handle not in engine.queue.handles
    other = engine.reader()
    engine.turn()
    assert other.client.got == [(b"1", 1, True)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("crashed, left", [(False, 3), (True, 2)])
def test_only_a_lost_connection_uses_a_delivery_attempt(crashed: bool, left: int) -> None:
    engine = Engine(max_attempts=3)
    reader = engine.reader()
    (guid,) = engine.post(b"1")
    engine.leave(reader, crashed)
    assert engine.queue.attempts_left(engine.queue.apps["__default"], engine.queue.messages[guid]) == left


def test_a_message_without_attempts_left_is_rejected_for_that_app_only() -> None:
    engine = Engine("fanout", ("foo", "bar"), max_attempts=1)
    foo, bar = engine.reader("foo"), engine.reader("bar")
    (guid,) = engine.post(b"1")
    engine.leave(foo, crashed=True)
    assert engine.poisons == [guid] and engine.queue.stats.reject_msgs == 1 and guid in engine.queue.messages
    engine.leave(bar, crashed=True)
    assert engine.poisons == [guid, guid] and not engine.queue.messages


def test_the_loss_of_a_consumer_without_unconfirmed_messages_is_not_logged() -> None:
    engine = Engine()
    engine.leave(engine.reader(), crashed=True)
    assert not engine.log("Lost a reader") and not engine.log("rejecting")


def test_handle_errors_have_category_code_and_text() -> None:
    """A session answers a refusal with a status and continues."""
    with pytest.raises(Refused) as caught:
        check_open(request(flags=0))
    assert caught.value.category is Category.E_INVALID_ARGUMENT and isinstance(Engine().open(read=1), Handle)
