"""Transport of blocking sessions to a simulated node: a waiting step advances simulated time.

Created by `Cluster.blocking_session` in `cluster.py`; the transport to an in-process broker is in `transport.py`.
"""

from __future__ import annotations

import ssl
from functools import partial

from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.pump import Connect, Dispatch
from bmqtwist.testing.loop import SECONDS_MAX
from bmqtwist.testing.network import ConnectionEnd, ConnectionHandler, Network
from bmqtwist.testing.transport import Inbox, VirtualTransport

_STEP_S = 0.005  # simulated time between two checks for received data


class _InboxHandler(ConnectionHandler):
    """Passes the events of a connection to an inbox."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def on_data(self, data: bytes) -> None:
        self._inbox.on_data(data)

    def on_end(self) -> None:
        self._inbox.on_lost("")

    def on_drained(self) -> None:
        self._inbox.on_room()


class SimulatedPump(VirtualTransport):
    """Transport between a core at the host `place` and the nodes at the addresses of its options."""

    def __init__(self, network: Network, place: str, options: SessionOptions, dispatch: Dispatch,
                 tls: ssl.SSLContext | None = None) -> None:
        self._network, self._simulation, self._place = network, network.simulation, place
        self._interrupted = False
        self._end: ConnectionEnd | None = None
        super().__init__(options, dispatch, tls)

    def clock(self) -> float:
        return self._simulation.now

    def interrupt_step(self) -> None:
        self._interrupted = True

    def dial(self, effect: Connect) -> None:
        """Connect in the simulated network."""
        address = effect.address
        self._network.dial(f"{address.host}:{address.port}", self._place, partial(self._on_dialled, effect.attempt))

    def _on_dialled(self, attempt: int, end: ConnectionEnd | None) -> None:
        if attempt != self.core.attempt:
            if end is not None:
                end.drop()
        elif end is None:
            self.core.on_connect_failed(attempt, "connection refused, or the link is cut", self.clock())
        else:
            self._end, self._inbox = end, Inbox(attempt, self.interrupt_step)
            end.handler = _InboxHandler(self._inbox)
            self.core.on_connected(attempt, self.clock())
        self.interrupt_step()

    def close_channel(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None and self._end is not None:
            self._end.finish()

    dispose = close_channel

    def write(self, chunks: list[bytes]) -> None:
        end = self._end
        if end is None or self._inbox is None or self._inbox.reason is not None:
            return
        if chunks:
            end.send(b"".join(chunks))
        self.apply_watermarks(end.waiting_bytes)

    def step(self, timeout_s: float | None = None) -> None:
        """Process pending work; without any, advance simulated time by at most `timeout_s` seconds."""
        if self._work():
            return
        began, due = self.clock(), self.core.next_deadline()
        end = min(began + SECONDS_MAX if timeout_s is None else began + timeout_s, due or began + SECONDS_MAX)
        while not self._interrupted and self.clock() < end:
            self._simulation.play(min(end, self.clock() + _STEP_S))
        self.count_idle(self.clock() - began, timeout_s)
        self._work()

    def _work(self) -> bool:
        interrupted, self._interrupted = self._interrupted, False
        self.deliver_inbox()
        self.tick_and_perform()
        self.write([])
        return interrupted
