"""kill -9 at random moments under load, again and again.

    python -m tests.soak kill9 [--count 200] [--durability none,group] [--seed N] [--quiet-operator]

One priority queue with one consumer, one with two, and one fanout queue with three apps are posted to and consumed from
without a pause; a thread kills the broker somewhere in between, now and then already while it starts. Then it is started
again, everything outstanding is consumed up to a last marker message, and `ledger.QueueHistory` judges. Consumers leave
some messages unconfirmed on purpose; producers send again, with the old GUIDs, half of what was not acknowledged.
The journal is small, so that rollovers are hit too.

An operator purges queues, apps and a whole domain meanwhile, adds an app to the fanout domain and takes it away again
(DOMAINS RECONFIGURE); some kills hit the broker within the milliseconds of a command. What that allows to be missing is in
`ledger.py`; `--quiet-operator` does without.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from crc32c import crc32c

from bench.broker import DOMAINS, FANOUT_APPS, Broker
from bench.rawclient import READ, WRITE, Closed, RawClient, acks, confirm_event, pushes
from bmqtwist.cli.adminclient import AdminClient, NotAllowed, Unreachable
from bmqtwist.wire.fast import (
    ACK_REQUESTED,
    HEARTBEAT_REQ,
    WORDS_MASK,
    EventType,
    event_header,
    put_message,
)
from soak.ledger import VERDICTS, QueueHistory

WINDOW = 400  # messages a producer sends ahead of its ACKs
REMEMBERED = 200_000  # messages per queue that a resurrection would be noticed of
DRAIN_SECONDS = 60
GONE = (Closed, OSError)
GUEST_APP = "guest"  # of the fanout domain, now and then
COMMAND_PERIOD_S = 0.15  # between two commands of the operator, on average
KILLED_AT_COMMAND = 0.2  # share of the lives that end within a few milliseconds of a command
COMMAND_KILL_S = 0.004


class Producer:
    """Posts to one queue; its unacknowledged messages outlive its connection."""

    def __init__(self, history: QueueHistory, random: Random) -> None:
        self.history, self.random = history, random
        self.client: RawClient | None = None
        self.pending: dict[bytes, bytes] = {}  # GUID: payload

    def connect(self, port: int) -> None:
        """A new connection; half of the time everything unacknowledged is sent again, else it is given up."""
        self.client = RawClient(port, "soak-producer")
        self.client.open(self.history.uri, 0, WRITE)
        if self.random.random() < 0.5:
            self._send(list(self.pending.items()))
        else:
            self.pending.clear()

    def post(self, payloads: list[bytes]) -> list[bytes]:
        """One PUT event; the GUIDs."""
        assert self.client is not None
        batch = [(self.client.guid(), payload) for payload in payloads]
        for guid, payload in batch:
            self.history.attempt(guid, payload)
            self.pending[guid] = payload
        self._send(batch)
        return [guid for guid, _ in batch]

    def _send(self, batch: list[tuple[bytes, bytes]]) -> None:
        assert self.client is not None
        for start in range(0, len(batch), 50):
            body = b"".join([put_message(0, guid, payload, crc32c(payload), ACK_REQUESTED)
                             for guid, payload in batch[start:start + 50]])
            self.client.send(event_header(EventType.PUT, len(body)) + body)

    def work(self) -> None:
        """Take ACKs; post if the window allows."""
        self.take()
        if len(self.pending) < WINDOW:
            random = self.random
            self.post([random.randbytes(random.choice((1, 16, 200, 1024, 3000)))
                       for _ in range(random.choice((1, 1, 5, 20)))])

    def take(self) -> None:
        """Take ACKs."""
        assert self.client is not None
        for buffer, (kind, _, start, end) in self.client.events(0.0):
            if kind == EventType.ACK:
                for status, guid in acks(buffer, start, end):
                    self.history.acknowledge(guid, status)
                    self.pending.pop(guid, None)


class Consumer:
    """Consumes for one app of one queue; confirms most of what it gets."""

    def __init__(self, history: QueueHistory, app: str, random: Random, patience: float) -> None:
        self.history, self.app, self.random, self.patience = history, app, random, patience
        self.client: RawClient | None = None
        self._sub_id = 0 if app == "__default" else 1
        self._unsettled: set[bytes] = set()  # confirmed since the last barrier was sent
        self._barrier: set[bytes] | None = None  # confirmed before the barrier under way
        self.answered = 0  # barriers that have come back

    def connect(self, port: int) -> None:
        """A new connection; what was confirmed on the old one may have been lost with it."""
        self.client = RawClient(port, "soak-consumer")
        self.history.apps[self.app].confirming |= self._unsettled | (self._barrier or set())
        self._unsettled, self._barrier = set(), None
        self.client.open(self.history.uri, 0, READ, self.app if self._sub_id else "", self._sub_id)
        self.client.consume(0, 1, self.app)

    def barrier_after_now(self) -> int:
        """What `answered` will be when a barrier that is sent from now on has come back."""
        return self.answered + (1 if self._barrier is None else 2)

    def work(self, confirm_share: float, barriers: bool = False) -> None:
        """Take what is pushed and confirm a share of it; every barrier that comes back settles what was before it.

        With `barriers` they are sent even if nothing was confirmed.
        """
        assert self.client is not None
        view, random = self.history.apps[self.app], self.random
        done = []
        for buffer, (kind, _, start, end) in self.client.events(0.0):
            if kind == EventType.HEARTBEAT_RSP and self._barrier is not None:
                self.history.settle(self.app, self._barrier)
                self._barrier = None
                self.answered += 1
            elif kind == EventType.PUSH:
                for guid, data in pushes(buffer, start, end):
                    self.history.deliver(self.app, guid, _payload(buffer, data))
                    if random.random() < confirm_share:
                        done.append(guid)
        if done:
            view.confirming.update(done)
            self._unsettled.update(done)
            self.client.send(confirm_event(0, done, self._sub_id))
        if (self._unsettled or barriers) and self._barrier is None:
            self._barrier, self._unsettled = self._unsettled, set()
            self.client.send(HEARTBEAT_REQ)


def _payload(buffer: bytes, data: int) -> bytes:
    """The application data of a PUSH message that begins at `data`; its header has 8 words and its option 2."""
    start = data - 40
    stop = start + ((int.from_bytes(buffer[start:start + 4], "big") & WORDS_MASK) << 2)
    return buffer[data:stop - buffer[stop - 1]]


class Operator:
    """Purges and reconfigures while messages flow; one command at a time, and nobody else does anything meanwhile."""

    def __init__(self, broker: Broker, histories: list[QueueHistory], random: Random) -> None:
        self._broker, self._random = broker, random
        self._one, self._two, self._fan = histories
        self._file = broker.root / "etc" / "domains" / f"{DOMAINS['fanout']}.json"
        self._client: AdminClient | None = None
        self._due = 0.0
        self._added_unanswered = False
        self.numbers = dict.fromkeys(("purges", "purges unanswered", "purges refused", "apps added", "apps removed",
                                      "reconfigurations unanswered", "kills at a command"), 0)

    def connect(self, port: int) -> None:
        """A new life of the broker, which has read the domain's file as it is."""
        if self._client is not None:
            self._client.close()
        self._client = AdminClient("127.0.0.1", port)
        try:
            self._client.negotiate()
        except NotAllowed as error:  # killed in the midst of it
            raise Closed from error
        if self._added_unanswered:
            self._fan.restarted_unanswered(GUEST_APP)
            self._added_unanswered = False
        self._wait()

    def _wait(self) -> None:
        self._due = time.monotonic() + self._random.expovariate(1 / COMMAND_PERIOD_S)

    def work(self, fatal: Callable[[], None] | None) -> None:
        """Now and then a command; `fatal` kills the broker while it runs."""
        if time.monotonic() < self._due:
            return
        if fatal is not None:
            self.numbers["kills at a command"] += 1
            fatal()
        if self._random.random() < 0.4:
            self._reconfigure()
        else:
            self._purge()
        self._wait()

    def _run(self, command: str) -> str | None:
        """The answer; None = the broker died before."""
        assert self._client is not None
        try:
            return self._client.run(command)
        except (Unreachable, NotAllowed):
            return None

    def _purge(self) -> None:
        priority, fanout = DOMAINS["priority"], DOMAINS["fanout"]
        everyone = [(history, app) for history in (self._one, self._two) for app in history.apps]
        app = self._random.choice(list(self._fan.apps))
        command, purged = self._random.choice([
            (f"DOMAINS DOMAIN {priority} QUEUE one PURGE *", [(self._one, "__default")]),
            (f"DOMAINS DOMAIN {priority} PURGE", everyone),
            (f"DOMAINS DOMAIN {fanout} QUEUE fan PURGE *", [(self._fan, each) for each in self._fan.apps]),
            (f"DOMAINS DOMAIN {fanout} QUEUE fan PURGE {app}", [(self._fan, app)])])
        answer = self._run(command)
        good = answer is not None and answer.startswith("Purged") and "Errors" not in answer
        self.numbers["purges" if good else "purges unanswered" if answer is None else "purges refused"] += 1
        for history, each in purged:
            history.purge(each, good)
        if answer is None:
            raise Closed

    def _reconfigure(self) -> None:
        adding = not self._fan.apps[GUEST_APP].there
        document = json.loads(self._file.read_text())
        document["definition"]["parameters"]["mode"]["fanout"]["appIDs"] = [*FANOUT_APPS, *([GUEST_APP] if adding else [])]
        other = self._file.with_suffix(".new")
        other.write_text(json.dumps(document))
        other.replace(self._file)
        answer = self._run(f"DOMAINS RECONFIGURE {DOMAINS['fanout']}")
        if adding:
            self._fan.add(GUEST_APP)
        else:
            self._fan.remove(GUEST_APP)
        if answer is None:
            self._added_unanswered = adding
            self.numbers["reconfigurations unanswered"] += 1
            raise Closed
        if "SUCCESS" not in answer.upper():
            raise RuntimeError(f"DOMAINS RECONFIGURE failed: {answer}")
        self.numbers["apps added" if adding else "apps removed"] += 1


class Soak:
    """One broker, its clients and their histories."""

    def __init__(self, broker: Broker, seed: int, operated: bool = True) -> None:
        self.broker, self.random = broker, Random(seed)
        one, two = (QueueHistory(f"bmq://{DOMAINS['priority']}/{name}", ("__default",)) for name in ("one", "two"))
        fan = QueueHistory(f"bmq://{DOMAINS['fanout']}/fan", FANOUT_APPS[:3], (GUEST_APP,))
        self.histories = [one, two, fan]
        self.producers = [Producer(history, self.random) for history in self.histories]
        self.consumers = [Consumer(one, "__default", self.random, 0), Consumer(two, "__default", self.random, 0),
                          Consumer(two, "__default", self.random, 0)]
        self.consumers += [Consumer(fan, app, self.random, 0) for app in fan.apps]
        self.operator = Operator(broker, self.histories, self.random) if operated else None
        self.numbers: dict[str, Any] = {"kills": 0, "kills while starting": 0, "slowest start s": 0.0}
        # two apps that nobody reads would keep every fanout message for ever
        self.unread = [Consumer(QueueHistory(fan.uri, (app,)), app, self.random, 0) for app in FANOUT_APPS[3:]]

    def start(self) -> None:
        """Start the broker, sometimes killing it on the way; then connect everybody."""
        while self.random.random() < 0.15:
            killer = self._kill_later(self.random.uniform(0.05, 0.8))
            try:
                self.broker.start()
            except RuntimeError:
                pass
            killer.join()
            self.numbers["kills while starting"] += 1
        took = self.broker.start()
        self.numbers["slowest start s"] = max(self.numbers["slowest start s"], round(took, 2))
        for history in self.histories:
            history.broker_died()
        for client in (*self.consumers, *self.unread, *self.producers):
            client.connect(self.broker.port)
        if self.operator is not None:
            self.operator.connect(self.broker.port)

    def _kill_later(self, seconds: float) -> threading.Thread:
        def kill() -> None:
            time.sleep(seconds)
            self.broker.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    def life(self) -> None:
        """Load until the broker is killed."""
        killers = [self._kill_later(self.random.choice((0.02, 0.1, 0.3, 0.6, 1.2)) * self.random.uniform(0.2, 1.8))]
        fatal = self.random.random() < KILLED_AT_COMMAND

        def kill_at_command() -> None:
            killers.append(self._kill_later(self.random.uniform(0, COMMAND_KILL_S)))

        try:
            while True:
                if self.operator is not None:
                    self.operator.work(kill_at_command if fatal else None)
                for producer in self.producers:
                    producer.work()
                for consumer in self.consumers:
                    consumer.work(0.9)
                self._skip_unread()
        except GONE:
            pass
        for killer in killers:
            killer.join()
        self.numbers["kills"] += 1
        self._late_news()

    def _late_news(self) -> None:
        """What the broker had written before it died is still in the sockets."""
        for producer in self.producers:
            try:
                while True:
                    producer.take()
            except GONE:
                pass

    def _skip_unread(self) -> None:
        for consumer in self.unread:
            client = consumer.client
            assert client is not None
            for buffer, (kind, _, start, end) in client.events(0.0):
                if kind == EventType.PUSH:
                    client.send(confirm_event(0, [guid for guid, _ in pushes(buffer, start, end)], 1))

    def drain(self) -> None:
        """Post a marker to every queue and consume until every app has it: then nothing may be missing.

        Another consumer of the same app may not have read yet what came before the marker; a barrier on every
        connection makes sure.
        """
        markers = {id(producer.history): producer.post([b"marker"])[0] for producer in self.producers}
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            for producer in self.producers:
                producer.take()
            for consumer in self.consumers:
                consumer.work(0.5)
            self._skip_unread()
            missing = [(history.uri, app) for history in self.histories for app, view in history.apps.items()
                       if view.there and markers[id(history)] not in view.held]
            if not missing and not any(producer.pending for producer in self.producers):
                break
            if time.monotonic() > deadline:
                print(f"not drained: {missing}, unacknowledged: {[len(p.pending) for p in self.producers]}", flush=True)
                break
        wanted = [(consumer, consumer.barrier_after_now()) for consumer in self.consumers]
        while any(consumer.answered < target for consumer, target in wanted) and time.monotonic() < deadline:
            for consumer in self.consumers:
                consumer.work(0.5, barriers=True)
        for history in self.histories:
            history.judge()
            history.forget_settled(REMEMBERED)

    def totals(self) -> dict[str, Any]:
        """Everything counted."""
        totals = {**self.numbers, **(self.operator.numbers if self.operator is not None else {})}
        for history in self.histories:
            for name, count in history.counts.items():
                totals[name] = totals.get(name, 0) + count
        totals["examples"] = [example for history in self.histories for example in history.examples]
        return totals


def run(count: int, durability: str, seed: int, show: bool = True, operated: bool = True) -> dict[str, Any]:
    """`count` kills; what was counted. No verdict of ledger.VERDICTS may be above 0."""
    with tempfile.TemporaryDirectory(prefix="bmq-soak-") as name:
        broker = Broker(Path(name), durability, partitions=2, data_bytes=64 << 20, journal_bytes=4 << 20)
        soak = Soak(broker, seed, operated)
        began = time.monotonic()
        try:
            soak.start()
            while soak.numbers["kills"] < count:
                soak.life()
                soak.start()
                soak.drain()
                if show and soak.numbers["kills"] % 25 == 0:
                    print(json.dumps({"durability": durability, **soak.totals()}), flush=True)
            alarms = sum("ALARM" in line for line in broker.output().splitlines())
            crashes = broker.output().count("Traceback")
        finally:
            broker.kill()
        return {"durability": durability, "seed": seed, "seconds": round(time.monotonic() - began), "alarms": alarms,
                "tracebacks": crashes, **soak.totals()}


def main(arguments: list[str]) -> int:
    """Command line; the exit code says whether anything was wrong."""
    parser = argparse.ArgumentParser(prog="tests.soak kill9", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--durability", default="none,group")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--quiet-operator", action="store_true")
    options = parser.parse_args(arguments)
    wrong = 0
    for durability in options.durability.split(","):
        result = run(options.count, durability, options.seed, operated=not options.quiet_operator)
        print(json.dumps(result), flush=True)
        wrong += sum(result[verdict] for verdict in VERDICTS) + result["tracebacks"] + result["refused"]
    return 1 if wrong else 0
