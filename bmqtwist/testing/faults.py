"""Faults of connections: drop, delay, stall, kill and refuse events, by kind, client and queue.

| method | effect on the matching events |
|---|---|
| `drop` | the event is discarded; the connection remains |
| `delay` | the event, and all later ones of that connection and direction, arrive later |
| `stall` | the event and all later ones wait until the fault ends, as with a peer that does not read |
| `kill` | the connection is cut, before the event arrives or (`after=True`) after it |
| `refuse` | the event does not reach the broker; the client receives a status (a connection is not accepted) |

A fault applies to all events of clients and broker, or to the named kinds (`Kind`). `connection.py` applies the faults;
link and disk faults of a cluster are in `network.py` and `storage/memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk import Result
from bmqtwist.testing.events import Event, QueueEvent

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
    """One armed fault; `end`, or the end of its `with` block, disarms it. `hits`: number of events it was applied to."""

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
        """Return whether the fault applies to an event."""
        if not self.active or self.client not in (None, client):
            return False
        if kind not in self.kinds if self.kinds else kind == CONNECTION:  # without kinds: all except connections
            return False
        return self.uri is None or matches_uri(self.uri, uri, app)

    def count_hit(self) -> None:
        """Count an application; the fault ends after `times`."""
        self.hits += 1
        if self.times is not None and self.hits >= self.times and self.action != "stall":
            self.end()

    def end(self) -> None:
        """Disarm the fault; stalled events are released."""
        if self.active:
            self.active = False
            self._ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def matches_uri(wanted: str, uri: str, app: str = "") -> bool:
    """Return whether the URI `wanted`, with or without `?id=`, matches a queue and the appIds of its consumer. Raises
    InvalidUri."""
    parsed = parse_uri(wanted)
    return parsed.canonical == uri and (not parsed.app_id or parsed.app_id in app.split(","))


class Faults:
    """Armed faults of a broker. `client=` (name of a connection) and `uri=` (of a queue, or with `?id=` of the consumers of
    an app) restrict a fault; it ends after `times=` events."""

    def __init__(self, ended: Callable[[Fault], None]) -> None:
        self._ended = ended
        self.armed: list[Fault] = []

    def drop(self, *kinds: Kind, client: str | None = None, uri: str | None = None, times: int | None = None) -> Fault:
        """Discard the matching events."""
        return self._arm(Fault("drop", frozenset(kinds), client, uri, times))

    def delay(self, seconds: float, *kinds: Kind, client: str | None = None, uri: str | None = None,
              times: int | None = None) -> Fault:
        """Delay events by seconds of the broker's clock."""
        return self._arm(Fault("delay", frozenset(kinds), client, uri, times, seconds=seconds))

    def stall(self, *kinds: Kind, client: str | None = None, uri: str | None = None) -> Fault:
        """Delay events until the fault ends. Delayed data fills the client's send buffer."""
        return self._arm(Fault("stall", frozenset(kinds), client, uri))

    def kill(self, *kinds: Kind, client: str | None = None, uri: str | None = None, times: int | None = 1,
             after: bool = False) -> Fault:
        """Cut the connection at an event, by default once: before the event arrives, or `after` it."""
        return self._arm(Fault("kill", frozenset(kinds), client, uri, times, after=after))

    def refuse(self, kind: Refusable, *, status: Result | None = None, reason: str = "refused by the test",
               client: str | None = None, uri: str | None = None, times: int | None = None) -> Fault:
        """Refuse connections, negotiations, requests or posts.

        `status`: for posts LIMIT_MESSAGES (default), LIMIT_BYTES, STORAGE_FAILURE, NOT_READY or UNKNOWN; for negotiations
        and requests REFUSED (default) or one of REQUEST_STATUSES; ignored for connections. Raises LocalError for another
        status.
        """
        if kind not in REFUSABLE:
            raise LocalError(f"{kind!r} cannot be refused; choose one of {', '.join(sorted(REFUSABLE))}")
        possible = POST_STATUSES if kind == "post" else REQUEST_STATUSES
        status = status or possible[0]
        if status not in possible:
            raise LocalError(f"a {kind} cannot be refused with {status}; choose one of {', '.join(map(str, possible))}")
        return self._arm(Fault("refuse", frozenset((kind,)), client, uri, times, status=status, reason=reason))

    def clear(self) -> None:
        """End all faults."""
        for fault in list(self.armed):
            fault.end()

    def _arm(self, fault: Fault) -> Fault:
        unknown = fault.kinds - KINDS - ({CONNECTION} if fault.action == "refuse" else set())
        if unknown:
            raise LocalError(f"not a kind of event: {', '.join(sorted(unknown))}; choose from {', '.join(sorted(KINDS))}")
        if fault.uri is not None:
            parse_uri(fault.uri)
        fault._ended = self._end
        self.armed.append(fault)
        return fault

    def _end(self, fault: Fault) -> None:
        self.armed.remove(fault)
        self._ended(fault)

    def find_fault(self, kind: str, client: str, event: Event | None = None) -> Fault | None:
        """From the broker: return the first fault that applies to an event, and count it."""
        uri, app = (event.uri, event.app) if isinstance(event, QueueEvent) else ("", "")
        for fault in self.armed:
            if fault.matches(kind, client, uri, app):
                fault.count_hit()
                return fault
        return None
