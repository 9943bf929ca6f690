"""How much one client is given before it has taken what it got: a bound beside the credit of its subscriptions.

All subscriptions of a client share one window; while it is closed they are given nothing. It closes when a turn has
delivered TURN_PUSH_BYTES_MAX bytes and when more than LAGGING_BYTES wait for the connection of the client; less of both
where little output may wait for a client. The session says when a turn is written and when the connection has caught up;
routing asks.
"""

from __future__ import annotations

from bmqtwist.limits import LAGGING_BYTES, TURN_PUSH_BYTES_MAX


def lagging_bytes(output_bytes_max: int) -> int:
    """How much may wait for a client before it lags, if `output_bytes_max` may wait at all (0 = any number)."""
    return min(LAGGING_BYTES, output_bytes_max // 2) if output_bytes_max else LAGGING_BYTES


class DeliveryWindow:
    """The window of one client."""

    __slots__ = ("open", "behind", "_delivered", "_turn_bytes_max", "_lagging_bytes")

    def __init__(self, output_bytes_max: int = 0) -> None:
        self._turn_bytes_max = min(TURN_PUSH_BYTES_MAX, output_bytes_max // 4 or TURN_PUSH_BYTES_MAX)
        self._lagging_bytes = lagging_bytes(output_bytes_max)
        self.open = True  # asked for every delivery
        self.behind = False  # too much waits for its connection: messages without credit pass the client by
        self._delivered = 0  # bytes in this turn

    def count(self, size: int) -> None:
        """A message of `size` bytes is delivered."""
        self._delivered += size
        if self._delivered > self._turn_bytes_max:
            self.open = False

    def turn_over(self) -> None:
        """What was delivered in this turn is taken to be written."""
        self._delivered = 0

    def written(self, untaken: int) -> bool:
        """It is written, but `untaken` bytes wait for the connection. True: `resume` is due in the next turn."""
        self.behind = untaken > self._lagging_bytes
        if self.behind:
            self.open = False
        return not self.open and not self.behind

    def close(self) -> None:
        """Nothing more is to be delivered to the client, with credit or without."""
        self.open, self.behind = False, True

    def caught_up(self) -> None:
        """Nothing waits for the connection any more."""
        self.behind = False

    def resume(self) -> bool:
        """Open again, unless the connection is behind. True: it was closed until now, see `Handle.resume`."""
        if self.open or self.behind:
            return False
        self.open = True
        return True
