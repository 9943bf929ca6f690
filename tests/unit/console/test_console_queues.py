"""Tables of very many queues: order, rates, and work per slice."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.console.queues import (
    PAGE_ROWS_MAX,
    RANK_STEP_QUEUES,
    SORTS,
    SPARK_ROWS,
    STEP_QUEUES,
    TOP_ROWS,
    Order,
    QueueBook,
    merge_first,
)
from bmqtwist.console.topics import QueuesTopic
from bmqtwist.storage.message import Message
from bmqtwist.storage.state import StoredQueue
from bmqtwist.view.queue_facts import StoredCopy


class FakeQueue:
    """Queue with the attributes that the console reads."""

    def __init__(self, number: int, messages: int = 0, consumers: int = 0) -> None:
        self.uri, self.partition_id, self.mode = f"bmq://d{number % 7}/q{number:05}", number % 4, "priority"
        self.domain = SimpleNamespace(name=f"d{number % 7}")
        self.messages = {bytes([each % 256]): SimpleNamespace(wall=100) for each in range(messages)}
        self.meter = SimpleNamespace(bytes=10 * messages, messages_max=100, bytes_max=10_000)
        self.stats = SimpleNamespace(put_msgs=0, push_msgs=0, confirm_msgs=0)
        self._consumers = consumers

    def reader_count(self) -> int:
        return self._consumers

    def writer_count(self) -> int:
        return 0


def sampled_book(queues: list[Any], now: float = 0.0, book: QueueBook | None = None) -> QueueBook:
    """Return a book that has sampled all queues."""
    book = book or QueueBook(lambda: queues)
    book.begin_sweep(lambda: now)
    while book.step():
        pass
    return book


def run_steps(work: Generator[None, None, Any]) -> Any:
    """Run work in steps and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def test_a_slice_samples_a_bounded_number_of_queues() -> None:
    """Steps must not block the event loop; measured in visits, as times depend on the machine."""
    queues = [FakeQueue(number) for number in range(50_000)]
    book = QueueBook(lambda: queues)
    book.begin_sweep(lambda: 1.0)
    steps, most, more = 0, 0, True
    while more:
        before = book.visited
        more = book.step()
        most, steps = max(most, book.visited - before), steps + 1
    assert most <= STEP_QUEUES and book.visited == 50_000 and len(book._records) == 50_000 and steps >= 50_000 / STEP_QUEUES
    work = book.rank("", Order("messages", True), 40_000, 0.0)
    most = 0
    while True:
        before = book.visited
        try:
            next(work)
        except StopIteration as end:
            total, found = end.value
            break
        most = max(most, book.visited - before)
    assert most <= RANK_STEP_QUEUES and total == 50_000 and len(found) == 40_000
    assert len(book.rows([queue.uri for queue in queues], 2.0, 0.0)) == PAGE_ROWS_MAX


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("descending", [True, False])
def test_pages_are_sorted_and_queues_of_equal_value_by_name(sort: str, descending: bool) -> None:
    queues = [FakeQueue(number, number % 3, number % 2) for number in range(RANK_STEP_QUEUES + 30)]
    book, order = sampled_book(queues), Order(sort, descending)
    total, found = run_steps(book.rank("", order, 50, 110.0))
    everything = [(order.value(book._records[queue.uri], 110.0), queue.uri) for queue in queues]
    by_name = sorted(everything, key=lambda entry: entry[1])
    expected = sorted(by_name, key=lambda entry: entry[0], reverse=descending)
    assert total == len(queues) and found == expected[:50]


def test_the_merged_first_rows_of_several_nodes_are_the_first_rows_of_all() -> None:
    nodes = [sampled_book([FakeQueue(number, number % 5) for number in range(start, 60, 3)]) for start in range(3)]
    whole = sampled_book([FakeQueue(number, number % 5) for number in range(60)])
    for order in (Order("messages", True), Order("uri", True), Order("domain", False)):
        runs = [run_steps(book.rank("", order, 20, 0.0))[1] for book in nodes]
        assert merge_first(runs, order, 20) == run_steps(whole.rank("", order, 20, 0.0))[1]


def test_a_filter_is_case_insensitive() -> None:
    book = sampled_book([FakeQueue(number) for number in range(20)])
    assert run_steps(book.rank("Q0001", Order("uri", False), 100, 0.0))[0] == 10
    assert run_steps(book.rank("none of them", Order("uri", False), 100, 0.0)) == (0, [])


def test_queue_rates_are_counter_differences_between_two_samples() -> None:
    queue = FakeQueue(1, 3)
    book = sampled_book([queue])
    assert book.rows([queue.uri], 1.0, 130.0)[0]["putRate"] is None, "unknown at first"
    queue.stats.put_msgs, queue.stats.push_msgs, queue.stats.confirm_msgs = 50, 20, 10
    (row,) = book.rows([queue.uri], 2.0, 130.0)
    assert (row["putRate"], row["pushRate"], row["confirmRate"]) == (25.0, 10.0, 5.0)
    assert row["oldestSeconds"] == 30 and row["quota"] == 0.03 and row["spark"] == [3, 3, 3]
    (again,) = book.rows([queue.uri], 2.05, 130.0)  # too soon for another rate
    assert again == row


def test_the_rates_of_a_recreated_queue_begin_again() -> None:
    """The primary has moved away and back, or the queue was deleted: its counters begin at 0."""
    queues = [FakeQueue(1)]
    queues[0].stats.put_msgs = 1000
    book = sampled_book(queues)
    queues[0] = FakeQueue(1)
    sampled_book(queues, 10.0, book)
    assert book.rows([queues[0].uri], 11.0, 0.0)[0]["putRate"] is None
    assert book.rows([queues[0].uri], 12.0, 0.0)[0]["putRate"] == 0.0


def test_the_numbers_of_stored_depths_and_top_queues_are_limited() -> None:
    queues = [FakeQueue(number, number % 20) for number in range(100)]
    book = sampled_book(queues)
    for second in range(2 * SPARK_ROWS):
        sampled_book(queues, float(second), book)
    rows = book.rows(book.top, 100.0, 0.0)
    assert len(rows) == TOP_ROWS and [row["messages"] for row in rows] == [19] * 5 + [18] * 5
    assert all(len(row["spark"]) == SPARK_ROWS for row in rows)
    book.clear()
    assert book.rows([queues[0].uri], 0.0, 0.0) == [] and book.top == []


def test_other_nodes_are_asked_for_all_rows_up_to_the_page() -> None:
    assert QueuesTopic("x", "uri", False, 200, 50).query() == {"filter": "x", "sort": "uri", "order": "asc", "upto": "250"}


def test_only_the_queues_of_the_named_partitions_are_ranked() -> None:
    book = sampled_book([FakeQueue(number) for number in range(20)])
    total, found = run_steps(book.rank("", Order("uri", False), 100, 0.0, {1, 3}))
    assert total == 10 and all(int(uri[-5:]) % 4 in (1, 3) for _, uri in found)


def test_a_copy_of_a_queue_has_a_depth_and_no_rates_quota_and_clients() -> None:
    record = QueueRecord("bmq://d/q", b"12345", 2, {})
    store = StoredQueue(b"12345", "bmq://d/q")
    for number in range(3):
        store.add_message(Message(bytes([number]) * 16, b"four"))
    book = sampled_book([StoredCopy(record, store, "", True), StoredCopy(replace(record, uri="bmq://d/r"), None, "", False)])
    sampled_book([StoredCopy(record, store, "", True)], 3.0, book)
    row, = book.rows(["bmq://d/q"], 9.0, 100.0)
    assert (row["messages"], row["bytes"], row["partition"], row["domain"]) == (3, 12, 2, "d")
    assert {row[name] for name in ("putRate", "quota", "consumers", "messagesMax")} == {None}
    assert len(row["spark"]) == 3, "the depths of the first look are kept"
    book = sampled_book([StoredCopy(record, None, "", False)])
    row, = book.rows(["bmq://d/q"], 9.0, 100.0)
    assert row["messages"] is None and row["consumers"] == 0, "no client has opened it since the start"
    for sort in SORTS:
        assert run_steps(book.rank("", Order(sort, True), 5, 0.0))[0] == 1
