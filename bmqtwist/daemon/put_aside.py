"""Input that waits for a later turn, so that no turn takes long and nobody waits behind strangers.

    strangers   what connections send that are not negotiated: a few milliseconds of each turn are theirs
    late        what arrives in a turn that has taken very long already; where somebody has sent what takes more than one
                turn, all but a few bytes wait after few milliseconds

A session whose input waits is not read from meanwhile, so there is one chunk of each, and few more.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from bmqtwist.link.session import Session

TURN_INPUT_S: Final = 0.05  # a turn that has lasted so long takes nothing more
HEAVY_TURN_INPUT_S: Final = 0.006  # the same of a turn in which somebody's input took more than his slices,
FEW_BYTES: Final = 2048  # except for so many: a round of many sockets takes a while to come to theirs
STRANGERS_S: Final = 0.002  # of a turn for connections that are not negotiated


class PutAside:
    """Chunks by session, in order of arrival."""

    __slots__ = ("_late", "_strangers")

    def __init__(self) -> None:
        self._late: OrderedDict[Session, list[bytes]] = OrderedDict()
        self._strangers: OrderedDict[Session, list[bytes]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._strangers or self._late)

    def __contains__(self, session: Session) -> bool:
        return session in self._strangers or session in self._late

    def put(self, session: Session, data: bytes) -> None:
        """Behind what waits of it already."""
        queue = self._strangers if session in self._strangers or (
            session.negotiated_at is None and session not in self._late) else self._late
        queue.setdefault(session, []).append(data)

    def take(self, session: Session) -> bytes:
        """What waits of a session."""
        return b"".join(self._late.pop(session, ()) or self._strangers.pop(session, ()))

    def next(self, since_turn: float, since_strangers: float) -> Session | None:
        """Whose turn it is, after so many seconds of the turn and of its part for strangers; None = the next turn's."""
        if self._late and since_turn <= HEAVY_TURN_INPUT_S:
            return next(iter(self._late))
        if self._strangers and since_strangers <= STRANGERS_S:
            return next(iter(self._strangers))
        return None
