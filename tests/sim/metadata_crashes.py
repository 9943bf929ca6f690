"""A crash at every write of every operation that changes metadata: what was acknowledged is there, no app is half there.

One broker over a simulated disk has fanout queues with messages, of which some are confirmed for some apps. One operation
runs with PUTs before, with and behind it, and dies instead of its n-th write, for every n until it comes through; the
process is killed, or the power is lost with nothing or with a part of what was not synced surviving. Then the broker is
started, twice.
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

from bmqtwist.storage.memory import Died
from bmqtwist.storage.recovery import UNFINISHED

APPS = ("foo", "bar")
QUEUES = tuple(f"bmq://f/q{number}" for number in range(3))  # one in each partition
NEW, EMPTY = "bmq://f/new", "bmq://f/empty"


@dataclass(frozen=True)
class Operation:
    """What changes: `begin` asks for it, `apps` are those of the domain afterwards."""

    begin: Callable[[Life], None]
    apps: tuple[str, ...] = APPS


@dataclass
class Life:
    """One broker, its producer, and what it was told."""

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
        self.hear()
        for uri in QUEUES:
            reader = world.consumer(uri, "foo")
            pushes = world.pushes(reader)
            reader.confirm(*pushes[:2])
            self.confirmed |= {(uri, "foo", push.payload) for push in pushes[:2]}
            world.run()
            reader.client.drop()
        world.settle()

    def post(self, *uris: str, text: bytes) -> None:
        """A message to each queue, in one event each; nothing is run yet."""
        for uri in uris:
            queue = next(opened[0] for opened in self.producer.queues.values() if opened[0].uri == uri)
            guid = self.producer.new_guid()
            self._posted[guid] = uri, text
            self.producer.send(codec.put_frame([codec.put_message(queue.q_id, guid, text)]))

    def hear(self) -> None:
        """Take what the broker wrote, whether it lives or not."""
        link = self.producer.link
        assert isinstance(link, MemoryLink)
        frames, _ = codec.split_frames(b"".join(link._arrived))
        link._arrived.clear()
        for frame in frames:
            for event in codec.decode_event(frame, negotiated=True):
                if event.kind == "ack" and event.ack.status == 0:
                    uri, payload = self._posted.pop(event.ack.guid)
                    self.acked.setdefault(uri, []).append(payload)


def create(life: Life) -> None:
    """The first open of a queue, and PUTs right behind it."""
    parameters = life.producer.handle_parameters(NEW, 90, write=1)
    life.producer.send_request({"openQueue": {"handleParameters": parameters}})
    guid = life.producer.new_guid()
    life._posted[guid] = NEW, b"first"
    life.producer.send(codec.put_frame([codec.put_message(90, guid, b"first")]))


def reconfigure(*apps: str, **parameters: int) -> Callable[[Life], None]:
    """Another list of apps, or other settings, for all queues of the domain at once."""
    def begin(life: Life) -> None:
        life.world.domain("f", "fanout", apps=apps, **parameters)
        life.world.broker.commands.run_at_once("DOMAINS RECONFIGURE f", "test")
        life.world.turn_requested = True
    return begin


def delete(life: Life) -> None:
    """Queues that are empty and unused, of which there is one."""
    queue = next(opened[0] for opened in life.producer.queues.values() if opened[0].uri == EMPTY)
    queue.close_only()
    life.world.broker.commands.run_at_once("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES", "test")
    life.world.turn_requested = True


OPERATIONS = {
    "create": Operation(create), "app added": Operation(reconfigure("foo", "bar", "new"), ("foo", "bar", "new")),
    "app removed": Operation(reconfigure("bar"), ("bar",)),
    "apps replaced": Operation(reconfigure("bar", "new"), ("bar", "new")), "queue deleted": Operation(delete),
    "domain changed": Operation(reconfigure("foo", "bar", queue_messages=5000, maxDeliveryAttempts=3)),
}
POWER: dict[str, Callable[[MemoryWorld, int], None]] = {
    "kill": lambda world, seed: world.disk.kill(),
    "power": lambda world, seed: world.disk.crash(),
    "power, torn": lambda world, seed: world.disk.crash(Random(seed)),
}


def walk(operation: Operation, crash: Callable[[MemoryWorld, int], None], root: Path, first: int = 0,
         stride: int = 1) -> Counter[str]:
    """Every write, or every so many; what was counted. AssertionError says what is wrong."""
    counts: Counter[str] = Counter()
    for step in range(first, 10_000, stride):
        place = root / str(step)
        place.mkdir()
        life = Life(MemoryWorld(place, cluster={"partition": {"numPartitions": 3}}))
        died = _die(life, operation, step)
        life.hear()
        counts["acknowledged"] += sum(map(len, life.acked.values()))
        crash(life.world, step)
        judge(life, operation, step, crash is not POWER["kill"])
        if not died:
            return counts
        counts["crashes"] += 1
    raise AssertionError("the operation never ends")


def _die(life: Life, operation: Operation, step: int) -> bool:
    world = life.world
    world.disk.stop_after = world.disk.steps + step
    try:
        life.post(*QUEUES, text=b"with")
        operation.begin(life)
        world.run()
        life.post(*QUEUES, text=b"behind")
        world.run()
        world.advance(1.5)
    except Died:
        return True
    return False


def judge(life: Life, operation: Operation, step: int, power: bool) -> None:
    """Start, twice; metadata, partitions and consumers agree. A loss of power may take confirms that were not synced."""
    world = life.world
    world._forget_clients()
    for start in (1, 2):
        told = len(world.log())
        world.start()
        world.advance(2)
        news = [line for line in world.log()[told:]
                if line.startswith(("ALARM", "PANIC", "ERROR")) and UNFINISHED not in line]
        if start == 1:  # what was cut off, or completed, is said once
            news = [line for line in news if not line.startswith(("ALARM [RECOVERY]", "ALARM [CLUSTER]"))]
        assert not news, (step, start, news)
        for uri, record in world.broker.clusters["c3"].metadata.state.queues.items():
            queue = world.broker.clusters["c3"].queues[uri]
            apps = [app.app_id for app in queue.active]
            assert list(record.apps) == apps and set(apps) == set(operation.apps), (step, start, uri, apps)
        if start == 1:
            world._forget_clients()
            world.crash()
    state = world.broker.clusters["c3"].metadata.state.queues
    for uri, payloads in life.acked.items():
        assert uri in state or not payloads, (step, uri, "is gone with its messages")
        for app in operation.apps if payloads else ():
            reader = world.consumer(uri, app)
            pushes = world.pushes(reader)
            got = {push.payload for push in pushes}
            reader.confirm(*pushes)
            world.run()
            reader.client.drop()
            wanted = {payload for payload in payloads if (uri, app, payload) not in life.confirmed}
            if app in APPS:
                assert wanted <= got, (step, uri, app, "lost", wanted - got)
            back = {payload for payload in got if (uri, app, payload) in life.confirmed}
            assert not back or power, (step, uri, app, "came back", back)
    for uri in (*QUEUES, NEW, EMPTY):
        readers = [world.consumer(uri, app) for app in operation.apps]
        assert not any([world.got(reader) for reader in readers]) or uri not in life.acked, (step, uri)
        world.producer(uri).post(b"afterwards")
        assert all(world.got(reader) == [b"afterwards"] for reader in readers), (step, uri)
