"""Quota meters: admission, state changes and their alarms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.errors import AckStatus
from bmqtwist.queue.meter import Meter, MeterState

PLENTY = 1 << 40


def pair(queue=(PLENTY, PLENTY), domain=(PLENTY, PLENTY)):
    above = Meter("domain [bmq://d]", None, *domain)
    return Meter("queue [bmq://d/q]", above, *queue), above


def said(meter):
    return [(f"CAPACITY_{event.state.name}", event.alarm is not None) for event in meter.take_events()]


@pytest.mark.spec("broker", 176)
def test_a_limit_of_n_messages_admits_one_more_and_refuses_the_next():
    meter, _ = pair(queue=(3, PLENTY))
    assert [meter.try_add(1) for _ in range(5)] == [0, 0, 0, 0, AckStatus.LIMIT_MESSAGES]
    meter.remove(1, 1)
    assert [meter.try_add(1), meter.try_add(1)] == [0, AckStatus.LIMIT_MESSAGES]


@pytest.mark.spec("broker", 179)
def test_a_limit_of_bytes_may_be_exceeded_once():
    meter, _ = pair(queue=(PLENTY, 10))
    assert [meter.try_add(4) for _ in range(4)] == [0, 0, 0, AckStatus.LIMIT_BYTES]


@pytest.mark.spec("broker", 177)
def test_the_limit_of_the_domain_counts_all_its_queues():
    first, above = pair(domain=(3, PLENTY))
    second = Meter("queue [bmq://d/r]", above, PLENTY, PLENTY)
    assert [meter.try_add(1) for meter in (first, second, first, second)] == [0] * 4
    assert [meter.try_add(1) for meter in (first, second)] == [AckStatus.LIMIT_MESSAGES] * 2
    assert (first.messages, second.messages, above.messages) == (2, 2, 4)
    second.remove(1, 1)
    assert first.try_add(1) == 0


@pytest.mark.parametrize("queue, domain", [((8, PLENTY), (PLENTY, PLENTY)), ((PLENTY, 16), (PLENTY, PLENTY)),
                                           ((PLENTY, PLENTY), (8, PLENTY)), ((PLENTY, PLENTY), (PLENTY, 16))])
def test_there_is_plenty_up_to_a_quarter_of_every_limit_here_and_above(queue, domain):
    meter, _ = pair(queue, domain)
    seen = []
    for _ in range(3):
        meter.try_add(2)
        seen.append(meter.has_plenty)
    assert seen == [True, True, False]
    meter.remove(1, 2)
    assert meter.has_plenty
    meter.try_add(2)
    meter.disabled = True
    assert meter.has_plenty


def test_messages_are_tested_before_bytes_and_the_queue_before_its_domain():
    meter, _ = pair(queue=(0, 0), domain=(0, 0))
    assert [meter.try_add(5), meter.try_add(5)] == [0, AckStatus.LIMIT_MESSAGES]
    meter, _ = pair(queue=(PLENTY, 4), domain=(0, PLENTY))
    assert [meter.try_add(5), meter.try_add(5)] == [0, AckStatus.LIMIT_BYTES]


@pytest.mark.spec("broker", 178)
def test_new_limits_hold_at_once_and_nothing_stored_is_lost():
    meter, above = pair(queue=(3, PLENTY))
    for _ in range(4):
        meter.try_add(1)
    assert meter.try_add(1)
    meter.reconfigure(13, PLENTY)
    assert [meter.try_add(1) for _ in range(11)] == [0] * 10 + [AckStatus.LIMIT_MESSAGES]
    meter.reconfigure(3, PLENTY)
    meter.remove(10, 10)
    assert meter.try_add(1)
    meter.remove(1, 1)
    assert not meter.try_add(1) and above.messages == meter.messages == 4


def test_watermarks_are_rounded_down():
    meter = Meter("queue [q]", None, 3, 15)
    assert (meter.messages_low, meter.messages_high, meter.bytes_low, meter.bytes_high) == (1, 2, 6, 12)


@pytest.mark.spec("broker", 181)
def test_each_state_is_announced_once_until_it_is_left():
    meter = Meter("queue [q]", None, 5, PLENTY)
    heard = []
    for _ in range(6):
        meter.try_add(1)
        heard.append(said(meter))
    assert heard == [[], [], [], [("CAPACITY_STATE_HIGH_WATERMARK", True)], [("CAPACITY_STATE_FULL", True)], []]
    meter.remove(2, 2)  # at the high watermark: no longer full, nothing to say
    assert said(meter) == [] and meter.state is MeterState.STATE_HIGH_WATERMARK
    meter.try_add(1)
    assert said(meter) == [("CAPACITY_STATE_FULL", True)]
    meter.remove(2, 2)
    assert said(meter) == []
    meter.remove(1, 1)
    assert said(meter) == [("CAPACITY_STATE_NORMAL", False)]
    meter.try_add(1)
    meter.try_add(1)
    assert said(meter) == [("CAPACITY_STATE_HIGH_WATERMARK", True)]


def test_one_message_that_crosses_both_marks_announces_full_only():
    meter = Meter("queue [q]", None, PLENTY, 1000)
    meter.try_add(2000)
    assert said(meter) == [("CAPACITY_STATE_FULL", True)]
    meter.remove(1, 2000)
    assert said(meter) == [("CAPACITY_STATE_NORMAL", False)]


def test_the_second_resource_is_not_announced_at_a_state_already_reached():
    meter = Meter("queue [q]", None, 5, 5)
    for _ in range(3):
        meter.try_add(0)
    meter.try_add(4)
    assert said(meter) == [("CAPACITY_STATE_HIGH_WATERMARK", True)]
    meter.remove(1, 0)
    assert said(meter) == [] and meter.bytes_state is MeterState.STATE_HIGH_WATERMARK


def test_the_text_counts_the_new_message_and_groups_digits():
    meter, _ = pair(queue=(1, 32 << 20))
    meter.try_add(9)
    event, = meter.take_events()
    assert event.meter is meter
    assert event.text == ("for 'queue [bmq://d/q]': [Messages (STATE_FULL): 1 (limit: 1), "
                          "Bytes (STATE_NORMAL): 9  B (limit: 32.00 MB)]")
    meter = Meter("queue [q]", None, 1200, 0)
    assert meter.summary() == "Messages [current: 0 / 1,200], Bytes [current: 0  B / 0  B]"


def test_events_of_a_domain_are_found_at_the_queue_that_caused_them_and_come_first():
    meter, above = pair(queue=(1, PLENTY), domain=(1, PLENTY))
    meter.try_add(1)
    assert meter.events is above.events
    assert [event.meter.name for event in meter.take_events()] == ["domain [bmq://d]", "queue [bmq://d/q]"]
    assert meter.events == []


def test_recovery_counts_without_refusal_or_alarm():
    meter, above = pair(queue=(2, PLENTY))
    meter.force_add(10, 100)
    assert (above.messages, above.bytes) == (10, 100) and meter.state is MeterState.STATE_FULL
    assert said(meter) == [] and meter.try_add(1) == AckStatus.LIMIT_MESSAGES


def test_clearing_releases_the_domain_and_is_silent():
    meter, above = pair(queue=(2, PLENTY))
    other = Meter("queue [bmq://d/r]", above, PLENTY, PLENTY)
    for _ in range(3):
        meter.try_add(7)
    other.try_add(1)
    meter.take_events()
    meter.clear()
    assert (meter.messages, meter.bytes, above.messages, above.bytes) == (0, 0, 1, 1)
    assert meter.state is MeterState.STATE_NORMAL and said(meter) == []


def test_a_disabled_meter_grants_everything_and_counts_nothing():
    above = Meter("domain [d]", None, 1, 1)
    meter = Meter("queue [q]", above, 0, 0, disabled=True)
    assert [meter.try_add(100) for _ in range(3)] == [0, 0, 0]
    meter.remove(1, 100)
    meter.force_add(1, 1)
    meter.clear()
    assert (meter.messages, above.messages, above.events) == (0, 0, [])


class Slow:
    """Reference implementation of one resource of the meter, by the table."""

    def __init__(self, limit, ratio):
        self.limit, self.high, self.low = limit, int(limit * ratio), int(limit * (ratio * 0.5))
        self.value, self.state = 0, 2 if not limit else 0

    def change(self, delta):
        self.value += delta
        if delta > 0:
            if self.state == 0 and self.value >= self.high:
                self.state = 1
            if self.state == 1 and self.value >= self.limit:
                self.state = 2
        elif delta < 0 and self.limit:
            if self.state == 2 and self.value <= self.high:
                self.state = 1
            if self.state == 1 and self.value <= self.low:
                self.state = 0


@given(st.integers(0, 12), st.integers(0, 30), st.sampled_from([0.0, 0.3, 0.5, 0.8]),
       st.lists(st.one_of(st.integers(1, 9), st.just(None)), max_size=60))
def test_states_follow_the_table(messages_max, bytes_max, ratio, steps):
    meter = Meter("queue [q]", None, messages_max, bytes_max, ratio, ratio)
    messages, size = Slow(messages_max, ratio), Slow(bytes_max, ratio)
    stored = []
    for step in steps:
        if step is not None:
            admitted = messages.value <= messages_max and size.value <= bytes_max
            assert (meter.try_add(step) == 0) == admitted
            if admitted:
                stored.append(step)
                messages.change(1)
                size.change(step)
        elif stored:
            gone = stored.pop(0)
            meter.remove(1, gone)
            messages.change(-1)
            size.change(-gone)
        assert (meter.messages, meter.bytes) == (len(stored), sum(stored))
        assert (meter.messages_state, meter.bytes_state) == (messages.state, size.state)
