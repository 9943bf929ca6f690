"""Input of one connection: TCP quick acknowledgement, and reads during a read pause.

A transport delivers each chunk to `take`. During a read pause, when the reactor does not watch the socket, `look` reads it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.session import Session
from bmqtwist.wire.fast import EVENT_HEADER_BYTES, event_header_at

READ_BYTES: Final = 1 << 16  # at a time, as Twisted does
_FEW_BYTES: Final = 4096


class Taker(Protocol):
    """Who is given what comes in."""

    def received(self, session: Session, data: bytes) -> None:
        """Bytes for a session."""


class Incoming:
    """See above. `session` is None as long as nobody wants the bytes.

    Official SDKs leave Nagle's algorithm on: while the kernel here keeps back the TCP acknowledgement, waiting for an answer
    to send it with, they keep back their next messages. So it is asked for at once, but for a single small message
    where the last one was answered in the turn that took it: the answer brings it. Where answers wait, it has to be asked
    for once behind each of them: the kernel then acknowledges what is read at once until we send again.
    """

    __slots__ = ("session", "_outgoing", "_taker", "_receive", "_acknowledge")

    def __init__(self, taker: Taker, channel: Any, outgoing: Outgoing) -> None:
        self.session: Session | None = None
        self._taker, self._outgoing = taker, outgoing
        self._receive: Callable[[int], bytes] | None = None if channel is None else channel.recv
        self._acknowledge = _quick_acknowledgement(channel)

    def take(self, data: bytes) -> None:
        """Bytes that have come."""
        session = self.session
        if session is not None:
            outgoing = self._outgoing
            if self._acknowledge is not None and not session.remote.sends_at_once and (
                    outgoing.sent if session.holds_acks else not (outgoing.answered_at_once and _one_small_event(data))):
                self._acknowledge()  # first of all: the client goes on meanwhile
                outgoing.sent = False
            self._taker.received(session, data)

    def look(self) -> int:
        """Read what has come: how many bytes, -1 at the end of the connection."""
        try:
            data = self._receive(READ_BYTES) if self._receive is not None else b""
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        session = self.session
        if not data or session is None:
            return -1
        self._taker.received(session, data)
        return len(data)

    def acknowledge(self) -> None:
        """To the kernel of the other side, what was read."""
        if self._acknowledge is not None:
            self._acknowledge()
            self._outgoing.sent = False

    def close(self) -> None:
        """Nothing more comes."""
        self.session = self._receive = self._acknowledge = None


def _one_small_event(data: bytes) -> bool:
    size = len(data)
    return EVENT_HEADER_BYTES <= size <= _FEW_BYTES and event_header_at(data, 0)[0] == size


def _quick_acknowledgement(channel: Any) -> Callable[[], object] | None:
    """What makes the kernel acknowledge at once what was just read, where it can be asked to."""
    option = getattr(socket, "TCP_QUICKACK", None)
    return None if channel is None or option is None else partial(channel.setsockopt, socket.IPPROTO_TCP, option, 1)
