"""Recordings of the official client libraries: for the same calls this library sends the same events (compared decoded;
`sdk_playback` lists the intended differences), and it processes every response, of stand-ins and of the original broker."""

from __future__ import annotations

import pytest
from kit.sdk_playback import VECTORS, Playback, against_real_broker, against_stand_in, decoded

from bmqtwist.sdk import EventKind, Result
from bmqtwist.wire import control, schema

ALL = sorted({path.name.split(".")[0] for path in (VECTORS / "client").glob("*.seq.txt")})
LATE = "open_late_response"  # played separately: this library behaves differently there, intentionally
OF_ORIGINAL = ["sdk_producer_consumer", "sdk_zlib", "sdk_fanout", "sdk_refused", "bmqtool_subscriptions"]
SESSIONS = [pytest.param(name, number, id=f"{name}-{number}") for name in OF_ORIGINAL
            for number in range(len(against_real_broker(name)))]


def play(name: str) -> Playback:
    """Play a recording against a stand-in."""
    return Playback(against_stand_in(name), java=name.startswith("java")).run()


def assert_all_processed(playback: Playback) -> None:
    """Check that every message of the broker was processed: none dropped, no answer unused."""
    bench, core = playback.bench, playback.core
    assert not core.counters().dropped and EventKind.ERROR not in bench.kinds()
    assert len(bench.messages) == playback.expected_messages
    failed_at_the_end = sum(ack.status is Result.UNKNOWN for ack in bench.acks[playback.expected_acks:])
    assert len(bench.acks) - failed_at_the_end == playback.expected_acks


@pytest.mark.parametrize("name", [name for name in ALL if name != LATE])
def test_the_same_calls_send_the_recorded_events_and_all_responses_are_processed(name: str) -> None:
    playback = play(name)
    sent = sum(len(decoded(raw, not index)) for connection in playback.connections
               for index, raw in enumerate(raw for mine, raw in connection if mine))
    assert playback.compared == sent > 0
    assert_all_processed(playback)


@pytest.mark.parametrize(("name", "number"), SESSIONS)
def test_recordings_with_the_original_broker_are_reproduced(name: str, number: int) -> None:
    playback = Playback([against_real_broker(name)[number]]).run()
    assert playback.compared >= 2
    assert_all_processed(playback)


def test_after_a_late_open_response_the_recorded_events_are_sent_on_another_connection() -> None:
    """The official client closes a queue that was opened late. This library closes the connection at the timeout, so the
    late answer is dropped and the broker has no handle; the next open is as recorded, including the queue id."""
    connection, = against_stand_in(LATE)
    playback = Playback([], open_timeout_s=1.0)
    bench = playback.bench.start()
    playback.collect()
    bench.send_from_broker(connection[1][1])
    playback.unmatched.clear()
    playback.play(connection[2:3], True)  # openQueue
    bench.advance(bench.options.open_timeout_s)
    assert bench.done["open", "bmq://bmq.test.mem.priority/q1"].result is Result.TIMEOUT
    assert bench.kinds()[-1] is EventKind.CONNECTION_LOST
    bench.send_from_broker(connection[3][1])  # the late answer
    bench.advance(1.0)
    bench.send_from_broker(connection[1][1])
    playback.collect()
    assert [type(each) for each in playback.unmatched] == [control.NegotiationMessage]
    playback.unmatched.clear()
    rest = connection[6:]
    first, = decoded(rest[0][1], False)
    assert isinstance(first.value, schema.OpenQueue) and first.value.handle_parameters.q_id == 1
    playback.play(rest, True)
    assert_all_processed(playback)
    assert playback.compared == 1 + 3


@pytest.mark.parametrize("name", [name for name in ALL if "consumer" in name])
def test_every_recorded_delivery_can_be_decoded(name: str) -> None:
    """Old-style and new-style properties, schema ids that repeat, zlib, an empty payload, headers without a schema id."""
    messages = play(name).bench.messages
    assert messages
    for message in messages:
        assert set(message.properties) == set(message.property_types) and len(message.payload) >= 0


def test_all_sixteen_ack_statuses_are_decoded() -> None:
    acks = play("producer_ack_codes").bench.acks
    known = {0: Result.SUCCESS, 1: Result.LIMIT_MESSAGES, 2: Result.LIMIT_BYTES, 6: Result.STORAGE_FAILURE,
             7: Result.NOT_READY}
    assert [ack.status for ack in acks] == [known.get(status, Result.UNKNOWN) for status in range(16)]


def test_a_refused_negotiation_fails_the_start() -> None:
    assert play("negotiation_refused").bench.done["start"].result is Result.REFUSED


@pytest.mark.parametrize("name", ["open_refused", "configure_refused"])
def test_a_refused_open_has_the_status_of_the_broker(name: str) -> None:
    done = play(name).bench.done
    assert {each.result for key, each in done.items() if key[0] == "open"} <= {Result.REFUSED, Result.UNKNOWN}
