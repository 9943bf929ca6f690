"""The way out of one connection, as long as it needs no help: what a turn has written is tried on the socket at once."""

from __future__ import annotations

from collections.abc import Callable


class Outgoing:
    """`send`: of the socket, as long as nothing waits for it; otherwise None, and the connection itself writes.

    What was sent matters to what comes in (`incoming.py`). `answered_at_once`: the last output left in the turn that had
    taken something. `sent`: something was, since the kernel was last asked for an acknowledgement.
    """

    __slots__ = ("send", "answered_at_once", "sent")

    def __init__(self) -> None:
        self.send: Callable[[bytes], int] | None = None
        self.answered_at_once, self.sent = False, True

    def write(self, data: bytes) -> int:
        """How many bytes of it the socket takes at once; none if the connection is lost, as the transport finds out."""
        send = self.send
        try:
            return 0 if send is None else send(data)
        except OSError:
            return 0
