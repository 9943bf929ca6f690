"""Adaptive batching per connection: which ACKs, PUSHes and reads of CONFIRMs are delayed, to share system calls. Pure.

    AckPace       delayed ACKs for a producer that posts PUT events in quick succession without waiting for ACKs
    ConfirmPace   read pauses for a consumer that confirms steadily and uses little of its limits of unconfirmed messages;
                  also delayed PUSHes, if it has many messages to confirm

Batching begins after RUN events in quick succession. A batch older than SHARE_S goes out with the next turn that runs for
any reason; after WAIT_S a turn is run for it. (Timers below a clock tick would cost more than the batch saves.) A producer
that blocks on its ACKs sends nothing while they are delayed: `Trial` detects this and suspends the delay.
"""

from __future__ import annotations

from typing import Final

SHARE_S: Final = 0.002  # age from which a batch goes out with the next turn
WAIT_S: Final = 0.005  # age at which a turn is run for a batch
SOON_S: Final = 0.001  # largest gap between PUT events in quick succession (WAIT_S while ACKs are delayed); CONFIRMs: twice
REST_BYTES_MAX: Final = 2048  # a read above this size ends a read pause: the consumer may block on a full send buffer, which
                              # takes 4.6 kB with official SDKs
RUN: Final = 16  # events in quick succession before anything is delayed
HELD_ACKS_MAX: Final = 64  # delayed ACKs of one producer
BUSY_MESSAGES: Final = 64  # PUSHes are delayed only for a consumer with at least so many unconfirmed messages
HELD_PUSHES_MAX: Final = 16  # delayed PUSHes of one consumer; fewer than arrive at once from a producer that posts batches
QUIET_S: Final = 0.0005  # a producer idle for so long when its ACKs are sent may block on them
DOUBTS_MAX: Final = 8  # useless delays, minus useful ones, that suspend the delay
TRY_AGAIN_S: Final = 0.25  # duration of the first suspension; each further one is twice as long,
TRY_AGAIN_MAX_S: Final = 16.0  # up to this


class Trial:
    """Suspends a delay for some time when most of the recent delays were useless."""

    __slots__ = ("_doubts", "_not_before", "_rest")

    def __init__(self) -> None:
        self._doubts, self._not_before, self._rest = 0, float("-inf"), TRY_AGAIN_S

    def allows(self, now: float) -> bool:
        return now >= self._not_before

    def ended(self, now: float, in_vain: bool) -> bool:
        """Record the end of a delay; return False if it suspends further ones."""
        if not in_vain:
            if self._doubts:
                self._doubts -= 1
            else:
                self._rest = TRY_AGAIN_S
            return True
        self._doubts += 1
        if self._doubts < DOUBTS_MAX:
            return True
        self._doubts, self._not_before, self._rest = 0, now + self._rest, min(2 * self._rest, TRY_AGAIN_MAX_S)
        return False


class AckPace:
    """Delayed ACKs of one producer. `holding`: ACKs may be delayed."""

    __slots__ = ("holding", "_last", "_run", "_trial")

    def __init__(self) -> None:
        self.holding = False
        self._last, self._run, self._trial = float("-inf"), 0, Trial()

    def arrived(self, now: float) -> None:
        """Record a PUT event."""
        since = now - self._last
        if not since:  # of the same chunk
            return
        self._last = now
        if since > (WAIT_S if self.holding else SOON_S):
            self._run, self.holding = 0, False
        elif not self.holding:
            self._run += 1
            self.holding = self._run >= RUN and self._trial.allows(now)

    def told(self, now: float) -> None:
        """Record that delayed ACKs are sent now. If the producer was idle before, it may have blocked on them."""
        if not self._trial.ended(now, now - self._last > QUIET_S):
            self._run, self.holding = 0, False


class ConfirmPace:
    """Regularity of the CONFIRM events of one consumer."""

    __slots__ = ("_last", "_run")

    def __init__(self) -> None:
        self._last, self._run = float("-inf"), 0

    def arrived(self, now: float) -> bool:
        """Record a CONFIRM event; return whether reads of the next ones may be delayed."""
        since, self._last = now - self._last, now
        self._run = self._run + 1 if since <= (2 * WAIT_S if self._run >= RUN else 2 * SOON_S) else 0
        return self._run >= RUN

    def goes_on(self, now: float) -> bool:
        """Return whether the consumer has confirmed steadily until now."""
        return self._run >= RUN and now - self._last <= 2 * WAIT_S

    def hurry(self) -> None:
        """Start anew: the consumer has sent another event, or its limits need a prompt CONFIRM."""
        self._run = 0
