"""What the hot path counts: plain numbers that only grow, and maxima that a reader takes away.

Every attribute without a remark is a total since the object was made. Attributes ending in `_max` are the largest value
since the last `take_maxima`. Times are seconds; a mean is the matching `_sum` divided by the number of events. What can
be read from the queue itself (messages stored now, readers, history) is not here.
"""

from __future__ import annotations

from typing import ClassVar

_APP = ("push_msgs", "push_bytes", "confirm_msgs", "confirm_time_sum", "confirm_time_max", "queue_time_sum",
        "queue_time_max", "content_msgs_max", "content_bytes_max")
_ENTRANCE = ("put_msgs", "put_bytes", "ack_msgs", "ack_time_sum", "ack_time_max", "nack_msgs", "nack_noquorum_msgs",
             "reject_msgs", "gc_msgs")
_CLIENT = ("put_msgs", "put_bytes", "push_msgs", "push_bytes", "ack_msgs", "nack_msgs", "confirm_msgs")
_CHANNEL = ("in_bytes", "out_bytes", "in_chunks", "out_chunks")


class Counters:
    """Shared reading side: totals as a mapping, maxima handed over and restarted."""

    __slots__ = ()
    NAMES: ClassVar[tuple[str, ...]] = ()

    def totals(self) -> dict[str, float]:
        """Every attribute under its name, in the order of declaration."""
        return {name: getattr(self, name) for name in self.NAMES}

    def take_maxima(self) -> dict[str, float]:
        """The maxima so far; each starts again from zero."""
        taken = {name: getattr(self, name) for name in self.NAMES if name.endswith("_max")}
        for name in taken:
            setattr(self, name, type(taken[name])())
        return taken


class AppStats(Counters):
    """Counters of one app of one queue: deliveries, confirms, and the most it held."""

    __slots__ = _APP
    NAMES: ClassVar[tuple[str, ...]] = _APP

    def __init__(self) -> None:
        self.push_msgs = self.push_bytes = self.confirm_msgs = 0
        self.confirm_time_sum = self.confirm_time_max = 0.0
        self.queue_time_sum = self.queue_time_max = 0.0
        self.content_msgs_max = self.content_bytes_max = 0

    def pushed(self, size: int, waited: float) -> None:
        """One delivery of `size` bytes, `waited` seconds after the message arrived."""
        self.push_msgs += 1
        self.push_bytes += size
        self.queue_time_sum += waited
        if waited > self.queue_time_max:
            self.queue_time_max = waited

    def confirmed(self, held: float) -> None:
        """One confirm, `held` seconds after the delivery."""
        self.confirm_msgs += 1
        self.confirm_time_sum += held
        if held > self.confirm_time_max:
            self.confirm_time_max = held

    def stored(self, messages: int, size: int) -> None:
        """So many messages and bytes are held now: remember the most."""
        self.content_msgs_max = max(self.content_msgs_max, messages)
        self.content_bytes_max = max(self.content_bytes_max, size)


class QueueStats(AppStats):
    """Counters of one queue: those of an app over all its apps, and what happens at its entrance."""

    __slots__ = _ENTRANCE
    NAMES: ClassVar[tuple[str, ...]] = _APP + _ENTRANCE

    def __init__(self) -> None:
        super().__init__()
        self.put_msgs = self.put_bytes = 0
        self.ack_msgs = self.nack_msgs = self.nack_noquorum_msgs = 0
        self.ack_time_sum = self.ack_time_max = 0.0
        self.reject_msgs = self.gc_msgs = 0

    def acked(self, waited: float) -> None:
        """One positive acknowledgement, `waited` seconds after the PUT."""
        self.ack_msgs += 1
        self.ack_time_sum += waited
        if waited > self.ack_time_max:
            self.ack_time_max = waited


class ClientStats(Counters):
    """Counters of one client session, all queues together."""

    __slots__ = _CLIENT
    NAMES: ClassVar[tuple[str, ...]] = _CLIENT

    def __init__(self) -> None:
        self.put_msgs = self.put_bytes = self.push_msgs = self.push_bytes = 0
        self.ack_msgs = self.nack_msgs = self.confirm_msgs = 0


class ChannelStats(Counters):
    """Counters of one connection: bytes and chunks as the socket saw them."""

    __slots__ = _CHANNEL
    NAMES: ClassVar[tuple[str, ...]] = _CHANNEL

    def __init__(self) -> None:
        self.in_bytes = self.out_bytes = self.in_chunks = self.out_chunks = 0
