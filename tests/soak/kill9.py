"""Soak test with kill -9 of the broker at random moments under load.

    python -m tests.soak kill9 [--count 200] [--durability none,group] [--seed N] [--quiet-operator]

Producers and consumers use a priority queue with one consumer, one with two, and a fanout queue with three apps. A thread
kills the broker meanwhile, at times during its start. After the restart all outstanding messages are consumed, up to a
marker message at the end, and `ledger.QueueHistory` reports violations. Consumers leave some messages unconfirmed; in half
of the runs producers send their unacknowledged messages again, with the same GUIDs. The journal is small, so that kills hit
rollovers, too.

Meanwhile an operator purges queues, apps and a domain, and adds an app to the fanout domain and removes it (DOMAINS
RECONFIGURE); some kills happen within 4 ms of a command. `ledger.py` says which messages may then be missing;
`--quiet-operator` runs no commands. Called by `command.py`. Restarts under clients of the SDK are in `restarts.py`.
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

WINDOW = 400  # unacknowledged messages of a producer
HISTORY_MAX = 200_000  # messages per queue whose resurrection is detected
DRAIN_SECONDS = 60
CONNECTION_ERRORS = (Closed, OSError)
EXTRA_APP = "extra"  # added to the fanout domain and removed again
COMMAND_PERIOD_S = 0.15  # mean time between two commands of the operator
KILLED_AT_COMMAND = 0.2  # share of the runs that end within COMMAND_KILL_S of a command
COMMAND_KILL_S = 0.004


class Producer:
    """Posts to one queue; keeps its unacknowledged messages over connections."""

    def __init__(self, history: QueueHistory, random: Random) -> None:
        self.history, self.random = history, random
        self.client: RawClient | None = None
        self.pending: dict[bytes, bytes] = {}  # GUID: payload

    def connect(self, port: int) -> None:
        """Connect; send the unacknowledged messages again with probability 0.5, else drop them."""
        self.client = RawClient(port, "soak-producer")
        self.client.open(self.history.uri, 0, WRITE)
        if self.random.random() < 0.5:
            self._send(list(self.pending.items()))
        else:
            self.pending.clear()

    def post(self, payloads: list[bytes]) -> list[bytes]:
        """Send one PUT event and return the GUIDs."""
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
        """Handle ACKs; post if the window allows."""
        self.read_acks()
        if len(self.pending) < WINDOW:
            random = self.random
            self.post([random.randbytes(random.choice((1, 16, 200, 1024, 3000)))
                       for _ in range(random.choice((1, 1, 5, 20)))])

    def read_acks(self) -> None:
        """Handle ACKs."""
        assert self.client is not None
        for buffer, (kind, _, start, end) in self.client.events(0.0):
            if kind == EventType.ACK:
                for status, guid in acks(buffer, start, end):
                    self.history.acknowledge(guid, status)
                    self.pending.pop(guid, None)


class Consumer:
    """Consumes one app of one queue, and confirms a share of the messages."""

    def __init__(self, history: QueueHistory, app: str, random: Random) -> None:
        self.history, self.app, self.random = history, app, random
        self.client: RawClient | None = None
        self._sub_id = 0 if app == "__default" else 1
        self._confirmed: set[bytes] = set()  # since the last barrier was sent
        self._barrier: set[bytes] | None = None  # confirmed before the outstanding barrier; None: none is outstanding
        self.answered = 0  # answered barriers

    def connect(self, port: int) -> None:
        """Connect; CONFIRMs on the previous connection may have been lost with it."""
        self.client = RawClient(port, "soak-consumer")
        self.history.apps[self.app].confirming |= self._confirmed | (self._barrier or set())
        self._confirmed, self._barrier = set(), None
        self.client.open(self.history.uri, 0, READ, self.app if self._sub_id else "", self._sub_id)
        self.client.consume(0, 1, self.app)

    def barrier_after_now(self) -> int:
        """Return the value of `answered` once a barrier sent from now on is answered."""
        return self.answered + (1 if self._barrier is None else 2)

    def work(self, confirm_share: float, barriers: bool = False) -> None:
        """Receive messages and confirm a share of them; an answered barrier proves that earlier CONFIRMs have arrived.

        With `barriers`, barriers are sent even without CONFIRMs.
        """
        assert self.client is not None
        view, random = self.history.apps[self.app], self.random
        done = []
        for buffer, (kind, _, start, end) in self.client.events(0.0):
            if kind == EventType.HEARTBEAT_RSP and self._barrier is not None:
                self.history.on_confirmed(self.app, self._barrier)
                self._barrier = None
                self.answered += 1
            elif kind == EventType.PUSH:
                for guid, data in pushes(buffer, start, end):
                    self.history.deliver(self.app, guid, _payload(buffer, data))
                    if random.random() < confirm_share:
                        done.append(guid)
        if done:
            view.confirming.update(done)
            self._confirmed.update(done)
            self.client.send(confirm_event(0, done, self._sub_id))
        if (self._confirmed or barriers) and self._barrier is None:
            self._barrier, self._confirmed = self._confirmed, set()
            self.client.send(HEARTBEAT_REQ)


def _payload(buffer: bytes, data: int) -> bytes:
    """Return the application data of a PUSH message, from `data` on; its header has 8 words and its option 2."""
    start = data - 40
    stop = start + ((int.from_bytes(buffer[start:start + 4], "big") & WORDS_MASK) << 2)
    return buffer[data:stop - buffer[stop - 1]]


class Operator:
    """Purges and reconfigures between posts; clients wait during a command."""

    def __init__(self, broker: Broker, histories: list[QueueHistory], random: Random) -> None:
        self._broker, self._random = broker, random
        self._one, self._two, self._fan = histories
        self._file = broker.root / "etc" / "domains" / f"{DOMAINS['fanout']}.json"
        self._client: AdminClient | None = None
        self._next_command = 0.0
        self._added_unanswered = False
        self.numbers = dict.fromkeys(("purges", "purges unanswered", "purges refused", "apps added", "apps removed",
                                      "reconfigurations unanswered", "kills at a command"), 0)

    def connect(self, port: int) -> None:
        """Connect after a start of the broker, which has read the file of the domain."""
        if self._client is not None:
            self._client.close()
        self._client = AdminClient("127.0.0.1", port)
        try:
            self._client.negotiate()
        except NotAllowed as error:  # the broker was killed during the negotiation
            raise Closed from error
        if self._added_unanswered:
            self._fan.restarted_unanswered(EXTRA_APP)
            self._added_unanswered = False
        self._wait()

    def _wait(self) -> None:
        self._next_command = time.monotonic() + self._random.expovariate(1 / COMMAND_PERIOD_S)

    def work(self, fatal: Callable[[], None] | None) -> None:
        """Run a command if one is due; `fatal` kills the broker during it."""
        if time.monotonic() < self._next_command:
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
        """Run a command and return the answer; None if the broker was killed before it."""
        assert self._client is not None
        try:
            return self._client.run(command)
        except (Unreachable, NotAllowed):
            return None

    def _purge(self) -> None:
        priority, fanout = DOMAINS["priority"], DOMAINS["fanout"]
        all_apps = [(history, app) for history in (self._one, self._two) for app in history.apps]
        app = self._random.choice(list(self._fan.apps))
        command, purged = self._random.choice([
            (f"DOMAINS DOMAIN {priority} QUEUE one PURGE *", [(self._one, "__default")]),
            (f"DOMAINS DOMAIN {priority} PURGE", all_apps),
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
        adding = not self._fan.apps[EXTRA_APP].registered
        document = json.loads(self._file.read_text())
        document["definition"]["parameters"]["mode"]["fanout"]["appIDs"] = [*FANOUT_APPS, *([EXTRA_APP] if adding else [])]
        other = self._file.with_suffix(".new")
        other.write_text(json.dumps(document))
        other.replace(self._file)
        answer = self._run(f"DOMAINS RECONFIGURE {DOMAINS['fanout']}")
        if adding:
            self._fan.add(EXTRA_APP)
        else:
            self._fan.remove(EXTRA_APP)
        if answer is None:
            self._added_unanswered = adding
            self.numbers["reconfigurations unanswered"] += 1
            raise Closed
        if "SUCCESS" not in answer.upper():
            raise RuntimeError(f"DOMAINS RECONFIGURE failed: {answer}")
        self.numbers["apps added" if adding else "apps removed"] += 1


class Soak:
    """A broker, its clients and the histories of its queues."""

    def __init__(self, broker: Broker, seed: int, operated: bool = True) -> None:
        self.broker, self.random = broker, Random(seed)
        one, two = (QueueHistory(f"bmq://{DOMAINS['priority']}/{name}", ("__default",)) for name in ("one", "two"))
        fan = QueueHistory(f"bmq://{DOMAINS['fanout']}/fan", FANOUT_APPS[:3], (EXTRA_APP,))
        self.histories = [one, two, fan]
        self.producers = [Producer(history, self.random) for history in self.histories]
        self.consumers = [Consumer(one, "__default", self.random), Consumer(two, "__default", self.random),
                          Consumer(two, "__default", self.random)]
        self.consumers += [Consumer(fan, app, self.random) for app in fan.apps]
        self.operator = Operator(broker, self.histories, self.random) if operated else None
        self.numbers: dict[str, Any] = {"kills": 0, "kills while starting": 0, "slowest start s": 0.0}
        # without consumers, these two apps would keep all fanout messages
        self.unread = [Consumer(QueueHistory(fan.uri, (app,)), app, self.random) for app in FANOUT_APPS[3:]]

    def start(self) -> None:
        """Start the broker, with random kills during the start; then connect all clients."""
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
            history.on_broker_restart()
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

    def run_until_killed(self) -> None:
        """Put load on the broker until a thread kills it."""
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
        except CONNECTION_ERRORS:
            pass
        for killer in killers:
            killer.join()
        self.numbers["kills"] += 1
        self._read_last_acks()

    def _read_last_acks(self) -> None:
        """Read the ACKs that the broker had written before it was killed."""
        for producer in self.producers:
            try:
                while True:
                    producer.read_acks()
            except CONNECTION_ERRORS:
                pass

    def _skip_unread(self) -> None:
        for consumer in self.unread:
            client = consumer.client
            assert client is not None
            for buffer, (kind, _, start, end) in client.events(0.0):
                if kind == EventType.PUSH:
                    client.send(confirm_event(0, [guid for guid, _ in pushes(buffer, start, end)], 1))

    def drain(self) -> None:
        """Post a marker to every queue and consume until every app has it; then report lost messages.

        Another consumer of the same app may have unread messages from before the marker: a barrier on every connection
        follows.
        """
        markers = {id(producer.history): producer.post([b"marker"])[0] for producer in self.producers}
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            for producer in self.producers:
                producer.read_acks()
            for consumer in self.consumers:
                consumer.work(0.5)
            self._skip_unread()
            missing = [(history.uri, app) for history in self.histories for app, view in history.apps.items()
                       if view.registered and markers[id(history)] not in view.delivered]
            if not missing and not any(producer.pending for producer in self.producers):
                break
            if time.monotonic() > deadline:
                print(f"not drained: {missing}, unacknowledged: {[len(p.pending) for p in self.producers]}", flush=True)
                break
        targets = [(consumer, consumer.barrier_after_now()) for consumer in self.consumers]
        while any(consumer.answered < target for consumer, target in targets) and time.monotonic() < deadline:
            for consumer in self.consumers:
                consumer.work(0.5, barriers=True)
        for history in self.histories:
            history.check_lost()
            history.drop_confirmed(HISTORY_MAX)

    def totals(self) -> dict[str, Any]:
        """Return all counts."""
        totals = {**self.numbers, **(self.operator.numbers if self.operator is not None else {})}
        for history in self.histories:
            for name, count in history.counts.items():
                totals[name] = totals.get(name, 0) + count
        totals["examples"] = [example for history in self.histories for example in history.examples]
        return totals


def run(count: int, durability: str, seed: int, show: bool = True, operated: bool = True) -> dict[str, Any]:
    """Run the test with `count` kills; return the counts. All counts of ledger.VERDICTS must be 0."""
    with tempfile.TemporaryDirectory(prefix="bmq-soak-") as name:
        broker = Broker(Path(name), durability, partitions=2, data_bytes=64 << 20, journal_bytes=4 << 20)
        soak = Soak(broker, seed, operated)
        started = time.monotonic()
        try:
            soak.start()
            while soak.numbers["kills"] < count:
                soak.run_until_killed()
                soak.start()
                soak.drain()
                if show and soak.numbers["kills"] % 25 == 0:
                    print(json.dumps({"durability": durability, **soak.totals()}), flush=True)
            alarms = sum("ALARM" in line for line in broker.output().splitlines())
            crashes = broker.output().count("Traceback")
        finally:
            broker.kill()
        return {"durability": durability, "seed": seed, "seconds": round(time.monotonic() - started), "alarms": alarms,
                "tracebacks": crashes, **soak.totals()}


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak kill9", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--durability", default="none,group")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--quiet-operator", action="store_true")
    options = parser.parse_args(arguments)
    violations = 0
    for durability in options.durability.split(","):
        result = run(options.count, durability, options.seed, operated=not options.quiet_operator)
        print(json.dumps(result), flush=True)
        violations += sum(result[verdict] for verdict in VERDICTS) + result["tracebacks"] + result["refused"]
    return 1 if violations else 0
