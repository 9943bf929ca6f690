"""Event log and alarm state of a node, and the last lines of its log."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.admin_kit import STARTED_WALL, Bench

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.daemon.housekeeping import Housekeeping
from bmqtwist.errors import LocalError
from bmqtwist.logs.format import LogEntry
from bmqtwist.logs.observer import CHARS_MAX as LOG_CHARS_MAX
from bmqtwist.logs.observer import LINES_MAX, LogTail
from bmqtwist.report import ListReport
from bmqtwist.view.alarms import ALARMS_MAX, CONDITIONS, MOMENTARY_S, AlarmBook, AlarmState, ended_alarms, subject_of
from bmqtwist.view.events import CHARS_MAX, DETAIL_CHARS_MAX, EVENTS_MAX, KINDS, TEXT_CHARS_MAX, EventLog, NodeHistory


class ManualClock:
    """Clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def count_unacknowledged(book: AlarmBook) -> int:
    """Return the number of alarms that are neither cleared nor acknowledged."""
    return sum(not alarm.acknowledged_by for alarm in book.active)


@pytest.fixture


def wall() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(wall: ManualClock) -> EventLog:
    return EventLog("n1", wall)


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_of_all_kinds_are_numbered_dated_and_listed_in_order(log: EventLog, wall: ManualClock) -> None:
    for number, kind in enumerate(KINDS):
        wall.now = 1000.0 + number
        log.record(kind, f"text {number}", {"number": number})
    assert [(each.n, each.at, each.kind, each.text, each.detail) for each in log.after()] == [
        (number + 1, 1000.0 + number, kind, f"text {number}", {"number": number}) for number, kind in enumerate(KINDS)]
    assert log.newest == len(KINDS)
    assert [each.n for each in log.after(3, limit=2)] == [4, 5]
    assert [each.n for each in log.last(2)] == [7, 8]
    assert [each.kind for each in log.after(0, ("stop", "node"))] == ["node", "stop"]
    assert log.last(0) == log.after(0, limit=0) == log.after(99) == []


def test_events_of_one_kind_do_not_displace_events_of_another_kind(log: EventLog) -> None:
    log.record("election", "node n2 leads")
    for number in range(2 * EVENTS_MAX):
        log.record("queue", f"queue {number}")
    assert [each.text for each in log.after(0, ("election",))] == ["node n2 leads"]
    assert len(log.after(0, ("queue",), limit=10 * EVENTS_MAX)) == EVENTS_MAX
    assert log.last(1)[0].text == f"queue {2 * EVENTS_MAX - 1}"


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3 * TEXT_CHARS_MAX), st.integers(0, 2 * DETAIL_CHARS_MAX)),
                max_size=60))
def test_the_event_log_is_bounded_in_events_and_characters_for_each_kind(found: list[tuple[str, int, int]]) -> None:
    log = EventLog("n1", lambda: 0.0)
    for kind, text, detail in found:
        log.record(kind, "x" * text, {"detail": "y" * detail})
    for kind in KINDS:
        kept = log.after(0, (kind,), limit=10_000)
        assert len(kept) <= EVENTS_MAX
        assert sum(len(each.text) + len(json.dumps(each.detail)) for each in kept) <= CHARS_MAX + DETAIL_CHARS_MAX
        assert all(len(each.text) <= TEXT_CHARS_MAX + 3 for each in kept)
    assert log.newest == len(found)


def test_an_event_detail_that_is_not_json_is_shown_as_text(log: EventLog) -> None:
    log.record("config", "x", {"state": {1, 2}.__class__, "n": 1})
    assert log.last(1)[0].tree()["detail"] == {"state": "<class 'set'>", "n": 1}
    log.record("unheard of", "x")
    assert [each.kind for each in log.after(1, ("config",))] == ["unheard of"]


# -- alarm state --------------------------------------------------------------------------------------------------------


@pytest.fixture
def book(wall: ManualClock, log: EventLog) -> AlarmBook:
    return AlarmBook(wall, lambda text, detail: log.record("alarm", text, detail))


@pytest.mark.parametrize(("text", "subject"), [
    ("for 'queue [bmq://d/q]': [Messages (STATE_FULL): 5", "bmq://d/q"),
    ("for 'domain [bmq://d]': [Messages", "bmq://d"),
    ("Queue 'bmq://d/q?id=a' [current: 1 / 2] appears to be stuck. It", "bmq://d/q?id=a"),
    ("Cluster (c) Partition [3]: node 2 has been its primary for 5 s", "Partition [3]"),
    ("Cluster (c): a promise cannot be written: 5", "Cluster (c)"),
    ("Domain 'd' of stored queues cannot be loaded", "Domain 'd'"),
    ("The event loop was busy for 5.125 s", "The event loop was busy for #.# s"),
])
def test_the_subject_of_an_alarm_is_parsed_from_its_text(text: str, subject: str) -> None:
    assert subject_of(text) == subject


def test_a_repeated_alarm_is_counted_until_it_is_cleared(book: AlarmBook, wall: ManualClock, log: EventLog) -> None:
    book.raise_alarm(alarms.QUEUE_STUCK, "Queue 'bmq://d/q' is stuck: 5")
    wall.now += 5
    book.raise_alarm(alarms.QUEUE_STUCK, "Queue 'bmq://d/q' is stuck: 7")
    book.raise_alarm(replace(alarms.QUEUE_STUCK, severity="PANIC"), "Queue 'bmq://d/other' is stuck")
    other, first = book.alarms()
    assert (first.count, first.raised_at, first.last_at, first.text) == (2, 1000.0, 1005.0, "Queue 'bmq://d/q' is stuck: 7")
    assert (other.count, other.severity, count_unacknowledged(book)) == (1, "PANIC", 2)
    book.clear_ended([first])
    assert count_unacknowledged(book) == 1 and book.alarms()[1].cleared_at == 1005.0 and not book.alarms()[1].cleared_by
    book.raise_alarm(alarms.QUEUE_STUCK, "Queue 'bmq://d/q' is stuck again")
    assert [(each.number, each.count) for each in book.alarms()] == [(3, 1), (2, 1), (1, 2)]
    book.clear_ended([first])
    assert count_unacknowledged(book) == 2, "a cleared alarm is not cleared again"
    assert [each.detail["state"] for each in log.after(0, ("alarm",))] == ["raised", "raised", "cleared", "raised"]


def test_an_alarm_is_acknowledged_once_and_cleared_once(book: AlarmBook, wall: ManualClock, log: EventLog) -> None:
    book.raise_alarm(alarms.POISON_PILL, "bmq://d/q")
    assert book.acknowledge("1", "anna").acknowledged_by == "anna"
    wall.now += 1
    assert book.acknowledge("1", "bert").acknowledged_by == "anna"
    assert count_unacknowledged(book) == 0 and len(book.active) == 1
    book.raise_alarm(alarms.POISON_PILL, "bmq://d/q")
    assert count_unacknowledged(book) == 0 and book.alarms()[0].count == 2, "it stays acknowledged"
    assert book.clear("1", "bert").cleared_by == "bert" and book.clear("1", "carl").cleared_by == "bert"
    assert book.active == []
    tree = book.alarms()[0].tree()
    assert (tree["id"], tree["acknowledgedBy"], tree["clearedBy"], tree["count"]) == ("1", "anna", "bert", 2)
    for unknown in ("2", "0", "", "-1", "x", "1 ", "٣", "9" * 5000):
        with pytest.raises(LocalError):
            book.acknowledge(unknown, "anna")
    assert [each.detail["state"] for each in log.last(9)] == ["raised", "acknowledged", "cleared"]


def test_a_full_alarm_book_drops_cleared_then_acknowledged_then_the_oldest_alarms(book: AlarmBook) -> None:
    book.raise_alarm(alarms.OPERATOR, "bmq://d/open")
    for number in range(ALARMS_MAX - 1):
        book.raise_alarm(alarms.OPERATOR, f"bmq://d/{number}")
    book.clear("100", "x")
    book.acknowledge("50", "x")
    for number in range(3):
        book.raise_alarm(alarms.OPERATOR, f"bmq://d/new{number}")
    numbers = [each.number for each in book.alarms()]
    assert len(numbers) == ALARMS_MAX and not {100, 50, 1} & set(numbers)
    assert len(book.active) == ALARMS_MAX
    book.raise_alarm(alarms.OPERATOR, "bmq://d/open")
    assert book.alarms()[0].count == 1, "the dropped alarm is raised as a new one"


def test_alarms_that_clients_cause_do_not_displace_a_panic(book: AlarmBook) -> None:
    book.raise_alarm(alarms.PARTITION_READONLY, "Partition [0] is full")
    for number in range(ALARMS_MAX * 2):
        book.raise_alarm(alarms.POISON_PILL, f"bmq://d/{number}")
    assert alarms.PARTITION_READONLY.severity == "PANIC"
    assert [each.subject for each in book.active if each.kind == alarms.PARTITION_READONLY.id] == ["Partition [0]"]


# -- alarms whose condition has ended -------------------------------------------------------------------------------------


def alarm(kind: AlarmKind, text: str, at: float = STARTED_WALL) -> AlarmState:
    return AlarmState(1, kind.id, kind.severity, kind.category, subject_of(text), text, at, at)


def has_ended(bench: Bench, kind: AlarmKind, text: str) -> bool:
    return bool(ended_alarms(bench.broker, [alarm(kind, text)], STARTED_WALL))


def test_a_capacity_alarm_clears_when_the_queue_falls_below_its_threshold() -> None:
    bench = Bench()
    bench.write_domain(storage={"config": {"fileBacked": {}}, "queueLimits": {"messages": 4, "messagesWatermarkRatio": 0.5,
                                                                               "bytes": 1 << 20},
                                "domainLimits": {"messages": 100, "bytes": 1 << 20}})
    history = NodeHistory("n1", lambda: STARTED_WALL)
    bench.report.set_recorder(history)
    writer, reader = bench.open(), bench.open(read=True, limit=100)
    bench.post(writer, *[b"x"] * 4)
    assert {each.category for each in history.alarms.alarms()} == {"CAPACITY_STATE_HIGH_WATERMARK", "CAPACITY_STATE_FULL"}
    assert not ended_alarms(bench.broker, history.alarms.active, STARTED_WALL)
    bench.confirm(reader, 2)
    history.alarms.clear_ended(ended_alarms(bench.broker, history.alarms.active, STARTED_WALL))
    assert [each.category for each in history.alarms.active] == ["CAPACITY_STATE_HIGH_WATERMARK"]
    bench.confirm(reader)
    history.alarms.clear_ended(ended_alarms(bench.broker, history.alarms.active, STARTED_WALL))
    assert history.alarms.active == []


def test_a_queue_stuck_alarm_clears_when_a_consumer_receives_the_messages() -> None:
    bench = Bench()
    bench.write_domain(maxIdleTime=5)
    writer = bench.open()
    bench.post(writer, b"x")
    bench.advance(6.0)
    assert not has_ended(bench, alarms.QUEUE_STUCK, "Queue 'bmq://d/q' appears to be stuck.")
    assert has_ended(bench, alarms.QUEUE_STUCK, "Queue 'bmq://d/gone' appears to be stuck.")
    bench.open(read=True)
    assert has_ended(bench, alarms.QUEUE_STUCK, "Queue 'bmq://d/q' appears to be stuck.")


def test_partition_alarms_clear_when_the_partition_is_available_again() -> None:
    bench = Bench()
    text = "Partition [1] cannot be written: disk"
    bench.cluster.partitions[1].disable()
    assert not has_ended(bench, alarms.WRITE_FAILED, text) and not has_ended(bench, alarms.PARTITION_READONLY, text)
    bench.cluster.partitions[1].enable()
    assert has_ended(bench, alarms.WRITE_FAILED, text) and has_ended(bench, alarms.PARTITION_READONLY, text)
    assert has_ended(bench, alarms.PARTITION_AVAILABLESPACE_SOFTLIMIT, "Partition [1] has passed 60% of a file.")
    assert not has_ended(bench, alarms.WRITE_FAILED, "Partition [7] cannot be written"), "there is none"


def test_the_alarm_of_a_file_is_raised_once_and_cleared_when_it_is_written() -> None:
    """Each file of log, statistics and console has an alarm of its own; all are tried again every second."""
    bench = Bench()
    history, tried = NodeHistory("n1", lambda: STARTED_WALL), list[str]()
    bench.report.set_recorder(history)
    files, housekeeping = bench.report.failed_files, Housekeeping(bench.broker, history.alarms)
    for path in ("/log/a", "/log/b"):
        files.add(path, "cannot be written", partial(tried.append, path))
    for _ in range(3):
        housekeeping.retry_failed_files()
    housekeeping.clear_ended_alarms(0.0)
    assert sorted((each.subject, each.count, each.kind) for each in history.alarms.active) == [
        ("File '/log/a'", 1, "file-not-written"), ("File '/log/b'", 1, "file-not-written")]
    assert tried == ["/log/a", "/log/b"] * 3
    files.discard("/log/a")
    housekeeping.clear_ended_alarms(0.0)
    assert [each.subject for each in history.alarms.active] == ["File '/log/b'"]
    housekeeping.retry_failed_files()
    files.add("/log/a", "again", partial(tried.append, "/log/a"))
    housekeeping.retry_failed_files()
    assert len(history.alarms.active) == 2


def test_alarms_without_observable_condition_stay_and_momentary_ones_clear_in_time() -> None:
    bench = Bench()
    assert not has_ended(bench, alarms.POISON_PILL, "bmq://d/q")
    assert not has_ended(bench, alarms.IMAGE_REFUSED, "Partition [0]: an image is not taken")
    busy = alarm(alarms.DISPATCHER, "The event loop was busy for 5 s")
    assert not ended_alarms(bench.broker, [busy], STARTED_WALL + MOMENTARY_S - 1)
    assert ended_alarms(bench.broker, [busy], STARTED_WALL + MOMENTARY_S) == [busy]


def test_the_broker_clears_the_alarms_whose_declaration_says_so() -> None:
    assert set(CONDITIONS) == {kind.id for kind in alarms.CATALOGUE.values() if kind.clears}


@pytest.mark.parametrize("kind", CONDITIONS)
@given(text=st.text(max_size=60))
def test_alarms_with_any_text_can_be_checked_for_their_end(kind: str, text: str) -> None:
    for each in (text, f"bmq://{text}", f"Partition [{text}]", f"'bmq://d/{text}'"):
        ended_alarms(_BENCH.broker, [alarm(alarms.CATALOGUE[kind], each)], STARTED_WALL)


_BENCH = Bench()


# -- the report and its watcher -----------------------------------------------------------------------------------------


def test_a_report_passes_events_and_alarms_to_its_history() -> None:
    history, report = NodeHistory("n1", lambda: 5.0), ListReport()
    report.record_event("node", "before the watch")
    report.set_recorder(history)
    report.record_event("node", "node n2 is connected", about="n2")
    report.alarm(alarms.WRITE_FAILED, "what %s", "happens")
    report.alarm(alarms.PARTITION_READONLY, "100 %")
    report.info("a line")
    assert [(each.kind, each.text) for each in history.events.last()] == [
        ("node", "node n2 is connected"), ("alarm", "[FILE_IO] what happens"),
        ("alarm", "[PARTITION_READONLY] 100 %")]
    assert [each.severity for each in history.alarms.alarms()] == ["PANIC", "ALARM"]
    assert report.lines == [
        ("ALARM", "[FILE_IO] write-failed: what happens"), ("PANIC", "[PARTITION_READONLY] 100 %"), ("INFO", "a line")]
    assert [(line.n, line.text) for line in report.tail(2)] == [(2, "[PARTITION_READONLY] 100 %"), (3, "a line")]
    assert [line.n for line in report.tail(10, after=2)] == [3]


def test_queue_and_configuration_changes_are_recorded_as_events() -> None:
    bench, history = Bench(), NodeHistory("n1", lambda: STARTED_WALL)
    bench.report.set_recorder(history)
    bench.write_domain()
    writer = bench.open()
    bench.post(writer, b"1", b"2")
    bench.run("DOMAINS DOMAIN d QUEUE q PURGE *")
    bench.run("DOMAINS RECONFIGURE d")
    bench.run("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 1")
    bench.run("CLUSTERS CLUSTER c3 STORAGE PARTITION 0 DISABLE")
    bench.close(writer)
    bench.run("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    kept: list[tuple[str, Any]] = [(each.kind, each.detail.get("state", each.detail.get("tunable"))) for each in
                                   history.events.last(99)]
    assert kept == [("queue", "created"), ("queue", "purged"), ("config", None), ("config", "Quorum"), ("config", None),
                    ("queue", "deleted")]


# -- the last lines of the log ------------------------------------------------------------------------------------------


def test_the_log_tail_returns_the_last_lines_by_level_and_line_number() -> None:
    tail = LogTail()
    for number in range(LINES_MAX + 10):
        tail.add(LogEntry(float(number), "ERROR" if number % 10 == 0 else "INFO", "c", f"line {number}"))
    assert tail.newest == LINES_MAX + 10
    assert [line.text for line in tail.lines(2, "TRACE")] == [f"line {LINES_MAX + 8}", f"line {LINES_MAX + 9}"]
    assert [line.text for line in tail.lines(2, "error")] == [f"line {LINES_MAX - 10}", f"line {LINES_MAX}"]
    assert len(tail.lines(10 * LINES_MAX, "no such level")) == LINES_MAX
    assert [line.n for line in tail.lines(100, "TRACE", after=LINES_MAX + 8)] == [LINES_MAX + 9, LINES_MAX + 10]
    assert tail.lines(0, "TRACE") == tail.lines(-1, "TRACE") == []


def test_the_log_tail_is_bounded_and_escapes_control_characters() -> None:
    tail = LogTail()
    for _ in range(300):
        tail.add(LogEntry(0.0, "INFO", "c", "\x1b[2J" + "x" * 20_000))
    kept = tail.lines(1000, "TRACE")
    assert sum(len(line.text) for line in kept) <= LOG_CHARS_MAX
    assert kept[-1].text.startswith("\\x1b[2Jxx") and kept[-1].text.endswith("... (20004 characters)")
