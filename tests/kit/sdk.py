"""The official SDK with everything it hears kept in queues, in this process or in one that can be killed."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import blazingmq
from blazingmq import session_events

from kit.children import mortal
from kit.client import DEADLINE, Expired

SCRIPT_SECONDS_MAX = 200.0

os.environ.pop("BMQ_BROKER_URI", None)  # it would override every address given here


class Application:
    """One session: `messages` of (message, handle), `acks`, `events`."""

    def __init__(self, broker: str, **options: Any) -> None:
        self.messages: queue.Queue[tuple[blazingmq.Message, blazingmq.MessageHandle]] = queue.Queue()
        self.acks: queue.Queue[blazingmq.Ack] = queue.Queue()
        self.events: list[session_events.SessionEvent] = []
        self.session = blazingmq.Session(self.events.append, on_message=lambda m, h: self.messages.put((m, h)),
                                         broker=broker, **options)

    def post(self, uri: str, payload: bytes, wait: bool = True, **kwargs: Any) -> blazingmq.Ack | None:
        """Post; with `wait` the ACK of it (post one at a time then)."""
        self.session.post(uri, payload, on_ack=self.acks.put, **kwargs)
        return self.next_ack() if wait else None

    def next_ack(self, deadline: float = DEADLINE) -> blazingmq.Ack:
        """The next ACK."""
        try:
            return self.acks.get(timeout=deadline)
        except queue.Empty:
            raise Expired(f"no ACK; events: {self.events}") from None

    def take(self, count: int = 1, *, confirm: bool = True, deadline: float = DEADLINE) -> list[blazingmq.Message]:
        """The next messages."""
        taken: list[blazingmq.Message] = []
        for _ in range(count):
            try:
                message, handle = self.messages.get(timeout=deadline)
            except queue.Empty:
                raise Expired(f"{len(taken)} of {count} messages; events: {self.events}") from None
            if confirm:
                handle.confirm()
            taken.append(message)
        return taken

    def wait_event(self, kind: type[session_events.SessionEvent], deadline: float = 30.0) -> None:
        """Wait until there was an event of that kind."""
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            if any(isinstance(event, kind) for event in self.events):
                return
            time.sleep(0.02)
        raise Expired(f"no {kind.__name__}; events: {self.events}")


@contextmanager
def application(broker: str, **options: Any) -> Iterator[Application]:
    """A session that is stopped in the end."""
    app = Application(broker, **options)
    try:
        yield app
    finally:
        app.session.stop()


PREAMBLE = """
import os, queue, sys, time
os.environ.pop("BMQ_BROKER_URI", None)
import blazingmq
broker = sys.argv[1]
messages = queue.Queue()
def say(*words):
    print(*words, flush=True)
def make(**options):
    return blazingmq.Session(lambda event: None, on_message=lambda m, h: messages.put((m, h)), broker=broker, **options)
"""


@contextmanager
def script(broker: str, text: str) -> Iterator[subprocess.Popen[str]]:
    """A process running a script with `make`, `messages` and `say`; killed in the end, or when it takes too long."""
    process = subprocess.Popen([sys.executable, "-c", PREAMBLE + textwrap.dedent(text), broker], text=True,
                               stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with mortal(process, SCRIPT_SECONDS_MAX):
        yield process


def heard(process: subprocess.Popen[str], expected: str) -> str:
    """The next line a script says; it must begin as expected (a script that dies says nothing)."""
    assert process.stdout is not None
    line = process.stdout.readline().rstrip("\n")
    assert line.startswith(expected), f"the script said {line!r}"
    return line
