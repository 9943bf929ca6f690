"""Soak test with repeated kills and stops of a broker whose producers and consumers use the SDK.

    python -m tests.soak restarts [--count 50] [--front aio,tx,blazingmq,simple] [--durability none,group] [--seed N]
                                  [--away SECONDS]

Three producer processes post numbered messages to three queues: one is read all the time, one by two apps (fanout), one only
after the last restart. About half of the restarts are kill -9, the others SIGTERM; at times the broker is killed during its
start, or is down for up to a second. At the end every post is flushed, all messages are consumed, and `restart_judge` checks
that each post was acknowledged exactly once, is in its queue exactly once, and in the order of its producer. `--away`: one
restart only, with a broker that is down for that time. Called by `command.py`. The producers and consumers are processes of
`restart_clients.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from kit.process import ProcessWorld

from soak.client_processes import ClientProcesses
from soak.restart_clients import FRONTS
from soak.restart_judge import Consumed, Produced, Verdict, judge

LIVE, FAN, LATE = "bmq://p/live", "bmq://f/fan", "bmq://p/late"
APPS = ("foo", "bar")
PRODUCERS = 3
WAIT_SECONDS_MAX = 180
_RUN_SECONDS = {"blazingmq": 4.0}  # its pauses between attempts are fixed, and longer


class Run:
    """A broker and its client processes."""

    def __init__(self, root: Path, front: str, durability: str, seed: int) -> None:
        self.front, self.random = front, Random(seed)
        self.world = ProcessWorld(root, app={"bmqtwist": {"durability": durability}}, start=False,
                                  cluster={"partition": {"maxJournalFileSize": 16 << 20}})
        self.world.domain("p")
        self.world.domain("f", "fanout", apps=APPS)
        self.clients = ClientProcesses(root, WAIT_SECONDS_MAX)
        self.numbers: dict[str, Any] = {"killed": 0, "stopped": 0, "killed while starting": 0, "slowest start s": 0.0}

    # -- the broker -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker, with random kills during the start."""
        while self.random.random() < 0.1:
            self.world.broker.launch()
            time.sleep(self.random.uniform(0.1, 1.0))
            self.world.crash()
            self.numbers["killed while starting"] += 1
        start_time = time.monotonic()
        self.world.broker.start(WAIT_SECONDS_MAX)
        self.numbers["slowest start s"] = max(self.numbers["slowest start s"], round(time.monotonic() - start_time, 2))

    def restart(self, away: float = 0.0) -> None:
        """Kill or stop the broker and start it after `away` seconds."""
        self.world._admin = None
        if self.random.random() < 0.5:
            self.world.crash()
            self.numbers["killed"] += 1
        else:
            self.world.stop()
            self.numbers["stopped"] += 1
        time.sleep(away)
        self.start()

    # -- the clients ------------------------------------------------------------------------------------------------

    def client(self, name: str, role: str, queues: list[str], **more: Any) -> None:
        """Start a client process."""
        self.clients.start(name, "soak.restart_clients", front=self.front, role=role, broker=self.world.broker.uri,
                           name=name, queues=queues, seed=self.random.randrange(1 << 30), **more)

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for a condition; raises RuntimeError after WAIT_SECONDS_MAX, or if a client fails."""
        self.clients.until(done, what, WAIT_SECONDS_MAX)

    # -- the test ---------------------------------------------------------------------------------------------------

    def run(self, count: int, run_seconds: float, away: float, pause: float) -> Verdict:
        """Restart the broker `count` times; return the verdict."""
        self.start()
        producers = [f"producer{number}" for number in range(PRODUCERS)]
        for name in producers:
            self.client(name, "produce", [LIVE, FAN, LATE], pause=pause)
        self.client("live", "consume", [LIVE])
        self.client("fan", "consume", [f"{FAN}?id={app}" for app in APPS])
        self.until(self.clients.is_open, "the first opens")
        self.until(lambda: all(self.world.stored(uri) for uri in (FAN, LATE)), "the first messages")
        for number in range(count):
            time.sleep(self.random.choice((0.1, 0.4, 1.0)) * self.random.uniform(0.2, 1.8) * run_seconds)
            self.restart(away or (self.random.random() if self.random.random() < 0.1 else 0.0))
            if number % 10 == 9:
                print(f"{number + 1} restarts, {self.numbers}", file=sys.stderr, flush=True)
        self.clients.finish(*producers)
        records = [self.clients.record(name) for name in producers]
        self.until(lambda: not self.world.stored(LIVE) and not self.world.stored(FAN), "the consumers")
        self.clients.finish("live", "fan")
        stored = self.world.stored(LATE)
        self.client("late", "consume", [LATE])
        self.until(lambda: not self.world.stored(LATE), "the late consumer")
        self.clients.finish("late")
        verdict = self._judge(records)
        if stored != (posted := sum(each["posts"][LATE] for each in records)):
            verdict.report("duplicated" if stored > posted else "lost", f"{LATE} holds {stored} messages of {posted} posts")
        for line in self.world.log():
            if "Traceback" in line:
                verdict.report("unexpected", line)
        return verdict

    def _judge(self, records: list[dict[str, Any]]) -> Verdict:
        produced = [Produced(each["name"], uri, each["posts"][uri], [tuple(ack) for ack in acks])
                    for each in records for uri, acks in each["acks"].items()]
        consumers = [self.clients.record(name) for name in ("live", "fan", "late")]
        consumed = [Consumed(*_split(uri), [tuple(delivery) for delivery in deliveries])
                    for each in consumers for uri, deliveries in each["deliveries"].items()]
        return judge(produced, consumed, [(each["name"], each["letters"], each["queues"]) for each in
                                          (*records, *consumers)])

    def close(self) -> None:
        """Kill the clients and end the broker."""
        self.clients.close()
        self.world.cleanup()


def _split(uri: str) -> tuple[str, str]:
    base, _, app = uri.partition("?id=")
    return base, app


def run(count: int, front: str, durability: str, seed: int, *, run_seconds: float = 1.0, away: float = 0.0,
        pause: float = 0.02) -> dict[str, Any]:
    """Run the test with `count` restarts; return the counts, with violations under "violations"."""
    with tempfile.TemporaryDirectory(prefix="bmq-restarts-") as name, ExitStack() as stack:
        start_time = time.monotonic()
        test_run = Run(Path(name), front, durability, seed)
        stack.callback(test_run.close)
        verdict = test_run.run(count, run_seconds, away, pause)
        return {"run": "restarts", "front": front, "durability": durability, "seed": seed,
                "seconds": round(time.monotonic() - start_time), **test_run.numbers, **verdict.numbers,
                "violations": dict(verdict.violations), "examples": verdict.examples}


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak restarts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--front", default="aio")
    parser.add_argument("--durability", default="none,group")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--away", type=float, default=0.0)
    options = parser.parse_args(arguments)
    fronts = options.front.split(",")
    if unknown := set(fronts) - set(FRONTS):
        parser.error(f"no such front: {', '.join(sorted(unknown))}; there are {', '.join(FRONTS)}")
    violations = 0
    for front in fronts:
        for durability in options.durability.split(","):
            result = run(1 if options.away else options.count, front, durability, options.seed, away=options.away,
                         run_seconds=_RUN_SECONDS.get(front, 1.0))
            print(json.dumps(result), flush=True)
            violations += bool(result["violations"])
    return 1 if violations else 0
