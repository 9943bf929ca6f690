"""Crashes of a broker at every disk write of every operation that changes metadata, and the check after the restart.

A broker on a simulated disk has fanout queues with messages, some of them confirmed for some apps. An operation runs with
PUTs before, during and after it; the broker crashes instead of the n-th disk operation, for every n until the operation
completes. The process is killed, or the power is lost, with none or a part of the unsynced writes. Then the broker is
started twice. Acknowledged messages must be stored, and the apps of each queue must be equal in metadata and queue. Run by
`test_metadata_crashes.py` (a part) and `tests/soak/metadata.py` (all).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kit import codec
from kit.client import Client
from kit.memory import MemoryLink, MemoryWorld

from bmqtwist.storage.journal import UNFINISHED_TEXT
from bmqtwist.storage.memory import ProcessKilled

APPS = ("foo", "bar")
QUEUES = tuple(f"bmq://f/q{number}" for number in range(3))  # one in each partition
NEW, EMPTY = "bmq://f/new", "bmq://f/empty"


@dataclass(frozen=True)
class Operation:
    """A change of metadata: `begin` requests it; `apps` are those of the domain afterwards."""

    begin: Callable[[CrashRun], None]
    apps: tuple[str, ...] = APPS


@dataclass
class CrashRun:
    """One broker and its producer, with the acknowledged and confirmed messages."""

    world: MemoryWorld
    producer: Client = field(init=False)
    acked: dict[str, list[bytes]] = field(default_factory=dict)  # by queue: payloads
    confirmed: set[tuple[str, str, bytes]] = field(default_factory=set)  # queue, app, payload
    _posted: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = self.world
        world.domain("f", "fanout", apps=APPS)
        self.producer = world.client("producer")
        for uri in (*QUEUES, EMPTY):
            self.producer.open(uri, write=1)
            self.acked[uri] = []
        for number in range(4):
            self.post(*QUEUES, text=b"before%d" % number)
        world.run()
        self.receive_acks()
        for uri in QUEUES:
            reader = world.consumer(uri, "foo")
            pushes = world.pushes(reader)
            reader.confirm(*pushes[:2])
            self.confirmed |= {(uri, "foo", push.payload) for push in pushes[:2]}
            world.run()
            reader.client.drop()
        world.wait_idle()

    def post(self, *uris: str, text: bytes) -> None:
        """Send a PUT to each queue, in one event each, without a turn of the broker."""
        for uri in uris:
            queue = next(opened[0] for opened in self.producer.queues.values() if opened[0].uri == uri)
            guid = self.producer.new_guid()
            self._posted[guid] = uri, text
            self.producer.send(codec.put_frame([codec.put_message(queue.q_id, guid, text)]))

    def receive_acks(self) -> None:
        """Process the ACKs that the broker has written, also after its crash."""
        link = self.producer.link
        assert isinstance(link, MemoryLink)
        frames, _ = codec.split_frames(b"".join(link._arrived))
        link._arrived.clear()
        for frame in frames:
            for event in codec.decode_event(frame, negotiated=True):
                if event.kind == "ack" and event.ack.status == 0:
                    uri, payload = self._posted.pop(event.ack.guid)
                    self.acked.setdefault(uri, []).append(payload)


def create(run: CrashRun) -> None:
    """Open a new queue and send a PUT directly after the open request."""
    parameters = run.producer.handle_parameters(NEW, 90, write=1)
    run.producer.send_request({"openQueue": {"handleParameters": parameters}})
    guid = run.producer.new_guid()
    run._posted[guid] = NEW, b"first"
    run.producer.send(codec.put_frame([codec.put_message(90, guid, b"first")]))


def reconfigure(*apps: str, **parameters: int) -> Callable[[CrashRun], None]:
    """Return an operation that reconfigures the domain with other apps or settings."""
    def begin(run: CrashRun) -> None:
        run.world.domain("f", "fanout", apps=apps, **parameters)
        run.world.broker.commands.run_at_once("DOMAINS RECONFIGURE f", "test")
        run.world.turn_requested = True
    return begin


def delete(run: CrashRun) -> None:
    """Delete the empty unused queue by forced garbage collection."""
    queue = next(opened[0] for opened in run.producer.queues.values() if opened[0].uri == EMPTY)
    queue.close_only()
    run.world.broker.commands.run_at_once("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES", "test")
    run.world.turn_requested = True


OPERATIONS = {
    "create": Operation(create), "app added": Operation(reconfigure("foo", "bar", "new"), ("foo", "bar", "new")),
    "app removed": Operation(reconfigure("bar"), ("bar",)),
    "apps replaced": Operation(reconfigure("bar", "new"), ("bar", "new")), "queue deleted": Operation(delete),
    "domain changed": Operation(reconfigure("foo", "bar", queue_messages=5000, maxDeliveryAttempts=3)),
}
CRASHES: dict[str, Callable[[MemoryWorld, int], None]] = {
    "kill": lambda world, seed: world.disk.kill(),
    "power": lambda world, seed: world.disk.crash(),
    "power, torn": lambda world, seed: world.disk.crash(Random(seed)),
}


def walk(operation: Operation, crash: Callable[[MemoryWorld, int], None], root: Path, first: int = 0,
         stride: int = 1) -> Counter[str]:
    """Crash at every `stride`-th disk operation from `first` on, check each restart, and return counts."""
    counts: Counter[str] = Counter()
    for step in range(first, 10_000, stride):
        place = root / str(step)
        place.mkdir()
        run = CrashRun(MemoryWorld(place, cluster={"partition": {"numPartitions": 3}}))
        crashed = _run_until_crash(run, operation, step)
        run.receive_acks()
        counts["acknowledged"] += sum(map(len, run.acked.values()))
        crash(run.world, step)
        judge(run, operation, step, crash is not CRASHES["kill"])
        if not crashed:
            return counts
        counts["crashes"] += 1
    raise AssertionError("the operation did not complete in 10,000 disk operations")


def _run_until_crash(run: CrashRun, operation: Operation, step: int) -> bool:
    world = run.world
    world.disk.stop_after = world.disk.steps + step
    try:
        run.post(*QUEUES, text=b"with")
        operation.begin(run)
        world.run()
        run.post(*QUEUES, text=b"behind")
        world.run()
        world.advance(1.5)
    except ProcessKilled:
        return True
    return False


def judge(run: CrashRun, operation: Operation, step: int, power: bool) -> None:
    """Start twice and compare metadata, queues and deliveries; a loss of `power` may undo unsynced confirms."""
    world = run.world
    world._drop_clients()
    for start in (1, 2):
        line_count = len(world.log())
        world.start()
        world.advance(2)
        news = [line for line in world.log()[line_count:]
                if line.startswith(("ALARM", "PANIC", "ERROR")) and UNFINISHED_TEXT not in line]
        if start == 1:  # truncations and completed changes are logged once
            news = [line for line in news if not line.startswith(("ALARM [RECOVERY]", "ALARM [CLUSTER]"))]
        assert not news, (step, start, news)
        for uri, record in world.broker.clusters["c3"].metadata.state.queues.items():
            queue = world.broker.clusters["c3"].queues[uri]
            apps = [app.app_id for app in queue.active]
            assert list(record.apps) == apps and set(apps) == set(operation.apps), (step, start, uri, apps)
        if start == 1:
            world._drop_clients()
            world.crash()
    state = world.broker.clusters["c3"].metadata.state.queues
    for uri, payloads in run.acked.items():
        assert uri in state or not payloads, (step, uri, "does not exist, with acknowledged messages")
        for app in operation.apps if payloads else ():
            reader = world.consumer(uri, app)
            pushes = world.pushes(reader)
            got = {push.payload for push in pushes}
            reader.confirm(*pushes)
            world.run()
            reader.client.drop()
            wanted = {payload for payload in payloads if (uri, app, payload) not in run.confirmed}
            if app in APPS:
                assert wanted <= got, (step, uri, app, "lost", wanted - got)
            back = {payload for payload in got if (uri, app, payload) in run.confirmed}
            assert not back or power, (step, uri, app, "confirmed messages delivered", back)
    for uri in (*QUEUES, NEW, EMPTY):
        readers = [world.consumer(uri, app) for app in operation.apps]
        assert not any([world.new_payloads(reader) for reader in readers]) or uri not in run.acked, (step, uri)
        world.producer(uri).post(b"afterwards")
        assert all(world.new_payloads(reader) == [b"afterwards"] for reader in readers), (step, uri)
