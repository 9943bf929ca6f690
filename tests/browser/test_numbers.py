"""Rates, depths and totals on the pages of real nodes under traffic equal the counts of the applications and the values of
the API and of admin commands.

Values of scripted documents are tested in `test_pages.py`.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bmqtwist.console.rates import RATE_WINDOW_S
from bmqtwist.sdk import QueueOptions, Subscription
from bmqtwist.sdk.simple import Session
from bmqtwist.testing import ClusterProcess
from browser.chromium import Tab

QUEUE = "bmq://f/orders"
PERIOD_S = 0.02  # between two posts
KINDS = ("a", "a", "a", "b")  # of messages, in turn
SAMPLES_S = 6.0  # duration of a measurement of rates
TOLERANCE = 0.2
WARM_UP = 500  # messages before the first measurement: 10 s, more than the window of rates
PATIENCE_S = 60.0

NUMBER = "(selector) => Number(document.querySelector(selector).textContent.replace(/[^0-9.]/g, ''))"
NUMBERS = f"(selectors) => selectors.map({NUMBER})"
AT_LEAST = f"([selector, wanted]) => ({NUMBER})(selector) >= wanted"
EXACTLY = f"([selector, wanted]) => ({NUMBER})(selector) === wanted"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Return three nodes with a fanout domain; app `audit` has no consumer."""
    made = ClusterProcess(tmp_path)
    for name in made.names:
        made[name].domain("f", "fanout", app_ids=("audit", "billing"), consistency="strong")
    with made:
        yield made


def expression_of(kind: str) -> str:
    """Return the expression of the subscription for a kind."""
    return f'kind == "{kind}"'


class Application(threading.Thread, ABC):
    """Application thread that runs until `end` is set; its exception fails the test."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self.end = url, threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """From Thread."""
        try:
            with Session([self._url]) as session:
                self.work(session)
        except BaseException as error:
            self.error = error

    @abstractmethod
    def work(self, session: Session) -> None:
        """Post or consume until `end` is set."""

    def finish(self) -> None:
        """Stop the thread, wait for its end, and check that it raised no exception."""
        self.end.set()
        self.join(PATIENCE_S)
        assert not self.is_alive() and self.error is None, self.error


class Producer(Application):
    """Posts a message every PERIOD_S."""

    begun = acknowledged = 0

    def posted(self, kind: str) -> int:
        """Return the number of posted messages of a kind, unacknowledged ones included."""
        whole, rest = divmod(self.begun, len(KINDS))
        return whole * KINDS.count(kind) + KINDS[:rest].count(kind)

    def work(self, session: Session) -> None:
        """From Application."""
        with session.open(QUEUE, write=True) as queue:
            due = time.monotonic()
            while not self.end.wait(max(0.0, due - time.monotonic())):
                kind = KINDS[self.begun % len(KINDS)]
                self.begun += 1
                assert queue.post(b"%d" % self.begun, {"kind": kind}).ok
                self.acknowledged += 1
                due += PERIOD_S


class Consumer(Application):
    """Consumes and confirms messages with one subscription for each kind."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.received, self.open = Counter[str](), threading.Event()

    @property
    def total(self) -> int:
        """Number of messages of all kinds."""
        return sum(self.received.values())

    def work(self, session: Session) -> None:
        """From Application."""
        subscriptions = [Subscription(expression_of(kind)) for kind in sorted(set(KINDS))]
        with session.open(f"{QUEUE}?id=billing", read=True, options=QueueOptions(subscriptions=subscriptions)) as queue:
            self.open.set()
            while not self.end.is_set():
                message = queue.get(0.2)
                if message is not None:
                    self.received[message.subscription.expression] += 1
                    message.confirm()


@pytest.fixture
def applications(cluster: ClusterProcess) -> Iterator[list[Application]]:
    """Return a list of applications, which end before the cluster stops."""
    begun: list[Application] = []
    yield begun
    for each in begun:
        each.end.set()
        if each.is_alive():
            each.join(PATIENCE_S)


def wait_for(condition: Any, *applications: Application) -> None:
    """Wait until the condition holds; fails after PATIENCE_S or if an application failed."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end and all(each.error is None for each in applications), [
            each.error for each in applications]
        time.sleep(0.02)


def document(url: str) -> Any:
    """Return a document of the API."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def assert_rates(tab: Tab, counted: Mapping[str, Callable[[], int]]) -> None:
    """Check that the rates in elements, by selector, equal those of the applications' counts in the same windows, in the
    mean of SAMPLES_S: the applications are not steady on a busy machine."""
    for selector in counted:
        tab.until(AT_LEAST, [selector, 1])
    marks: list[tuple[float, list[int]]] = []
    shown, expected = [0.0] * len(counted), [0.0] * len(counted)
    begin = time.monotonic()
    while (now := time.monotonic()) < begin + RATE_WINDOW_S + SAMPLES_S:
        marks.append((now, [count() for count in counted.values()]))
        if now >= begin + RATE_WINDOW_S:
            numbers = tab.evaluate(NUMBERS, list(counted))
            at, before = next(each for each in reversed(marks) if each[0] <= now - RATE_WINDOW_S)
            for n, (number, old, new) in enumerate(zip(numbers, before, marks[-1][1], strict=True)):
                shown[n] += number
                expected[n] += (new - old) / (now - at)
        time.sleep(0.1)
    wrong = {selector: (mean, rate) for selector, mean, rate in zip(counted, shown, expected, strict=True)
             if not rate or abs(mean - rate) > TOLERANCE * rate}
    assert not wrong, "sums of displayed and expected rates"


def assert_between(tab: Tab, selector: str, least: int, most: Any) -> None:
    """Check that a page shows at least `least`, within the timeout, and at most the present value of `most`."""
    tab.until(AT_LEAST, [selector, least])
    shown = tab.evaluate(NUMBER, selector)
    assert least <= shown <= most(), selector


def row(table: str, text: str, column: int) -> str:
    """Return the selector of a cell in the row that `mark_rows` marked with `text`."""
    return f"#{table} tr[data-wanted='{text}'] > :nth-child({column})"


def mark_rows(tab: Tab, table: str, *texts: str) -> None:
    """Mark rows by the texts of their first cells; updates of values keep the elements."""
    tab.until("""([table, texts]) => {
        for (const row of document.querySelectorAll(`#${table} tbody tr`)) row.dataset.wanted = row.cells[0].textContent;
        return texts.every((text) => [...document.querySelectorAll(`#${table} tbody tr`)]
            .some((row) => row.dataset.wanted === text));
    }""", [table, list(texts)])


@pytest.mark.timeout(300)
def test_rates_and_depths_of_pages_equal_the_counts_of_the_applications(
        tab: Tab, cluster: ClusterProcess, applications: list[Application]) -> None:
    leader = cluster.leader
    first, second = [name for name in cluster.names if name != leader]  # they forward to the leader
    producer, consumer = Producer(cluster[first].url), Consumer(cluster[second].url)
    applications += (producer, consumer)
    consumer.start()
    wait_for(consumer.open.is_set, consumer)
    producer.start()
    wait_for(lambda: consumer.total >= WARM_UP, producer, consumer)

    tab.visit(f"{cluster.consoles[first]}/")
    tiles = {name: f"[data-tile={name}] .value" for name in ("put", "ack", "push", "confirm")}
    posted, consumed = lambda: producer.acknowledged, lambda: consumer.total
    assert_rates(tab, {tiles["put"]: posted, tiles["ack"]: posted, tiles["push"]: consumed, tiles["confirm"]: consumed})
    assert_between(tab, "[data-tile=messages] .value", producer.acknowledged, lambda: producer.begun)

    page = f"/queue?uri={quote(QUEUE, safe='')}"
    tab.visit(f"{cluster.consoles[first]}{page}")
    expressions = {kind: expression_of(kind) for kind in set(KINDS)}
    mark_rows(tab, "apps", "audit", "billing")
    mark_rows(tab, "subscriptions", *expressions.values())
    given = {expression: partial(consumer.received.__getitem__, expression) for expression in expressions.values()}
    assert_rates(tab, {"[data-tile=in] .value": posted, "[data-tile=out] .value": consumed,
                       "[data-tile=confirm] .value": consumed,
                       **{row("subscriptions", expression, 3): count for expression, count in given.items()}})
    assert_between(tab, "[data-tile=messages] .value", producer.acknowledged, lambda: producer.begun)
    assert_between(tab, row("apps", "audit", 2), producer.acknowledged, lambda: producer.begun)
    assert tab.evaluate(NUMBER, row("apps", "billing", 2)) < WARM_UP, "confirmed messages are not counted"
    for kind, expression in expressions.items():
        assert_between(tab, row("subscriptions", expression, 2), consumer.received[expression],
                       partial(producer.posted, kind))
    queue_document = document(f"{cluster.consoles[second]}/api/v1/queue?uri={quote(QUEUE)}")
    assert queue_document["messages"] <= producer.begun and queue_document["producers"][0]["node"] == first

    producer.finish()
    stored = producer.acknowledged
    wait_for(lambda: consumer.total == stored, consumer)
    tab.until(EXACTLY, ["[data-tile=messages] .value", stored])
    tab.until(EXACTLY, [row("apps", "audit", 2), stored])
    tab.until(EXACTLY, [row("apps", "billing", 2), 0])
    for expression in expressions.values():
        tab.until(EXACTLY, [row("subscriptions", expression, 2), consumer.received[expression]])
    assert tab.problems() == []
    queue_document = document(f"{cluster.consoles[second]}/api/v1/queue?uri={quote(QUEUE)}")
    assert {each["app"]: each["messages"] for each in queue_document["apps"]} == {"audit": stored, "billing": 0}
    subscriptions = queue_document["consumers"][0]["subscriptions"]
    assert {each["expression"]: each["given"] for each in subscriptions} == dict(consumer.received)
    listed = json.loads(cluster[leader].admin(json.dumps({"encoding": "JSON_COMPACT", "domains": {"domain": {
        "name": "f", "command": {"info": {}}}}})))
    assert listed["domainInfo"]["capacityMeter"]["numMessages"] == stored
    consumer.finish()
