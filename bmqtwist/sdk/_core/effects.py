"""Instructions of the core to the adapter around it. Messages, acknowledgements and session events are effects, too: the
adapter gives them to the application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address
from bmqtwist.sdk.results import Ack, Result, SessionEvent

FAILED_KEPT_MAX = 100  # acknowledgements of failed posts that a group keeps; all are counted


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a channel, then call `connected(attempt)` or `failed(attempt, reason)`."""

    attempt: int
    address: Address
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """Close the channel of that attempt, or abandon the attempt; report no event of it afterwards."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The request with `token` has ended, or the group of posts."""

    token: object
    result: Result
    message: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """Posts that wait for room may be tried again."""


@dataclass(frozen=True, slots=True)
class Note:
    level: int
    text: str


@dataclass(eq=False, slots=True)
class Group:
    """Posts that are waited for together, at no cost per message: `outstanding` counts those without an answer.

    `failed` holds the first FAILED_KEPT_MAX failures, `failures` counts them all, and `untold` those without a callback of
    their own. Nothing is reported before `seal`. `reported`: all failures were raised to the application.
    """

    token: object = None
    acks: dict[bytes, Ack] | None = None  # all of them, if they are wanted
    outstanding: int = 0
    sealed: bool = False
    failures: int = 0
    untold: int = 0
    reported: bool = False
    failed: list[Ack] = field(default_factory=list)

    def settle(self, ack: Ack) -> None:
        if self.acks is not None:
            self.acks[ack.guid] = ack
        if ack.status is not Result.SUCCESS:
            self.failures += 1
            self.untold += ack.token is None
            if len(self.failed) < FAILED_KEPT_MAX:
                self.failed.append(ack)


Effect = Connect | Close | Completed | Room | Note | Message[Any] | Ack | SessionEvent
