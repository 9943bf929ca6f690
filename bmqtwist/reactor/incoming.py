"""Input of one TCP connection: quick acknowledgements, and reads during a read pause.

A transport delivers each chunk to `receive`. During a read pause, when the reactor does not watch the socket, `poll` reads
from it. Created by `tcp.py`; `performer.py` decides on read pauses by the rules of `link/batching.py`. The output is in
`link/outgoing.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.session import Session
from bmqtwist.wire.fast import EVENT_HEADER_BYTES, event_header_at

READ_BYTES: Final = 1 << 16  # of one read, as in Twisted
_SMALL_EVENT_BYTES: Final = 4096


class InputReceiver(Protocol):
    """Receives the bytes of a session."""

    def on_received(self, session: Session, data: bytes) -> None: ...


class Incoming:
    """Input of one connection. `session`: None before the connection is accepted and after its end; bytes are then dropped.

    Official SDKs do not set TCP_NODELAY: while this kernel delays the TCP acknowledgement, their kernel delays the next
    messages. So `receive` requests a quick acknowledgement (TCP_QUICKACK), except for a single small event if the last
    event was answered in the turn that processed it: such an answer carries the acknowledgement. With delayed ACKs one
    request after each output suffices: the kernel acknowledges at once until the next output.
    """

    __slots__ = ("session", "_outgoing", "_receiver", "_read_socket", "_acknowledge")

    def __init__(self, receiver: InputReceiver, channel: Any, outgoing: Outgoing) -> None:
        self.session: Session | None = None
        self._receiver, self._outgoing = receiver, outgoing
        self._read_socket: Callable[[int], bytes] | None = None if channel is None else channel.recv
        self._acknowledge = _quick_acknowledgement(channel)

    def receive(self, data: bytes) -> None:
        """Forward received bytes to the session."""
        session = self.session
        if session is not None:
            outgoing = self._outgoing
            if self._acknowledge is not None and not session.remote.sends_at_once and (
                    outgoing.sent if session.delays_acks else not (outgoing.answered_at_once and _one_small_event(data))):
                self._acknowledge()  # before the processing: the client can send meanwhile
                outgoing.sent = False
            self._receiver.on_received(session, data)

    def poll(self) -> int:
        """Read the socket; return the number of bytes, -1 at the end of the connection."""
        try:
            data = self._read_socket(READ_BYTES) if self._read_socket is not None else b""
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        session = self.session
        if not data or session is None:
            return -1
        self._receiver.on_received(session, data)
        return len(data)

    def acknowledge(self) -> None:
        """Request a quick acknowledgement of the bytes read."""
        if self._acknowledge is not None:
            self._acknowledge()
            self._outgoing.sent = False

    def close(self) -> None:
        self.session = self._read_socket = self._acknowledge = None


def _one_small_event(data: bytes) -> bool:
    size = len(data)
    return EVENT_HEADER_BYTES <= size <= _SMALL_EVENT_BYTES and event_header_at(data, 0)[0] == size


def _quick_acknowledgement(channel: Any) -> Callable[[], object] | None:
    """The call that requests a quick acknowledgement; None if the platform has no TCP_QUICKACK."""
    option = getattr(socket, "TCP_QUICKACK", None)
    return None if channel is None or option is None else partial(channel.setsockopt, socket.IPPROTO_TCP, option, 1)
