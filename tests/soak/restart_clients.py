"""Client process of the restart and failover tests: a producer or consumer on one of the fronts of the SDK.

    python -m soak.restart_clients '{"front": "aio", "role": "produce", ...}'

It works until its standard input ends, waits for outstanding acknowledgements, and writes a record of all results. Started
by `restarts.py` and `cluster_load.py`; `restart_judge.py` reads the records.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from bmqtwist.sdk import EventKind, Message, PostRefused, PostsFailed, SdkError, SessionEvent, aio, blazingmq, simple, tx

FRONTS = ("aio", "tx", "blazingmq", "simple")
WINDOW = 300  # unacknowledged posts of one producer to one queue
OPTIONS: dict[str, Any] = {"backoff_first_s": 0.05, "backoff_max_s": 0.4}
_LETTERS = {EventKind.CONNECTED: "C", EventKind.CONNECTION_LOST: "L", EventKind.RECONNECTED: "R",
            EventKind.QUEUE_REOPEN_RESULT: "O", EventKind.STATE_RESTORED: "S", EventKind.DISCONNECTED: "D"}
_OFFICIAL = {"Connected": "C", "ConnectionLost": "L", "Reconnected": "R", "QueueReopened": "O", "StateRestored": "S",
             "Disconnected": "D"}
_FILL = bytes(range(256)) * 8


def payload(producer: str, number: int) -> bytes:
    """Return the payload of a number: checksum, producer, number and filling."""
    text = b"%s %d " % (producer.encode(), number) + _FILL[:number * 7919 % 1500]
    return b"%08x " % crc32(text) + text


def parse(data: bytes) -> tuple[str, int]:
    """Return producer and number of a payload; ("damaged", -1) if the checksum is wrong."""
    checksum, text = data[:8], data[9:]
    if checksum != b"%08x" % crc32(text):
        return "damaged", -1
    producer, number, _ = text.split(b" ", 2)
    return producer.decode(), int(number)


class Client:
    """Base of the clients: counts posts and records acknowledgements, deliveries and session events."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.broker, self.name, self.queues, self.role = spec["broker"], spec["name"], spec["queues"], spec["role"]
        self.pause = spec.get("pause", 0.005)
        self.random = Random(spec["seed"])
        self.letters: list[str] = []
        self.connection = 0
        self.stopping = threading.Event()
        self.opened = Path(spec["out"]).with_suffix(".open")
        self.posts: dict[str, int] = dict.fromkeys(self.queues, 0)
        self.acks: dict[str, list[tuple[int, str, str]]] = {uri: [] for uri in self.queues}
        self.deliveries: dict[str, list[tuple[int, str, str, int, bool]]] = {uri: [] for uri in self.queues}
        self.delayed_confirms: list[Callable[[], object]] = []

    def wait_for_input_end(self) -> None:
        """Wait for the end of the standard input."""
        sys.stdin.read()
        self.stopping.set()

    def must_continue(self) -> bool:
        """Return whether to continue. The first call, made when all queues are open, creates the file that reports this."""
        self.opened.touch()
        return not self.stopping.is_set()

    def on_event(self, letter: str) -> None:
        """Record a session event."""
        self.letters.append(letter)
        self.connection += letter == "L"

    def on_ack(self, uri: str, number: int, guid: bytes, status: str) -> None:
        """Record an acknowledgement."""
        self.acks[uri].append((number, guid.hex(), status))

    def posts_allowed(self, uri: str) -> int:
        """Return the number of posts to make now: 0 if `WINDOW` is full, few to the last queue (no consumer yet)."""
        if self.posts[uri] - len(self.acks[uri]) >= WINDOW or uri == self.queues[-1] and self.random.random() < 0.9:
            return 0
        return self.random.randrange(1, 30)

    def take_numbers(self, uri: str, count: int) -> range:
        """Return the numbers of the next `count` posts."""
        numbers = range(self.posts[uri], self.posts[uri] + count)
        self.posts[uri] += count
        return numbers

    def on_delivery(self, uri: str, guid: bytes, data: bytes, redelivered: bool, confirm: Callable[[], object]) -> None:
        """Record a delivery; confirm it at once, or later with probability 0.1."""
        self.deliveries[uri].append((self.connection, guid.hex(), *parse(data), redelivered))
        if self.random.random() < 0.1:
            self.delayed_confirms.append(confirm)
        else:
            self.confirm(confirm)

    def confirm(self, confirm: Callable[[], object]) -> None:
        """Confirm a message; without a connection it will be delivered again."""
        with suppress(SdkError, blazingmq.Error):
            confirm()

    def confirm_delayed(self) -> None:
        """Confirm the messages whose confirms were delayed."""
        confirms, self.delayed_confirms = self.delayed_confirms, []
        for confirm in confirms:
            self.confirm(confirm)

    def record(self) -> dict[str, Any]:
        """Return the record of all results."""
        return {"name": self.name, "letters": "".join(self.letters), "queues": len(self.queues), "posts": self.posts,
                "acks": self.acks, "deliveries": self.deliveries}


def _values(producer: str, number: int) -> dict[str, object] | None:
    return {"producer": producer, "number": number, "even": number % 2 == 0} if number % 5 == 0 else None


class Asyncio(Client):
    """Client on the asyncio front; it alternates between posts with callbacks, in groups, and with futures."""

    def _on_event(self, event: SessionEvent) -> None:
        self.on_event(_LETTERS.get(event.kind, event.kind.name))

    def _on_message(self, message: Message) -> None:
        self.on_delivery(message.uri, message.guid, message.payload, message.redelivered, message.confirm)

    def _on_post_ack(self, uri: str, number: int, ack: Any) -> None:
        self.on_ack(uri, number, ack.guid, ack.status.value)

    async def _post(self, queue: Any) -> None:
        uri, style = queue.uri, self.random.random()
        numbers = self.take_numbers(uri, self.posts_allowed(uri))
        if style < 0.8:
            for number in numbers:
                queue.post_nowait(payload(self.name, number), _values(self.name, number),
                                  on_ack=partial(self._on_post_ack, uri, number), compress=number % 7 == 0)
        elif style < 0.9:
            pairs = [(payload(self.name, number), _values(self.name, number)) for number in numbers]
            found = await queue.post_many(pairs, return_exceptions=True)
            for number, each in zip(numbers, found, strict=True):
                self._on_post_ack(uri, number, each.ack if isinstance(each, PostRefused) else each)
        else:
            for number in numbers[:2]:
                try:
                    self._on_post_ack(uri, number, await queue.post(payload(self.name, number)))
                except PostRefused as refused:  # restart_judge reports it
                    self._on_post_ack(uri, number, refused.ack)
            for number in numbers[2:]:
                queue.post_nowait(payload(self.name, number), on_ack=partial(self._on_post_ack, uri, number))

    async def _work(self) -> None:
        reading = self.role == "consume"
        async with aio.Session(self.broker, on_event=self._on_event, compression_threshold_bytes=1024, **OPTIONS) as session:
            queues = [await session.open(uri, read=reading, write=not reading,
                                         on_message=self._on_message if reading else None) for uri in self.queues]
            while self.must_continue():
                if reading:
                    await asyncio.sleep(0.1)
                    self.confirm_delayed()
                else:
                    for queue in queues:
                        await self._post(queue)
                    await asyncio.sleep(self.pause)
            if not reading:
                for queue in queues:
                    with suppress(PostsFailed):  # restart_judge reports it from the acknowledgements
                        await queue.flush()

    def run(self) -> None:
        """Run the client until its input ends."""
        asyncio.run(self._work())


class Twisted(Asyncio):
    """Client on the Twisted front."""

    async def _turns(self, reactor: Any) -> None:
        from twisted.internet.task import deferLater

        reading = self.role == "consume"
        session = tx.Session(reactor, self.broker, on_event=self._on_event, compression_threshold_bytes=1024, **OPTIONS)
        await session.start()
        queues = [await session.open(uri, read=reading, write=not reading,
                                     on_message=self._on_message if reading else None) for uri in self.queues]
        while self.must_continue():
            if reading:
                await deferLater(reactor, 0.1)
                self.confirm_delayed()
            else:
                for queue in queues:
                    await self._post(queue)
                await deferLater(reactor, self.pause)
        if not reading:
            for queue in queues:
                with suppress(PostsFailed):
                    await queue.flush()
        await session.stop()

    def run(self) -> None:
        """Run the client until its input ends."""
        from twisted.internet import reactor
        from twisted.internet.defer import Deferred

        failures: list[Any] = []
        running: Any = reactor

        def begin() -> None:
            done = Deferred.fromCoroutine(self._turns(running))
            done.addErrback(failures.append).addBoth(lambda _: running.stop())
        running.callWhenRunning(begin)
        running.run(installSignalHandlers=False)
        for failure in failures:
            failure.raiseException()


class Official(Client):
    """Client with the interface of the official SDK."""

    def _on_event(self, event: Any) -> None:
        self.on_event(_OFFICIAL.get(type(event).__name__, repr(event)))

    def _on_message(self, message: Any, handle: Any) -> None:
        self.on_delivery(message.queue_uri, message.guid, message.data, False, handle.confirm)

    def _on_post_ack(self, uri: str, number: int, ack: Any) -> None:
        self.on_ack(uri, number, ack.guid, ack.status.name)

    def run(self) -> None:
        """Run the client until its input ends."""
        reading = self.role == "consume"
        session = blazingmq.Session(self._on_event, self._on_message, broker=self.broker)
        for uri in self.queues:
            session.open_queue(uri, read=reading, write=not reading)
        while self.must_continue():
            if reading:
                time.sleep(0.1)
                self.confirm_delayed()
                continue
            for uri in self.queues:
                for number in self.take_numbers(uri, self.posts_allowed(uri)):
                    session.post(uri, payload(self.name, number), _values(self.name, number),
                                 on_ack=partial(self._on_post_ack, uri, number))
            time.sleep(self.pause)
        while any(self.posts[uri] > len(self.acks[uri]) for uri in self.queues) and not reading:
            time.sleep(0.01)
        session.stop()


class Simple(Client):
    """Client on the blocking front, without threads."""

    def _on_event(self, event: SessionEvent) -> None:
        self.on_event(_LETTERS.get(event.kind, event.kind.name))

    def _deliver(self, message: Message) -> None:
        message.queue.owner.session.core.on_consumed(1)
        self.on_delivery(message.uri, message.guid, message.payload, message.redelivered, message.confirm)

    def run(self) -> None:
        """Run the client until its input ends."""
        reading = self.role == "consume"
        with simple.Session(self.broker, on_event=self._on_event, **OPTIONS) as session:
            queues: list[Any] = []
            for uri in self.queues:
                queues.append(session.open(uri, read=reading, write=not reading,
                                           on_message=self._deliver if reading else None))
            while self.must_continue():
                if reading:
                    session.wait(self.stopping.is_set, 0.1, quiet=True)
                    self.confirm_delayed()
                    continue
                for queue in queues:
                    numbers = self.take_numbers(queue.uri, self.posts_allowed(queue.uri))
                    pairs = [(payload(self.name, number), _values(self.name, number)) for number in numbers]
                    for number, each in zip(numbers, queue.post_many(pairs, return_exceptions=True), strict=True):
                        ack = each.ack if isinstance(each, PostRefused) else each
                        self.on_ack(queue.uri, number, ack.guid, ack.status.value)
                session.step(self.pause)


_CLIENTS: dict[str, type[Any]] = {"aio": Asyncio, "tx": Twisted, "blazingmq": Official, "simple": Simple}


def main(text: str) -> None:
    """Run the client of the specification `text` in JSON."""
    spec = json.loads(text)
    client = _CLIENTS[spec["front"]](spec)
    threading.Thread(target=client.wait_for_input_end, daemon=True).start()
    client.run()
    Path(spec["out"]).write_text(json.dumps(client.record()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
