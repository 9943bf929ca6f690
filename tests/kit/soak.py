"""Soak test of a broker process with the official SDK: kills, restarts, and checks for lost messages and memory growth.

    python -m kit.soak --minutes 10 [--seed N]          (with tests/ on the path: make soak)

Two producers post numbered messages to a priority and a fanout queue, without retries of their own; consumers confirm.
Every 10 to 30 s the broker is killed or stopped and started again, or a consumer process is killed. Checked at the end:
every acknowledged message was delivered to every app, the storage is empty, and the memory of the broker is at most
`GROWTH_MAX` times the memory after `SETTLED_SECONDS` (only in runs longer than that). Clusters are killed by
`soak/failover.py`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

from blazingmq import Ack, AckStatus

from kit.process import ProcessWorld
from kit.sdk import Application, application, script

PRIORITY, FANOUT = "bmq://p/soak", "bmq://f/soak"
READERS = (PRIORITY, f"{FANOUT}?id=foo", f"{FANOUT}?id=bar")
IN_FLIGHT_MAX = 500  # messages of one producer without an ACK
BACKLOG_MAX = 5000  # messages of one producer that its slowest consumer has not received
GROWTH_MAX = 1.5  # limit of the memory at the end, relative to that after SETTLED_SECONDS
SETTLED_SECONDS = 330  # the history of GUIDs for deduplication has its full size by then
DRAIN_SECONDS_MAX = 120
RECOVERY_SECONDS_MAX = 180


class Producer(threading.Thread):
    """Posts to one queue, with at most `IN_FLIGHT_MAX` outstanding ACKs; `acked` has the acknowledged numbers."""

    def __init__(self, broker: str, uri: str, readers: list[set[int]]) -> None:
        super().__init__(daemon=True)
        self.app, self.uri, self._readers = Application(broker), uri, readers
        self.app.session.open_queue(uri, write=True)
        self.acked: set[int] = set()
        self.refused: Counter[str] = Counter()
        self.ended = threading.Event()
        self._room = threading.Semaphore(IN_FLIGHT_MAX)

    def run(self) -> None:
        """Post until `ended` is set, then wait for the outstanding ACKs."""
        for number in itertools.count():
            if self.ended.is_set():
                break
            self._room.acquire()
            while len(self.acked) - min(map(len, self._readers)) > BACKLOG_MAX and not self.ended.is_set():
                time.sleep(0.01)
            self.app.session.post(self.uri, b"%d" % number, on_ack=partial(self._on_ack, number))
        for _ in range(IN_FLIGHT_MAX):
            self._room.acquire()

    def _on_ack(self, number: int, ack: Ack) -> None:
        if ack.status is AckStatus.SUCCESS:
            self.acked.add(number)
        else:
            self.refused[str(ack.status)] += 1
        self._room.release()


VICTIM = """
session = make()
for uri in %r:
    session.open_queue(uri, read=True, options=blazingmq.QueueOptions(max_unconfirmed_messages=50))
say("reading")
sys.stdin.read()
"""


def soak(minutes: float, seed: int) -> list[str]:
    """Run the soak test; return the violations."""
    random, start = Random(seed), time.monotonic()
    end = start + minutes * 60
    print(f"seed {seed}, {minutes} minutes", flush=True)
    problems: list[str] = []
    with ExitStack() as stack:
        world = ProcessWorld(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(world.cleanup)
        world.domain("p")
        world.domain("f", "fanout", apps=["foo", "bar"])
        seen: dict[str, set[int]] = {uri: set() for uri in READERS}
        finished = threading.Event()
        consumer = stack.enter_context(application(world.broker.uri))
        for uri in READERS:
            consumer.session.open_queue(uri, read=True)

        def consume() -> None:
            while True:
                message, handle = consumer.messages.get()
                seen[message.queue_uri].add(int(message.data))
                if not finished.is_set():
                    handle.confirm()

        threading.Thread(target=consume, daemon=True).start()
        producers = [Producer(world.broker.uri, PRIORITY, [seen[PRIORITY]]),
                     Producer(world.broker.uri, FANOUT, [seen[uri] for uri in READERS[1:]])]
        for producer in producers:
            producer.start()
        reference, kills = 0, Counter[str]()
        while time.monotonic() < end:
            time.sleep(min(random.uniform(10, 30), max(0.0, end - time.monotonic())))
            memory = world.broker.memory()
            if not reference and time.monotonic() - start > SETTLED_SECONDS:
                reference = memory
            print(f"{end - time.monotonic():6.0f} s left, {sum(len(p.acked) for p in producers)} acknowledged, "
                  f"{memory >> 20} MiB, {dict(kills)}", flush=True)
            action = random.choice(["kill", "stop", "consumer"])
            kills[action] += 1
            if action == "consumer":
                with script(world.broker.uri, VICTIM % (READERS,)) as victim:
                    assert victim.stdout is not None
                    victim.stdout.readline()
                    time.sleep(random.uniform(0, 1))
            else:
                world._admin = None
                world.broker.kill() if action == "kill" else world.broker.terminate()
                restarted_at = time.monotonic()
                world.broker.start(RECOVERY_SECONDS_MAX)
                print(f"       recovered in {time.monotonic() - restarted_at:.1f} s", flush=True)
        for producer in producers:
            producer.ended.set()
            producer.join(DRAIN_SECONDS_MAX)
            if producer.is_alive():
                problems.append(f"{producer.uri}: some ACKs are missing")
            if producer.refused:
                problems.append(f"{producer.uri}: refused {dict(producer.refused)}")
        drain_end = time.monotonic() + DRAIN_SECONDS_MAX
        expected = {PRIORITY: producers[0].acked, **dict.fromkeys(READERS[1:], producers[1].acked)}
        while any(expected[uri] - seen[uri] for uri in READERS) and time.monotonic() < drain_end:
            time.sleep(0.5)
        problems += [f"{uri}: {len(expected[uri] - seen[uri])} acknowledged messages are lost" for uri in READERS
                     if expected[uri] - seen[uri]]
        while (left := world.stored(PRIORITY) + world.stored(FANOUT)) and time.monotonic() < drain_end:
            time.sleep(0.5)
        if left:
            problems.append(f"{left} messages are left in the storage")
        memory = world.broker.memory()
        if reference and memory > GROWTH_MAX * reference:
            problems.append(f"memory grew from {reference >> 20} to {memory >> 20} MiB")
        problems += [f"log: {record}" for record in world.log() if "Traceback" in record or "Internal error" in record]
        finished.set()
        for producer in producers:
            producer.app.session.stop()
        print(f"{sum(len(p.acked) for p in producers)} acknowledged, {dict(kills)}, {memory >> 20} MiB", flush=True)
    return problems


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    problems = soak(arguments.minutes, arguments.seed)
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
