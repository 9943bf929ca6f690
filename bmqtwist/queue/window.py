"""Delivery window of a client: a limit on unsent output, in addition to the limits of unconfirmed messages.

All subscriptions of a client share one window. It closes when a turn has delivered TURN_PUSH_BYTES_MAX bytes, and when
more than LAGGING_BYTES remain unsent; both are in `bmqtwist/limits.py`, and lower if the configured limit of unsent
output is. Subscriptions receive nothing while it is closed. The session reports written and drained output; routing
reads `open`. `link/client.py` and `broker/local_producer.py` have one each; the limits of unconfirmed messages are in
`queue.py`, that of unsent output in `broker/output.py`.
"""

from __future__ import annotations

from bmqtwist.limits import LAGGING_BYTES, TURN_PUSH_BYTES_MAX


def lagging_bytes(output_bytes_max: int) -> int:
    """Return the unsent bytes above which a client lags; `output_bytes_max`: limit of unsent output, 0 = unlimited."""
    return min(LAGGING_BYTES, output_bytes_max // 2) if output_bytes_max else LAGGING_BYTES


class DeliveryWindow:
    """Delivery window of one client. `lagging`: more than LAGGING_BYTES remain unsent; it receives no broadcast messages."""

    __slots__ = ("open", "lagging", "_delivered", "_turn_bytes_max", "_lagging_bytes")

    def __init__(self, output_bytes_max: int = 0) -> None:
        self._turn_bytes_max = min(TURN_PUSH_BYTES_MAX, output_bytes_max // 4 or TURN_PUSH_BYTES_MAX)
        self._lagging_bytes = lagging_bytes(output_bytes_max)
        self.open = True
        self.lagging = False
        self._delivered = 0  # bytes in this turn

    def count_push(self, size: int) -> None:
        """Count a delivery of `size` bytes."""
        self._delivered += size
        if self._delivered > self._turn_bytes_max:
            self.open = False

    def on_turn_end(self) -> None:
        """Reset the bytes of the turn before its output is written."""
        self._delivered = 0

    def on_written(self, unsent: int) -> bool:
        """Report a write; `unsent` bytes remain unsent. True if `resume` is due in the next turn."""
        self.lagging = unsent > self._lagging_bytes
        if self.lagging:
            self.open = False
        return not self.open and not self.lagging

    def close(self) -> None:
        """Stop all deliveries to the client, broadcast included."""
        self.open, self.lagging = False, True

    def on_drained(self) -> None:
        """Report that no output remains unsent."""
        self.lagging = False

    def resume(self) -> bool:
        """Open the window unless the client lags. True if it was closed: call `Handle.resume`."""
        if self.open or self.lagging:
            return False
        self.open = True
        return True
