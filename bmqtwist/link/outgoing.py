"""Direct output of one TCP connection: the output of a turn is written to the socket, without the transport.

`reactor/tcp.py` creates it for each connection; `reactor/performer.py` writes with it; `reactor/incoming.py` reads its
flags of TCP acknowledgements. Events of a turn are collected in `outbox.py`.
"""

from __future__ import annotations

from collections.abc import Callable


class Outgoing:
    """`send`: method of the socket; None while earlier output is unsent, and over TLS: then the connection writes.
    `limit_unsent`: lets the kernel accept UNSENT_KERNEL_BYTES beyond those in flight at most, if the platform supports it.

    Two flags control TCP acknowledgements (`reactor/incoming.py`). `answered_at_once`: the last output was written in the
    turn that processed the last input. `sent`: output was written since the last request for a quick acknowledgement.
    """

    __slots__ = ("send", "limit_unsent", "answered_at_once", "sent")

    def __init__(self) -> None:
        self.send: Callable[[bytes], int] | None = None
        self.limit_unsent: Callable[[], object] = lambda: None
        self.answered_at_once, self.sent = False, True

    def write(self, data: bytes) -> int:
        """Return the number of bytes that the socket accepts; 0 if the connection is lost, which the transport detects."""
        send = self.send
        try:
            return 0 if send is None else send(data)
        except OSError:
            return 0
