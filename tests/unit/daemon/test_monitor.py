"""Stuck queues and unused queues."""

from __future__ import annotations

import pytest
from kit.admin_kit import Bench

from bmqtwist.daemon.housekeeping import Housekeeping

URI = "bmq://d/q"


class Lab(Bench):
    """A broker with housekeeping, whose alarms and log lines are inspected."""

    def __init__(self, mode: str = "priority", idle: int = 1, **parameters: object) -> None:
        super().__init__(queue_operations={"keepaliveDurationMs": 10_000, "consumptionMonitorPeriodMs": 30_000})
        self.write_domain("d", mode, maxIdleTime=idle, **parameters)
        Housekeeping(self.broker).start(self.now)
        self._seen = 0

    def told(self) -> list[str]:
        """First lines of the alarms and log lines about stuck queues since the last call."""
        lines, self._seen = self.report.lines[self._seen:], len(self.report.lines)
        return [text.splitlines()[0] for _, text in lines if "stuck" in text]

    def alarm(self) -> str:
        """The text of the last alarm."""
        return next(text for severity, text in reversed(self.report.lines) if severity == "ALARM" and "stuck" in text)


STUCK = "[QUEUE_STUCK] Queue 'bmq://d/q' Messages [current: 1 / 1,000,000], Bytes [current: 1  B / 1.00 TB], max idle " \
        "time 1.00 s appears to be stuck. It currently has 0 consumers."
FREE = "Queue 'bmq://d/q?id=__default' no longer appears to be stuck."


@pytest.mark.spec("broker", 189)
def test_a_message_nobody_takes_raises_one_alarm_and_a_consumer_ends_it() -> None:
    lab = Lab()
    lab.post(lab.open(), b"1")
    lab.advance(0.9)
    assert lab.told() == []
    lab.advance(0.7)
    assert lab.told() == [STUCK]
    assert "\nFor appId: __default\n" in lab.alarm()
    lab.advance(10.0)
    assert lab.told() == []
    lab.open(read=True)
    lab.advance(1.0)
    assert lab.told() == [FREE]


def test_the_alarm_shows_consumers_lists_and_messages() -> None:
    lab = Lab()
    guids = [guid.hex().upper() for guid in lab.post(lab.open(), *[b"1"] * 12)]
    lab.open(read=True, limit=1, name="reader:2")
    lab.advance(2.0)
    lines = lab.alarm().split("\n")
    assert lines[1:6] == [
        "  1. reader:2",
        ('    Handle Parameters .....: [ uri = "bmq://d/q" qId = 2 subIdInfo = NULL flags = 2 readCount = 1 writeCount = 0'
        " adminCount = 0 ]"),
        "    Number of unconfirmed messages .....: 1", "    UnconfirmedMonitors ....:",
        "   STATE_FULL [Messages (STATE_FULL): 1 (1 - 1 - 1), Bytes (STATE_NORMAL): 1  B (25.60 MB - 25.60 MB - 32.00 MB)] "]
    text = lab.alarm()
    assert "10 oldest messages in the queue:\nPrinting 10 message(s) [0-9 / 12] (total: 10  B)\n" in text
    assert guids[9] in text and guids[10] not in text
    assert text.endswith("Current head of the queue:\nGUID                              Size        Timestamp (UTC)\n"
                         f"{guids[1]}        1  B  14NOV2023_22:13:20.000000+0000\n")


@pytest.mark.spec("broker", 190)
def test_a_delivered_message_is_no_reason_and_one_behind_it_is() -> None:
    lab = Lab()
    producer, consumer = lab.open(), lab.open(read=True, limit=1)
    lab.post(producer, b"1")
    lab.advance(5.0)
    assert lab.told() == []
    lab.post(producer, b"2")
    lab.advance(1.6)
    assert len(lab.told()) == 1
    lab.confirm(consumer)
    lab.advance(1.0)
    assert lab.told() == [FREE]


@pytest.mark.spec("broker", 191)
def test_a_slow_queue_that_moves_raises_no_alarm() -> None:
    lab = Lab(idle=3)
    producer, consumer = lab.open(), lab.open(read=True, limit=1)
    lab.post(producer, b"1", b"2", b"3")
    for _ in range(3):
        lab.advance(1.0)
        lab.confirm(consumer)
    lab.advance(3.0)
    assert lab.told() == []


@pytest.mark.spec("broker", 192)
def test_what_a_lost_consumer_held_is_overdue() -> None:
    lab = Lab()
    lab.post(lab.open(), b"1")
    lab.close(lab.open(read=True), crashed=True)
    lab.advance(2.0)
    assert lab.told() == [STUCK]
    assert "\nRedelivery list size: 1\n" in lab.alarm()


@pytest.mark.spec("broker", 193)
def test_the_threshold_changes_while_the_broker_runs() -> None:
    lab = Lab(idle=30)
    producer, consumer = lab.open(), lab.open(read=True, limit=1)
    lab.post(producer, b"1", b"2")
    lab.advance(0.5)
    lab.write_domain("d", maxIdleTime=1)
    assert lab.run("DOMAINS RECONFIGURE d") == "SUCCESS"
    lab.advance(1.5)
    assert len(lab.told()) == 1
    lab.confirm(consumer)
    lab.advance(1.0)
    assert lab.told() == [FREE]
    lab.post(producer, b"3")
    lab.write_domain("d", maxIdleTime=0)
    lab.run("DOMAINS RECONFIGURE d")
    lab.advance(100.0)
    assert lab.told() == []


def test_switching_the_monitor_off_ends_an_episode_silently() -> None:
    lab = Lab()
    lab.post(lab.open(), b"1")
    lab.advance(2.0)
    assert len(lab.told()) == 1
    for idle, expected in ((0, []), (1, [STUCK])):
        lab.write_domain("d", maxIdleTime=idle)
        lab.run("DOMAINS RECONFIGURE d")
        lab.advance(2.0)
        assert lab.told() == expected


@pytest.mark.spec("broker", 194)
def test_a_message_that_no_subscription_wants_is_shown_with_the_expressions() -> None:
    lab = Lab()
    lab.open(read=True, expression="x == 1")
    lab.post(lab.open(), b"1")
    lab.advance(2.0)
    text = lab.alarm()
    assert "Put aside list size: 1\n" in text and "\nConsumer subscription expressions:" in text and "\nx == 1\n" in text
    assert "Oldest message in the 'Put aside' list:" in text and "Message Properties: " in text


@pytest.mark.spec("broker", 195)
def test_only_the_app_that_is_stuck_is_named() -> None:
    lab = Lab("fanout")
    for app in ("bar", "baz"):
        lab.open(URI, app, read=True)
    lab.post(lab.open(), b"1")
    lab.advance(2.0)
    told = lab.told()
    assert len(told) == 1 and "Queue 'bmq://d/q?id=foo' Messages" in told[0]
    lab.open(URI, "foo", read=True)
    lab.advance(1.0)
    assert lab.told() == ["Queue 'bmq://d/q?id=foo' no longer appears to be stuck."]


@pytest.mark.spec("broker", 121)
def test_a_broadcast_queue_is_never_stuck() -> None:
    lab = Lab("broadcast", in_memory=True)
    lab.post(lab.open(), b"1")
    lab.advance(5.0)
    assert lab.told() == []


def test_a_purge_ends_the_episode() -> None:
    lab = Lab()
    lab.post(lab.open(), b"1")
    lab.advance(2.0)
    lab.told()
    lab.run("DOMAINS DOMAIN d PURGE")
    lab.advance(1.0)
    assert lab.told() == [FREE]


@pytest.mark.spec("broker", 205)
def test_an_empty_queue_without_handles_is_deleted_after_the_keepalive_and_can_be_made_again() -> None:
    lab = Lab(idle=0)
    handle = lab.open()
    lab.advance(20.0)
    assert URI in lab.cluster.queues
    lab.close(handle)
    lab.advance(9.0)
    assert URI in lab.cluster.queues
    lab.advance(2.5)
    assert URI not in lab.cluster.queues and "q" not in lab.broker.domains.by_name["d"].queues
    assert lab.post(lab.open(), b"again")


@pytest.mark.spec("broker", 206)
def test_a_queue_with_messages_is_never_deleted() -> None:
    lab = Lab(idle=0)
    handle = lab.open()
    lab.post(handle, b"1")
    lab.close(handle)
    lab.advance(100.0)
    assert URI in lab.cluster.queues


def test_a_queue_nobody_has_opened_counts_from_the_start() -> None:
    lab = Lab(idle=0)
    queue = lab.queue()
    assert not queue.is_collectable(lab.now + 5, 10, lab.now)
    assert queue.is_collectable(lab.now + 10, 10, lab.now)
    queue.domain.opening = 1
    assert not queue.is_collectable(lab.now + 10, 10, lab.now)
