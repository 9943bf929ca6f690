"""Rates, depths and totals on the pages of real nodes, while applications post and consume: those that these count
themselves, and those that the API and admin commands tell."""

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

from bmqtwist.sdk import QueueOptions, Subscription
from bmqtwist.sdk.simple import Session
from bmqtwist.testing import ClusterProcess
from browser.chromium import Tab

QUEUE = "bmq://f/orders"
PERIOD_S = 0.02  # between two posts
KINDS = ("a", "a", "a", "b")  # of messages, again and again
SAMPLES_MS = 6000  # for so long rates are looked at
TOLERANCE = 0.2
WARM_UP = 150  # messages, before anything is looked at
PATIENCE_S = 60.0

# The numbers in some elements, looked at five times a second: their means.
MEANS = """async ([selectors, milliseconds]) => {
    const sums = selectors.map(() => 0), end = performance.now() + milliseconds;
    let looks = 0;
    for (; performance.now() < end; looks += 1) {
        selectors.forEach((each, n) => {
            sums[n] += Number(document.querySelector(each).textContent.replace(/[^0-9.]/g, ""));
        });
        await new Promise((resolve) => setTimeout(resolve, 200));
    }
    return sums.map((sum) => sum / looks);
}"""
NUMBER = "(selector) => Number(document.querySelector(selector).textContent.replace(/[^0-9.]/g, ''))"
AT_LEAST = f"([selector, wanted]) => ({NUMBER})(selector) >= wanted"
EXACTLY = f"([selector, wanted]) => ({NUMBER})(selector) === wanted"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Three nodes with a fanout domain; nobody reads as app `audit`."""
    made = ClusterProcess(tmp_path)
    for name in made.names:
        made[name].domain("f", "fanout", app_ids=("audit", "billing"), consistency="strong")
    with made:
        yield made


def expression_of(kind: str) -> str:
    """That of the subscription for a kind."""
    return f'kind == "{kind}"'


class Application(threading.Thread, ABC):
    """Something that goes on until it is told to end; what goes wrong in it fails the test."""

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
        """Until the end."""

    def finish(self) -> None:
        """Wait for its end."""
        self.end.set()
        self.join(PATIENCE_S)
        assert not self.is_alive() and self.error is None, self.error


class Producer(Application):
    """Posts a message every PERIOD_S."""

    begun = acknowledged = 0

    def of(self, kind: str) -> int:
        """How many of a kind it has begun to post."""
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
    """Consumes and confirms, by one subscription for each kind."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.taken, self.open = Counter[str](), threading.Event()

    @property
    def total(self) -> int:
        """Of all kinds."""
        return sum(self.taken.values())

    def work(self, session: Session) -> None:
        """From Application."""
        subscriptions = [Subscription(expression_of(kind)) for kind in sorted(set(KINDS))]
        with session.open(f"{QUEUE}?id=billing", read=True, options=QueueOptions(subscriptions=subscriptions)) as queue:
            self.open.set()
            while not self.end.is_set():
                message = queue.get(0.2)
                if message is not None:
                    self.taken[message.subscription.expression] += 1
                    message.confirm()


@pytest.fixture
def applications(cluster: ClusterProcess) -> Iterator[list[Application]]:
    """Those that are to end before the cluster does."""
    begun: list[Application] = []
    yield begun
    for each in begun:
        each.end.set()
        if each.is_alive():
            each.join(PATIENCE_S)


def wait_for(what: Any, *applications: Application) -> None:
    """Until that is so."""
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end and all(each.error is None for each in applications), [
            each.error for each in applications]
        time.sleep(0.02)


def document(url: str) -> Any:
    """A document of the API."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def assert_rates(tab: Tab, counted: Mapping[str, Callable[[], int]]) -> None:
    """For some seconds the rates in these elements are those at which the applications count."""
    for selector in counted:
        tab.until(AT_LEAST, [selector, 1])
    began, before = time.monotonic(), [count() for count in counted.values()]
    means = tab.evaluate(MEANS, [list(counted), SAMPLES_MS])
    seconds = time.monotonic() - began
    rates = [(count() - old) / seconds for count, old in zip(counted.values(), before, strict=True)]
    wrong = {selector: (mean, rate) for selector, mean, rate in zip(counted, means, rates, strict=True)
             if not rate or abs(mean - rate) > TOLERANCE * rate}
    assert not wrong, "what the page shows, and what is right"


def assert_between(tab: Tab, selector: str, least: int, most: Any) -> None:
    """A page shows at least what there was before, in time, and not more than what there is then."""
    tab.until(AT_LEAST, [selector, least])
    shown = tab.evaluate(NUMBER, selector)
    assert least <= shown <= most(), selector


def row(table: str, text: str, column: int) -> str:
    """A selector of a cell: rows are marked by their first one."""
    return f"#{table} tr[data-wanted='{text}'] > :nth-child({column})"


def mark_rows(tab: Tab, table: str, *texts: str) -> None:
    """Mark the rows whose first cells are these; rows stay the same elements while their values change."""
    tab.until("""([table, texts]) => {
        for (const row of document.querySelectorAll(`#${table} tbody tr`)) row.dataset.wanted = row.cells[0].textContent;
        return texts.every((text) => [...document.querySelectorAll(`#${table} tbody tr`)]
            .some((row) => row.dataset.wanted === text));
    }""", [table, list(texts)])


@pytest.mark.timeout(300)
def test_numbers_of_pages_are_those_of_the_traffic_while_it_flows(
        tab: Tab, cluster: ClusterProcess, applications: list[Application]) -> None:
    leader = cluster.leader
    first, second = [name for name in cluster.names if name != leader]  # what they are asked for goes on to the leader
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
    given = {expression: partial(consumer.taken.__getitem__, expression) for expression in expressions.values()}
    assert_rates(tab, {"[data-tile=in] .value": posted, "[data-tile=out] .value": consumed,
                       "[data-tile=confirm] .value": consumed,
                       **{row("subscriptions", expression, 3): count for expression, count in given.items()}})
    assert_between(tab, "[data-tile=messages] .value", producer.acknowledged, lambda: producer.begun)
    assert_between(tab, row("apps", "audit", 2), producer.acknowledged, lambda: producer.begun)
    assert tab.evaluate(NUMBER, row("apps", "billing", 2)) < WARM_UP, "what is confirmed is not counted there"
    for kind, expression in expressions.items():
        assert_between(tab, row("subscriptions", expression, 2), consumer.taken[expression], partial(producer.of, kind))
    told = document(f"{cluster.consoles[second]}/api/v1/queue?uri={quote(QUEUE)}")
    assert told["messages"] <= producer.begun and told["producers"][0]["node"] == first

    producer.finish()
    stored = producer.acknowledged
    wait_for(lambda: consumer.total == stored, consumer)
    tab.until(EXACTLY, ["[data-tile=messages] .value", stored])
    tab.until(EXACTLY, [row("apps", "audit", 2), stored])
    tab.until(EXACTLY, [row("apps", "billing", 2), 0])
    for expression in expressions.values():
        tab.until(EXACTLY, [row("subscriptions", expression, 2), consumer.taken[expression]])
    assert tab.problems() == []
    told = document(f"{cluster.consoles[second]}/api/v1/queue?uri={quote(QUEUE)}")
    assert {each["app"]: each["messages"] for each in told["apps"]} == {"audit": stored, "billing": 0}
    assert {each["expression"]: each["given"] for each in told["consumers"][0]["subscriptions"]} == dict(consumer.taken)
    listed = json.loads(cluster[leader].admin(json.dumps({"encoding": "JSON_COMPACT", "domains": {"domain": {
        "name": "f", "command": {"info": {}}}}})))
    assert listed["domainInfo"]["capacityMeter"]["numMessages"] == stored
    consumer.finish()
