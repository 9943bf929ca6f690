"""Engine of the queue source without Spark: calls in Spark's order, with a crash at each step, and a simulated broker.

The tested module is `bmqtwist/spark/engine.py`; through Spark the source is tested in `test_source.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bmqtwist.sdk.message import Message
from bmqtwist.spark.engine import QueryEngine
from bmqtwist.spark.messages import from_ipc
from bmqtwist.spark.options import SourceOptions, source_options
from bmqtwist.spark.plan import Key, Offset, OffsetError
from bmqtwist.spark.receiver import ReceivedMessages


class Queue:
    """Simulated queue with one consumer: a limit of unconfirmed messages, and redelivery."""

    def __init__(self, count: int, window: int = 1000) -> None:
        self.unconfirmed = {b"\x40" + number.to_bytes(15, "big"): b"%d" % number for number in range(count)}
        self.window = window
        self.confirmed: list[bytes] = []
        self.drops_confirmations = False  # confirmations do not arrive

    def make(self, options: SourceOptions) -> Consumer:
        return Consumer(self)


class Consumer:
    """Simulated session of the queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.delivered, self.new = queue, set[bytes](), list[Any]()
        self.error: Exception | None = None

    def start(self) -> None:
        pass

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def wait(self, timeout_s: float) -> None:
        pass

    def take_messages(self) -> list[Any]:
        for guid, payload in self.queue.unconfirmed.items():
            if len(self.delivered) >= self.queue.window:
                break
            if guid not in self.delivered:
                self.delivered.add(guid)
                queue: Any = None
                self.new.append(ReceivedMessages(0, [Message(queue, queue, guid, payload, 0, 0)], 1000.0))
        found, self.new = self.new, []
        return found

    def confirm(self, keys: list[Key]) -> None:
        if not self.queue.drops_confirmations:
            for guid in (key[1:] for key in keys):
                self.queue.confirmed.append(guid)
                self.queue.unconfirmed.pop(guid, None)
                self.delivered.discard(guid)

    def reconnect(self) -> None:
        self.delivered.clear()
        self.new.append(ReceivedMessages())

    def stop(self) -> None:
        pass


def options(spool: Path | None = None, **more: str) -> SourceOptions:
    return source_options({"bmq.bootstrap.servers": "tcp://localhost:1", "subscribe": "bmq://d/q",
                           **({"spoolDir": str(spool)} if spool else {}), **more})


def values(parts: list[bytes]) -> list[int]:
    return [int(value) for part in parts for value in from_ipc(part).column("value").to_pylist()]


class Query:
    """Simulated query: offset log, commit log, and a sink that is idempotent by batch number."""

    def __init__(self, queue: Queue, spool: Path | None, **more: str) -> None:
        self.queue, self.options = queue, options(spool, **more)
        self.planned: list[Offset] = []  # offset log
        self.committed = 0  # batches in the commit log
        self.sink: dict[int, list[int]] = {}
        self.engine = QueryEngine(self.options, queue.make)

    def crash(self) -> None:
        """Simulate kill -9."""
        self.engine.stop()
        self.engine = QueryEngine(self.options, self.queue.make)

    def start_of(self, batch: int) -> Offset:
        return self.planned[batch - 1] if batch else self.engine.initial_offset()

    def step(self, until: str = "") -> bool:
        """Run one batch, or until the crash at step `until`; False without messages."""
        batch = self.committed
        if batch == len(self.planned):
            start = self.start_of(batch)
            end = self.engine.latest_offset(start, None)
            if end == start:
                return False
            if until == "planned":
                return True
            self.planned.append(end)
        if until == "logged":
            return True
        if batch:
            self.engine.commit(self.start_of(batch))
        rows = values(self.engine.parts(self.start_of(batch), self.planned[batch]))
        if until == "parts":
            return True
        self.sink.setdefault(batch, rows)
        if until == "written":
            return True
        self.committed += 1
        return True

    def run(self) -> list[int]:
        while self.step():
            pass
        return [value for batch in sorted(self.sink) for value in self.sink[batch]]


def test_every_message_is_in_one_batch_and_all_are_confirmed_at_the_end() -> None:
    queue = Queue(25)
    assert Query(queue, None, maxOffsetsPerTrigger="10").run() == list(range(25))
    assert not queue.unconfirmed and len(queue.confirmed) == 25


def test_messages_are_confirmed_only_after_their_batch_is_in_the_commit_log(tmp_path: Path) -> None:
    queue = Queue(10)
    query = Query(queue, tmp_path, maxOffsetsPerTrigger="10")
    query.step("written")
    assert queue.confirmed == []
    query.engine.latest_offset(query.planned[0], None)
    assert len(queue.confirmed) == 10


def test_a_query_progresses_with_a_window_smaller_than_a_batch() -> None:
    queue = Queue(100, window=7)
    assert Query(queue, None, maxOffsetsPerTrigger="50").run() == list(range(100))


@pytest.mark.parametrize("step", ["planned", "logged", "parts", "written"])
def test_with_a_spool_a_crash_at_any_step_neither_loses_nor_repeats_messages(tmp_path: Path, step: str) -> None:
    queue = Queue(30)
    query = Query(queue, tmp_path, maxOffsetsPerTrigger="10")
    for _ in range(3):
        query.step(step)
        query.crash()
        query.step()
    assert query.run() == list(range(30)) and not queue.unconfirmed


@pytest.mark.parametrize("step", ["planned", "logged", "parts", "written"])
def test_without_a_spool_a_crash_at_any_step_loses_no_message(step: str) -> None:
    """Batches written and not logged may be repeated."""
    queue = Queue(30)
    query = Query(queue, None, maxOffsetsPerTrigger="10")
    query.step(step)
    query.crash()
    got = query.run()
    assert set(got) == set(range(30)) and not queue.unconfirmed
    assert len(got) == (40 if step == "written" else 30)


def test_confirmations_lost_in_a_crash_repeat_no_message(tmp_path: Path) -> None:
    queue = Queue(20)
    query = Query(queue, tmp_path, maxOffsetsPerTrigger="10")
    queue.drops_confirmations = True
    assert query.step() and query.step()
    query.crash()
    queue.drops_confirmations = False
    assert query.run() == list(range(20)) and not queue.unconfirmed


def test_a_reconnect_neither_repeats_nor_loses_messages(tmp_path: Path) -> None:
    queue = Queue(20)
    query = Query(queue, tmp_path, maxOffsetsPerTrigger="8")
    query.step("parts")
    source: Any = query.engine._source
    source.reconnect()
    assert sorted(query.run()) == list(range(20)) and not queue.unconfirmed


def test_repeated_calls_of_spark_return_equal_offsets_and_rows() -> None:
    queue = Queue(5)
    engine = QueryEngine(options(), queue.make)
    start = engine.initial_offset()
    assert engine.initial_offset() == start
    end = engine.latest_offset(start, None)
    assert engine.latest_offset(start, None) == end
    assert values(engine.parts(start, end)) == values(engine.parts(start, end)) == [0, 1, 2, 3, 4]


def test_a_batch_is_split_by_the_options_for_partitions() -> None:
    engine = QueryEngine(options(minPartitions="4", maxRecordsPerPartition="3"), Queue(16).make)
    start = engine.initial_offset()
    parts = engine.parts(start, engine.latest_offset(start, None))
    assert [len(values([part])) for part in parts] == [2, 3, 3, 2, 3, 3] and values(parts) == list(range(16))


def test_available_now_ends_and_confirms_the_last_batch() -> None:
    queue = Queue(25)
    query = Query(queue, None, maxOffsetsPerTrigger="10", **{"availableNow.idle": "0ms"})
    query.engine.start_drain()
    assert query.run() == list(range(25)) and not queue.unconfirmed


def test_available_now_stops_at_its_maximum_number_of_messages() -> None:
    query = Query(Queue(25), None, maxOffsetsPerTrigger="10",
                  **{"availableNow.maxMessages": "15", "availableNow.idle": "0ms"})
    query.engine.start_drain()
    assert query.run() == list(range(15))


def test_a_batch_waits_for_its_minimum_size_or_the_maximum_delay() -> None:
    now = [0.0]
    queue = Queue(3)
    engine = QueryEngine(options(minOffsetsPerTrigger="5", maxTriggerDelay="10s"), queue.make, lambda: now[0])
    start = engine.initial_offset()
    assert engine.latest_offset(start, None) == start
    now[0] = 10.0
    assert engine.latest_offset(start, None).seq == 3


def test_a_query_without_a_checkpoint_refuses_the_spool_of_an_earlier_checkpoint(tmp_path: Path) -> None:
    query = Query(Queue(20), tmp_path, maxOffsetsPerTrigger="10")
    query.step()
    query.step()
    query.engine.stop()
    with pytest.raises(OffsetError, match="belongs to another checkpoint"):
        QueryEngine(query.options, query.queue.make).initial_offset()


def test_a_query_with_a_checkpoint_refuses_the_spool_of_another_checkpoint(tmp_path: Path) -> None:
    query = Query(Queue(20), tmp_path)
    query.step()
    query.engine.stop()
    with pytest.raises(OffsetError, match="spoolDir of its own"):
        QueryEngine(query.options, query.queue.make).latest_offset(Offset("other", 0), None)


def test_a_batch_missing_in_the_spool_is_an_error_unless_data_loss_is_allowed(tmp_path: Path) -> None:
    query = Query(Queue(5), tmp_path)
    query.step("logged")
    query.engine.stop()
    for path in tmp_path.glob("*.arrow"):
        path.unlink()
    start, end = Offset(query.planned[0].epoch, 0), query.planned[0]
    strict = QueryEngine(query.options, query.queue.make)
    with pytest.raises(OffsetError, match="does not contain the batch"):
        strict.parts(start, end)
    strict.stop()
    lenient = QueryEngine(options(tmp_path, failOnDataLoss="false"), query.queue.make)
    assert lenient.parts(start, end) == []
    lenient.stop()


def test_an_error_of_the_session_ends_the_query() -> None:
    queue = Queue(5)
    engine = QueryEngine(options(), queue.make)
    start = engine.initial_offset()
    engine.latest_offset(start, 2)
    source: Any = engine._source
    source.error = RuntimeError("the queue was closed")
    with pytest.raises(RuntimeError, match="closed"):
        engine.latest_offset(Offset(start.epoch, 2), None)


def test_progress_reports_the_waiting_messages_and_their_age() -> None:
    now = [1000.0]
    engine = QueryEngine(options(maxOffsetsPerTrigger="2"), Queue(5).make, lambda: now[0])
    engine.latest_offset(engine.initial_offset(), None)
    now[0] = 1003.5
    report = engine.progress()
    assert (report["seq"], report["buffered"], report["unconfirmed"], report["lagSeconds"]) == (5, 3, 5, 3.5)
