"""Admission of connections: limits of their number, and a reserve of file descriptors for storage.

Called by `performer.py` for each accepted connection, and by `console/site.py`, which has its own limit of connections.
The number is configured (`maxConnections`); `daemon/service.py` lowers it to the number of file descriptors.
RESERVED_CONNECTIONS of it are for reserved addresses. When no place is left, a new connection may replace an
unauthenticated one: `link/unauthenticated.py` chooses it, and has the limits per address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bmqtwist.limits import RESERVED_CONNECTIONS
from bmqtwist.report import Report

if TYPE_CHECKING:
    from bmqtwist.broker.sessions import Sessions
    from bmqtwist.link.unauthenticated import UnauthenticatedConnection

FILES_LEFT_MIN = 128  # file descriptors that must remain for storage when a connection is accepted
ACCEPTS_AT_ONCE = 16  # connections accepted in one round of the reactor, 0.1 ms each
ACCEPT_PAUSE_S = 1.0  # pause of all listeners when too few file descriptors remain


class Admission:
    """Admission of one broker. `files_max`: limit of file descriptors, 0 = none; `ports`: the listening ports."""

    def __init__(self, reactor: Any, report: Report, connections_max: int) -> None:
        self._reactor, self._report, self.connections_max = reactor, report, connections_max
        self.files_max = 0
        self.ports: Sequence[Any] = ()
        self._refused_at = float("-inf")
        self._accepting = True
        self._replaced, self._replaced_at = 0, float("-inf")

    def admits(self, sessions: Sessions, peer: str, descriptor: int, now: float) -> bool:
        """Return whether a connection is admitted, after closing the unauthenticated one that it replaces, if any.
        `descriptor`: its file descriptor, the lowest free number."""
        self.limit_accepts()
        waiting = sessions.unauthenticated
        reserve = 0 if waiting.is_reserved(peer) else min(RESERVED_CONNECTIONS, self.connections_max // 10)
        full = 0 < self.connections_max - reserve <= len(sessions.open)
        why = waiting.refusal_reason(peer, now)
        replaced = waiting.replaced_by(peer, full) if full or waiting.is_full(peer) else None
        if not sessions.serving or full and replaced is None:
            why = f"connections: {len(sessions.open)}, maxConnections: {self.connections_max}, serving: {sessions.serving}"
        elif waiting.is_full(peer) and replaced is None:
            why = why or f"{waiting.connections_max} unauthenticated connections"
        if self.files_max and descriptor >= self.files_max - FILES_LEFT_MIN:
            why = (f"open files: fewer than {FILES_LEFT_MIN} of {self.files_max} are left; connections are not accepted for "
                   f"{ACCEPT_PAUSE_S:g} s")
            self._pause()
        if why and now - self._refused_at >= 1.0:
            self._refused_at = now
            self._report.warn("Connection of '%s' refused [%s]", peer, why)
        if not why and replaced is not None:
            self._replace(sessions, replaced, now)
        return not why

    def limit_accepts(self) -> None:
        """Limit the connections that are accepted in the next round; the reactor raises the number while more wait."""
        for listening in self.ports:
            listening.numberAccepts = ACCEPTS_AT_ONCE

    def _replace(self, sessions: Sessions, replaced: UnauthenticatedConnection, now: float) -> None:
        """Close an unauthenticated connection without waiting for its peer."""
        sessions.unauthenticated.remove(replaced)
        self._replaced += 1
        if now - self._replaced_at >= 1.0:
            self._report.warn("%d unauthenticated connections are closed in favour of new ones since %s; the last of '%s'",
                              self._replaced, "the start" if self._replaced_at < 0 else "the last such line", replaced.peer)
            self._replaced_at, self._replaced = now, 0
        replaced.transport.abort()  # type: ignore[attr-defined]

    def _pause(self) -> None:
        """Leave new connections in the listen backlog for ACCEPT_PAUSE_S."""
        if self._accepting:
            self._accepting = False
            for port in self.ports:
                port.stopReading()
            self._reactor.callLater(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._accepting = True
        for port in self.ports:
            if port.connected:
                port.startReading()
