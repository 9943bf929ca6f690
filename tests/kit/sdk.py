"""Sessions of the official SDK for tests: in this process, or in a child process that a test can kill.

Messages, ACKs and session events are collected in queues. Used by the integration tests and `soak.py`; a client of this
suite that sends exact bytes is in `client.py`.
"""

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

from kit.children import time_limited
from kit.client import DEADLINE, Expired

SCRIPT_SECONDS_MAX = 200.0

os.environ.pop("BMQ_BROKER_URI", None)  # it would override the addresses of the tests


class Application:
    """A session of the official SDK; collects `messages` as (message, handle), `acks` and `events`."""

    def __init__(self, broker: str, **options: Any) -> None:
        self.messages: queue.Queue[tuple[blazingmq.Message, blazingmq.MessageHandle]] = queue.Queue()
        self.acks: queue.Queue[blazingmq.Ack] = queue.Queue()
        self.events: list[session_events.SessionEvent] = []
        self.session = blazingmq.Session(self.events.append, on_message=lambda m, h: self.messages.put((m, h)),
                                         broker=broker, **options)

    def post(self, uri: str, payload: bytes, wait: bool = True, **kwargs: Any) -> blazingmq.Ack | None:
        """Post a message; with `wait`, return its ACK (then only one post may be outstanding)."""
        self.session.post(uri, payload, on_ack=self.acks.put, **kwargs)
        return self.next_ack() if wait else None

    def next_ack(self, deadline: float = DEADLINE) -> blazingmq.Ack:
        """Wait for an ACK and return it; raises Expired after `deadline` seconds."""
        try:
            return self.acks.get(timeout=deadline)
        except queue.Empty:
            raise Expired(f"no ACK; events: {self.events}") from None

    def take(self, count: int = 1, *, confirm: bool = True, deadline: float = DEADLINE) -> list[blazingmq.Message]:
        """Wait for `count` messages and return them; raises Expired if one takes more than `deadline` seconds."""
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
        """Wait for a session event of a kind; raises Expired after `deadline` seconds."""
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            if any(isinstance(event, kind) for event in self.events):
                return
            time.sleep(0.02)
        raise Expired(f"no {kind.__name__}; events: {self.events}")


@contextmanager
def application(broker: str, **options: Any) -> Iterator[Application]:
    """Run a session, and stop it at the end of the `with` block."""
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
    """Run a script with `make`, `messages` and `say` in a child process.

    The process is killed at the end of the `with` block, or after `SCRIPT_SECONDS_MAX`.
    """
    process = subprocess.Popen([sys.executable, "-c", PREAMBLE + textwrap.dedent(text), broker], text=True,
                               stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with time_limited(process, SCRIPT_SECONDS_MAX):
        yield process


def expect_line(process: subprocess.Popen[str], expected: str) -> str:
    """Return the next line of output of a script, which must start with `expected` (empty if the script has ended)."""
    assert process.stdout is not None
    line = process.stdout.readline().rstrip("\n")
    assert line.startswith(expected), f"the script printed {line!r}"
    return line
