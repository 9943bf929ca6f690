"""Stream of an app to the upstream (cluster/streams.py): effect of every event in every state."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, get_args

import pytest

from bmqtwist.cluster.streams import (
    RETRY_S,
    RETRY_SECONDS_MAX,
    Answered,
    AppStream,
    CallBack,
    ChangeSubscriptions,
    CloseStream,
    Counts,
    OpenStream,
    Reopened,
    Retry,
    RetryIn,
    SendClose,
    SendConfigure,
    SendOpen,
    StreamInput,
    StreamState,
    UpstreamChosen,
    UpstreamLost,
    is_retryable,
)
from bmqtwist.errors import Category, Refused
from bmqtwist.queue.queue import ConsumerSpec

CLOSED, R, OPEN, P = StreamState.CLOSED, StreamState.REOPENING, StreamState.OPEN, StreamState.BACKING_OFF
READER, WRITER = Counts(1, 0), Counts(0, 1)
NO = Refused(Category.E_REFUSED, "no", -1)
LATER = Refused(Category.E_NOT_READY, "later", -202)


def spec(priority: int = 0, s_id: int = 1) -> ConsumerSpec:
    return ConsumerSpec(s_id, 0, "", priority, 1, 10, 1000)


class StreamClient:
    """A client of a stream: its requests as events, and the answers to it."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.connected = True

    def open(self, counts: Counts = READER) -> OpenStream:
        return OpenStream(counts, self.answers.append, lambda: self.connected)

    def configure(self, *specs: ConsumerSpec) -> ChangeSubscriptions:
        return ChangeSubscriptions(specs, lambda refused: self.answers.append(("configured", refused)))

    def close(self, counts: Counts = READER) -> CloseStream:
        return CloseStream(counts, lambda: self.answers.append("closed"))


def step(stream: AppStream, event: StreamInput) -> list[str]:
    """Handle one event and perform its callbacks; return the names of the outputs."""
    found = stream.step(event)
    for output in found:
        if isinstance(output, CallBack):
            output.answer()
    return [type(output).__name__ for output in found]


def closed(client: StreamClient) -> AppStream:
    """Two readers with a subscription, without an upstream."""
    stream = opened(client)
    step(stream, UpstreamLost())
    return stream


def opened(client: StreamClient) -> AppStream:
    stream = AppStream("__default", 0)
    for event in (UpstreamChosen(1), client.open(Counts(2, 0)), Answered("value"), client.configure(spec()),
                  Answered("value")):
        step(stream, event)
    return stream


def reopening(client: StreamClient) -> AppStream:
    stream = closed(client)
    step(stream, UpstreamChosen(2))
    return stream


def backing_off(client: StreamClient) -> AppStream:
    stream = reopening(client)
    step(stream, Answered(NO))
    return stream


SETUPS: dict[StreamState, Callable[[StreamClient], AppStream]] = {CLOSED: closed, R: reopening, OPEN: opened, P: backing_off}
EVENTS: dict[str, Callable[[StreamClient], StreamInput]] = {
    "open": lambda client: client.open(), "configure": lambda client: client.configure(spec(5)),
    "close": lambda client: client.close(), "up": lambda client: UpstreamChosen(3), "down": lambda client: UpstreamLost(),
    "answered": lambda client: Answered("value"), "refused": lambda client: Answered(NO), "retry": lambda client: Retry()}
# By state and event: the next state, and the names of the outputs.
TABLE: dict[StreamState, dict[str, tuple[StreamState, list[str]]]] = {
    CLOSED: {"open": (CLOSED, []), "configure": (CLOSED, ["CallBack"]), "close": (CLOSED, ["CallBack"]),
             "up": (R, ["SendOpen"]), "down": (CLOSED, []), "answered": (CLOSED, []), "refused": (CLOSED, []),
             "retry": (CLOSED, [])},
    R: {"open": (R, []), "configure": (R, ["CallBack"]), "close": (R, []), "up": (R, []), "down": (CLOSED, []),
        "answered": (R, ["Reopened", "SendConfigure"]), "refused": (P, ["RetryIn"]), "retry": (R, [])},
    OPEN: {"open": (OPEN, ["SendOpen"]), "configure": (OPEN, ["SendConfigure"]), "close": (OPEN, ["SendClose"]),
           "up": (OPEN, []), "down": (CLOSED, []), "answered": (OPEN, []), "refused": (OPEN, []), "retry": (OPEN, [])},
    P: {"open": (P, []), "configure": (P, ["CallBack"]), "close": (P, ["CallBack"]), "up": (P, []), "down": (CLOSED, []),
        "answered": (P, []), "refused": (P, []), "retry": (R, ["SendOpen"])},
}


def test_the_expected_table_has_every_state_and_event() -> None:
    assert {type(make(StreamClient())) for make in EVENTS.values()} == set(get_args(StreamInput))
    assert set(TABLE) == set(StreamState) and all(set(row) == set(EVENTS) for row in TABLE.values())


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", list(StreamState), ids=lambda state: state.name)
def test_every_event_in_every_state_has_the_expected_outputs(state: StreamState, event: str) -> None:
    client = StreamClient()
    stream = SETUPS[state](client)
    assert stream.state is state
    assert (step(stream, EVENTS[event](client)), stream.state) == tuple(reversed(TABLE[state][event]))


def test_counts_change_with_successful_answers_only() -> None:
    client = StreamClient()
    stream = opened(client)
    client.answers.clear()
    step(stream, client.open(WRITER))
    assert stream.counts == Counts(2, 0)
    step(stream, Answered(NO))
    assert stream.counts == Counts(2, 0) and client.answers == [NO]
    step(stream, client.open(WRITER))
    step(stream, Answered("value"))
    assert stream.counts == Counts(2, 1) and client.answers[1:] == ["value"]
    step(stream, client.close(READER))
    assert stream.counts == Counts(2, 1) and stream.accepted_counts == Counts(1, 1)
    step(stream, Answered(NO))
    assert stream.counts == stream.accepted_counts == Counts(1, 1)
    assert client.answers[2:] == ["closed"], "the client has disconnected in any case"


def test_requests_are_sent_upstream_one_at_a_time() -> None:
    client = StreamClient()
    stream = opened(client)
    assert step(stream, client.open(WRITER)) == ["SendOpen"]
    assert step(stream, client.configure(spec(7))) == [] and step(stream, client.close()) == []
    assert step(stream, Answered("value")) == ["CallBack", "SendConfigure"]
    assert step(stream, Answered("value")) == ["CallBack", "SendClose"]
    assert step(stream, Answered("value")) == ["CallBack"] and not stream.pending


@pytest.mark.spec("cluster", 87)
def test_a_configure_without_a_change_is_answered_without_a_request() -> None:
    client = StreamClient()
    stream = opened(client)
    client.answers.clear()
    assert step(stream, client.configure(spec())) == ["CallBack"] and client.answers == [("configured", None)]


def test_of_several_pending_configures_the_last_one_is_sent() -> None:
    client = StreamClient()
    stream = opened(client)
    step(stream, client.open())
    for priority in (1, 2, 3):
        step(stream, client.configure(spec(priority)))
    [_, sent] = stream.step(Answered("value"))
    assert isinstance(sent, SendConfigure) and sent.subscriptions[0].priority == 3
    assert step(stream, Answered("value")) == ["CallBack", "CallBack", "CallBack"]


def test_a_reopen_sends_the_sums_and_then_the_changes_made_meanwhile() -> None:
    client = StreamClient()
    stream = reopening(client)
    assert stream.in_progress == SendOpen(Counts(2, 0))
    [_, sent] = stream.step(Answered("value"))
    assert sent == SendConfigure((spec(),))
    step(stream, client.configure(spec(9)))
    step(stream, client.close())
    assert step(stream, Answered("value")) == ["Opened", "SendClose"]
    assert step(stream, Answered("value")) == ["CallBack", "SendConfigure"]
    assert stream.sent == (spec(9),) and stream.counts == Counts(1, 0)


def test_the_loss_of_the_upstream_keeps_opens_and_answers_configures_and_closes() -> None:
    client = StreamClient()
    stream = opened(client)
    client.answers.clear()
    step(stream, client.open(WRITER))
    step(stream, client.configure(spec(3)))
    step(stream, client.close())
    step(stream, UpstreamLost())
    assert client.answers == [("configured", None), "closed"] and stream.counts == Counts(1, 0)
    assert step(stream, UpstreamChosen(2)) == ["SendOpen"] and step(stream, Answered("v")) == ["Reopened", "SendConfigure"]
    assert stream.in_progress == SendConfigure((spec(3),))
    assert step(stream, Answered("v")) == ["Opened", "SendOpen"], "the open has been pending"


def test_an_app_without_clients_is_open_at_once_at_a_new_upstream() -> None:
    stream = AppStream("__default", 0)
    assert step(stream, UpstreamChosen(4)) == ["Opened"] and stream.generation == 4 and stream.is_idle


def test_an_open_of_a_disconnected_client_is_not_sent() -> None:
    client = StreamClient()
    stream = closed(client)
    step(stream, client.open())
    client.connected = False
    stream.drop_cancelled()
    assert not stream.pending
    step(stream, client.open())
    for event in (UpstreamChosen(2), Answered("v")):
        step(stream, event)
    assert step(stream, Answered("v")) == ["Opened"] and not stream.pending


def test_a_refused_reopen_is_retried_with_growing_delays() -> None:
    client = StreamClient()
    stream = reopening(client)
    delays = []
    for number in range(1, 12):
        [output] = stream.step(Answered(LATER))
        assert isinstance(output, RetryIn) and output.attempts == number
        delays.append(output.seconds)
        step(stream, Retry())
    assert delays[:4] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S] and delays[-1] == RETRY_SECONDS_MAX
    assert step(stream, Answered("v")) == ["Reopened", "SendConfigure"] and stream.refusals == 0


def test_a_permanent_refusal_of_a_reopen_is_retried_after_the_configured_delay() -> None:
    client = StreamClient()
    stream = reopening(client)
    stream.retry_delay_s = 1.234
    for _ in range(3):
        [output] = stream.step(Answered(NO))
        assert isinstance(output, RetryIn) and output.seconds == 1.234
        step(stream, Retry())


def test_a_configure_without_a_waiting_client_is_retried_until_it_is_accepted() -> None:
    client = StreamClient()
    stream = reopening(client)
    step(stream, Answered("v"))
    assert step(stream, Answered(NO)) == ["RetryIn", "Opened"]
    assert step(stream, client.open(WRITER)) == []
    assert step(stream, Retry()) == ["SendConfigure"] and step(stream, Answered(NO)) == ["SendOpen"]
    assert step(stream, Answered("v")) == ["CallBack", "SendConfigure"]
    assert step(stream, Answered(NO)) == ["RetryIn"] and step(stream, Retry()) == ["SendConfigure"]
    assert step(stream, Answered("v")) == [] and stream.configured == stream.wanted == (spec(),)


def test_a_temporarily_refused_open_stays_first_in_the_queue() -> None:
    client = StreamClient()
    stream = opened(client)
    client.answers.clear()
    step(stream, client.open(WRITER))
    step(stream, client.open(READER))
    assert step(stream, Answered(LATER)) == ["RetryIn"] and not client.answers
    assert stream.step(Retry()) == [SendOpen(WRITER)]


@pytest.mark.parametrize("refused, retryable", [
    (LATER, True), (Refused(Category.E_CANCELED, "", 0), True), (Refused(Category.E_REFUSED, "", -201), True),
    (Refused(Category.E_REFUSED, "", -204), True), (Refused(Category.E_REFUSED, "", -11), True), (NO, False),
    (Refused(Category.E_UNKNOWN, "", -204), False), (Refused(Category.E_TIMEOUT, "", 0), False)])
def test_a_refusal_is_retryable_if_it_is_due_to_the_state_of_the_upstream(refused: Refused, retryable: bool) -> None:
    assert is_retryable(refused) is retryable


@pytest.mark.spec("cluster", 86)
@pytest.mark.spec("cluster", 120)
@pytest.mark.parametrize("seed", range(200))
def test_the_upstream_always_has_the_counts_and_subscriptions_reported_to_clients(seed: int) -> None:
    """The upstream refuses some requests and is lost at times, except in the last 29 of 120 turns."""
    random = Random(seed)
    stream, upstream, clients = AppStream("__default", 0), Counts(), Counts()
    sent: Any = None
    subscriptions: Any = ()
    up, generation, answers, requested = False, 0, 0, 0
    refusals: list[Refused | None] = []  # of configures

    def count_answer(value: object, counts: Counts) -> None:
        nonlocal clients, answers
        answers += 1
        if not isinstance(value, Refused):
            clients += counts

    def perform(event: StreamInput) -> None:
        nonlocal sent
        for output in stream.step(event):
            if isinstance(output, CallBack):
                output.answer()
            elif isinstance(output, SendOpen | SendClose | SendConfigure):
                assert sent is None, "one request at a time"
                sent = output
            elif isinstance(output, Reopened):
                assert upstream == stream.counts
        if any(refusals):  # after a refusal, the client configures the accepted subscriptions again
            refusals.clear()
            perform(ChangeSubscriptions(stream.configured))

    for turn in range(120):
        fault_free = turn > 90
        if fault_free and not up or random.random() < 0.1 and not fault_free:
            up, sent, upstream, subscriptions = not up, None, Counts(), ()
            generation += up
            perform(UpstreamChosen(generation) if up else UpstreamLost())
        elif sent is not None and random.random() < 0.7:
            request, sent = sent, None
            if not isinstance(request, SendClose) and random.random() < 0.2 and not fault_free:
                perform(Answered(random.choice([NO, LATER])))
                continue
            if isinstance(request, SendOpen):
                upstream += request.counts
            elif isinstance(request, SendClose):
                upstream -= request.counts
            else:
                subscriptions = request.subscriptions
            perform(Answered("value"))
        elif fault_free or random.random() < 0.2:
            perform(Retry())
        elif random.random() < 0.5:
            counts = random.choice([READER, WRITER])
            requested += 1
            perform(OpenStream(counts, lambda value, counts=counts: count_answer(value, counts), lambda: True))
        elif random.random() < 0.5 and clients.read:
            perform(ChangeSubscriptions((spec(random.randrange(5)),), lambda refused: refusals.append(refused)))
        else:
            counts = Counts(1, 0) if clients.read and random.random() < 0.5 else Counts(0, min(1, clients.write))
            if counts:
                clients -= counts
                perform(CloseStream(counts, lambda: None))
    while sent is not None or stream.pending:
        request, sent = sent, None
        if isinstance(request, SendOpen):
            upstream += request.counts
        elif isinstance(request, SendClose):
            upstream -= request.counts
        elif isinstance(request, SendConfigure):
            subscriptions = request.subscriptions
        perform(Answered("value") if request is not None else Retry())
    assert upstream == stream.counts == clients and answers == requested
    assert not upstream.read or subscriptions == stream.wanted == stream.configured


def test_the_first_reader_after_the_close_of_the_last_one_is_configured_again() -> None:
    client = StreamClient()
    stream = opened(client)
    step(stream, client.close(Counts(2, 0)))
    step(stream, Answered("v"))
    step(stream, client.open())
    step(stream, Answered("v"))
    assert step(stream, client.configure(spec())) == ["SendConfigure"], "the upstream has removed the subscription"
