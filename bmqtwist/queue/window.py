"""How much one client is given before it has taken what it got: a bound beside the credit of its subscriptions.

All subscriptions of a client share one window; while it is closed they are given nothing. It closes when a turn has
delivered TURN_PUSH_BYTES_MAX bytes and when more than LAGGING_BYTES wait for the connection of the client. The session says
when a turn is written and when the connection has caught up; routing asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bmqtwist.limits import LAGGING_BYTES, TURN_PUSH_BYTES_MAX

if TYPE_CHECKING:
    from bmqtwist.queue.handle import Handle


class DeliveryWindow:
    """The window of one client."""

    __slots__ = ("open", "behind", "_delivered")

    def __init__(self) -> None:
        self.open = True  # asked for every delivery
        self.behind = False  # too much waits for its connection: messages without credit pass the client by
        self._delivered = 0  # bytes in this turn

    def count(self, size: int) -> None:
        """A message of `size` bytes is delivered."""
        self._delivered += size
        if self._delivered > TURN_PUSH_BYTES_MAX:
            self.open = False

    def turn_over(self) -> None:
        """What was delivered in this turn is taken to be written."""
        self._delivered = 0

    def written(self, untaken: int) -> bool:
        """It is written, but `untaken` bytes wait for the connection. True: `resume` is due in the next turn."""
        self.behind = untaken > LAGGING_BYTES
        if self.behind:
            self.open = False
        return not self.open and not self.behind

    def close(self) -> None:
        """Nothing more is to be delivered to the client, with credit or without."""
        self.open, self.behind = False, True

    def caught_up(self) -> None:
        """Nothing waits for the connection any more."""
        self.behind = False

    def resume(self, handles: Iterable[Handle]) -> None:
        """Open again, unless the connection is behind: what waited for the client's `handles` is delivered."""
        if self.open or self.behind:
            return
        self.open = True
        for handle in handles:
            for substream in handle.substreams.values():
                if substream.subscriptions:
                    substream.app.recheck_waiting = True
                    handle.queue.touch()
