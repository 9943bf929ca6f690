"""Damaged message and its repair: the objects that storage, sessions and `member/repairs.py` share."""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.storage.message import Message
from bmqtwist.storage.store import PartitionUnavailable


class Repair:
    """Repair of one damaged message.

    where: file and offset. unreadable: the disk reports an error instead of other data; the message is never discarded then.
    asking: the other members are being asked for a copy for the first time; deliveries wait. listeners: called once, at the
    end of the repair and when `asking` ends; by listener, so that each is called once.
    """

    __slots__ = ("asking", "listeners", "message", "unreadable", "where")

    def __init__(self, message: Message, where: str, unreadable: bool) -> None:
        self.message, self.where, self.unreadable = message, where, unreadable
        self.asking = True
        self.listeners: dict[object, Callable[[], None]] = {}

    def notify(self) -> None:
        """Call the listeners; they may add new ones."""
        listeners, self.listeners = self.listeners, {}
        for listener in listeners.values():
            listener()


class PayloadDamaged(PartitionUnavailable):
    """The stored application data of a message is damaged and must not be delivered. `repair`: in progress; None: there is
    none, because the partition is being replaced."""

    def __init__(self, text: str, repair: Repair | None = None) -> None:
        super().__init__(text)
        self.repair = repair
