"""Deliveries of a turn: release the PUTs of in-memory queues, then deliver from each queue that has requested it.

The deliveries of a turn end after BUDGETS[Priority.DELIVERY] seconds (`loop/scheduler.py`); the remaining queues
deliver in later turns. This module also raises the alarms about poison messages and about the meters of a queue, and
starts the long work of queues in slices. An exception disables only the queue, or closes only the client, that caused
it (`loop/error_isolation.py`). Called by `broker.py` in each turn; the delivery from one queue is in
`queue/delivery.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from bmqtwist import alarms
from bmqtwist.broker.storage_turn import StorageTurn
from bmqtwist.link.client import ClientSession
from bmqtwist.link.session import Session
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import BUDGETS, Priority
from bmqtwist.queue import describe
from bmqtwist.queue.counters import AckLatency
from bmqtwist.queue.meter import Meter
from bmqtwist.queue.queue import App, Client, Put, Queue
from bmqtwist.queue.root import Domain, RootQueue
from bmqtwist.steps import Steps
from bmqtwist.storage.message import Message

POISON_ALARM_PERIOD_S = 15.0
QUEUES_AT_ONCE = 64  # queues of a domain whose quota is no longer ample, notified in one step
_DELIVERY_S = BUDGETS[Priority.DELIVERY]


class Deliveries:
    """`queue.root.RootContext` of all queues of one broker."""

    def __init__(self, loop: Loop, storage: StorageTurn) -> None:
        self._loop, self._storage, self.report = loop, storage, loop.report
        self.ack_latency = AckLatency()
        self._requested: list[Queue] = []
        self._in_memory: list[Put] = []
        self._failed: dict[Session, None] = {}  # to close between deliveries
        self._poison_alarm_at = float("-inf")

    # -- queue.root.RootContext -------------------------------------------------------------------------------------

    def request_delivery(self, queue: Queue) -> None:
        queue.delivery_requested = True
        self._requested.append(queue)

    def request_delivery_next_turn(self, queue: Queue) -> None:
        if not queue.delivery_requested:
            queue.delivery_requested = True
            self._deliver_later(queue)

    def deliver_at(self, when: float, queue: Queue) -> None:
        self._loop.timers.at(when, lambda now: queue.request_delivery())

    def hold_until_written(self, put: Put) -> None:
        self._in_memory.append(put)

    def client_failed(self, client: Client, error: Exception) -> None:
        """A client raised during a delivery: end its deliveries, and close it after the present delivery."""
        self._loop.isolation.alarm(f"{client.description}: delivery", error, alarms.SESSION_FAILED)
        if isinstance(client, ClientSession):
            self._failed[client.session] = None
            client.window.close()
            self._loop.performer.request_turn()

    def report_poison(self, queue: RootQueue, app: App, message: Message) -> None:
        """Raise the alarm about a poison message, and dump the message for the operator; once in POISON_ALARM_PERIOD_S."""
        now = self._loop.now
        if now - self._poison_alarm_at >= POISON_ALARM_PERIOD_S:
            self._poison_alarm_at = now
            self._loop.isolation.run(f"Queue '{queue.uri}': the alarm about a poison pill", lambda: self.report.alarm(
                alarms.POISON_PILL, describe.poison_alarm(queue, app, message, self._loop.performer.write_dump)))

    def report_meter(self, queue: RootQueue) -> None:
        self._loop.isolation.run(f"Queue '{queue.uri}': the alarm about its meters", partial(self._report_meters, queue))

    def _report_meters(self, queue: RootQueue) -> None:
        for event in queue.meter.take_events():
            if event.state is None:
                self._end_confirm_delays(queue, event.meter)
            elif event.alarm is not None:
                self.report.alarm(event.alarm, f"{event.text}\n{describe.describe_apps(queue)}")
            else:
                self.report.info(event.text)

    def _end_confirm_delays(self, queue: RootQueue, meter: Meter) -> None:
        """Notify the downstream brokers that a meter of the queue's domain has no ample quota; in slices for many queues."""
        if meter is queue.meter:
            queue.end_confirm_delays()
        else:
            queues = list(cast(Domain, queue.domain).queues.values())
            self.run_in_slices(queue, "the end of delays of CONFIRMs", _end_all_delays(queues))

    def run_in_slices(self, queue: Queue, doing: str, work: Steps[Any]) -> None:
        self._loop.scheduler.start(Priority.QUEUE, queue, work, self._failure(queue, doing, disable=True))

    # -- the turn ---------------------------------------------------------------------------------------------------

    def run(self, now: float) -> None:
        """Release PUTs, deliver, and close the clients that failed."""
        if self._in_memory:
            released, self._in_memory = self._in_memory, []
            self._storage.release(released, now)
        self._deliver(now)
        while self._failed:
            failed, self._failed = self._failed, {}
            for session in failed:
                self._loop.isolation.close(session)
            self._deliver(now)  # their unconfirmed messages go to other consumers

    def drop_requests(self) -> None:
        """Drop all requested deliveries: the broker closes."""
        for queue in self._requested:
            queue.delivery_requested = False
        self._requested.clear()

    def _deliver(self, now: float) -> None:
        clock, until = self._loop.performer.clock, now + _DELIVERY_S
        self._loop.scheduler.run(Priority.DELIVERY)
        while self._requested:
            requested, self._requested = self._requested, []
            for index, queue in enumerate(requested):
                if index and clock() >= until:  # at least one queue in each turn
                    for left in requested[index:]:
                        self._deliver_later(left)
                    break
                self._deliver_from(queue, now)

    def _deliver_later(self, queue: Queue) -> None:
        self._loop.scheduler.add(Priority.DELIVERY, queue, self._delivery(queue), self._failure(queue, "delivery"))

    def _delivery(self, queue: Queue) -> Steps[None]:
        self._deliver_from(queue, self._loop.now)
        yield from ()

    def _deliver_from(self, queue: Queue, now: float) -> None:
        if queue.disabled:
            queue.delivery_requested = False
            return
        try:
            queue.deliver(now)
        except Exception as error:
            queue.delivery_requested = False
            self._loop.isolation.isolate_queue(queue, "delivery", error)

    def _failure(self, queue: Queue, doing: str, disable: bool = False) -> Callable[[Exception], None]:
        return partial(self._loop.isolation.isolate_queue, queue, doing, disable=disable)


def _end_all_delays(queues: list[RootQueue]) -> Steps[None]:
    for number, queue in enumerate(queues, 1):
        queue.end_confirm_delays()
        if not number % QUEUES_AT_ONCE:
            yield
