"""Requests about queues that are answered late, never, twice, or when nobody wants the answer any more.

The broker is a whole one; between it and the sessions stands `Later`, which holds its answers back until it is told.
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


class Later:
    """Queues of a session whose answers wait."""

    def __init__(self, world: MemoryWorld) -> None:
        self.world, self.queues = world, world.broker.queues
        self.held: list[Callable[[Refused | None], None]] = []  # called with None: what the broker says

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queues, name)

    def _hold(self, method: Callable[..., None], arguments: tuple[Any, ...], answer: Callable[[Any], None]) -> None:
        def now(instead: Refused | None) -> None:
            self.world.turn_requested = True  # an answer comes within a turn
            if instead is not None:
                answer(instead)
            else:
                method(*arguments, answer)
        self.held.append(now)

    def find_queue(self, *arguments: Any) -> None:
        self._hold(self.queues.find_queue, arguments[:-1], arguments[-1])

    def configure_queue(self, *arguments: Any) -> None:
        self._hold(self.queues.configure_queue, arguments[:-1], arguments[-1])

    def close_queue(self, *arguments: Any) -> None:
        self._hold(self.queues.close_queue, arguments[:-1], arguments[-1])

    def answer(self, instead: Refused | None = None) -> None:
        """The oldest answer that is held comes."""
        self.held.pop(0)(instead)


def ask(client: Client, kind: str, q_id: int = 7, uri: str = URI) -> int:
    """Send one request of a reader; its id."""
    handle = client.handle_parameters(uri, q_id, read=1)
    return client.send_request({kind: {
        "openQueue": {"handleParameters": handle},
        "configureStream": {"qId": q_id, "streamParameters": {"appId": "__default", "subscriptions": [
            {"sId": 1, "expression": {"version": "E_UNDEFINED", "text": ""}, "consumers": [consumer_info()]}]}},
        "configureQueueStream": {"qId": q_id, "streamParameters": {
            "subIdInfo": {"subId": 0, "appId": "__default"}, **consumer_info()}},
        "closeQueue": {"handleParameters": handle, "isFinal": True}}[kind]})


def answers(world: MemoryWorld, client: Client) -> list[tuple[int, str]]:
    """(request id, response or category) of every answer so far, in order."""
    world.run()
    client.pump(0)
    return [(event.control["rId"], event.control["status"]["category"] if "status" in event.control
             else next(key for key in event.control if key != "rId"))
            for event in client.events if event.kind == "control" and "rId" in event.control]


class Bench:
    """A world, and a client whose answers wait."""

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
        self.later = Later(self.world)
        self.queue = self.world.broker.domains.by_name["d"].queues["q"]
        if kind != "openQueue":
            ask(self.client, "openQueue")
            self.answers()
        self.client.events.clear()
        self.requests._queues = self.later

    def answers(self) -> list[tuple[int, str]]:
        return answers(self.world, self.client)

    @property
    def readers(self) -> int:
        return self.queue.reader_count()

    def left(self) -> bool:
        """Nothing of the session is left in the queue, and nothing is counted as on its way."""
        return self.readers == 0 and len(self.queue.handles) == 1 and not self.queue.domain.opening and \
            not self.requests.pending.count


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_answer_is_sent_once_when_it_arrives(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path, kind)
    r_id = ask(bench.client, kind)
    assert bench.answers() == [] and bench.requests.pending.count == 1
    twice = bench.later.held[0]
    bench.world.advance(5.0)
    bench.later.answer()
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
    bench.later.answer(NO)
    assert bench.answers() == [(r_id, "E_REFUSED")] and bench.readers == (kind != "openQueue")
    assert bench.requests.pending.count == 0


@pytest.mark.parametrize("kind, seconds", [("openQueue", 30), ("configureStream", 10), ("configureQueueStream", 10),
                                           ("closeQueue", 20)])
def test_a_request_without_an_answer_times_out_as_configured(tmp_path: Path, kind: str, seconds: int) -> None:
    """What comes after it opens nothing; a close that was carried out late leaves no handle behind."""
    bench = Bench(tmp_path, kind)
    r_id = ask(bench.client, kind)
    bench.world.advance(seconds - 1.0)
    assert bench.answers() == []
    bench.world.advance(2.0)
    assert bench.answers() == [(r_id, "E_TIMEOUT")] and bench.requests.pending.count == 0
    bench.later.answer()
    assert bench.answers() == [(r_id, "E_TIMEOUT")]
    assert bench.readers == len(bench.session.kind.handles) == (kind in ("configureStream", "configureQueueStream"))


def lose(bench: Bench) -> None:
    bench.client.kill()


def disconnect(bench: Bench) -> None:
    r_id = bench.client.send_request({"disconnect": {}})
    assert bench.answers() == [(r_id, "disconnectResponse")], "it is the last message and waits for nothing"


def close(bench: Bench) -> None:
    bench.session.close("over")


def leave(bench: Bench) -> None:
    bench.session.close_for_stop()


@pytest.mark.parametrize("waiting", ["openQueue", "closeQueue"])
@pytest.mark.parametrize("end", [lose, disconnect, close, leave])
@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_session_cancels_its_requests(tmp_path: Path, kind: str, end: Callable[[Bench], None],
                                                      waiting: str) -> None:
    bench = Bench(tmp_path, kind)
    ask(bench.client, kind)
    ask(bench.client, waiting)
    assert bench.requests.pending.count == 2 and len(bench.later.held) == 1
    end(bench)
    assert bench.left()
    before = bench.answers()
    bench.later.answer(NO if kind == "closeQueue" else None)
    bench.world.advance(60.0)
    assert bench.answers() == before and bench.left() and not bench.later.held


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_request_waits_for_the_earlier_one_of_its_queue_id(tmp_path: Path, first: str, second: str) -> None:
    bench = Bench(tmp_path, first)
    bench.later.held.clear()
    one, two = ask(bench.client, first), ask(bench.client, second)
    assert bench.answers() == [] and len(bench.later.held) == 1
    bench.later.answer()
    if bench.later.held:
        assert bench.answers() == [(one, RESPONSES[first])]
        bench.later.answer()
    after = RESPONSES[second] if first != "closeQueue" or second == "openQueue" else "E_UNKNOWN"
    assert bench.answers() == [(one, RESPONSES[first]), (two, after)] and bench.requests.pending.count == 0


def test_requests_pending_after_a_final_close_are_refused_as_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "closeQueue")
    for kind in ("closeQueue", "closeQueue", "configureStream"):
        ask(bench.client, kind)
    bench.later.answer()
    bench.answers()
    said = [event.control["status"]["message"] for event in bench.client.events if "status" in event.control]
    assert said == ["Duplicate closeQueue request", "Unexpected configureQueue request"]


def test_queue_ids_do_not_wait_for_each_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    one, two = ask(bench.client, "openQueue", 1), ask(bench.client, "openQueue", 2, "bmq://d/other")
    bench.later.held[1](None)
    assert bench.answers() == [(two, "openQueueResponse")]
    bench.later.held[0](None)
    assert bench.answers() == [(two, "openQueueResponse"), (one, "openQueueResponse")]


def test_after_a_timeout_the_next_request_of_the_queue_id_starts_in_order(tmp_path: Path) -> None:
    """A configure may take 10 s, the open before it 30 s: it fails after the open and not before it."""
    bench = Bench(tmp_path)
    one, two = ask(bench.client, "openQueue"), ask(bench.client, "configureStream")
    bench.world.advance(15.0)
    three = ask(bench.client, "openQueue")
    bench.world.advance(14.0)
    assert bench.answers() == []
    bench.world.advance(2.0)
    assert bench.answers() == [(one, "E_TIMEOUT"), (two, "E_TIMEOUT")] and len(bench.later.held) == 2
    bench.later.answer()
    assert bench.readers == 0
    bench.later.answer()
    assert bench.answers()[2:] == [(three, "openQueueResponse")] and bench.readers == 1


def test_the_timeout_of_a_request_is_not_shortened_by_the_one_before_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    one, two = ask(bench.client, "openQueue"), ask(bench.client, "configureStream")
    bench.world.advance(15.0)
    bench.later.answer()
    bench.later.answer()
    assert bench.answers() == [(one, "openQueueResponse"), (two, "configureStreamResponse")]


def test_the_answer_of_a_late_open_comes_before_its_first_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue")
    ask(bench.client, "configureStream")
    bench.later.answer()
    bench.later.answer()
    bench.answers()
    assert [event.kind for event in bench.client.events] == ["control", "control", "push"]


def test_the_duration_of_an_open_is_logged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue")
    bench.world.advance(3.0)
    bench.later.answer()
    bench.answers()
    (line,) = [line for line in bench.world.log() if "late:4242: open queue" in line]
    assert f"[queue: '{URI}'] took: 3000000.00 us (3000000000 nanoseconds)" in line


def test_the_number_of_pending_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PENDING_REQUESTS_MAX", 3)
    bench = Bench(tmp_path)
    asked = [ask(bench.client, "openQueue", q_id) for q_id in (1, 1, 2, 2, 3)]
    assert bench.answers() == [(asked[3], "E_REFUSED"), (asked[4], "E_REFUSED")]
    while bench.later.held:
        bench.later.answer()
    assert bench.answers()[2:] == [(asked[0], "openQueueResponse"), (asked[2], "openQueueResponse"),
                                   (asked[1], "openQueueResponse")]
    again = ask(bench.client, "openQueue", 3)
    bench.later.answer()
    assert bench.answers()[-1] == (again, "openQueueResponse")


def test_an_open_answered_while_the_broker_stops_gets_no_response(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue")
    bench.world.broker.stop(bench.world.now)
    bench.later.answer()
    assert bench.answers() == [] and bench.left()


def test_a_queue_found_after_the_timeout_of_its_open_is_unused_from_then_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ask(bench.client, "openQueue", uri="bmq://d/new")
    bench.client.kill()
    bench.world.advance(5.0)
    bench.later.answer()
    bench.world.run()
    assert bench.world.broker.domains.by_name["d"].queues["new"].idle_since == bench.world.broker.loop.now


def test_a_pending_open_prevents_the_removal_of_its_domain(tmp_path: Path) -> None:
    """A cluster that takes its time to make a queue: the domain cannot be removed meanwhile."""
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


# -- any order whatever ------------------------------------------------------------------------------------------------

STEPS = st.lists(st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 2), st.sampled_from(KINDS)),
    st.tuples(st.just("answer"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("time"), st.integers(1, 12), st.just(0))), max_size=40)


class Lines:
    """Pending requests with the actions of a test: each is answered when the test says so."""

    def __init__(self) -> None:
        self.now, self.running = 0.0, False
        self.open: list[QueueRequest] = []
        self.begun: list[QueueRequest] = []
        self.over: list[tuple[QueueRequest, str]] = []
        self.pending = requests.PendingRequests(self.begin, lambda request: {"openQueue": 30.0}.get(request.choice, 10.0),
                                       lambda request: self.finish(request, "late"))

    def begin(self, request: QueueRequest) -> None:
        assert request.progress is Progress.RUNNING
        self.begun.append(request)
        if request.choice == "closeQueue":  # answered at once
            self.finish(request, "answered")
        else:
            self.open.append(request)

    def finish(self, request: QueueRequest, how: str) -> None:
        assert request.progress is not Progress.FINISHED
        self.over.append((request, how))
        self.pending.finish(request, self.now)


@given(STEPS)
def test_every_request_finishes_once_in_the_order_of_its_queue_id(steps: list[tuple[str, int, Any]]) -> None:
    lines = Lines()
    asked: list[QueueRequest] = []
    for step, number, what in steps:
        if step == "ask":
            asked.append(QueueRequest(len(asked), what, None, number, lines.now))
            lines.pending.add(asked[-1])
        elif step == "answer" and lines.open:
            request = lines.open.pop(number % len(lines.open))
            if request.progress is Progress.AWAITING_ANSWER:
                lines.finish(request, "answered")
        elif step == "time":
            lines.now += number
            lines.pending.tick(lines.now)
        assert lines.pending.count == sum(each.progress is not Progress.FINISHED for each in asked)
        assert all(each.progress is Progress.FINISHED or each.deadline > lines.now for each in asked)
        for q_id in range(3):
            line = [each for each in asked if each.q_id == q_id and each.progress is not Progress.FINISHED]
            wanted = [Progress.AWAITING_ANSWER, *[Progress.WAITING] * len(line)]
            assert [each.progress for each in line] == wanted[:len(line)]
    lines.now += 1000.0
    lines.pending.tick(lines.now)
    assert lines.pending.count == 0
    for q_id in range(3):
        assert [each for each, _ in lines.over if each.q_id == q_id] == [each for each in asked if each.q_id == q_id]


def test_thousands_of_requests_of_one_queue_id_can_time_out() -> None:
    lines = Lines()
    for number in range(5000):
        lines.pending.add(QueueRequest(number, "openQueue", None, 1, 0.0))
    lines.now = 31.0
    lines.pending.tick(31.0)
    assert len(lines.over) == 5000 and len(lines.begun) == 1
