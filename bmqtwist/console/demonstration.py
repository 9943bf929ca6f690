"""Demonstration traffic: two applications in this process that use the broker through its listener. Users of the console
start and stop it.

The rate of posts to each queue is a sine wave; its consumers pause for PAUSE_S every PAUSE_PERIOD_S, so that the queue
fills and drains. `service.py` creates the Demonstration, `actions.py` starts and stops it. Its domains are configured
(`demoDomains`).
"""

from __future__ import annotations

import json
from collections import deque
from functools import partial
from math import pi, sin
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from twisted.internet.defer import Deferred

from bmqtwist.console.documents import Document
from bmqtwist.errors import BmqError, LocalError
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.results import Ack
from bmqtwist.sdk.tx import Queue, Session
from bmqtwist.view.cluster_facts import listener_uri

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

NAMES = ("orders", "payments")  # of the queues in each domain
TICK_S = 0.1
RATE = 6.0  # messages per second and queue, on average
WAVE_S = 37.0  # period of the first queue; some seconds longer for each further queue
CONFIRM_S = 0.2  # from delivery to confirmation of a message
PAUSE_PERIOD_S, PAUSE_S = 60.0, 15.0  # period and duration of the consumers' pauses
CONNECT_S = 10.0
REGIONS = ("europe", "america", "asia")


class DemonstrationQueue(Struct):
    """Queue with its consumers. `due`: messages to post, with a fraction of the next one; `unconfirmed`: unconfirmed
    messages with their times of delivery."""

    queue: Queue[bytes]
    number: int
    due: float = 0.0
    unconfirmed: deque[tuple[float, Message[bytes]]] = field(default_factory=deque)

    def rate(self, seconds: float) -> float:
        return RATE * (1 + 0.8 * sin(2 * pi * seconds / (WAVE_S + 7 * self.number)))

    def is_paused(self, seconds: float) -> bool:
        return (seconds + 20.0 * self.number) % PAUSE_PERIOD_S > PAUSE_PERIOD_S - PAUSE_S


class Demonstration:
    """Demonstration traffic through the broker of `host`, in the domains of `http.demoDomains`."""

    def __init__(self, host: BrokerService) -> None:
        self._host, self._broker, self._reactor, self._report = host, host.node.broker, host.reactor, host.report
        self._address = listener_uri(self._broker)  # "" = no listener without TLS
        self._domains = self._broker.configuration.extension.http.demo_domains
        self._sessions: list[Session] = []
        self._queues: list[DemonstrationQueue] = []
        self._tick: Any = None
        self._began = 0.0
        self._posted = self._confirmed = self._refused = 0
        self._by, self._since, self._problem = "", 0.0, ""

    @property
    def state(self) -> Document | None:
        """State for the console; None = not configured."""
        if not self._domains:
            return None
        return {"running": bool(self._sessions), "by": self._by, "since": round(self._since, 3), "problem": self._problem,
                "queues": [each.queue.uri for each in self._queues], "posted": self._posted,
                "confirmed": self._confirmed, "refused": self._refused}

    def start(self, by: str) -> None:
        """Start the traffic. Raises LocalError if it is not configured or already runs."""
        if not self._domains:
            raise LocalError("Demonstration traffic is not configured: appConfig.bmqtwist.http.demoDomains names no domain")
        if not self._address:
            raise LocalError("Demonstration traffic requires a listener without TLS")
        if self._sessions:
            raise LocalError("Demonstration traffic is already running")
        self._by, self._since, self._problem = by, self._host.present_time()[1], ""
        self._posted = self._confirmed = self._refused = 0
        sessions = self._sessions = [Session(self._reactor, self._address, connect_timeout_s=CONNECT_S,
                                             open_timeout_s=CONNECT_S, user_agent=f"demonstration-{what}")
                                     for what in ("producer", "consumer")]
        self._report.record_event("config", f"demonstration traffic started by {by}", by=by)
        Deferred.fromCoroutine(self._open(sessions)).addErrback(self._on_failed, sessions)

    def stop(self, by: str = "") -> None:
        """Stop the traffic if it runs."""
        if not self._sessions:
            return
        sessions, self._sessions, self._queues = self._sessions, [], []
        if self._tick is not None and self._tick.active():
            self._tick.cancel()
        for session in sessions:
            session.stop(drain=False).addErrback(lambda failure: None)  # the session ends in any case
        if by:
            self._report.record_event("config", f"demonstration traffic stopped by {by}", by=by)

    async def _open(self, sessions: list[Session]) -> None:
        producer, consumer = sessions
        for session in sessions:
            await session.start()
        for domain in self._domains:
            apps = self._broker.domains.provider.load(domain, self._broker.loop.now).config.app_ids
            for name in NAMES:
                uri = f"bmq://{domain}/demo-{name}"
                shown = DemonstrationQueue(await producer.open(uri, write=True), len(self._queues))
                for app in apps or ("",):
                    await consumer.open(f"{uri}?id={app}" if app else uri, read=True,
                                        on_message=partial(self._on_message, shown))
                if self._sessions is not sessions:
                    return  # stopped while the queue was opened
                self._queues.append(shown)
        self._began = self._reactor.seconds()
        self._schedule_tick()

    def _on_message(self, shown: DemonstrationQueue, message: Message[bytes]) -> None:
        shown.unconfirmed.append((self._reactor.seconds(), message))

    def _on_failed(self, failure: Any, sessions: list[Session]) -> None:
        if self._sessions is sessions:
            self._problem = str(failure.value) or type(failure.value).__name__
            self._report.error("Demonstration traffic failed: %s", self._problem)
            self.stop()

    def _schedule_tick(self) -> None:
        self._tick = self._reactor.callLater(TICK_S, self._on_tick)

    def _on_tick(self) -> None:
        if self._broker.shutdown is not None:
            self.stop()
            return
        seconds = self._reactor.seconds() - self._began
        try:
            for shown in self._queues:
                shown.due += shown.rate(seconds) * TICK_S
                while shown.due >= 1.0:
                    shown.due -= 1.0
                    self._post(shown)
                self._confirm(shown, seconds)
        except BmqError as error:
            self._problem = str(error)
            self._report.error("Demonstration traffic failed: %s", error)
            self.stop()
            return
        self._schedule_tick()

    def _post(self, shown: DemonstrationQueue) -> None:
        number = self._posted
        self._posted += 1
        amount = number * 7919 % 1000
        payload = json.dumps({"order": number, "amount": amount, "text": "demonstration"}).encode()
        properties = {"region": REGIONS[number % len(REGIONS)], "amount": amount, "urgent": amount > 900}
        shown.queue.post_nowait(payload, properties, on_ack=self._on_ack)

    def _on_ack(self, ack: Ack) -> None:
        self._refused += not ack.ok

    def _confirm(self, shown: DemonstrationQueue, seconds: float) -> None:
        until = self._reactor.seconds() - CONFIRM_S
        while shown.unconfirmed and shown.unconfirmed[0][0] <= until and not shown.is_paused(seconds):
            shown.unconfirmed.popleft()[1].confirm()
            self._confirmed += 1
