"""What the core asks of the adapter around it. Besides these, messages, acknowledgements and session events are effects.

| effect | the adapter does |
|---|---|
| `Connect` | open a channel, then call `connected(attempt)` or `failed(attempt, reason)` |
| `Close` | close the channel of that attempt (or give the attempt up); nothing of it may be reported any more |
| `Completed` | wake whoever made the request `token` |
| `Settled` | a group of posts has all its answers |
| `Room` | posts that wait for room may be tried again |
| `Message` | give it to the application |
| `Ack` | tell whoever posted with `token` |
| `SessionEvent` | tell the application |
| `Note` | log it |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address
from bmqtwist.sdk.results import Ack, Result, SessionEvent

FAILED_KEPT_MAX = 100  # acknowledgements of failed posts that a group keeps; all are counted


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a channel."""

    attempt: int
    address: Address
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """Close a channel."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A request ended."""

    token: object
    result: Result
    message: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """There is room for posts again."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log; `level` as in `logging`."""

    level: int
    text: str


@dataclass(eq=False, slots=True)
class Group:
    """Posts that are waited for together, at no cost per message: `outstanding` counts those without an answer.

    `failed` holds the first FAILED_KEPT_MAX failures, `failures` counts them all, and `untold` those that no callback of
    their own hears of. Nothing is reported before `seal`. `reported`: somebody has been told of all failures.
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
        """Take note of an acknowledgement that has something to say."""
        if self.acks is not None:
            self.acks[ack.guid] = ack
        if ack.status is not Result.SUCCESS:
            self.failures += 1
            self.untold += ack.token is None
            if len(self.failed) < FAILED_KEPT_MAX:
                self.failed.append(ack)


@dataclass(frozen=True, slots=True)
class Settled:
    """A sealed group has no outstanding posts left."""

    group: Group


Effect = Connect | Close | Completed | Settled | Room | Note | Message[Any] | Ack | SessionEvent
