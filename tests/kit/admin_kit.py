"""A broker on a simulated disk, without connections: test clients record their deliveries and ACKs.

Used by tests/unit/admin, tests/unit/view and `unit/daemon/test_monitor.py`. A broker with connections is in `memory.py`,
one queue without a broker in `engine_kit.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bmqtwist.admin.executor import AdminExecutor
from bmqtwist.broker.broker import Broker
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.metadata_log import MetadataLog
from bmqtwist.config.broker import BrokerConfig, Configuration
from bmqtwist.config.clusters import Clusters
from bmqtwist.config.declare import decode_text
from bmqtwist.config.domain import DomainVariant
from bmqtwist.config.provider import DomainFile, DomainProvider
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import parse_uri
from bmqtwist.member.cluster import Cluster
from bmqtwist.member.features import ClusterFeatures
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.member.storage_standing import StorageStanding
from bmqtwist.peers.handshake import Identity
from bmqtwist.queue.handles import OpenRequest, configure, drop_handle, open_queue
from bmqtwist.queue.queue import ConsumerSpec, Handle, Put
from bmqtwist.queue.root import RootQueue
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.report import ListReport
from bmqtwist.steps import Awaited, at_once
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.identity import IdentityFile, StorageIdentity
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.message import Message
from bmqtwist.storage.slot_file import StorageVersionFile
from bmqtwist.storage.store import FileSizes
from bmqtwist.view.statistics import Statistics
from kit.config import broker_config, clusters_config, domain_config

STARTED, STARTED_WALL = 100.0, 1_700_000_000.0
SIZES = FileSizes(1 << 20, 4 << 20, 1 << 20)


class Source:
    """Domain files in memory."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def read(self, name: str) -> DomainFile:
        return DomainFile(f"etc/domains/{name}.json", self.files.get(name), name not in self.files)

    def read_proxy_cluster(self, name: str) -> DomainFile:
        return DomainFile(f"etc/proxyclusters/{name}.json", None, missing=True)

    def stamp(self) -> int:
        return 1

    def names(self) -> list[str]:
        return sorted(self.files)


class Shell:
    """Performer without connections and syncs: it performs the writes of the metadata at once."""

    broker: Broker

    def request_turn(self) -> None: ...

    def clock(self) -> float:
        return self.broker.loop.now

    def processor_time(self) -> float:
        return self.clock()

    def chance(self) -> float:
        return 0.5

    def run_in_thread(self, work: Any, done: Any, failed: Any) -> None:
        work()
        done(self.broker.loop.now)

    def authenticate(self, session: Any, effect: Any) -> None: ...

    def write(self, session: Any, parts: list[bytes]) -> int:
        return 0

    def close_when_sent(self, session: Any) -> None: ...

    def set_reading(self, session: Any, wanted: bool) -> None: ...

    def write_dump(self, text: str) -> str:
        return "/tmp/x"


class Reader:
    """A client: `got` has the GUIDs of delivered messages, `acks` (GUID, status)."""

    def __init__(self, description: str) -> None:
        self.description, self.got, self.acks = description, [], []  # type: ignore[var-annotated]
        self.window = DeliveryWindow()
        self.is_broker = self.is_member = self.resumes_at_once = False

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None:
        self.got.append(message.guid)

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        self.acks.append((guid, status))


class Bench:
    """A broker with a clock that tests advance; `now` is monotonic time in s."""

    def __init__(self, **cluster: Any) -> None:
        storage = Path("/l")
        broker = decode_text(BrokerConfig, json.dumps(broker_config(storage, 1)), "broker", [])
        clusters = decode_text(Clusters, json.dumps(clusters_config(storage, 1, **cluster)), "clusters", [])
        configuration = Configuration(directory="etc", broker=broker, clusters=clusters, self_nodes={"c3": 1}, listeners=())
        identity = Identity("bmqtwist", 1, "host", b"client", STARTED, STARTED_WALL)
        self.report, self.source, self.performer = ListReport(), Source(), Shell()
        security: Any = None  # no connection is made
        performer: Any = self.performer
        self.broker = Broker(configuration, identity, self.report, security,
                             DomainProvider(self.source, 30.0, self.report), performer)
        self.performer.broker = self.broker
        disk, self._tick, self._guid, self._q_id = MemoryDisk(), 0, 0, 0
        files = [FileSets(disk, "/l", "/a", number, SIZES, 2) for number in range(2)]
        for each in files:
            each.open(int(STARTED_WALL))
        ledger = LedgerFile(disk, "/l")
        ledger.open()
        self.cluster = Cluster(clusters.my_clusters[0], 1, self.broker.loop, self.broker.deliveries, self.broker.domains,
                               self._timer)
        self.cluster.features = ClusterFeatures("c3", "/l", identity.versions, StorageVersionFile(disk, "/l"),
                                                self.broker.loop, 3600, None)
        metadata = ClusterMetadata(MetadataLog(Electorate(1, (1,)), "n1", 1 << 20), ledger, self.report)
        standing = StorageStanding(clusters.my_clusters[0], metadata, StorageIdentity("local", 1, 2, 1),
                                   IdentityFile(disk, "/l"), self.broker.loop)
        leadership = Leadership(standing, self.broker.loop)
        self.cluster.start(leadership, list(files), "none", 1 << 20, STARTED, int(STARTED_WALL))
        self.broker.add_cluster(self.cluster)
        self.broker.start(STARTED)
        self.statistics = Statistics(STARTED)
        self.admin = AdminExecutor(self.broker, self.statistics)

    def _timer(self) -> int:
        self._tick += 1
        return self._tick

    @property
    def now(self) -> float:
        """Return the monotonic time in s."""
        return self.broker.loop.now

    def advance(self, seconds: float) -> None:
        """Advance the clock, stopping at each deadline of the broker."""
        end = self.now + seconds
        while (deadline := self.broker.next_deadline()) is not None and deadline <= end:
            self.broker.tick(deadline)
        self.broker.tick(end)

    # actions of tests

    def write_domain(self, name: str = "d", *args: Any, **parameters: Any) -> None:
        """Write the file of a domain."""
        text = json.dumps(domain_config(name, *args, **parameters))
        decode_text(DomainVariant, text, name, [])
        self.source.files[name] = text

    def queue(self, uri: str = "bmq://d/q") -> RootQueue:
        """Return a queue; create it if it does not exist."""
        parsed = parse_uri(uri)
        domain = self.broker.domains.get_or_load(parsed.domain)
        if domain.removing:
            raise Refused(Category.E_REFUSED, "Domain is removing or removed", -10)
        found: list[RootQueue | Refused] = [domain.queues[parsed.queue]] if parsed.queue in domain.queues else []
        if not found:
            self.cluster.changes.create_queue(domain, uri, self.now, self.broker.loop.wall(self.now), found.append)
            self.turn()
        if isinstance(found[0], Refused):
            raise found[0]
        return found[0]

    def open(self, uri: str = "bmq://d/q", app: str | None = None, *, read: bool = False, name: str = "task:1",
             limit: int = 1000, expression: str = "") -> Handle:
        """Open a handle for a new client; a reader is configured, too."""
        self._q_id += 1
        request = OpenRequest(self._q_id, 0, app, 2 if read else 4, int(read), int(not read), 0)
        handle = open_queue(self.queue(uri), Reader(name), None, request)
        if read:
            spec = ConsumerSpec(1, 1 if expression else 0, expression, 0, 1, limit, 1 << 25)
            configure(handle, app or "", [spec])
        self.turn()
        return handle

    def close(self, handle: Handle, crashed: bool = False) -> None:
        """Close a handle, as at the end of its client."""
        drop_handle(handle, crashed, self.broker.loop.wall(self.now))
        if not handle.queue.handles:
            handle.queue.idle_since = self.now
        self.turn()

    def post(self, handle: Handle, *payloads: bytes, properties: bool = False) -> list[bytes]:
        """Post messages that request ACKs; return their GUIDs."""
        guids = []
        for payload in payloads:
            self._guid += 1
            guids.append(self._guid.to_bytes(16, "big"))
            wall = self.broker.loop.wall(self.now)
            message = Message(guids[-1], payload, has_properties=properties, arrived=self.now, wall=wall)
            assert handle.queue.post(Put(handle, message, 0, True), self.now, wall) == 0
        self.turn()
        return guids

    def confirm(self, handle: Handle, count: int | None = None) -> None:
        """Confirm the oldest messages of a reader."""
        for substream in handle.substreams.values():
            for guid in list(substream.unconfirmed)[:count]:
                handle.queue.confirm(substream, guid, self.now, self.broker.loop.wall(self.now))
        self.turn()

    def turn(self) -> None:
        """Run a turn of the broker: write, release, deliver."""
        self.broker.turn(self.now)

    def run(self, command: str) -> str:
        """Run an admin command and return its answer."""
        answer = at_once(self.admin.execute(command, "test"))
        assert not isinstance(answer, Awaited), f"'{command}' depends on other nodes"
        self.turn()
        return answer.text
