"""Input that waits for a later turn, so that no turn takes long and nobody waits behind strangers.

    strangers   what connections send that are not negotiated: a few milliseconds of each turn are theirs
    late        what arrives in a turn that has lasted for some milliseconds, but for a few bytes; in one that has lasted
                very long, all

What comes then waits behind it, so that everybody gets a share of the turns. A session whose input waits is not read from
meanwhile, so there is one chunk of each, and few more.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from bmqtwist.link.session import Session

TURN_INPUT_S: Final = 0.005  # a turn that has lasted so long takes nothing more,
FEW_BYTES: Final = 2048  # except for so many: a round of many sockets takes a while to come to theirs
LONG_TURN_INPUT_S: Final = 0.05  # a turn that has lasted so long does not take these either
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

    def defers(self, session: Session, size: int, lasted: float) -> bool:
        """Whether so many bytes of a session wait, which come when the turn has lasted for so many seconds."""
        if session.negotiated_at is None or lasted > LONG_TURN_INPUT_S or session in self:
            return True
        return size > FEW_BYTES and (lasted > TURN_INPUT_S or bool(self._late))

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
        if self._late and since_turn <= TURN_INPUT_S:
            return next(iter(self._late))
        if self._strangers and since_strangers <= STRANGERS_S:
            return next(iter(self._strangers))
        return None
