"""What may wait a moment, so that several messages share one system call: found from how a client goes on. Pure.

    AckPace       ACKs of a producer that posts one message soon after the other without waiting for them
    ConfirmPace   CONFIRMs of a consumer that has room for much more than it holds; PUSHes to one that has much to do, too

Both begin after RUN events, each soon after the one before. What has waited for SHARE_S goes on with the next turn,
whatever that is for; a turn of its own it gets after WAIT_S. (To be woken in less than a tick of the system takes a timer
that is programmed anew each time, which costs more than is saved.) What nobody waits for is not told at once, what somebody
waits for is: a producer whose PUTs follow its ACKs is found out by what does not come meanwhile (`Trial`).
"""

from __future__ import annotations

from typing import Final

SHARE_S: Final = 0.002  # what has waited so long goes with the next turn,
WAIT_S: Final = 0.005  # or gets one of its own after so long
SOON_S: Final = 0.001  # between two PUT events of a producer that goes on, WAIT_S once its ACKs wait; twice as long
                       # between CONFIRMs, which come in reply
REST_BYTES_MAX: Final = 2048  # that come at once from a consumer whose CONFIRMs wait: there may be no room for more in its
                              # kernel (4.6 kB with official SDKs), so that it waits for us
RUN: Final = 16  # such events before anything waits
HELD_ACKS_MAX: Final = 64  # no more of them wait
BUSY_MESSAGES: Final = 64  # a consumer that has so many to confirm need not get the next ones at once
HELD_PUSHES_MAX: Final = 16  # no more of them wait; fewer than come at once from a producer that posts batches
QUIET_S: Final = 0.0005  # a producer that has sent nothing for so long when its ACKs go may wait for them
DOUBTS_MAX: Final = 8  # such waits, less those that were not, and it is left alone
TRY_AGAIN_S: Final = 0.25  # it is tried again after so long, then after twice as long each time,
TRY_AGAIN_MAX_S: Final = 16.0  # up to this


class Trial:
    """Whether somebody is let wait: not for a while after most of the last waits were in vain."""

    __slots__ = ("_doubts", "_not_before", "_rest")

    def __init__(self) -> None:
        self._doubts, self._not_before, self._rest = 0, float("-inf"), TRY_AGAIN_S

    def allows(self, now: float) -> bool:
        """Whether it is tried."""
        return now >= self._not_before

    def ended(self, now: float, in_vain: bool) -> bool:
        """A wait is over. False: it is not tried again for a while."""
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
    """Of one producer. `holding`: its ACKs may wait."""

    __slots__ = ("holding", "_last", "_run", "_trial")

    def __init__(self) -> None:
        self.holding = False
        self._last, self._run, self._trial = float("-inf"), 0, Trial()

    def arrived(self, now: float) -> None:
        """PUTs have come."""
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
        """ACKs have waited long enough. If nothing has come for a while, it has waited for them."""
        if not self._trial.ended(now, now - self._last > QUIET_S):
            self._run, self.holding = 0, False


class ConfirmPace:
    """Of one consumer."""

    __slots__ = ("_last", "_run")

    def __init__(self) -> None:
        self._last, self._run = float("-inf"), 0

    def arrived(self, now: float) -> bool:
        """CONFIRMs have come; whether the next ones may wait."""
        since, self._last = now - self._last, now
        self._run = self._run + 1 if since <= (2 * WAIT_S if self._run >= RUN else 2 * SOON_S) else 0
        return self._run >= RUN

    def goes_on(self, now: float) -> bool:
        """Whether they have come until now."""
        return self._run >= RUN and now - self._last <= 2 * WAIT_S

    def hurry(self) -> None:
        """It has done something else, or needs room."""
        self._run = 0
