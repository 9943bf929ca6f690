"""A PUT as a value: what a producer posted, from its arrival until its acknowledgement.

The primary of a queue keeps it at the gate until its records are safe; a node on the way to the primary keeps it until
the primary has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bmqtwist.compiled import mypyc_attr
from bmqtwist.storage.copies import Copies
from bmqtwist.storage.gate import Gated

if TYPE_CHECKING:
    from bmqtwist.queue.handle import Handle
    from bmqtwist.queue.queue import Queue
    from bmqtwist.storage.message import Message


_NONE: Final = Copies.NONE  # a member of an enumeration is slow to look up


@mypyc_attr(acyclic=True)
class Put(Gated):
    """One PUT.

    handle: whose, None = nobody is to be answered. message: what was posted; `arrived` and `wall` of it are those of the
    PUT. correlation_id: of a client that makes no GUIDs itself. wants_ack: an ACK was asked for. queue: set when it is
    taken. stored: the message is to be delivered, not a duplicate or a message that no app wants. copies: which other
    nodes must have it, too. position: of the newest record that it waits for, see `storage.gate`. ahead: bits of the apps
    whose consumers are given it, and all that came before it, before it is acknowledged. told_ahead: another node may know
    that it is committed before this one does.
    """

    __slots__ = ("handle", "message", "correlation_id", "wants_ack", "queue", "stored", "copies", "ahead", "told_ahead")

    queue: Queue

    def __init__(self, handle: Handle | None, message: Message, correlation_id: int, wants_ack: bool) -> None:
        self.handle, self.message, self.correlation_id, self.wants_ack = handle, message, correlation_id, wants_ack
        self.stored = self.told_ahead = False
        self.copies = _NONE
        self.position = self.ahead = 0

    def answer(self, status: int) -> None:
        """Acknowledge it, if that was asked for; a refusal is always told."""
        if self.handle is not None and (self.wants_ack or status):
            self.handle.client.ack(self.handle, self.message.guid, self.correlation_id, status)
