"""Adaptive batching per connection: which ACKs, PUSHes and reads of CONFIRMs are delayed, to share system calls. Pure.

    AckBatching       delayed ACKs for a producer that posts PUT events in quick succession without waiting for ACKs
    ConfirmBatching   read pauses for a consumer that confirms steadily and uses little of its limits of unconfirmed
                      messages; also delayed PUSHes, if it has many messages to confirm

Batching begins after RUN_EVENTS events in quick succession. A batch older than BATCH_MIN_S goes out with the next turn that
runs for any reason; after BATCH_MAX_S a turn is run for it. (Timers below a clock tick cost more than the batch saves.) A
producer that blocks on its ACKs sends nothing while they are delayed: `DelaySuspension` detects this and suspends the delay.
Called by `client.py`. The coalescing of writes to the files, for durability `none`, is in `broker/batching.py`.
"""

from __future__ import annotations

from typing import Final

BATCH_MIN_S: Final = 0.002  # age from which a batch goes out with the next turn
BATCH_MAX_S: Final = 0.005  # age at which a turn is run for a batch
PUT_GAP_S: Final = 0.001  # gap of PUT events in quick succession (BATCH_MAX_S while ACKs are delayed); CONFIRMs: twice
PAUSED_READ_BYTES_MAX: Final = 2048  # a read above this size ends a read pause: the consumer may block on a full send buffer
                                     # (4.6 kB with official SDKs)
RUN_EVENTS: Final = 16  # events in quick succession before anything is delayed
DELAYED_ACKS_MAX: Final = 64  # of one producer
BUSY_MESSAGES: Final = 64  # PUSHes are delayed only for a consumer with at least so many unconfirmed messages
DELAYED_PUSHES_MAX: Final = 16  # of one consumer; fewer than arrive at once from a producer that posts batches
IDLE_S: Final = 0.0005  # a producer idle for so long when its ACKs are sent may block on them
USELESS_DELAYS_MAX: Final = 8  # useless delays, minus useful ones, that suspend the delay
SUSPEND_S: Final = 0.25  # duration of the first suspension; each further one is twice as long,
SUSPEND_MAX_S: Final = 16.0  # up to this


class DelaySuspension:
    """Suspends a delay for some time when most of the recent delays were useless."""

    __slots__ = ("_useless", "_not_before", "_suspension")

    def __init__(self) -> None:
        self._useless, self._not_before, self._suspension = 0, float("-inf"), SUSPEND_S

    def allows_delay(self, now: float) -> bool:
        """Return whether the delay is not suspended."""
        return now >= self._not_before

    def on_delay_end(self, now: float, useless: bool) -> bool:
        """Record the end of a delay; return False if it suspends further ones."""
        if not useless:
            if self._useless:
                self._useless -= 1
            else:
                self._suspension = SUSPEND_S
            return True
        self._useless += 1
        if self._useless < USELESS_DELAYS_MAX:
            return True
        self._useless, self._not_before = 0, now + self._suspension
        self._suspension = min(2 * self._suspension, SUSPEND_MAX_S)
        return False


class AckBatching:
    """Delayed ACKs of one producer. `delays`: its ACKs may be delayed."""

    __slots__ = ("delays", "_last", "_run", "_suspension")

    def __init__(self) -> None:
        self.delays = False
        self._last, self._run, self._suspension = float("-inf"), 0, DelaySuspension()

    def on_puts(self, now: float) -> None:
        """Record a PUT event."""
        since = now - self._last
        if not since:  # of the same chunk
            return
        self._last = now
        if since > (BATCH_MAX_S if self.delays else PUT_GAP_S):
            self._run, self.delays = 0, False
        elif not self.delays:
            self._run += 1
            self.delays = self._run >= RUN_EVENTS and self._suspension.allows_delay(now)

    def on_acks_sent(self, now: float) -> None:
        """Record that delayed ACKs are sent now. If the producer was idle before, it may have blocked on them."""
        if not self._suspension.on_delay_end(now, now - self._last > IDLE_S):
            self._run, self.delays = 0, False


class ConfirmBatching:
    """Regularity of the CONFIRM events of one consumer."""

    __slots__ = ("_last", "_run")

    def __init__(self) -> None:
        self._last, self._run = float("-inf"), 0

    def on_confirms(self, now: float) -> bool:
        """Record a CONFIRM event; return whether reads of the next ones may be delayed."""
        since, self._last = now - self._last, now
        self._run = self._run + 1 if since <= (2 * BATCH_MAX_S if self._run >= RUN_EVENTS else 2 * PUT_GAP_S) else 0
        return self._run >= RUN_EVENTS

    def is_steady(self, now: float) -> bool:
        """Return whether the consumer has confirmed steadily until now."""
        return self._run >= RUN_EVENTS and now - self._last <= 2 * BATCH_MAX_S

    def reset(self) -> None:
        """Start anew: the consumer has sent another event, or its limits need a prompt CONFIRM."""
        self._run = 0
