"""A broker in this process without sockets, files, threads or a real clock: everything happens when asked for.

The composition is that of `bmqtwist.node.service`, with a disk in memory and a shell that performs at once. A link's
`receive` runs the broker until nothing moves any more; what has not come then will not come by waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bmqtwist.cluster.ledger import MetadataLedger
from bmqtwist.link.authentication import Authenticate, attempt
from bmqtwist.link.session import Session
from bmqtwist.node import observe
from bmqtwist.node.admin import AdminExecutor
from bmqtwist.node.broker import Broker, Identity
from bmqtwist.node.clusterconfig import ClusterDefinition
from bmqtwist.node.domains import DomainProvider
from bmqtwist.node.load import DomainReader, find_class, load
from bmqtwist.node.localcluster import LocalCluster
from bmqtwist.node.security import build_security
from bmqtwist.node.stats import Statistics
from bmqtwist.node.watch import Watch
from bmqtwist.report import ListReport
from bmqtwist.storage.filesets import FileSets
from bmqtwist.storage.ledgerdisk import DiskLedgerFile
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.store import File, FileSizes
from kit.client import DEADLINE, Client, Expired
from kit.config import ConfigDirectory
from kit.world import World

PORT = 30114  # nobody listens there; it only has to be named
WALL = 1_790_000_000.0  # seconds since the epoch when a world begins
ROUNDS_MAX = 100_000  # turns without an end are a bug


class MemoryLink:
    """The client's end of a session."""

    def __init__(self, world: MemoryWorld, peer: str) -> None:
        self._world, self.closed = world, False
        self._arrived: deque[bytes] = deque()
        self._ended = False  # the broker closed it; what arrived before can still be read
        self.session: Session | None = world.broker.connect(peer, world.now)
        self.session.transport = self

    def send(self, data: bytes) -> None:
        """Hand bytes to the session; nothing is processed further before somebody receives."""
        if self.session is not None:
            self.session.receive(data, self._world.now, self._world.broker.wall(self._world.now))
            self._world.due = True

    def receive(self, deadline: float) -> bytes:
        """Run the broker until it rests, then what has arrived."""
        self._world.run()
        data = b"".join(self._arrived)
        self._arrived.clear()
        if not data and self._ended:
            self.closed = True
        return data

    def drop(self) -> None:
        """Cut the connection."""
        self.closed = True
        self.lose()
        self._world.run()

    # What the broker's side does

    def arrive(self, data: bytes) -> None:
        """The broker wrote."""
        self._arrived.append(data)

    def end(self) -> None:
        """The broker closed the connection."""
        self._ended = True
        self.lose()

    def lose(self) -> None:
        """Tell the session that its channel is gone."""
        session, self.session = self.session, None
        if session is not None:
            session.lost(self._world.now, self._world.broker.wall(self._world.now))
            self._world.due = True


class MemoryShell:
    """node.broker.Shell that performs at once, or as soon as the world lets it."""

    def __init__(self, world: MemoryWorld) -> None:
        self._world = world

    def turn_due(self) -> None:
        """Another turn."""
        self._world.due = True

    def sync(self, partition: Partition, token: int) -> None:
        """A sync that comes through in the next round, unless the disk is stalled."""
        def complete() -> None:
            partition.sync()
            self._world.broker.synced(partition, token, self._world.now)
        self._world.syncs.append(complete)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """A judgement that comes in the next round."""
        def judged() -> None:
            outcome = attempt(effect.authenticator, effect.data, effect.peer)
            session.authenticated(effect.token, outcome, self._world.now, self._world.broker.wall(self._world.now))
        self._world.later.append(judged)

    def write(self, session: Session, parts: list[bytes]) -> int:
        """Everything is taken at once."""
        data = b"".join(parts)
        if isinstance(session.transport, MemoryLink) and data:
            session.transport.arrive(data)
        return 0

    def finish(self, session: Session) -> None:
        """Close after the turn."""
        if isinstance(session.transport, MemoryLink):
            self._world.later.append(session.transport.end)

    def read(self, session: Session, wanted: bool) -> None:
        """Nobody is slowed down here."""

    def dump(self, text: str) -> str:
        """Keep it."""
        self._world.dumps.append(text)
        return f"/tmp/dump{len(self._world.dumps)}"


class MemoryWorld(World):
    """A world in memory."""

    def __init__(self, root: Path, *, app: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None,
                 start: bool = True) -> None:
        super().__init__()
        self.root = root
        self.config = ConfigDirectory(root, PORT, app=app, cluster=cluster)
        self.disk = MemoryDisk()
        self.report = ListReport()
        self.now = 1000.0
        self.dumps: list[str] = []
        self._peers = self._timer = 0
        if start:
            self.start()

    # Life

    def start(self) -> None:
        """Build a broker over the files as they are and let it recover."""
        self.due = False
        self.syncs: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self._stalled = False
        configuration = load(str(self.config.etc), environment={}).configuration
        identity = Identity("bmqbrkr", 1, "n1", b"broker", self.now, WALL + self.now)
        security = build_security(configuration.app, self.report, lambda seconds: None, find_class)
        provider = DomainProvider(DomainReader(configuration.directory),
                                  configuration.app.bmqconf_config.cache_ttl_seconds, self.report)
        self.broker = Broker(configuration, identity, self.report, security, provider, MemoryShell(self))
        stats = configuration.app.stats
        self._statistics = Statistics(self.now, stats.snapshot_interval, stats.printer.print_interval)
        self.broker.admin = AdminExecutor(self.broker, self._statistics, self._turn_due).execute
        self._locks: list[File] = []
        for definition in configuration.clusters.my_clusters:
            self._open_cluster(definition, configuration.self_nodes[definition.name])
        self.broker.start(self.now)
        Watch(self.broker).start(self.now)
        self.broker.timers.every(self.now, max(stats.snapshot_interval, self._statistics.step_seconds),
                                 lambda now: self._statistics.sample(now, observe.sources(self.broker)))
        self.run()

    def _turn_due(self) -> None:
        self.due = True

    def _timer_ns(self) -> int:
        self._timer += 1  # a real timer never shows the same twice
        return int(self.now * 1e9) + self._timer

    def _open_cluster(self, definition: ClusterDefinition, node_id: int) -> None:
        wall = int(WALL + self.now)
        config, extension = definition.partition_config, self.broker.configuration.extension
        self._locks.append(self.disk.lock(config.location))
        ledger_file = DiskLedgerFile(self.disk, config.location)
        ledger_file.open()
        sizes = FileSizes(config.max_journal_file_size, config.max_data_file_size, config.max_qlist_file_size)
        files = []
        for index in range(config.num_partitions):
            each = FileSets(self.disk, config.location, config.archive_location, index, sizes,
                            config.max_archived_file_sets, config.preallocate)
            each.open(wall)
            files.append(each)
        cluster = LocalCluster(definition, node_id, self.broker, self.report, self._timer_ns)
        ledger = MetadataLedger(ledger_file, node_id, cluster.node_name, config.max_csl_file_size, report=self.report)
        cluster.start(ledger, list(files), extension.durability, extension.payload_cache_bytes, wall)
        self.broker.add_cluster(cluster)

    def stop(self) -> None:
        """The graceful stop, as long as it takes."""
        self.broker.stop(self.now)
        self.run()
        end = self.now + 600
        while self.broker.shutdown is None or not self.broker.shutdown.done:
            assert self.now < end, "the graceful stop does not end"
            self.advance(0.5)
        for session in list(self.broker.sessions):
            session.now, session.wall = self.now, self.broker.wall(self.now)
            session.leave()
        self.run()
        self.broker.close(self.now)
        for lock in self._locks:
            lock.close()

    def crash(self) -> None:
        """kill -9: what was written is there, nothing else happens any more."""
        self.disk.kill()

    # Running

    def run(self) -> None:
        """Let the broker work until nothing moves any more."""
        for _ in range(ROUNDS_MAX):
            later, self.later = self.later, []
            for action in later:
                action()
            syncs: list[Callable[[], None]] = []
            if not self._stalled:
                syncs, self.syncs = self.syncs, []
                for complete in syncs:
                    complete()
            if not (self.due or later or syncs):
                return
            self.due = False
            self.broker.turn(self.now)
        raise AssertionError("the broker does not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        self.run()
        target = self.now + seconds
        while (deadline := self.broker.next_deadline()) is not None and deadline <= target:
            self.now = max(self.now, deadline)
            self.broker.tick(self.now)
            self.due = True
            self.run()
        self.now = target
        self.due = True
        self.run()

    @contextmanager
    def storage_stalled(self) -> Iterator[None]:
        """Syncs do not come through meanwhile."""
        self._stalled = True
        try:
            yield
        finally:
            self._stalled = False
            self.run()

    # What the world shows

    def link(self, listener: int = 0) -> MemoryLink:
        """A session without a socket."""
        self._peers += 1
        return MemoryLink(self, f"127.0.0.1:{40000 + self._peers}")

    def log(self) -> list[str]:
        """The report, severity before the text, without debugging."""
        return [f"{severity} {text}" for severity, text in self.report.lines if severity != "DEBUG"]

    def expect_log(self, *texts: str, since: int = 0, deadline: float = DEADLINE) -> str:
        """It is there or it is not."""
        self.run()
        for record in self.log()[since:]:
            if all(text in record for text in texts):
                return record
        raise Expired("no log record with " + repr(texts) + ":\n" + "\n".join(self.log()[-60:]))

    def gone(self, client: Client) -> None:
        """The broker learned of it at once."""
        self.run()
