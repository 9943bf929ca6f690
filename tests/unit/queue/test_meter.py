"""Quota meters: admission, state changes and their alarms."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.errors import AckStatus
from bmqtwist.queue.meter import Meter, MeterState

NO_LIMIT = 1 << 40


def queue_and_domain_meter(queue=(NO_LIMIT, NO_LIMIT), domain=(NO_LIMIT, NO_LIMIT)):
    above = Meter("domain [bmq://d]", None, *domain)
    return Meter("queue [bmq://d/q]", above, *queue), above


def take_events(meter):
    return [(f"CAPACITY_{event.state.name}", event.alarm is not None) for event in meter.take_events()]


@pytest.mark.spec("broker", 176)
def test_a_limit_of_n_messages_admits_one_more_and_refuses_the_next():
    meter, _ = queue_and_domain_meter(queue=(3, NO_LIMIT))
    assert [meter.try_add(1) for _ in range(5)] == [0, 0, 0, 0, AckStatus.LIMIT_MESSAGES]
    meter.remove(1, 1)
    assert [meter.try_add(1), meter.try_add(1)] == [0, AckStatus.LIMIT_MESSAGES]


@pytest.mark.spec("broker", 179)
def test_one_message_may_exceed_a_limit_of_bytes():
    meter, _ = queue_and_domain_meter(queue=(NO_LIMIT, 10))
    assert [meter.try_add(4) for _ in range(4)] == [0, 0, 0, AckStatus.LIMIT_BYTES]


@pytest.mark.spec("broker", 177)
def test_the_limit_of_the_domain_counts_all_its_queues():
    first, above = queue_and_domain_meter(domain=(3, NO_LIMIT))
    second = Meter("queue [bmq://d/r]", above, NO_LIMIT, NO_LIMIT)
    assert [meter.try_add(1) for meter in (first, second, first, second)] == [0] * 4
    assert [meter.try_add(1) for meter in (first, second)] == [AckStatus.LIMIT_MESSAGES] * 2
    assert (first.messages, second.messages, above.messages) == (2, 2, 4)
    second.remove(1, 1)
    assert first.try_add(1) == 0


UNLIMITED = (NO_LIMIT, NO_LIMIT)
MIB = 1 << 20


@pytest.mark.parametrize("queue, domain", [
    ((80_000, NO_LIMIT), UNLIMITED), ((NO_LIMIT, 80 * MIB), UNLIMITED),
    (UNLIMITED, (80_000, NO_LIMIT)), (UNLIMITED, (NO_LIMIT, 80 * MIB))])
def test_free_quota_is_ample_up_to_a_quarter_of_the_limits_and_again_below_an_eighth(queue, domain):
    meter, above = queue_and_domain_meter(queue, domain)
    meter.force_add(19_999, 20 * MIB - 1)
    assert meter.has_ample_quota and not meter.events
    assert meter.try_add(1) == 0 and meter.has_ample_quota and not meter.events
    assert meter.try_add(1) == 0 and not meter.has_ample_quota
    [event] = meter.take_events()
    assert event.state is None and event.meter is (meter if domain == UNLIMITED else above)
    meter.remove(10_000, 10 * MIB)
    assert not meter.has_ample_quota
    meter.remove(1, 1)
    assert meter.has_ample_quota and not meter.events
    meter.force_add(20_000, 20 * MIB)
    assert not meter.has_ample_quota and meter.events, "the usage has risen without a check of the limits"
    meter.disabled = True
    assert meter.has_ample_quota


@pytest.mark.parametrize("limits, ample", [((9_999, NO_LIMIT), False), ((10_000, NO_LIMIT), True),
                                           ((NO_LIMIT, 16 * MIB - 1), False), ((NO_LIMIT, 16 * MIB), True)])
def test_free_quota_is_ample_only_with_more_than_a_round_trip_can_use(limits, ample):
    meter, _ = queue_and_domain_meter(limits)
    assert meter.has_ample_quota is ample
    meter.try_add(1)
    assert not meter.has_ample_quota


@pytest.mark.parametrize("seed", range(20))
def test_ample_quota_depends_on_the_usage_alone_between_its_two_thresholds(seed):
    """Compares the marks, with which most updates compare only, with the rule."""
    random = Random(seed)
    meter, _ = queue_and_domain_meter((random.randrange(9_000, 60_000), random.randrange(15, 100) * MIB))
    ample_messages = min(meter.messages_max // 4, meter.messages_max - 10_000)
    ample_bytes = min(meter.bytes_max // 4, meter.bytes_max - 16 * MIB)
    held, ample = [], min(ample_messages, ample_bytes) >= 0
    for _ in range(2000):
        if held and random.random() < 0.5:
            count, size = held.pop(random.randrange(len(held)))
            meter.remove(count, size)
        else:
            held.append((random.randrange(1, 4000), random.randrange(1, 4 * MIB)))
            meter.force_add(*held[-1])
        scale = 1 if ample else 2
        ample = meter.messages <= ample_messages // scale and meter.bytes <= ample_bytes // scale
        assert meter.has_ample_quota is ample


def test_the_message_limit_is_checked_before_the_byte_limit():
    meter, _ = queue_and_domain_meter(queue=(0, 0), domain=(0, 0))
    assert [meter.try_add(5), meter.try_add(5)] == [0, AckStatus.LIMIT_MESSAGES]
    meter, _ = queue_and_domain_meter(queue=(NO_LIMIT, 4), domain=(0, NO_LIMIT))
    assert [meter.try_add(5), meter.try_add(5)] == [0, AckStatus.LIMIT_BYTES]


@pytest.mark.spec("broker", 178)
def test_reconfigured_limits_apply_at_once_to_the_stored_messages():
    meter, above = queue_and_domain_meter(queue=(3, NO_LIMIT))
    for _ in range(4):
        meter.try_add(1)
    assert meter.try_add(1)
    meter.reconfigure(13, NO_LIMIT)
    assert [meter.try_add(1) for _ in range(11)] == [0] * 10 + [AckStatus.LIMIT_MESSAGES]
    meter.reconfigure(3, NO_LIMIT)
    meter.remove(10, 10)
    assert meter.try_add(1)
    meter.remove(1, 1)
    assert not meter.try_add(1) and above.messages == meter.messages == 4


def test_watermarks_are_rounded_down():
    meter = Meter("queue [q]", None, 3, 15)
    assert (meter.messages_low, meter.messages_high, meter.bytes_low, meter.bytes_high) == (1, 2, 6, 12)


@pytest.mark.spec("broker", 181)
def test_each_state_raises_one_event_until_it_is_left():
    meter = Meter("queue [q]", None, 5, NO_LIMIT)
    events = []
    for _ in range(6):
        meter.try_add(1)
        events.append(take_events(meter))
    assert events == [[], [], [], [("CAPACITY_STATE_HIGH_WATERMARK", True)], [("CAPACITY_STATE_FULL", True)], []]
    meter.remove(2, 2)  # at the high watermark: no longer full, no event
    assert take_events(meter) == [] and meter.state is MeterState.STATE_HIGH_WATERMARK
    meter.try_add(1)
    assert take_events(meter) == [("CAPACITY_STATE_FULL", True)]
    meter.remove(2, 2)
    assert take_events(meter) == []
    meter.remove(1, 1)
    assert take_events(meter) == [("CAPACITY_STATE_NORMAL", False)]
    meter.try_add(1)
    meter.try_add(1)
    assert take_events(meter) == [("CAPACITY_STATE_HIGH_WATERMARK", True)]


def test_a_message_that_crosses_both_thresholds_raises_only_the_full_event():
    meter = Meter("queue [q]", None, NO_LIMIT, 1000)
    meter.try_add(2000)
    assert take_events(meter) == [("CAPACITY_STATE_FULL", True)]
    meter.remove(1, 2000)
    assert take_events(meter) == [("CAPACITY_STATE_NORMAL", False)]


def test_a_second_resource_reaching_the_same_state_raises_no_event():
    meter = Meter("queue [q]", None, 5, 5)
    for _ in range(3):
        meter.try_add(0)
    meter.try_add(4)
    assert take_events(meter) == [("CAPACITY_STATE_HIGH_WATERMARK", True)]
    meter.remove(1, 0)
    assert take_events(meter) == [] and meter.bytes_state is MeterState.STATE_HIGH_WATERMARK


def test_the_event_text_includes_the_new_message_and_groups_digits():
    meter, _ = queue_and_domain_meter(queue=(1, 32 << 20))
    meter.try_add(9)
    event, = meter.take_events()
    assert event.meter is meter
    assert event.text == ("for 'queue [bmq://d/q]': [Messages (STATE_FULL): 1 (limit: 1), "
                          "Bytes (STATE_NORMAL): 9  B (limit: 32.00 MB)]")
    meter = Meter("queue [q]", None, 1200, 0)
    assert meter.summary() == "Messages [current: 0 / 1,200], Bytes [current: 0  B / 0  B]"


def test_events_of_a_domain_are_returned_by_its_queue_before_those_of_the_queue():
    meter, above = queue_and_domain_meter(queue=(1, NO_LIMIT), domain=(1, NO_LIMIT))
    meter.try_add(1)
    assert meter.events is above.events
    assert [event.meter.name for event in meter.take_events()] == ["domain [bmq://d]", "queue [bmq://d/q]"]
    assert meter.events == []


def test_forced_additions_at_recovery_are_counted_without_refusal_or_event():
    meter, above = queue_and_domain_meter(queue=(2, NO_LIMIT))
    meter.force_add(10, 100)
    assert (above.messages, above.bytes) == (10, 100) and meter.state is MeterState.STATE_FULL
    assert take_events(meter) == [] and meter.try_add(1) == AckStatus.LIMIT_MESSAGES


def test_clearing_a_meter_releases_the_domain_without_an_event():
    meter, above = queue_and_domain_meter(queue=(2, NO_LIMIT))
    other = Meter("queue [bmq://d/r]", above, NO_LIMIT, NO_LIMIT)
    for _ in range(3):
        meter.try_add(7)
    other.try_add(1)
    meter.take_events()
    meter.clear()
    assert (meter.messages, meter.bytes, above.messages, above.bytes) == (0, 0, 1, 1)
    assert meter.state is MeterState.STATE_NORMAL and take_events(meter) == []


def test_a_disabled_meter_admits_every_message_and_counts_none():
    above = Meter("domain [d]", None, 1, 1)
    meter = Meter("queue [q]", above, 0, 0, disabled=True)
    assert [meter.try_add(100) for _ in range(3)] == [0, 0, 0]
    meter.remove(1, 100)
    meter.force_add(1, 1)
    meter.clear()
    assert (meter.messages, above.messages, above.events) == (0, 0, [])


class ReferenceMeter:
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
def test_meter_states_equal_those_of_the_reference_implementation(messages_max, bytes_max, ratio, steps):
    meter = Meter("queue [q]", None, messages_max, bytes_max, ratio, ratio)
    messages, size = ReferenceMeter(messages_max, ratio), ReferenceMeter(bytes_max, ratio)
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
