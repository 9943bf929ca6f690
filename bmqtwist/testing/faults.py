"""Faults of connections: what is dropped, delayed, cut or refused, for whom, and how often.

| call | what happens to what it matches |
|---|---|
| `drop` | it vanishes; the connection stays |
| `delay` | it arrives later, and so does everything behind it on that connection in that direction |
| `stall` | it waits until the fault ends, and so does everything behind it, as behind a peer that does not read |
| `kill` | the connection is cut, before it arrives or (`after=True`) once it has |
| `refuse` | the broker never sees it; the client is answered with a status (a connection is not accepted) |

A fault counts for everything that a client or the broker says, or for the kinds that are named (`Kind`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk import Result
from bmqtwist.testing.events import Event, OfQueue

ToBroker = Literal["negotiation", "authentication", "open", "configure", "close", "disconnect", "post", "confirm"]
ToClient = Literal["answer", "ack", "delivery"]
Kind = Literal[ToBroker, ToClient, "heartbeat"]
Refusable = Literal["connection", "negotiation", "open", "configure", "close", "post"]
CONNECTION = "connection"
KINDS: frozenset[str] = frozenset((*get_args(ToBroker), *get_args(ToClient), "heartbeat"))
REFUSABLE: frozenset[str] = frozenset(get_args(Refusable))
POST_STATUSES = (Result.LIMIT_MESSAGES, Result.LIMIT_BYTES, Result.STORAGE_FAILURE, Result.NOT_READY, Result.UNKNOWN)
REQUEST_STATUSES = (Result.REFUSED, Result.UNKNOWN, Result.TIMEOUT, Result.NOT_CONNECTED, Result.CANCELED,
                    Result.NOT_SUPPORTED, Result.INVALID_ARGUMENT, Result.NOT_READY)


@dataclass(eq=False)
class Fault:
    """One armed fault: `end` it, or leave the `with` block that it opens. `hits` counts what it was applied to."""

    action: str
    kinds: frozenset[str]
    client: str | None = None
    uri: str | None = None
    times: int | None = None
    seconds: float = 0.0
    status: Result = Result.REFUSED
    reason: str = "refused by the test"
    after: bool = False
    hits: int = 0
    active: bool = True
    _ended: Callable[[Fault], None] = field(default=lambda fault: None, repr=False)

    def matches(self, kind: str, client: str, uri: str = "", app: str = "") -> bool:
        """Does it count for this?"""
        if not self.active or self.client not in (None, client):
            return False
        if kind not in self.kinds if self.kinds else kind == CONNECTION:  # what can only be refused is not meant by "all"
            return False
        return self.uri is None or covers(self.uri, uri, app)

    def hit(self) -> None:
        """It was applied once."""
        self.hits += 1
        if self.times is not None and self.hits >= self.times and self.action != "stall":
            self.end()

    def end(self) -> None:
        """No longer; what was stalled goes on."""
        if self.active:
            self.active = False
            self._ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def covers(wanted: str, uri: str, app: str = "") -> bool:
    """Is a queue (and the appId of its reader) meant by a URI, with or without `?id=`? InvalidUri if it is none."""
    parsed = parse_uri(wanted)
    return parsed.canonical == uri and (not parsed.app_id or parsed.app_id in app.split(","))


class Faults:
    """The faults of a broker. All of them take `client=` (the name of a connection) and `uri=` (of a queue, or with
    `?id=` of one app's readers) to match less, and `times=` to end by themselves."""

    def __init__(self, ended: Callable[[Fault], None]) -> None:
        self._ended = ended
        self.armed: list[Fault] = []

    def drop(self, *kinds: Kind, client: str | None = None, uri: str | None = None, times: int | None = None) -> Fault:
        """Let it vanish."""
        return self._arm(Fault("drop", frozenset(kinds), client, uri, times))

    def delay(self, seconds: float, *kinds: Kind, client: str | None = None, uri: str | None = None,
              times: int | None = None) -> Fault:
        """Let it arrive so many seconds of the broker's clock later."""
        return self._arm(Fault("delay", frozenset(kinds), client, uri, times, seconds=seconds))

    def stall(self, *kinds: Kind, client: str | None = None, uri: str | None = None) -> Fault:
        """Let it wait until the fault is ended. What waits fills the client's send buffer."""
        return self._arm(Fault("stall", frozenset(kinds), client, uri))

    def kill(self, *kinds: Kind, client: str | None = None, uri: str | None = None, times: int | None = 1,
             after: bool = False) -> Fault:
        """Cut the connection when it comes (once, unless `times` says more): before it arrives, or `after`."""
        return self._arm(Fault("kill", frozenset(kinds), client, uri, times, after=after))

    def refuse(self, kind: Refusable, *, status: Result | None = None, reason: str = "refused by the test",
               client: str | None = None, uri: str | None = None, times: int | None = None) -> Fault:
        """Refuse connections, negotiations, requests or posts.

        `status`: for posts LIMIT_MESSAGES (default), LIMIT_BYTES, STORAGE_FAILURE, NOT_READY or UNKNOWN; for the others
        REFUSED (default) and what else a request can end with; connections have none. LocalError for another one.
        """
        if kind not in REFUSABLE:
            raise LocalError(f"{kind!r} cannot be refused; choose of {', '.join(sorted(REFUSABLE))}")
        possible = POST_STATUSES if kind == "post" else REQUEST_STATUSES
        status = status or possible[0]
        if status not in possible:
            raise LocalError(f"a {kind} cannot be refused with {status}; choose of {', '.join(map(str, possible))}")
        return self._arm(Fault("refuse", frozenset((kind,)), client, uri, times, status=status, reason=reason))

    def clear(self) -> None:
        """End all."""
        for fault in list(self.armed):
            fault.end()

    def _arm(self, fault: Fault) -> Fault:
        unknown = fault.kinds - KINDS - ({CONNECTION} if fault.action == "refuse" else set())
        if unknown:
            raise LocalError(f"no kind of event: {', '.join(sorted(unknown))}; choose of {', '.join(sorted(KINDS))}")
        if fault.uri is not None:
            parse_uri(fault.uri)
        fault._ended = self._end
        self.armed.append(fault)
        return fault

    def _end(self, fault: Fault) -> None:
        self.armed.remove(fault)
        self._ended(fault)

    def first(self, kind: str, client: str, event: Event | None = None) -> Fault | None:
        """From the broker: the first fault that counts for this, booked as a hit."""
        uri, app = (event.uri, event.app) if isinstance(event, OfQueue) else ("", "")
        for fault in self.armed:
            if fault.matches(kind, client, uri, app):
                fault.hit()
                return fault
        return None
