"""Requests about queues with answers that arrive late, never, twice, or after the session has closed.

The broker is complete. Between it and the session stands `DelayedQueues`: the test releases each answer. Tests
`bmqtwist/link/requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.client import Client, consumer_info
from kit.memory import MemoryLink, MemoryWorld

from bmqtwist.errors import Category, Refused
from bmqtwist.link import requests
from bmqtwist.link.client import ClientSession
from bmqtwist.link.requests import Progress, QueueRequest
from bmqtwist.link.session import Session

URI = "bmq://d/q"
KINDS = ["openQueue", "configureStream", "configureQueueStream", "closeQueue"]
RESPONSES = {"openQueue": "openQueueResponse", "configureStream": "configureStreamResponse",
             "configureQueueStream": "configureQueueStreamResponse", "closeQueue": "closeQueueResponse"}
NO = Refused(Category.E_REFUSED, "not now", -11)


class DelayedQueues:
    """Queues of a session: each answer is delayed until the test releases it."""

    def __init__(self, world: MemoryWorld) -> None:
        self.world, self.queues = world, world.broker.queues
        self.answers: list[Callable[[Refused | None], None]] = []  # argument None: the answer of the broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queues, name)

    def _delay(self, method: Callable[..., None], arguments: tuple[Any, ...], answer: Callable[[Any], None]) -> None:
        def answer_now(instead: Refused | None) -> None:
            self.world.turn_requested = True  # an answer comes within a turn
            if instead is not None:
                answer(instead)
            else:
                method(*arguments, answer)
        self.answers.append(answer_now)

    def find_queue(self, *arguments: Any) -> None:
        self._delay(self.queues.find_queue, arguments[:-1], arguments[-1])

    def configure_queue(self, *arguments: Any) -> None:
        self._delay(self.queues.configure_queue, arguments[:-1], arguments[-1])

    def close_queue(self, *arguments: Any) -> None:
        self._delay(self.queues.close_queue, arguments[:-1], arguments[-1])

    def release(self, instead: Refused | None = None) -> None:
        """Send the oldest delayed answer, or a refusal instead of it."""
        self.answers.pop(0)(instead)


def ask(client: Client, kind: str, q_id: int = 7, uri: str = URI) -> int:
    """Send one request of a reader; return its id."""
    handle = client.handle_parameters(uri, q_id, read=1)
    return client.send_request({kind: {
        "openQueue": {"handleParameters": handle},
        "configureStream": {"qId": q_id, "streamParameters": {"appId": "__default", "subscriptions": [
            {"sId": 1, "expression": {"version": "E_UNDEFINED", "text": ""}, "consumers": [consumer_info()]}]}},
        "configureQueueStream": {"qId": q_id, "streamParameters": {
            "subIdInfo": {"subId": 0, "appId": "__default"}, **consumer_info()}},
        "closeQueue": {"handleParameters": handle, "isFinal": True}}[kind]})


def answers(world: MemoryWorld, client: Client) -> list[tuple[int, str]]:
    """Return (request id, response or category) of every answer so far, in order."""
    world.run()
    client.pump(0)
    return [(event.control["rId"], event.control["status"]["category"] if "status" in event.control
             else next(key for key in event.control if key != "rId"))
            for event in client.events if event.kind == "control" and "rId" in event.control]


class Bench:
    """A broker with a queue, and a client whose answers are delayed."""

    def __init__(self, root: Path, kind: str = "openQueue") -> None:
        self.world = MemoryWorld(root, cluster={"queueOperations": {
            "openTimeoutMs": 30_000, "configureTimeoutMs": 10_000, "closeTimeoutMs": 20_000, "keepaliveDurationMs": 60_000}})
        self.world.domain("d")
        self.world.producer().post(b"x")
        self.client = self.world.client("late")
        assert isinstance(self.client.link, MemoryLink) and self.client.link.session is not None
        self.session: Session = self.client.link.session
        assert isinstance(self.session.kind, ClientSession)
        self.requests = self.session.kind.requests
        self.delayed = DelayedQueues(self.world)
        self.queue = self.world.broker.domains.by_name["d"].queues["q"]
        if kind != "openQueue":
            ask(self.client, "openQueue")
            self.answers()
        self.client.events.clear()
        self.requests._queues = self.delayed

    def answers(self) -> list[tuple[int, str]]:
        return answers(self.world, self.client)

    @property
    def readers(self) -> int:
        return self.queue.reader_count()

    def is_released(self) -> bool:
        """Return whether the session has no handle of the queue and no pending request any more."""
        return self.readers == 0 and len(self.queue.handles) == 1 and not self.queue.domain.opening and \
            not self.requests.pending.count


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_answer_is_sent_once_when_it_arrives(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path, kind)
    r_id = ask(bench.client, kind)
    assert bench.answers() == [] and bench.requests.pending.count == 1
    twice = bench.delayed.answers[0]
    bench.world.advance(5.0)
    bench.delayed.release()
    assert bench.answers() == [(r_id, RESPONSES[kind])] and bench.requests.pending.count == 0
    assert bench.readers == (kind != "closeQueue")
    twice(NO)
    if kind != "closeQueue":
        twice(None)
    assert bench.answers() == [(r_id, RESPONSES[kind])] and bench.readers == (kind != "closeQueue")


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_refusal_changes_nothing(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path, kind)
    r_id = ask(bench.client, kind)
    bench.delayed.release(NO)
    assert bench.answers() == [(r_id, "E_REFUSED")] and bench.readers == (kind != "openQueue")
    assert bench.requests.pending.count == 0


@pytest.mark.parametrize("kind, seconds", [("openQueue", 30), ("configureStream", 10), ("configureQueueStream", 10),
                                           ("closeQueue", 20)])
def test_a_request_without_an_answer_times_out_as_configured(tmp_path: Path, kind: str, seconds: int) -> None:
    """An open that succeeds after its timeout leaves no handle, and neither does such a close."""
    bench = Bench(tmp_path, kind)
    r_id = ask(bench.client, kind)
    bench.world.advance(seconds - 1.0)
    assert bench.answers() == []
    bench.world.advance(2.0)
    assert bench.answers() == [(r_id, "E_TIMEOUT")] and bench.requests.pending.count == 0
    bench.delayed.release()
    assert bench.answers() == [(r_id, "E_TIMEOUT")]
    assert bench.readers == len(bench.session.kind.handles) == (kind in ("configureStream", "configureQueueStream"))


def lose_connection(bench: Bench) -> None:
    bench.client.kill()


def disconnect(bench: Bench) -> None:
    r_id = bench.client.send_request({"disconnect": {}})
    assert bench.answers() == [(r_id, "disconnectResponse")], "it is sent immediately, as the last message"


def close_session(bench: Bench) -> None:
    bench.session.close("over")


def close_for_stop(bench: Bench) -> None:
    bench.session.close_for_stop()


@pytest.mark.parametrize("waiting", ["openQueue", "closeQueue"])
@pytest.mark.parametrize("end", [lose_connection, disconnect, close_session, close_for_stop])
@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_session_cancels_its_requests(tmp_path: Path, kind: str, end: Callable[[Bench], None],
                                                      waiting: str) -> None:
    bench = Bench(tmp_path, kind)
    ask(bench.client, kind)
    ask(bench.client, waiting)
    assert bench.requests.pending.count == 2 and len(bench.delayed.answers) == 1
    end(bench)
    assert bench.is_released()
    before = bench.answers()
    bench.delayed.release(NO if kind == "closeQueue" else None)
    bench.world.advance(60.0)
    assert bench.answers() == before and bench.is_released() and not bench.delayed.answers


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_request_waits_for_the_earlier_one_of_its_queue_id(tmp_path: Path, first: str, second: str) -> None:
    bench = Bench(tmp_path, first)
    bench.delayed.answers.clear()
    one, two = ask(bench.client, first), ask(bench.client, second)
    assert bench.answers() == [] and len(bench.delayed.answers) == 1
    bench.delayed.release()
    if bench.delayed.answers:
        assert bench.answers() == [(one, RESPONSES[first])]
        bench.delayed.release()
    after = RESPONSES[second] if first != "closeQueue" or second == "openQueue" else "E_UNKNOWN"
    assert bench.answers() == [(one, RESPONSES[first]), (two, after)] and bench.requests.pending.count == 0


def test_requests_pending_after_a_final_close_are_refused_with_a_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "closeQueue")
    for kind in ("closeQueue", "closeQueue", "configureStream"):
        ask(bench.client, kind)
    bench.delayed.release()
    bench.answers()
    messages = [event.control["status"]["message"] for event in bench.client.events if "status" in event.control]
    assert messages == ["Duplicate closeQueue request", "Unexpected configureQueue request"]


def test_queue_ids_do_not_wait_for_each_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    one, two = ask(bench.client, "openQueue", 1), ask(bench.client, "openQueue", 2, "bmq://d/other")
    bench.delayed.answers[1](None)
    assert bench.answers() == [(two, "openQueueResponse")]
    bench.delayed.answers[0](None)
    assert bench.answers() == [(two, "openQueueResponse"), (one, "openQueueResponse")]


def test_after_a_timeout_the_next_request_of_the_queue_id_starts_in_order(tmp_path: Path) -> None:
    """The configure has a timeout of 10 s, the open before it one of 30 s: the configure fails after the open."""
    bench = Bench(tmp_path)
    one, two = ask(bench.client, "openQueue"), ask(bench.client, "configureStream")
    bench.world.advance(15.0)
    three = ask(bench.client, "openQueue")
    bench.world.advance(14.0)
    assert bench.answers() == []
    bench.world.advance(2.0)
    assert bench.answers() == [(one, "E_TIMEOUT"), (two, "E_TIMEOUT")] and len(bench.delayed.answers) == 2
    bench.delayed.release()
    assert bench.readers == 0
    bench.delayed.release()
    assert bench.answers()[2:] == [(three, "openQueueResponse")] and bench.readers == 1


def test_the_timeout_of_a_request_is_not_shortened_by_the_one_before_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    one, two = ask(bench.client, "openQueue"), ask(bench.client, "configureStream")
    bench.world.advance(15.0)
    bench.delayed.release()
    bench.delayed.release()
    assert bench.answers() == [(one, "openQueueResponse"), (two, "configureStreamResponse")]


def test_the_answer_of_a_late_open_comes_before_its_first_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue")
    ask(bench.client, "configureStream")
    bench.delayed.release()
    bench.delayed.release()
    bench.answers()
    assert [event.kind for event in bench.client.events] == ["control", "control", "push"]


def test_the_duration_of_an_open_is_logged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue")
    bench.world.advance(3.0)
    bench.delayed.release()
    bench.answers()
    (line,) = [line for line in bench.world.log() if "late:4242: open queue" in line]
    assert f"[queue: '{URI}'] took: 3000000.00 us (3000000000 nanoseconds)" in line


def test_the_number_of_pending_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PENDING_REQUESTS_MAX", 3)
    bench = Bench(tmp_path)
    asked = [ask(bench.client, "openQueue", q_id) for q_id in (1, 1, 2, 2, 3)]
    assert bench.answers() == [(asked[3], "E_REFUSED"), (asked[4], "E_REFUSED")]
    while bench.delayed.answers:
        bench.delayed.release()
    assert bench.answers()[2:] == [(asked[0], "openQueueResponse"), (asked[2], "openQueueResponse"),
                                   (asked[1], "openQueueResponse")]
    again = ask(bench.client, "openQueue", 3)
    bench.delayed.release()
    assert bench.answers()[-1] == (again, "openQueueResponse")


def test_an_open_answered_while_the_broker_stops_gets_no_response(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue")
    bench.world.broker.stop(bench.world.now)
    bench.delayed.release()
    assert bench.answers() == [] and bench.is_released()


def test_a_queue_found_after_its_client_has_disconnected_is_idle_from_then_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue", uri="bmq://d/new")
    bench.client.kill()
    bench.world.advance(5.0)
    bench.delayed.release()
    bench.world.run()
    assert bench.world.broker.domains.by_name["d"].queues["new"].idle_since == bench.world.broker.loop.now


def test_a_pending_open_prevents_the_removal_of_its_domain(tmp_path: Path) -> None:
    """`DOMAINS REMOVE` is refused while the cluster creates the queue."""
    bench = Bench(tmp_path)
    bench.requests._queues = bench.world.broker.queues
    seen: list[str] = []
    cluster = bench.world.broker.clusters[bench.queue.domain.cluster]
    original = cluster.changes.create_queue

    def create_queue(*arguments: Any) -> Any:
        seen.append(bench.world.admin("DOMAINS REMOVE d"))
        return original(*arguments)

    cluster.changes.create_queue = create_queue  # type: ignore[method-assign]
    r_id = ask(bench.client, "openQueue", uri="bmq://d/new")
    assert bench.answers() == [(r_id, "openQueueResponse")]
    assert "open queue requests on the fly" in seen[0] and bench.queue.domain.opening == 0


def test_a_refused_open_is_no_longer_counted_as_pending_in_its_domain(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.requests._queues = bench.world.broker.queues
    bench.queue.domain.max_queues = 1
    r_id = ask(bench.client, "openQueue", uri="bmq://d/new")
    assert bench.answers() == [(r_id, "E_REFUSED")] and bench.queue.domain.opening == 0


# -- random orders -----------------------------------------------------------------------------------------------------

STEPS = st.lists(st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 2), st.sampled_from(KINDS)),
    st.tuples(st.just("answer"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("time"), st.integers(1, 12), st.just(0))), max_size=40)


class ManualRequests:
    """Pending requests that the test answers; a close is answered when it starts."""

    def __init__(self) -> None:
        self.now, self.running = 0.0, False
        self.unanswered: list[QueueRequest] = []
        self.started: list[QueueRequest] = []
        self.finished: list[tuple[QueueRequest, str]] = []
        self.pending = requests.PendingRequests(
            self.start_request, lambda request: {"openQueue": 30.0}.get(request.choice, 10.0),
            lambda request: self.finish_request(request, "timed out"))

    def start_request(self, request: QueueRequest) -> None:
        assert request.progress is Progress.RUNNING
        self.started.append(request)
        if request.choice == "closeQueue":  # answered at once
            self.finish_request(request, "answered")
        else:
            self.unanswered.append(request)

    def finish_request(self, request: QueueRequest, how: str) -> None:
        assert request.progress is not Progress.FINISHED
        self.finished.append((request, how))
        self.pending.finish(request, self.now)


@given(STEPS)
def test_every_request_finishes_once_in_the_order_of_its_queue_id(steps: list[tuple[str, int, Any]]) -> None:
    manual = ManualRequests()
    asked: list[QueueRequest] = []
    for step, number, what in steps:
        if step == "ask":
            asked.append(QueueRequest(len(asked), what, None, number, manual.now))
            manual.pending.add(asked[-1])
        elif step == "answer" and manual.unanswered:
            request = manual.unanswered.pop(number % len(manual.unanswered))
            if request.progress is Progress.AWAITING_ANSWER:
                manual.finish_request(request, "answered")
        elif step == "time":
            manual.now += number
            manual.pending.tick(manual.now)
        assert manual.pending.count == sum(each.progress is not Progress.FINISHED for each in asked)
        assert all(each.progress is Progress.FINISHED or each.deadline > manual.now for each in asked)
        for q_id in range(3):
            line = [each for each in asked if each.q_id == q_id and each.progress is not Progress.FINISHED]
            wanted = [Progress.AWAITING_ANSWER, *[Progress.WAITING] * len(line)]
            assert [each.progress for each in line] == wanted[:len(line)]
    manual.now += 1000.0
    manual.pending.tick(manual.now)
    assert manual.pending.count == 0
    for q_id in range(3):
        assert [each for each, _ in manual.finished if each.q_id == q_id] == [each for each in asked if each.q_id == q_id]


def test_thousands_of_requests_of_one_queue_id_can_time_out() -> None:
    manual = ManualRequests()
    for number in range(5000):
        manual.pending.add(QueueRequest(number, "openQueue", None, 1, 0.0))
    manual.now = 31.0
    manual.pending.tick(31.0)
    assert len(manual.finished) == 5000 and len(manual.started) == 1
