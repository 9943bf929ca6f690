"""When the records of a turn are written, if they need not survive a loss of power (durability `none`): in that turn, or in
one of the next.

A producer whose ACKs may wait for each other (`link/pace.py`) is told of none before SHARE_S is over. So that is soon enough
for its messages to be written, with all that has come meanwhile. Consumers get them before: what is lost with the process
then was acknowledged to nobody, and comes again from its producer. Where somebody else waits for something of the
partition, everything is written in that turn.
"""

from __future__ import annotations

from typing import Any

from bmqtwist.link.client import ClientSession
from bmqtwist.link.pace import HELD_ACKS_MAX, SHARE_S
from bmqtwist.queue.queue import Put


class Gathering:
    """Of one partition. `since`: when the oldest message came that is not written, 0.0 = there is none. `seen`: how many of
    the PUTs that wait for it have been looked at."""

    __slots__ = ("since", "seen", "_clients")

    def __init__(self) -> None:
        self.since, self.seen = 0.0, 0
        self._clients: dict[ClientSession, None] = {}  # whose ACKs wait

    def goes_on(self, waiting: list[Any], now: float) -> bool:
        """Whether all the PUTs that wait may wait for another turn."""
        count = len(waiting)
        if count > HELD_ACKS_MAX or self.since and now - self.since >= SHARE_S:
            return False
        for index in range(self.seen, count):
            put: Put = waiting[index]
            client = None if put.handle is None or not put.wants_ack else put.handle.client
            if not isinstance(client, ClientSession) or not client.session.holds_acks:
                return False
            self._clients[client] = None
        self.seen = count
        if not self.since:
            self.since = now
        return True

    def end(self, now: float) -> None:
        """All of it is written in this turn, which acknowledges what has waited, too."""
        if self.since:
            waited = now - self.since >= SHARE_S
            for client in self._clients:
                client.acks_are_due(now, waited)
        self.since, self.seen = 0.0, 0
        self._clients.clear()
