"""One queue with its partition on a simulated disk, without a broker: tests post messages and check the effects.

Used by tests/unit/queue; a partition alone is in `storage_kit.py`, a whole broker in `memory.py`.
"""

from __future__ import annotations

from typing import Any

from crc32c import crc32c

from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.queue.counters import AckLatency
from bmqtwist.queue.domain import DomainSettings, MeterLimits, Throttle
from bmqtwist.queue.handles import OpenRequest, configure, drop_handle, open_queue
from bmqtwist.queue.queue import FLAG_READ, FLAG_WRITE, ConsumerSpec, Handle, Put
from bmqtwist.queue.root import Domain, RootQueue
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.report import ListReport
from bmqtwist.steps import Steps
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.message import Message
from kit.codec import encode_properties
from kit.storage_kit import start

AMPLE_LIMITS = MeterLimits(1_000_000, 1 << 40)
WALL = 1_795_237_326


class Client:
    """Client of a handle; records deliveries and ACKs."""

    def __init__(self, description: str) -> None:
        self.is_broker = self.is_member = self.resumes_at_once = False
        self.window = DeliveryWindow()
        self.description = description
        self.got: list[tuple[bytes, int, bool]] = []  # payload, subscription id, out of order
        self.acks: list[tuple[bytes, int]] = []
        self.acks_ahead: list[bytes] = []  # GUIDs
        self.can_store = True

    def push(self, handle: Handle, sub_id: int, message: Any, redelivered: bool) -> None:
        self.got.append((payload_of(message), sub_id, redelivered))

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        self.acks.append((guid, status))

    def ack_early(self, handle: Handle, message: Any, partition_id: int) -> None:
        self.acks_ahead.append(message.guid)

    def take(self) -> list[bytes]:
        """Return the payloads delivered since the last call."""
        got, self.got = self.got, []
        return [payload for payload, _, _ in got]


def payload_of(message: Any) -> bytes:
    """Return the payload of a message, without its properties."""
    return message.payload.rpartition(b"|")[2] if message.has_properties else message.payload


class Engine:
    """A queue with its domain and partition; takes the place of the broker as its context, with a clock `now`."""

    def __init__(self, mode: str = "priority", apps: tuple[str, ...] = (DEFAULT_APP_ID,), in_memory: bool = False,
                 throttle: Throttle | None = None, **settings: Any) -> None:
        self.report, self.now = ListReport(), 100.0
        self.ack_latency = AckLatency()
        self.touched: list[RootQueue] = []
        self.steps = 0  # executed steps of work in slices
        self.scheduler = Scheduler(lambda: 0.0, self._step_due)
        self.delivery_times: list[float] = []
        self.next_turns = 0  # turns that left deliveries for the next one
        self.in_memory: list[Put] = []
        self.poisons: list[bytes] = []
        self.disk = MemoryDisk()
        self.partition, _ = start(self.disk, durability="none")
        values: dict[str, Any] = {"mode": mode, "in_memory": in_memory, "domain_limits": AMPLE_LIMITS,
                                  "queue_limits": AMPLE_LIMITS,
                                  "ttl_s": 3600, "app_ids": apps, **settings}
        self.domain = Domain("d", "d", "c", DomainSettings(**values), throttle or Throttle())
        keys = [(app, app[:5].encode().ljust(5, b"k")) for app in apps]
        store = self.partition.queues.create(b"queue", "bmq://d/q", keys, WALL)
        context: Any = self  # its parameters and attributes have narrower types
        self.queue = RootQueue("bmq://d/q", "q", store, self.domain, self.partition, context, self.now)
        self.domain.adopt_queue(self.queue)
        self.queue.register_apps()
        self._guid = self._q_id = 0

    # queue.queue.QueueContext

    def request_delivery(self, queue: RootQueue) -> None:
        queue.delivery_requested = True
        self.touched.append(queue)

    def request_delivery_next_turn(self, queue: RootQueue) -> None:
        self.next_turns += 1
        self.request_delivery(queue)

    def deliver_at(self, when: float, queue: RootQueue) -> None:
        self.delivery_times.append(when)

    def hold_until_written(self, put: Put) -> None:
        self.in_memory.append(put)

    def report_meter(self, queue: RootQueue) -> None:
        queue.meter.take_events()

    def report_poison(self, queue: RootQueue, app: Any, message: Any) -> None:
        self.poisons.append(message.guid)

    def _step_due(self) -> None:
        self.steps += 1

    def run_in_slices(self, queue: RootQueue, doing: str, work: Steps[Any]) -> None:
        self.scheduler.start(Priority.QUEUE, queue, work, self.job_failed)

    def job_failed(self, error: Exception) -> None:
        raise error

    def client_failed(self, client: Any, error: Exception) -> None:
        raise error

    # actions of tests

    def reader(self, app: str | None = None, name: str = "reader", member: bool = False, **spec: Any) -> Handle:
        """Open and configure a consumer; keywords of `spec_of`. `member`: the consumer is a replica that has the records."""
        handle = self.open(read=1, app=app, name=name)
        handle.client.is_broker = handle.client.is_member = member
        self.configure(handle, spec_of(**spec))
        return handle

    def open(self, read: int = 0, write: int = 0, app: str | None = None, name: str = "client", sub_id: int = 0,
             handle: Handle | None = None) -> Handle:
        """Open a handle for a new client, or open more on `handle`."""
        self._q_id += 1
        flags = (FLAG_READ if read else 0) | (FLAG_WRITE if write else 0)
        client = handle.client if handle is not None else Client(name)
        return open_queue(self.queue, client, handle, OpenRequest(self._q_id, sub_id, app, flags, read, write, 0))

    def configure(self, handle: Handle, *specs: ConsumerSpec, app: str = "") -> None:
        """Replace the subscriptions of a consumer."""
        configure(handle, app or next(iter(handle.substreams.values())).app_id, specs)

    def post(self, *payloads: bytes, handle: Handle | None = None, **values: int) -> list[bytes]:
        """Post messages, with integer properties from `values`, and run a turn; return the GUIDs."""
        handle = handle or self.open(write=1, name="producer")
        guids = []
        for payload in payloads:
            self._guid += 1
            guids.append((0x40 << 120 | self._guid).to_bytes(16, "big"))
            data = encode_properties({name: ("INT32", value) for name, value in values.items()}) + b"|" + payload \
                if values else payload
            message = Message(guids[-1], data, b"", bool(values), 0, int(bool(values)), crc32c(data), self.now, WALL)
            assert self.queue.post(Put(handle, message, 0, True), self.now, WALL) == 0
        self.turn()
        return guids

    def turn(self) -> None:
        """Run a turn: write, release, deliver."""
        released = self.partition.flush(WALL) + self.in_memory
        self.in_memory = []
        for put in released:
            put.queue.release(put, self.now)
        while self.touched:
            touched, self.touched = self.touched, []
            for queue in touched:
                queue.deliver(self.now)

    def rest(self) -> None:
        """Run turns until the scheduler has no steps."""
        steps = -1
        while steps != self.steps:
            steps = self.steps
            self.scheduler.run(Priority.QUEUE)
            self.turn()
            self.scheduler.end_turn()

    def confirm(self, handle: Handle, *guids: bytes) -> None:
        """Confirm messages (by default all unconfirmed ones) and run a turn."""
        for substream in handle.substreams.values():
            for guid in guids or list(substream.unconfirmed):
                self.queue.confirm(substream, guid, self.now, WALL)
        self.turn()

    def leave(self, handle: Handle, crashed: bool = False) -> None:
        """Close a handle, as at the end of its client."""
        drop_handle(handle, crashed, WALL)
        self.rest()

    def log(self, text: str) -> int:
        """Return the number of log lines that contain a text."""
        return sum(text in line for _, line in self.report.lines)


def spec_of(s_id: int = 1, x: str = "", priority: int = 0, count: int = 1, m: int = 1000, b: int = 1 << 25,
            version: int | None = None) -> ConsumerSpec:
    """Create the configuration of one consumer of a subscription."""
    return ConsumerSpec(s_id, int(bool(x)) if version is None else version, x, priority, count, m, b)


def got(handle: Handle) -> list[bytes]:
    """Return the payloads delivered to a consumer since the last call."""
    return handle.client.take()  # type: ignore[attr-defined, no-any-return]
