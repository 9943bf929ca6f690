"""The blocking sessions' end of a connection to a simulated node: a step that waits lets simulated time pass."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial

from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.pump import Connect, Dispatch
from bmqtwist.testing.loop import SECONDS_MAX
from bmqtwist.testing.network import ConnectionEnd, Network, Receiver
from bmqtwist.testing.transport import VirtualTransport

_STEP_S = 0.005  # of simulated time, between two looks at what has come


class _Inbox(Receiver):
    """One connection: what came of it, in order."""

    def __init__(self, attempt: int, end: ConnectionEnd, news: Callable[[], None]) -> None:
        self.attempt, self.end, self._news = attempt, end, news
        self.arrived: list[bytes] = []
        self.lost = False
        end.receiver = self

    def take(self, data: bytes) -> None:
        self.arrived.append(data)
        self._news()

    def cut(self) -> None:
        self.lost = True
        self._news()

    def drained(self) -> None:
        self._news()


class SimulatedPump(VirtualTransport):
    """Moves bytes between a core and the nodes at the addresses of its options, from the place `place`."""

    def __init__(self, network: Network, place: str, options: SessionOptions, dispatch: Dispatch,
                 tls: ssl.SSLContext | None = None) -> None:
        self._network, self._simulation, self._place = network, network.simulation, place
        self._poked = False
        self._inbox: _Inbox | None = None
        super().__init__(options, dispatch, tls)

    def clock(self) -> float:
        return self._simulation.now

    def poke(self) -> None:
        self._poked = True

    def dial(self, effect: Connect) -> None:
        """Connect as far as it takes in the simulated network."""
        address = effect.address
        self._network.dial(f"{address.host}:{address.port}", self._place, partial(self._dialled, effect.attempt))

    def _dialled(self, attempt: int, end: ConnectionEnd | None) -> None:
        if attempt != self.core.attempt:
            if end is not None:
                end.drop()
        elif end is None:
            self.core.failed(attempt, "nobody listens there, or it is cut off", self.clock())
        else:
            self._inbox = _Inbox(attempt, end, self.poke)
            self.core.connected(attempt, self.clock())
        self.poke()

    def hang_up(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.end.finish()

    dispose = hang_up

    def write(self, chunks: list[bytes]) -> None:
        inbox = self._inbox
        if inbox is None or inbox.lost:
            return
        if chunks:
            inbox.end.send(b"".join(chunks))
        self.limit(inbox.end.waiting)

    def step(self, timeout_s: float | None = None) -> None:
        """Do what there is to do; with nothing to do let time pass, at most that long."""
        if self._work():
            return
        began, due = self.clock(), self.core.deadline()
        end = min(began + SECONDS_MAX if timeout_s is None else began + timeout_s, due or began + SECONDS_MAX)
        while not self._poked and self.clock() < end:
            self._simulation.play(min(end, self.clock() + _STEP_S))
        self.waited(self.clock() - began, timeout_s)
        self._work()

    def _work(self) -> bool:
        poked, self._poked = self._poked, False
        inbox = self._inbox
        while inbox is not None and inbox is self._inbox and inbox.arrived:
            self.core.received(inbox.arrived.pop(0), self.clock())
            self.perform()
        if inbox is not None and inbox is self._inbox and inbox.lost:
            self._inbox = None
            self.core.lost(inbox.attempt, "closed by the broker", self.clock())
        self.tick_and_perform()
        self.write([])
        return poked
