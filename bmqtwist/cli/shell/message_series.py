"""Message series of the shell: `post_rate` events every `post_interval_ms` milliseconds, with `event_size` messages each.

Run by `auto.py` and, for the command `batch-post`, by `interactive.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from bmqtwist.cli.shell.commands import Property
from bmqtwist.cli.shell.log_output import EventFile, payload_text
from bmqtwist.cli.shell.printing import STAMP_BYTES, correlation_text
from bmqtwist.cli.shell.settings import PUBSUB_PROPERTY
from bmqtwist.cli.shell.throughput import Throughput
from bmqtwist.errors import LocalError
from bmqtwist.sdk import aio
from bmqtwist.sdk.results import Ack, Result, SdkError
from bmqtwist.wire.properties import PropertyType

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_EVENT_HEADER_BYTES = 8
_numbers = itertools.count(1)


def next_number() -> int:
    """Return a number for a queue or a post, unique in this process."""
    return next(_numbers)


def latency_clock(latency: str) -> Callable[[], int]:
    """Return a clock in nanoseconds: `epoch` since 1970, else the machine's monotonic clock, equal in all processes."""
    return time.time_ns if latency == "epoch" else time.monotonic_ns


@dataclass(frozen=True, slots=True)
class SeriesParameters:
    """Parameters of a series. `events`, `seconds`: 0 = no limit. `payloads`, or texts with the prefix `pattern`, replace
    payloads of `msg_size` bytes."""

    events: int = 0
    seconds: float = 0.0
    event_size: int = 1
    msg_size: int = 1024
    post_rate: int = 1
    post_interval_ms: int = 1000
    payloads: tuple[bytes, ...] = ()
    pattern: str = ""
    latency: str = "none"
    properties: tuple[Property, ...] = ()
    auto_incremented: str = ""
    pub_sub_modulo: int = 0

    def check(self) -> None:
        """Raise LocalError if the series posts nothing, or empty messages."""
        if not self.post_rate or not self.event_size:
            raise LocalError("nothing is posted with a postRate or an eventSize of 0")
        if not all(self.payloads) or not self.payloads and not self.pattern and not self.msg_size:
            raise LocalError("a message needs at least one byte of payload")


class SeriesContent:
    """Payload and properties of each message of a series."""

    def __init__(self, plan: SeriesParameters) -> None:
        self._plan = plan
        self._stamped = plan.latency != "none"
        size = plan.msg_size - (STAMP_BYTES if self._stamped else 0)
        self._filling = (_ALPHABET * (size // len(_ALPHABET) + 1))[:max(size, 0)]
        self._values = {each.name: each.value for each in plan.properties}
        self._types = {each.name: each.kind for each in plan.properties}
        if plan.auto_incremented:
            self._types[plan.auto_incremented] = PropertyType.INT64
        if plan.pub_sub_modulo:
            self._types[PUBSUB_PROPERTY] = PropertyType.INT64

    def payload(self, number: int, now_ns: int) -> bytes:
        """Return the payload of message `number`, from 0, posted at `now_ns`."""
        plan = self._plan
        if plan.payloads:
            return plan.payloads[number % len(plan.payloads)]
        if plan.pattern:
            return f"{plan.pattern}{number:09d}".encode("utf-8", "surrogateescape")
        return now_ns.to_bytes(STAMP_BYTES, "big") + self._filling if self._stamped else self._filling

    def properties(self, number: int) -> tuple[dict[str, object], dict[str, PropertyType]]:
        values: dict[str, object] = dict(self._values)
        if self._plan.auto_incremented:
            values[self._plan.auto_incremented] = number
        if self._plan.pub_sub_modulo:
            values[PUBSUB_PROPERTY] = number % self._plan.pub_sub_modulo
        return values, self._types


class SeriesPoster:
    """Posts a series to a queue. `on_ack` None = without acknowledgements."""

    def __init__(self, plan: SeriesParameters, queue: aio.Queue, on_ack: Callable[[Ack], None] | None, event_file: EventFile,
                 produced: Throughput | None = None) -> None:
        plan.check()
        self._plan, self._queue, self._on_ack, self._event_file = plan, queue, on_ack, event_file
        self._produced = produced
        self._content = SeriesContent(plan)
        self._clock = latency_clock(plan.latency)
        self.posted = 0

    async def run(self, ready: Callable[[], bool], going: Callable[[], bool]) -> None:
        """Post until the series is complete or `going()` is false; rounds in which `ready()` is false post nothing."""
        plan, loop = self._plan, self._queue.session.loop
        left, due = plan.events, loop.time()
        end = due + plan.seconds if plan.seconds else None
        while going() and (left or not plan.events) and (end is None or loop.time() < end):
            if ready():
                count = min(plan.post_rate, left) if plan.events else plan.post_rate
                for _ in range(count):
                    await self._post_event()
                left -= count if plan.events else 0
            if plan.post_interval_ms and (left or not plan.events):
                due += plan.post_interval_ms / 1000
                await asyncio.sleep(max(due - loop.time(), 0.0))
            else:
                await asyncio.sleep(0 if ready() else 0.01)

    async def _post_event(self) -> None:
        session = self._queue.session
        for _ in range(self._plan.event_size):
            await self._post_message()
        size = session.core.batch_bytes
        session.turn(flush=True)
        if self._produced is not None:
            self._produced.add_event(size + _EVENT_HEADER_BYTES)

    async def _post_message(self) -> None:
        number, self.posted = self.posted, self.posted + 1
        values, types = self._content.properties(number)
        while True:
            now_ns = self._clock()
            payload = self._content.payload(number, now_ns)
            correlation = now_ns if self._plan.latency != "none" else next_number()
            try:
                guid = self._queue.post_nowait(payload, values, types, ack=self._on_ack is not None,
                                               on_ack=self._on_ack, correlation=correlation)
                break
            except SdkError as error:
                if error.result is not Result.BW_LIMIT:
                    raise
            await self._queue.session.room(1.0, size=len(payload))
        if self._event_file.enabled:
            self._event_file.write("PUT", self._queue.uri, self.correlation(correlation), guid, payload_text(payload))
        if self._produced is not None:
            self._produced.add_message(len(payload))

    def correlation(self, value: object) -> str:
        """Format a correlation id of this series."""
        return f"[ numeric = {value} ]" if self._plan.latency != "none" else correlation_text(value)
