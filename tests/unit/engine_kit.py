"""One queue with its partition on a simulated disk, and nothing of a broker around it: messages in, effects out."""

from __future__ import annotations

from typing import Any

from kit.codec import encode_properties
from storage_kit import start

from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.queue.delivery import deliver
from bmqtwist.queue.domain import Domain, DomainSettings, Limits, Throttle
from bmqtwist.queue.handle import FLAG_READ, FLAG_WRITE, Handle
from bmqtwist.queue.handles import ConsumerSpec, OpenRequest, configure, drop_handle, open_queue
from bmqtwist.queue.queue import Queue
from bmqtwist.report import ListReport
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.wire.checksum import crc32c

PLENTY = Limits(1_000_000, 1 << 40)
WALL = 1_795_237_326



class Client:
    """The other end of a handle: what it was pushed and told."""

    lagging = False

    def __init__(self, description: str) -> None:
        self.description = description
        self.got: list[tuple[bytes, int, bool]] = []  # payload, subscription id, out of order
        self.acks: list[tuple[bytes, int]] = []

    def push(self, handle: Handle, sub_id: int, message: Any, redelivered: bool) -> None:
        self.got.append((payload_of(message), sub_id, redelivered))

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        self.acks.append((guid, status))

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
        self.touched: list[Queue] = []
        self.wakes: list[float] = []
        self.memory_gate: list[Any] = []
        self.poisons: list[bytes] = []
        self.disk = MemoryDisk()
        self.partition, _ = start(self.disk, durability="none")
        values: dict[str, Any] = {"mode": mode, "in_memory": in_memory, "domain_limits": PLENTY, "queue_limits": PLENTY,
                                  "ttl_s": 3600, "app_ids": apps, **settings}
        self.domain = Domain("d", "d", "c", DomainSettings(**values), throttle or Throttle())
        self.queue = Queue("bmq://d/q", "q", b"queue", self.domain, self.partition, self, 300.0)
        self.domain.adopt_queue(self.queue)
        keys = [(app, app[:5].encode().ljust(5, b"k")) for app in apps]
        self.partition.create_queue(b"queue", "bmq://d/q", keys, WALL)
        for app, key in keys:
            self.queue.add_app(app, key)
        self._guid = self._q_id = 0

    # queue.queue.QueueContext

    def touch(self, queue: Queue) -> None:
        queue.touched = True
        self.touched.append(queue)

    def wake_at(self, when: float, queue: Queue) -> None:
        self.wakes.append(when)

    def gate_memory(self, effect: Any) -> None:
        self.memory_gate.append(effect)

    def metered(self, queue: Queue) -> None:
        queue.meter.take_events()

    def poisoned(self, queue: Queue, app: Any, message: Any) -> None:
        self.poisons.append(message.guid)

    def client_failed(self, client: Any, error: Exception) -> None:
        raise error

    # what tests do

    def reader(self, app: str | None = None, name: str = "reader", **spec: Any) -> Handle:
        """A configured consumer; keywords of `spec_of`."""
        handle = self.open(read=1, app=app, name=name)
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
            status = self.queue.post(handle, guids[-1], 0, True, data, bool(values), 0, int(bool(values)), crc32c(data),
                                     b"", self.now, WALL)
            assert status == 0
        self.turn()
        return guids

    def turn(self) -> None:
        """Write, release, deliver."""
        released = self.partition.flush(WALL) + self.memory_gate
        self.memory_gate = []
        for queue, message, handle, guid, correlation_id, _ in released:
            if handle is not None:
                handle.client.ack(handle, guid, correlation_id, 0)
            if message is not None:
                queue.released(message)
        while self.touched:
            touched, self.touched = self.touched, []
            for queue in touched:
                deliver(queue, self.now)

    def confirm(self, handle: Handle, *guids: bytes) -> None:
        """Confirm and a turn; none = everything."""
        for substream in handle.substreams.values():
            for guid in guids or list(substream.unconfirmed):
                self.queue.confirm(substream, guid, self.now, WALL)
        self.turn()

    def leave(self, handle: Handle, crashed: bool = False) -> None:
        """A client goes."""
        drop_handle(handle, crashed, WALL)
        self.turn()

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
