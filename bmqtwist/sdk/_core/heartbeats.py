"""Heartbeats: answers the broker's, and finds out when the broker is silent for too long."""

from __future__ import annotations

from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.outbox import Outbox
from bmqtwist.sdk._core.session_state import SessionState
from bmqtwist.sdk._core.states import Input
from bmqtwist.wire.fast import HEARTBEAT_REQ, HEARTBEAT_RSP


class Heartbeats:
    """Watches one connection after the other. `received`: has anything come since the last look?"""

    def __init__(self, state: SessionState, outbox: Outbox, deadlines: Deadlines) -> None:
        self._state, self._outbox, self._deadlines = state, outbox, deadlines
        self.received = False
        self._silent = 0  # intervals without a byte
        self._interval_s = 0.0
        self._missed_max = 0

    def begin(self, interval_s: float, missed_max: int) -> None:
        """A session is up; what the broker wants is in its response. 0 = no heartbeats."""
        self._silent, self.received = 0, True
        self._interval_s, self._missed_max = interval_s, missed_max
        if missed_max > 0 and interval_s > 0:
            self._deadlines.after("heartbeat", interval_s)

    def on_request(self, *_: object) -> None:
        """From the broker: are you there?"""
        self._outbox.write(HEARTBEAT_RSP)

    def due(self) -> None:
        """An interval is over."""
        if self.received:
            self.received, self._silent = False, 0
        else:
            self._silent += 1
            if self._silent > self._missed_max:
                self._state.feed(Input.LOST, f"nothing heard for {self._silent} heartbeats")
                return
            self._outbox.write(HEARTBEAT_REQ)
        self._deadlines.after("heartbeat", self._interval_s)
