"""Session core under random calls and faults: every post has exactly one outcome, posts reach the broker in order and only
on queues that are open there, every request ends once, and no state is left or grows without limit.

Tests `bmqtwist/sdk/_core/session.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kit.sdk_kit import FANOUT, URI, Bench

from bmqtwist.errors import Category
from bmqtwist.sdk import QueueOptions, Result, SdkError, SessionOptions, Subscription, parse_brokers
from bmqtwist.sdk._core.outbox import PostGroup
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.states import QueueState, State
from bmqtwist.wire import events
from bmqtwist.wire.control import ControlMessage

URIS = {URI: (True, True), f"{URI}x": (False, True), FANOUT: (False, True), f"{FANOUT}?id=a": (True, False),
        f"{FANOUT}?id=b": (True, False)}
REQUESTS = ("openQueue", "configureStream", "configureQueueStream", "closeQueue", "clientIdentity", "disconnect")
REFUSED = (Result.BW_LIMIT, Result.INVALID_QUEUE, Result.QUEUE_SUSPENDED, Result.NOT_CONNECTED)
DEDUPLICATION_S = 40


class CheckingBroker(Bench):
    """A broker that checks the validity of received events."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.writers: Counter[int] = Counter()  # opened for writing on this connection, by queue id
        self.pending: dict[int, ControlMessage] = {}  # requests of this connection that were not granted yet
        self.last = -1  # number of the last post on this connection
        self.numbers: dict[bytes, int] = {}  # of posts, by GUID
        self.unanswered: list[events.PutMessage] = []
        self.once: set[str] = set()  # requests of which the next one gets no answer
        self.judged = 0  # of the received events
        self.first: list[int] = []  # posts by first arrival

    def _negotiate(self) -> None:
        self.writers, self.last, self.unanswered, self.pending = Counter(), -1, [], {}
        super()._negotiate()

    def answer(self, message: ControlMessage, force: bool = False) -> None:
        """Keep track of what is open; with `force` a request of this connection, or of another, is answered again."""
        value, name = message.value, message.choice
        if not force:
            self.pending[id(message)] = message
        if name in self.once and not force:
            self.once.discard(name)
            return
        answered = name not in self.silent or force
        if name == "openQueue" and answered and name not in self.refuse and self.pending.pop(id(message), None):
            self.writers[value.handle_parameters.q_id] += value.handle_parameters.write_count
        if name == "closeQueue" and not force:
            self.writers[value.handle_parameters.q_id] -= value.handle_parameters.write_count
        super().answer(message, force)
        self.refuse.pop(name, None)

    def _broker(self, chunk: bytes) -> None:
        super()._broker(chunk)
        new, self.judged = self.received[self.judged:], len(self.received)
        for put in new:
            if isinstance(put, events.PutMessage):
                number = self.numbers[put.guid]
                assert self.writers[put.queue_id] > 0, "a PUT on a queue that is not open"
                assert number > self.last, "PUTs out of order, or twice on one connection"
                if number not in self.first:
                    assert not self.first or number > max(self.first), "first transmissions out of order"
                    self.first.append(number)
                self.last = number
                if put.flags & 1:
                    self.unanswered.append(put)


class Sessions(RuleBasedStateMachine):
    """One session from start to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.posted = 0
        self.tokens: set[str] = set()  # of posts that must have one outcome
        self.requests: set[str] = set()  # tokens that must be completed
        self.outcomes: Counter[object] = Counter()
        self.completed: Counter[object] = Counter()
        self.count = 0
        self.groups: list[PostGroup] = []
        self.seen = 0

    @initialize(delay=st.sampled_from([0.0, 0.5]), room=st.sampled_from([700, 5000, 1 << 20]),
                drain=st.sampled_from([0.0, 2.0]), missed=st.sampled_from([0, 3]), brokers=st.integers(1, 2),
                features=st.booleans())
    def begin(self, delay: float, room: int, drain: float, missed: int, brokers: int, features: bool) -> None:
        addresses = parse_brokers("tcp://a:1,tcp://b:1"[:9 + 10 * (brokers - 1)])
        options = SessionOptions(batch_delay_s=delay, unacked_bytes_max=room, drain_s=drain, brokers=addresses,
                                 open_timeout_s=10.0, close_timeout_s=10.0, configure_timeout_s=10.0,
                                 connect_timeout_s=1e6, attempt_timeout_s=5.0, disconnect_timeout_s=3.0, batch_bytes_max=600)
        extra: dict[str, Any] = {} if features else {"features": "PROTOCOL_ENCODING:BER,JSON"}
        self.bench = CheckingBroker(options, acks_at_once=False, missed_max=missed, deduplication_ms=DEDUPLICATION_S * 1000,
                                    **extra)
        self.core = self.bench.core
        self.core.start(self.request("start"), self.bench.now)
        self.bench.turn()
        for uri in sorted(URIS):
            self.open(uri, False, False)

    def request(self, what: str) -> str:
        """A token that must be completed."""
        self.count += 1
        token = f"{what}{self.count}"
        self.requests.add(token)
        return token

    def call(self, token: str, make: Any) -> None:
        """Make a request that may be refused at once."""
        try:
            make(token)
        except SdkError:
            self.requests.discard(token)

    def queues(self) -> list[Queue]:
        """Return the queues of the core."""
        return list(self.core.queues.values())

    # -- the application --------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 4), count=st.integers(1, 4), size=st.sampled_from([1, 50, 400]), values=st.booleans(),
          ack=st.sampled_from([1, 1, 1, 0]), turn=st.booleans(), grouped=st.booleans())
    def posts(self, index: int, count: int, size: int, values: bool, ack: int, turn: bool, grouped: bool) -> None:
        """Post to one queue after the other."""
        for more in range(count):
            self.post(index + more, size, values, bool(ack), turn, grouped)

    def post(self, index: int, size: int, values: bool, ack: bool, turn: bool, grouped: bool) -> None:
        """Post; a post that is accepted must have one outcome."""
        queues = [queue for queue in self.queues() if queue.writable]
        if not queues:
            return
        token = f"post{self.posted}" if ack else None
        group = PostGroup(f"group{len(self.groups)}", acks={}) if grouped else None
        number = self.posted
        original = self.bench.make_guid

        def numbered() -> bytes:  # an immediate turn may send it before `post` returns
            guid = original()
            self.bench.numbers[guid] = number
            return guid
        self.bench.make_guid = numbered
        try:
            self.core.post(queues[index % len(queues)], b"x" * size, self.bench.now, {"n": 1} if values else None,
                           post=Post(ack, token, group=group))
        except SdkError as error:
            assert error.result in REFUSED, error
        else:
            self.posted += 1
            if token is not None:
                self.tokens.add(token)
            if group is not None:
                self.core.seal(group)
                self.groups.append(group)
                self.requests.add(group.token)
        finally:
            self.bench.make_guid = original
        if turn:
            self.bench.turn()

    @rule(uri=st.sampled_from(sorted(URIS)), minds=st.booleans(), several=st.booleans())
    def open(self, uri: str, minds: bool, several: bool) -> None:
        """Open a queue."""
        read, write = URIS[uri]
        subscriptions = (Subscription("n == 1"), Subscription("n == 2")) if several else ()
        options = QueueOptions(suspends_on_bad_host_health=minds, subscriptions=subscriptions)
        self.call(self.request("open"), lambda token: self.core.open(uri, token, self.bench.now, read=read, write=write,
                                                                     queue_options=options))
        self.bench.turn()

    @rule(index=st.integers(0, 4), several=st.booleans(), minds=st.booleans())
    def configure(self, index: int, several: bool, minds: bool) -> None:
        """Change a queue's options."""
        queues = self.queues()
        if queues:
            options = QueueOptions(5, suspends_on_bad_host_health=minds,
                                   subscriptions=(Subscription("n == 1"), Subscription()) if several else ())
            self.call(self.request("configure"), lambda token: self.core.configure(
                queues[index % len(queues)], options, token, self.bench.now))
            self.bench.turn()

    @rule(index=st.integers(0, 4))
    def close(self, index: int) -> None:
        """Close a queue."""
        queues = self.queues()
        if queues:
            self.call(self.request("close"),
                      lambda token: self.core.close(queues[index % len(queues)], token, self.bench.now))
            self.bench.turn()

    @rule(index=st.integers(0, 20))
    def confirm(self, index: int) -> None:
        """Confirm any message ever seen."""
        if self.bench.messages:
            try:
                self.core.confirm(self.bench.messages[index % len(self.bench.messages)])
            except SdkError as error:
                assert error.result in (Result.NOT_CONNECTED, Result.INVALID_QUEUE)
            self.bench.turn()

    @rule(healthy=st.booleans())
    def health(self, healthy: bool) -> None:
        """The host is well, or is not."""
        self.core.set_health(healthy, self.bench.now)
        self.bench.turn()

    @rule(blocked=st.booleans())
    def channel(self, blocked: bool) -> None:
        """The channel is full, or has room."""
        if self.bench.connected:
            (self.core.pause_posts if blocked else self.core.resume_posts)(self.bench.now)
            self.bench.turn()

    @rule(flush=st.booleans())
    def turn(self, flush: bool) -> None:
        """Send the posted messages."""
        self.bench.turn(flush=flush)

    @rule(drain=st.booleans())
    def stop(self, drain: bool) -> None:
        """Stop; later requests are refused."""
        if self.count > 20:  # not in the first seconds, or no other behaviour would be tested
            self.core.stop(self.request("stop"), self.bench.now, drain)
            self.bench.turn()

    # -- the broker -------------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 3), status=st.sampled_from([0, 0, 0, 1, 7, 15]), twice=st.booleans())
    def acknowledge(self, index: int, status: int, twice: bool) -> None:
        """Answer a post, in order or not, once or twice."""
        if self.bench.connected and self.bench.unanswered:
            put = self.bench.unanswered.pop(index % len(self.bench.unanswered))
            self.bench.ack(put, *[put] * twice, status=status)

    @rule()
    def acknowledge_everything(self) -> None:
        """Answer all posts in one event."""
        if self.bench.connected and self.bench.unanswered:
            puts, self.bench.unanswered = self.bench.unanswered, []
            self.bench.ack(*puts)

    @rule(index=st.integers(0, 6), count=st.integers(1, 3))
    def push(self, index: int, count: int) -> None:
        """Deliver messages, perhaps to an unknown queue."""
        if self.bench.connected and self.core.online:
            keys = [*self.core._deliveries.routes, 7 << 32 | 7]
            for _ in range(count):
                self.bench.push(b"m", keys[index % len(keys)] & 0xffffffff, keys[index % len(keys)] >> 32)

    @rule(name=st.sampled_from(REQUESTS))
    def no_answer(self, name: str) -> None:
        """The next request of a kind is not answered."""
        if name == "clientIdentity":
            self.bench.silent.add(name)
        else:
            self.bench.once.add(name)

    @rule(name=st.sampled_from(REQUESTS[:4]), category=st.sampled_from([Category.E_REFUSED, Category.E_UNKNOWN]))
    def refusal(self, name: str, category: Category) -> None:
        """The next request of a kind is refused."""
        self.bench.refuse[name] = category

    @rule(index=st.integers(0, 5))
    def late_answer(self, index: int) -> None:
        """Answer some request, perhaps again, perhaps of another connection."""
        if self.bench.connected and self.core.online and self.bench.requests:
            self.bench.answer(self.bench.requests[-1 - index % len(self.bench.requests)], force=True)

    @rule(up=st.booleans())
    def cut_connection(self, up: bool) -> None:
        """Cut the connection."""
        if self.bench.connected:
            self.bench.cut_connection(up=up)

    @rule()
    def restore_broker(self) -> None:
        """The broker answers everything again."""
        self.bench.up = True
        self.bench.silent.clear()
        self.bench.once.clear()
        self.bench.refuse.clear()
        self.core.set_health(True, self.bench.now)
        self.core.resume_posts(self.bench.now)
        self.bench.advance(3.0)

    @rule(features=st.booleans())
    def other_broker(self, features: bool) -> None:
        """The next broker may announce fewer features."""
        self.bench.features = Bench().features if features else "PROTOCOL_ENCODING:BER,JSON"

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 25.0]))
    def time(self, seconds: float) -> None:
        """Time passes."""
        self.bench.advance(seconds)

    # -- what must be so --------------------------------------------------------------------------------------------

    @invariant()
    def every_post_has_one_outcome_and_the_counters_are_consistent(self) -> None:
        """After every step."""
        bench, core = self.bench, self.core
        assert len(bench.acks) == sum(Counter(map(id, bench.acks)).values())
        self.outcomes = Counter(ack.token for ack in bench.acks if ack.token is not None)
        assert not self.outcomes or max(self.outcomes.values()) == 1
        assert self.outcomes.keys() <= self.tokens
        found = core.counters()
        assert found.posts == self.posted == found.acked + found.nacked + found.sent_without_ack + found.unacked_now
        assert core._posts.unacked_bytes == sum(len(put.packed) for put in core.unacked.values())
        assert found.unacked_bytes_now <= core.options.unacked_bytes_max + 1000

    @invariant()
    def internal_state_is_limited(self) -> None:
        """Limited by the number of open queues and pending requests."""
        core = self.core
        live = len(core.queues)
        assert len(core._queues.registry.ids_by_uri) <= live + 5
        assert len(core._connection._requests.pending) <= 4 * live + 8 + len(self.bench.requests)
        assert len(core._deadlines._due) <= 3 * live + 10
        assert len(core._deadlines._heap) <= 2 * len(core._deadlines._due) + 100
        assert len(core._outbox.posts) <= len(core.unacked)
        for queue in core.queues.values():
            assert queue.state is not QueueState.CLOSED
        for key, (queue, _) in core._deliveries.routes.items():
            assert key >> 32 == queue.q_id and queue.state is not QueueState.CLOSED

    def teardown(self) -> None:
        """Stop: every post and every request has ended, and nothing is left."""
        if not hasattr(self, "bench"):
            return
        bench, core = self.bench, self.core
        bench.turn()
        core.stop(self.request("stop"), bench.now)
        bench.turn()
        bench.advance(30.0)
        assert core.state is State.STOPPED and core.next_deadline() is None
        assert not core.unacked and not core._posts.unacked_bytes and not core.queues and not core._deliveries.routes
        assert not core._connection._requests.pending and not core._queues.registry.ids_by_uri
        assert not core._posts.room_requested
        self.every_post_has_one_outcome_and_the_counters_are_consistent()
        assert set(self.outcomes) == self.tokens
        assert self.requests == set(bench.done), self.requests ^ set(bench.done)
        done = Counter(line.split()[1] for line in bench.log if line.startswith("done "))
        assert not done or max(done.values()) == 1
        assert [group.outstanding for group in self.groups] == [0] * len(self.groups)
        connects = len(bench.connects)
        bench.up = True
        bench.advance(100.0)
        assert len(bench.connects) == connects, "nothing reconnects after stop"


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestSessions = pytest.mark.filterwarnings("ignore")(Sessions.TestCase)
