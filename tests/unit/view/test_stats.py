"""Statistics: counters, the sliding window, tables, JSON and metrics."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.memory import MemoryWorld
from kit.statistics import families, sample, stats_tables, stats_tree

from bmqtwist.link.session import Channel
from bmqtwist.queue.counters import AppStats, ClientStats, QueueStats
from bmqtwist.steps import ITEMS_AT_ONCE, at_once
from bmqtwist.view import snapshot as state
from bmqtwist.view import snapshots
from bmqtwist.view.metrics import QUEUE_METRICS, interval_text, json_in_steps
from bmqtwist.view.statistics import INVALID_QUEUE, SLOTS, Source, Statistics, TooManyStatisticsRequests

URI = "bmq://d.~lcl/q"
METER = state.MeterSnapshot("queue", 0, 1000, 0, 1048576)


class FanoutStats:
    """Fanout queue with apps foo, bar and baz, with counters set by the test."""

    def __init__(self) -> None:
        self.counters = QueueStats()
        self.apps = {name: AppStats() for name in ("foo", "bar", "baz")}
        self.unconfirmed = dict.fromkeys(self.apps, 0)
        self.stored = self.history = self.readers = 0
        self.statistics = Statistics(0.0)

    def queue(self) -> state.QueueState:
        apps = tuple(state.AppState(name, "00", "alive", count, count * 3) for name, count in self.unconfirmed.items())
        return state.QueueState(URI, "q", "d.~lcl", "00", "fanout", 0, self.stored, self.stored * 3, METER, apps,
                                history=self.history, readers=self.readers, message_limit=1000, byte_limit=1048576)

    def broker(self, publish: bool = True) -> state.BrokerState:
        domain = state.DomainState("d.~lcl", "c", "fanout", "{}", METER, (self.queue(),), publish_app_metrics=publish)
        return state.BrokerState("default", "1", "host", 0.0, 1_700_000_000.5, 1_600_000_000.0, (domain,))

    def sample(self, now: float) -> None:
        apps = [Source((URI, name), app, self.unconfirmed[name], self.unconfirmed[name] * 3)
                for name, app in self.apps.items()]
        sample(self.statistics, now, [Source(URI, self.counters, self.stored, self.stored * 3), *apps])

    def show(self, now: float) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        self.sample(now)
        tree = stats_tree(self.broker(), self.statistics)["domainQueues"]["domains"]["d.~lcl"][URI]
        return tree["values"], {name: app["values"] for name, app in tree["appIds"].items()}

    def post(self, count: int) -> None:
        for _ in range(count):
            self.counters.put_msgs += 1
            self.counters.put_bytes += 3
            self.counters.count_ack(0.001)
        self.stored += count
        self.unconfirmed = {name: before + count for name, before in self.unconfirmed.items()}

    def push(self, count: int) -> None:
        for app in self.apps.values():
            for _ in range(count):
                app.count_push(3, 0.5)
                self.counters.count_push(3, 0.5)

    def confirm(self, name: str, count: int) -> None:
        for _ in range(count):
            self.apps[name].count_confirm(0.25, 0.5)
            self.counters.count_confirm(0.25, 0.5)
        self.unconfirmed[name] -= count


def test_the_worked_example_has_the_documented_values_in_all_three_stages() -> None:
    lab = FanoutStats()
    lab.post(32)
    queue, apps = lab.show(1.0)
    assert queue | {"queue_put_msgs_abs": 32, "queue_put_bytes_abs": 96, "queue_put_msgs": 32, "queue_ack_msgs_abs": 32,
                    "queue_msgs_current": 32, "queue_bytes_current": 96, "queue_msgs_utilization_max": 3,
                    "queue_bytes_utilization_max": 0, "queue_cfg_msgs": 1000, "queue_content_msgs": 32,
                    "queue_role": 1} == queue
    assert {name: values["queue_msgs_current"] for name, values in apps.items()} == {"foo": 32, "bar": 32, "baz": 32}

    lab.readers = 3
    lab.push(32)
    for name, count in (("foo", 32), ("bar", 22), ("baz", 11)):
        lab.confirm(name, count)
    lab.stored, lab.history = 21, 11
    queue, apps = lab.show(2.0)
    assert queue | {"queue_push_msgs": 96, "queue_push_bytes": 288, "queue_confirm_msgs": 65, "queue_put_msgs": 32,
                    "queue_consumers_count": 3, "queue_msgs_current": 21, "queue_history_abs": 11,
                    "queue_content_msgs": 32, "queue_msgs_utilization_max": 3} == queue
    assert [apps[name]["queue_msgs_current"] for name in ("foo", "bar", "baz")] == [0, 10, 21]
    assert apps["foo"]["queue_content_msgs"] == 32 and apps["foo"]["queue_confirm_msgs"] == 0
    assert apps["foo"]["queue_confirm_time_avg"] == 250_000_000 and apps["foo"]["queue_queue_time_max"] == 500_000_000
    assert queue["queue_ack_time_avg"] == queue["queue_ack_time_max"] == 1_000_000

    lab.unconfirmed["baz"], lab.stored, lab.history = 0, 10, 22
    queue, apps = lab.show(3.0)
    assert (queue["queue_msgs_current"], queue["queue_history_abs"]) == (10, 22)
    assert [apps[name]["queue_msgs_current"] for name in ("foo", "bar", "baz")] == [0, 10, 0]


def test_every_metric_is_present_at_queue_and_at_app_level() -> None:
    queue, apps = FanoutStats().show(0.0)
    assert tuple(queue) == QUEUE_METRICS and len(QUEUE_METRICS) == 38
    assert all(set(values) == set(QUEUE_METRICS) for values in apps.values())


def test_deltas_and_maxima_expire_with_the_window_and_totals_stay() -> None:
    lab = FanoutStats()
    lab.post(5)
    lab.show(1.0)
    lab.stored = 0
    for second in range(10, 60, 10):
        lab.sample(float(second))
    assert lab.show(59.0)[0]["queue_put_msgs"] == 5
    queue, _ = lab.show(75.0)
    assert (queue["queue_put_msgs"], queue["queue_put_msgs_abs"], queue["queue_content_msgs"]) == (0, 5, 0)


def test_a_sample_after_a_long_pause_empties_the_window() -> None:
    lab = FanoutStats()
    lab.post(5)
    lab.sample(1.0)
    lab.stored = 0
    assert lab.show(1000.0)[0]["queue_put_msgs"] == 0
    assert lab.statistics.due > 1000.0


def test_the_maximum_of_an_interval_includes_the_value_at_its_start() -> None:
    lab = FanoutStats()
    lab.post(7)
    for second in range(0, 121, 10):
        lab.sample(float(second))
    lab.stored = 0
    assert lab.show(121.0)[0]["queue_content_msgs"] == 7


def test_the_record_of_a_removed_source_is_dropped() -> None:
    lab = FanoutStats()
    lab.post(1)
    lab.sample(1.0)
    sample(lab.statistics, 2.0, [])
    assert lab.statistics.record(URI).total("put_msgs") == 0


@pytest.mark.spec("broker", 223)
def test_the_fifth_snapshot_within_an_interval_is_refused() -> None:
    statistics = Statistics(0.0, snapshot_interval=1.0)
    outcomes = []
    for _ in range(5):
        try:
            statistics.admit(10.0)
            outcomes.append("ok")
        except TooManyStatisticsRequests as error:
            outcomes.append(str(error))
    assert outcomes == ["ok"] * 4 + ["Cannot save the recent snapshot, trying to make snapshots too often"]
    statistics.admit(11.0)


def test_app_metrics_can_be_switched_off() -> None:
    lab = FanoutStats()
    lab.sample(1.0)
    tree = stats_tree(lab.broker(publish=False), lab.statistics)["domainQueues"]["domains"]["d.~lcl"][URI]
    assert "appIds" not in tree
    assert not any(labels.get("AppId") for family in families(lab.broker(False), lab.statistics)
                   for labels, _ in family.samples)


def run_recording_pauses(work: Generator[None, None, str], steps: list[None]) -> Generator[None, None, str]:
    """Run a generator in steps and append its pauses to `steps`."""
    while True:
        try:
            steps.append(next(work))
        except StopIteration as over:
            return str(over.value)
        yield


def test_the_statistics_json_has_a_timestamp_and_is_made_in_slices() -> None:
    lab = FanoutStats()
    lab.sample(1.0)
    tree = stats_tree(lab.broker(), lab.statistics)
    assert tree["_timestamp"] == "14NOV2023_22:13:20.000000"
    domain = tree["domainQueues"]["domains"]["d.~lcl"]
    many = {f"queue {number}": domain[URI] for number in range(2 * ITEMS_AT_ONCE)}
    tree["domainQueues"]["domains"]["many \N{SNOWMAN}"] = many
    for each in (tree, {**tree, "domainQueues": {"domains": {}}}):
        steps = list[None]()
        assert at_once(run_recording_pauses(json_in_steps(each), steps)) == json.dumps(each, separators=(",", ":"))
        assert len(steps) == (2 if each is tree else 0)


def test_the_statistics_tables_have_headings_and_blank_zeros() -> None:
    lab = FanoutStats()
    lab.post(1200)
    lab.sample(1.0)
    client = ClientStats()
    client.put_msgs = 3
    session = state.SessionState("task:1", "1.2.3.4:5", "client", counters=client.totals(),
                                 channel=Channel(0.0).totals())
    base = lab.broker()
    broker = state.BrokerState("default", "1", "h", 0.0, 1.0, 0.0, base.domains, (session,),
                               invalid_queue={"put_msgs": 1})
    text = stats_tables(broker, lab.statistics)
    for title in ("DOMAINQUEUES", "CLIENTS", "CLUSTERS", "TCP CHANNELS"):
        assert f":::::::::: :::::::::: {title} >>" in text
    row = next(line for line in text.splitlines() if line.lstrip().startswith(URI))
    assert "1,200" in row and " 0 " not in row
    assert INVALID_QUEUE in text and "task:1" in text


def test_prometheus_deltas_and_maxima_have_a_suffix_and_totals_have_none() -> None:
    lab = FanoutStats()
    lab.post(4)
    lab.sample(1.0)
    for second in range(10, 80, 10):
        lab.sample(float(second))
    lab.post(2)
    lab.sample(80.0)
    found = {family.name: family for family in families(lab.broker(), lab.statistics)}
    labels, value = found["queue_put_msgs"].samples[0]
    assert value == 6 and found["queue_put_msgs"].kind == "counter"
    assert labels == {"Cluster": "c", "Domain": "d", "Tier": "lcl", "Queue": "q", "Role": "PRIMARY",
                            "Instance": "default", "DataType": "host-data"}
    assert found["queue_put_msgs_delta"].samples[0][1] == 2
    assert found["queue_content_msgs_max"].samples[0][1] == 6
    assert found["queue_heartbeat"].samples[0][1] == 0
    assert len(found["queue_msgs_current"].samples) == 4


def test_a_metric_family_has_one_sample_for_each_set_of_labels() -> None:
    lab = FanoutStats()
    lab.sample(1.0)
    for family in families(lab.broker(), lab.statistics):
        labels = [tuple(sorted(labels.items())) for labels, _ in family.samples]
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(("nanoseconds", "text"), [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 us"),
                                                   (482_870, "482.87 us"), (2_000_000_000, "2.00 s")])
def test_a_duration_prints_in_the_largest_unit_that_fits(nanoseconds: int, text: str) -> None:
    assert interval_text(nanoseconds) == text


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 200)), max_size=30))
def test_a_delta_is_the_increase_within_the_window(steps: list[tuple[int, int]]) -> None:
    statistics, counters, now = Statistics(0.0, print_interval=60.0), QueueStats(), 0.0
    counted: list[tuple[float, int]] = []
    for pause, amount in steps:
        now += pause
        sample(statistics, now, [Source("k", counters)])
        counters.put_msgs += amount
        counted.append((now, amount))
    sample(statistics, now, [Source("k", counters)])
    delta = statistics.record("k").delta("put_msgs")
    assert statistics.record("k").total("put_msgs") == sum(amount for _, amount in counted)
    shortest = sum(amount for at, amount in counted if at > now - statistics.step_seconds * (SLOTS - 1))
    longest = sum(amount for at, amount in counted if at >= now - statistics.step_seconds * SLOTS)
    assert shortest <= delta <= longest


def test_the_confirm_latency_histogram_counts_each_message_once() -> None:
    """The histogram counts each message once, for queues and apps; only the printer of statistics resets it."""
    lab = FanoutStats()
    for after in (0.001, 0.001, 0.004, 0.001):
        for counters in (lab.counters, lab.apps["foo"]):
            counters.count_confirm(0.0, after)
    assert "confirmLatency" not in stats_tree(lab.broker(), lab.statistics)["domainQueues"]["domains"]["d.~lcl"][URI]
    taken = {URI: lab.counters.take_latencies(), (URI, "foo"): lab.apps["foo"].take_latencies()}
    tree = stats_tree(lab.broker(), lab.statistics, taken)["domainQueues"]["domains"]["d.~lcl"][URI]
    assert tree["confirmLatency"] == tree["appIds"]["foo"]["confirmLatency"] == {"1098633": 3, "4394531": 1}
    assert "confirmLatency" not in tree["appIds"]["bar"]
    lab.counters.count_confirm(0.0, 0.001)
    assert list(lab.counters.take_latencies().values()) == [1] and not lab.counters.take_latencies()


def test_sampling_of_many_queues_pauses_and_keeps_sources_added_meanwhile() -> None:
    statistics, counters = Statistics(0.0), {name: QueueStats() for name in range(100)}
    sample(statistics, 1.0, [Source(name, each) for name, each in counters.items()] + [Source("gone", QueueStats())])
    for each in counters.values():
        each.put_msgs += 1
    steps = statistics.sampling(2.0, (Source(name, each) for name, each in counters.items()))
    next(steps)
    young = QueueStats()
    young.put_msgs = 7
    sample(statistics, 2.0, [Source("young", young), *(Source(name, each) for name, each in counters.items())])
    pauses = 1 + sum(1 for _ in steps)
    assert pauses == 100 // ITEMS_AT_ONCE
    assert statistics.record("young").total("put_msgs") == 7 and statistics.record(99).total("put_msgs") == 1
    sample(statistics, 3.0, [Source("young", young)])
    assert not statistics.record(99).total("put_msgs")


def test_queues_may_be_created_and_purged_during_a_snapshot_in_slices(tmp_path: Path) -> None:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    for number in range(70):
        world.producer(f"bmq://d/many{number}")
    statistics = world.assembled.start_statistics()
    samplings = (statistics.sampling(world.now, snapshots.sources(world.broker)),
                 snapshots.broker_in_steps(world.broker, world.now), snapshots.latencies_in_steps(world.broker))
    for each in samplings:
        next(each)
    for number in range(70, 80):
        world.producer(f"bmq://d/many{number}")
    world.admin("DOMAINS DOMAIN d QUEUE many0 PURGE *")
    at_once(samplings[0])
    found = at_once(samplings[1])
    assert len(found.queues) >= 70 and at_once(samplings[2]).keys() >= {"bmq://d/many69"}
    assert "bmq://d/many79" in world.admin("STAT SHOW")


@pytest.fixture
def few_collected_objects() -> Iterator[None]:
    """Hide the objects of earlier tests from gc.get_objects(), which is called once per step."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_collected_objects")
def test_the_snapshot_of_many_queues_is_freed_in_slices(tmp_path: Path) -> None:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    for number in range(3 * ITEMS_AT_ONCE):
        world.producer(f"bmq://d/freed{number}")
    seen: list[state.BrokerState] = []

    def made(found: state.BrokerState) -> Generator[None, None, str]:
        seen.append(found)
        yield
        return "made"

    def count() -> int:
        return sum(type(each) is state.QueueState and each.uri.startswith("bmq://d/freed") for each in gc.get_objects())

    steps = snapshots.snapshot_in_steps(world.broker, world.now, state.ProcessState(), made)
    while not seen:
        next(steps)
    seen.clear()
    kept = [count()]
    result = ""
    while not result:
        try:
            next(steps)
        except StopIteration as over:
            result = over.value
        kept.append(count())
    assert result == "made" and kept[0] == 3 * ITEMS_AT_ONCE and kept[-1] == 0
    assert all(before - after <= ITEMS_AT_ONCE for before, after in pairwise(kept))
