"""Requests under way: each has a number, an answer that fits it, and somebody who hears the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bmqtwist.errors import PeerError
from bmqtwist.sdk._core.outbox import Outbox
from bmqtwist.sdk.results import Result, result_of
from bmqtwist.wire import control
from bmqtwist.wire.control import ControlMessage, encoding_of

_ANSWERS = {"openQueue": "openQueueResponse", "configureStream": "configureStreamResponse",
            "configureQueueStream": "configureQueueStreamResponse", "closeQueue": "closeQueueResponse",
            "disconnect": "disconnectResponse"}
_R_ID_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request ended: `value` is what the broker granted, or the status with which it did not."""

    result: Result
    message: str
    value: Any


OnAnswer = Callable[[Answer], object]


class Requests:
    """Sends requests, and gives their answers to whoever waits for them."""

    __slots__ = ("_next_r_id", "_outbox", "under_way")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.under_way: dict[int, tuple[OnAnswer | None, str]] = {}
        self._next_r_id = 1

    def send(self, choice: str, value: object, on_answer: OnAnswer | None) -> int:
        """Send a request; its number. Without `on_answer` nobody cares how it ends."""
        r_id, self._next_r_id = self._next_r_id, self._next_r_id + 1 & _R_ID_MASK
        self.under_way[r_id] = on_answer, _ANSWERS[choice]
        self._outbox.send(ControlMessage(r_id, choice, value))
        return r_id

    def forget(self, r_id: int) -> None:
        """Nobody waits for the answer any more; a broker that never gives one costs no memory."""
        self.under_way.pop(r_id, None)

    def clear(self) -> None:
        """The connection is gone: there will be no answers."""
        self.under_way.clear()

    def on_control(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """From the broker: an answer, unless it comes too late or is something between brokers."""
        try:
            message = control.decode_control(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self._outbox.nonsense(error)
            return
        found = self.under_way.get(message.r_id) if message.r_id is not None else None
        if found is None or message.choice not in ("status", found[1]):
            return
        self.forget(message.r_id)  # type: ignore[arg-type]
        on_answer = found[0]
        if on_answer is None:
            return
        if message.choice != "status":
            on_answer(Answer(Result.SUCCESS, "", message.value))
            return
        result = result_of(message.value.category)
        if result is Result.SUCCESS:
            result = Result.UNKNOWN
        on_answer(Answer(result, message.value.message, message.value))
