"""Queue monitor: alarms for stuck queues, and deletion of unused queues."""

from __future__ import annotations

import pytest
from kit.admin_kit import Bench

from bmqtwist.daemon.housekeeping import Housekeeping

URI = "bmq://d/q"


class MonitorBench(Bench):
    """A broker with housekeeping, whose alarms and log lines are inspected."""

    def __init__(self, mode: str = "priority", idle: int = 1, **parameters: object) -> None:
        super().__init__(queue_operations={"keepaliveDurationMs": 10_000, "consumptionMonitorPeriodMs": 30_000})
        self.write_domain("d", mode, maxIdleTime=idle, **parameters)
        Housekeeping(self.broker).start(self.now)
        self._seen = 0

    def take_lines(self) -> list[str]:
        """Return the first lines of the alarms and log lines about stuck queues since the last call."""
        lines, self._seen = self.report.lines[self._seen:], len(self.report.lines)
        return [text.splitlines()[0] for _, text in lines if "stuck" in text]

    def alarm(self) -> str:
        """The text of the last alarm."""
        return next(text for severity, text in reversed(self.report.lines) if severity == "ALARM" and "stuck" in text)


STUCK = "[QUEUE_STUCK] Queue 'bmq://d/q' Messages [current: 1 / 1,000,000], Bytes [current: 1  B / 1.00 TB], max idle " \
        "time 1.00 s appears to be stuck. It currently has 0 consumers."
FREE = "Queue 'bmq://d/q?id=__default' no longer appears to be stuck."


@pytest.mark.spec("broker", 189)
def test_an_undelivered_message_raises_one_alarm_until_a_consumer_receives_it() -> None:
    bench = MonitorBench()
    bench.post(bench.open(), b"1")
    bench.advance(0.9)
    assert bench.take_lines() == []
    bench.advance(0.7)
    assert bench.take_lines() == [STUCK]
    assert "\nFor appId: __default\n" in bench.alarm()
    bench.advance(10.0)
    assert bench.take_lines() == []
    bench.open(read=True)
    bench.advance(1.0)
    assert bench.take_lines() == [FREE]


def test_the_alarm_shows_consumers_message_lists_and_the_oldest_message() -> None:
    bench = MonitorBench()
    guids = [guid.hex().upper() for guid in bench.post(bench.open(), *[b"1"] * 12)]
    bench.open(read=True, limit=1, name="reader:2")
    bench.advance(2.0)
    lines = bench.alarm().split("\n")
    assert lines[1:6] == [
        "  1. reader:2",
        ('    Handle Parameters .....: [ uri = "bmq://d/q" qId = 2 subIdInfo = NULL flags = 2 readCount = 1 writeCount = 0'
        " adminCount = 0 ]"),
        "    Number of unconfirmed messages .....: 1", "    UnconfirmedMonitors ....:",
        "   STATE_FULL [Messages (STATE_FULL): 1 (1 - 1 - 1), Bytes (STATE_NORMAL): 1  B (25.60 MB - 25.60 MB - 32.00 MB)] "]
    text = bench.alarm()
    assert "10 oldest messages in the queue:\nPrinting 10 message(s) [0-9 / 12] (total: 10  B)\n" in text
    assert guids[9] in text and guids[10] not in text
    assert text.endswith("Current head of the queue:\nGUID                              Size        Timestamp (UTC)\n"
                         f"{guids[1]}        1  B  14NOV2023_22:13:20.000000+0000\n")


@pytest.mark.spec("broker", 190)
def test_only_undelivered_messages_make_a_queue_stuck() -> None:
    bench = MonitorBench()
    producer, consumer = bench.open(), bench.open(read=True, limit=1)
    bench.post(producer, b"1")
    bench.advance(5.0)
    assert bench.take_lines() == []
    bench.post(producer, b"2")
    bench.advance(1.6)
    assert len(bench.take_lines()) == 1
    bench.confirm(consumer)
    bench.advance(1.0)
    assert bench.take_lines() == [FREE]


@pytest.mark.spec("broker", 191)
def test_a_queue_with_slow_deliveries_is_not_stuck() -> None:
    bench = MonitorBench(idle=3)
    producer, consumer = bench.open(), bench.open(read=True, limit=1)
    bench.post(producer, b"1", b"2", b"3")
    for _ in range(3):
        bench.advance(1.0)
        bench.confirm(consumer)
    bench.advance(3.0)
    assert bench.take_lines() == []


@pytest.mark.spec("broker", 192)
def test_returned_messages_of_a_lost_consumer_make_a_queue_stuck() -> None:
    bench = MonitorBench()
    bench.post(bench.open(), b"1")
    bench.close(bench.open(read=True), crashed=True)
    bench.advance(2.0)
    assert bench.take_lines() == [STUCK]
    assert "\nRedelivery list size: 1\n" in bench.alarm()


@pytest.mark.spec("broker", 193)
def test_a_reconfigured_max_idle_time_takes_effect() -> None:
    bench = MonitorBench(idle=30)
    producer, consumer = bench.open(), bench.open(read=True, limit=1)
    bench.post(producer, b"1", b"2")
    bench.advance(0.5)
    bench.write_domain("d", maxIdleTime=1)
    assert bench.run("DOMAINS RECONFIGURE d") == "SUCCESS"
    bench.advance(1.5)
    assert len(bench.take_lines()) == 1
    bench.confirm(consumer)
    bench.advance(1.0)
    assert bench.take_lines() == [FREE]
    bench.post(producer, b"3")
    bench.write_domain("d", maxIdleTime=0)
    bench.run("DOMAINS RECONFIGURE d")
    bench.advance(100.0)
    assert bench.take_lines() == []


def test_a_max_idle_time_of_zero_ends_the_stuck_state_without_a_log_line() -> None:
    bench = MonitorBench()
    bench.post(bench.open(), b"1")
    bench.advance(2.0)
    assert len(bench.take_lines()) == 1
    for idle, expected in ((0, []), (1, [STUCK])):
        bench.write_domain("d", maxIdleTime=idle)
        bench.run("DOMAINS RECONFIGURE d")
        bench.advance(2.0)
        assert bench.take_lines() == expected


@pytest.mark.spec("broker", 194)
def test_the_alarm_for_an_unmatched_message_shows_the_subscription_expressions() -> None:
    bench = MonitorBench()
    bench.open(read=True, expression="x == 1")
    bench.post(bench.open(), b"1")
    bench.advance(2.0)
    text = bench.alarm()
    assert "Put aside list size: 1\n" in text and "\nConsumer subscription expressions:" in text and "\nx == 1\n" in text
    assert "Oldest message in the 'Put aside' list:" in text and "Message Properties: " in text


@pytest.mark.spec("broker", 195)
def test_the_alarm_names_only_the_stuck_app() -> None:
    bench = MonitorBench("fanout")
    for app in ("bar", "baz"):
        bench.open(URI, app, read=True)
    bench.post(bench.open(), b"1")
    bench.advance(2.0)
    lines = bench.take_lines()
    assert len(lines) == 1 and "Queue 'bmq://d/q?id=foo' Messages" in lines[0]
    bench.open(URI, "foo", read=True)
    bench.advance(1.0)
    assert bench.take_lines() == ["Queue 'bmq://d/q?id=foo' no longer appears to be stuck."]


@pytest.mark.spec("broker", 121)
def test_a_broadcast_queue_is_not_stuck() -> None:
    bench = MonitorBench("broadcast", in_memory=True)
    bench.post(bench.open(), b"1")
    bench.advance(5.0)
    assert bench.take_lines() == []


def test_a_purge_ends_the_stuck_state() -> None:
    bench = MonitorBench()
    bench.post(bench.open(), b"1")
    bench.advance(2.0)
    bench.take_lines()
    bench.run("DOMAINS DOMAIN d PURGE")
    bench.advance(1.0)
    assert bench.take_lines() == [FREE]


@pytest.mark.spec("broker", 205)
def test_an_unused_empty_queue_is_deleted_after_the_keepalive_and_can_be_created_again() -> None:
    bench = MonitorBench(idle=0)
    handle = bench.open()
    bench.advance(20.0)
    assert URI in bench.cluster.queues
    bench.close(handle)
    bench.advance(9.0)
    assert URI in bench.cluster.queues
    bench.advance(2.5)
    assert URI not in bench.cluster.queues and "q" not in bench.broker.domains.by_name["d"].queues
    assert bench.post(bench.open(), b"again")


@pytest.mark.spec("broker", 206)
def test_a_queue_with_messages_is_not_deleted() -> None:
    bench = MonitorBench(idle=0)
    handle = bench.open()
    bench.post(handle, b"1")
    bench.close(handle)
    bench.advance(100.0)
    assert URI in bench.cluster.queues


def test_the_keepalive_of_an_unopened_queue_begins_at_the_start_of_the_broker() -> None:
    bench = MonitorBench(idle=0)
    queue = bench.queue()
    assert not queue.is_collectable(bench.now + 5, 10, bench.now)
    assert queue.is_collectable(bench.now + 10, 10, bench.now)
    queue.domain.opening = 1
    assert not queue.is_collectable(bench.now + 10, 10, bench.now)
