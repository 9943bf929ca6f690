"""One queue with its partition on a simulated disk, and nothing of a broker around it: messages in, effects out."""

from __future__ import annotations

from typing import Any

from crc32c import crc32c

from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.queue.counters import AckLatency
from bmqtwist.queue.domain import DomainSettings, Limits, Throttle
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

PLENTY = Limits(1_000_000, 1 << 40)
WALL = 1_795_237_326



class Client:
    """The other end of a handle: what it was pushed and told."""

    def __init__(self, description: str) -> None:
        self.is_broker = self.is_member = False
        self.window = DeliveryWindow()
        self.description = description
        self.got: list[tuple[bytes, int, bool]] = []  # payload, subscription id, out of order
        self.acks: list[tuple[bytes, int]] = []
        self.acks_ahead: list[bytes] = []  # GUIDs

    def push(self, handle: Handle, sub_id: int, message: Any, redelivered: bool) -> None:
        self.got.append((payload_of(message), sub_id, redelivered))

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        self.acks.append((guid, status))

    def ack_early(self, handle: Handle, message: Any, partition_id: int) -> None:
        self.acks_ahead.append(message.guid)

    def take(self) -> list[bytes]:
        """The payloads since the last look."""
        got, self.got = self.got, []
        return [payload for payload, _, _ in got]


def payload_of(message: Any) -> bytes:
    """What follows the properties."""
    return message.payload.rpartition(b"|")[2] if message.has_properties else message.payload


class Engine:
    """A queue, its domain, its surroundings, and a clock."""

    def __init__(self, mode: str = "priority", apps: tuple[str, ...] = (DEFAULT_APP_ID,), in_memory: bool = False,
                 throttle: Throttle | None = None, **settings: Any) -> None:
        self.report, self.now = ListReport(), 100.0
        self.ack_latency = AckLatency()
        self.touched: list[RootQueue] = []
        self.steps = 0  # of work that is done in slices
        self.scheduler = Scheduler(lambda: 0.0, self._step_due)
        self.wakes: list[float] = []
        self.next_turns = 0  # how often there was more to deliver than one turn may
        self.in_memory: list[Put] = []
        self.poisons: list[bytes] = []
        self.disk = MemoryDisk()
        self.partition, _ = start(self.disk, durability="none")
        values: dict[str, Any] = {"mode": mode, "in_memory": in_memory, "domain_limits": PLENTY, "queue_limits": PLENTY,
                                  "ttl_s": 3600, "app_ids": apps, **settings}
        self.domain = Domain("d", "d", "c", DomainSettings(**values), throttle or Throttle())
        keys = [(app, app[:5].encode().ljust(5, b"k")) for app in apps]
        store = self.partition.queues.create(b"queue", "bmq://d/q", keys, WALL)
        context: Any = self  # with parameters and attributes of narrower types
        self.queue = RootQueue("bmq://d/q", "q", store, self.domain, self.partition, context, self.now)
        self.domain.adopt_queue(self.queue)
        self.queue.register_apps()
        self._guid = self._q_id = 0

    # queue.queue.QueueContext

    def touch(self, queue: RootQueue) -> None:
        queue.touched = True
        self.touched.append(queue)

    def touch_next(self, queue: RootQueue) -> None:
        self.next_turns += 1
        self.touch(queue)

    def deliver_at(self, when: float, queue: RootQueue) -> None:
        self.wakes.append(when)

    def hold_until_written(self, put: Put) -> None:
        self.in_memory.append(put)

    def metered(self, queue: RootQueue) -> None:
        queue.meter.take_events()

    def poisoned(self, queue: RootQueue, app: Any, message: Any) -> None:
        self.poisons.append(message.guid)

    def _step_due(self) -> None:
        self.steps += 1

    def in_slices(self, queue: RootQueue, doing: str, work: Steps[Any]) -> None:
        self.scheduler.start(Priority.QUEUE, queue, work, self.job_failed)

    def job_failed(self, error: Exception) -> None:
        raise error

    def client_failed(self, client: Any, error: Exception) -> None:
        raise error

    # what tests do

    def reader(self, app: str | None = None, name: str = "reader", member: bool = False, **spec: Any) -> Handle:
        """A configured consumer; keywords of `spec_of`. `member`: it is another node that has the records, too."""
        handle = self.open(read=1, app=app, name=name)
        handle.client.is_broker = handle.client.is_member = member
        self.configure(handle, spec_of(**spec))
        return handle

    def open(self, read: int = 0, write: int = 0, app: str | None = None, name: str = "client", sub_id: int = 0,
             handle: Handle | None = None) -> Handle:
        """A handle of a client of its own, or more on one."""
        self._q_id += 1
        flags = (FLAG_READ if read else 0) | (FLAG_WRITE if write else 0)
        client = handle.client if handle is not None else Client(name)
        return open_queue(self.queue, client, handle, OpenRequest(self._q_id, sub_id, app, flags, read, write, 0))

    def configure(self, handle: Handle, *specs: ConsumerSpec, app: str = "") -> None:
        """Replace its subscriptions."""
        configure(handle, app or next(iter(handle.substreams.values())).app_id, specs)

    def post(self, *payloads: bytes, handle: Handle | None = None, **values: int) -> list[bytes]:
        """Messages, perhaps with integer properties, and a turn; their GUIDs."""
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
        """Write, release, deliver."""
        released = self.partition.flush(WALL) + self.in_memory
        self.in_memory = []
        for put in released:
            put.queue.release(put, self.now)
        while self.touched:
            touched, self.touched = self.touched, []
            for queue in touched:
                queue.deliver(self.now)

    def rest(self) -> None:
        """Turns until nothing is left to be done."""
        steps = -1
        while steps != self.steps:
            steps = self.steps
            self.scheduler.run(Priority.QUEUE)
            self.turn()
            self.scheduler.end_turn()

    def confirm(self, handle: Handle, *guids: bytes) -> None:
        """Confirm and a turn; none = everything."""
        for substream in handle.substreams.values():
            for guid in guids or list(substream.unconfirmed):
                self.queue.confirm(substream, guid, self.now, WALL)
        self.turn()

    def leave(self, handle: Handle, crashed: bool = False) -> None:
        """A client goes."""
        drop_handle(handle, crashed, WALL)
        self.rest()

    def log(self, text: str) -> int:
        """How many lines hold it."""
        return sum(text in line for _, line in self.report.lines)


def spec_of(s_id: int = 1, x: str = "", priority: int = 0, count: int = 1, m: int = 1000, b: int = 1 << 25,
            version: int | None = None) -> ConsumerSpec:
    """One consumer of one subscription."""
    return ConsumerSpec(s_id, int(bool(x)) if version is None else version, x, priority, count, m, b)


def got(handle: Handle) -> list[bytes]:
    """What a reader was given since the last look."""
    return handle.client.take()  # type: ignore[attr-defined, no-any-return]
