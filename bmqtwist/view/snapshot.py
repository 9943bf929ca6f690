"""Snapshots of a broker's state for the console, the metrics and the admin commands: plain immutable data.

Sizes are bytes, `*_wall` are seconds since the epoch, keys are upper-case hexadecimal. A snapshot contains no reference to
a live object, so it can be stored, compared and rendered at any time. This module declares the data; `snapshots.py` creates
it from the broker. Documents of the console are in `documents.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from msgspec import Struct, field

from bmqtwist.queue.mode import QueueMode

_NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


def no_numbers() -> Mapping[str, float]:
    """Return an empty set of counters."""
    return _NO_NUMBERS


class NodeRole(IntEnum):
    """Role of this node for a queue; the numbers are the values of the metric `queue_role`."""

    UNKNOWN = 0
    PRIMARY = 1
    REPLICA = 2
    PROXY = 3


class MeterSnapshot(Struct, frozen=True):
    """Usage and capacity of a queue or domain; `parent` is the meter of the domain."""

    name: str
    messages: int
    message_capacity: int
    bytes: int
    byte_capacity: int
    disabled: bool = False
    parent: MeterSnapshot | None = None


class StorageState(Struct, frozen=True):
    """Stored messages of one queue, open or not."""

    uri: str
    key: str
    partition_id: int
    messages: int
    bytes: int
    persistent: bool = True
    internal_id: int = 0


class SubscriptionState(Struct, frozen=True):
    """Subscription of a substream with its window of unconfirmed messages."""

    s_id: int
    text: str
    version: str
    priority: int
    count: int
    max_messages: int
    max_bytes: int
    messages: int = 0
    bytes: int = 0
    full: bool = False


class SubstreamState(Struct, frozen=True):
    """Substream: one app of one handle. `unconfirmed` counts messages."""

    sub_id: int
    app_id: str
    read_count: int = 0
    unconfirmed: int = 0
    subscriptions: tuple[SubscriptionState, ...] = ()


class HandleState(Struct, frozen=True):
    """Handle: one client's use of one queue. `ident` identifies the handle in listings."""

    ident: int
    client: str
    uri: str
    q_id: int
    flags: int
    read_count: int
    write_count: int
    substreams: tuple[SubstreamState, ...] = ()


class RouterEntry(Struct, frozen=True):
    """Subscription in the order in which the router of an app evaluates them."""

    priority: int
    client: str
    count: int
    expression: str


class AppState(Struct, frozen=True):
    """App of a queue. `status`: alive, registered or unauthorized; counts are messages; `at_end`: all are delivered."""

    app_id: str
    key: str
    status: str
    messages: int
    bytes: int
    consumers: int = 0
    redelivery: int = 0
    put_aside: int = 0
    at_end: bool = True
    router: tuple[RouterEntry, ...] = ()
    unconfirmed: int = 0


class UpstreamState(Struct, frozen=True):
    """PUTs and CONFIRMs of a replica or proxy that the primary has not answered; `streams`: (id, state, generation)."""

    pending_puts: int = 0
    pending_confirms: int = 0
    generation: int = 0
    streams: tuple[tuple[int, str, int], ...] = ()


class QueueView(Struct, frozen=True):
    """Depth, limits (0 = none) and counters since the opening of a queue, at the time `at` (monotonic). None = not known to
    this node. `oldest_wall`: arrival of the oldest message, None = the queue is empty; `counters`: messages posted,
    delivered and confirmed."""

    uri: str
    domain: str
    mode: str
    partition_id: int
    messages: int | None
    bytes: int | None
    message_limit: int | None
    byte_limit: int | None
    oldest_wall: float | None
    readers: int | None
    writers: int | None
    counters: tuple[int, int, int] | None
    at: float

    def age(self, wall: float) -> float | None:
        """Seconds since the arrival of the oldest message."""
        return None if self.oldest_wall is None else max(0.0, round(wall - self.oldest_wall))

    @property
    def quota(self) -> float | None:
        """Used share of the limits: the larger one of messages and bytes; None = unknown."""
        if self.message_limit is None or self.byte_limit is None:
            return None
        return max((self.messages or 0) / self.message_limit if self.message_limit else 0.0,
                   (self.bytes or 0) / self.byte_limit if self.byte_limit else 0.0)


class QueueState(Struct, frozen=True):
    """Queue that a client has opened since the broker started."""

    uri: str
    name: str
    domain: str
    key: str
    mode: QueueMode
    partition_id: int
    messages: int
    bytes: int
    meter: MeterSnapshot
    apps: tuple[AppState, ...] = ()
    handles: tuple[HandleState, ...] = ()
    role: NodeRole = NodeRole.PRIMARY
    internal_id: int = 0
    upstream: UpstreamState | None = None
    history: int = 0
    readers: int = 0
    writers: int = 0
    max_consumers: int = 0
    message_limit: int = 0
    byte_limit: int = 0

    @property
    def uses(self) -> tuple[int, int, int]:
        """Flags, read count and write count of all handles together."""
        flags = 0
        for handle in self.handles:
            flags |= handle.flags
        return flags, sum(each.read_count for each in self.handles), sum(each.write_count for each in self.handles)


class DomainState(Struct, frozen=True):
    """Loaded domain; `storages` also contains queues that no client has open."""

    name: str
    cluster: str
    mode: QueueMode
    config_json: str
    meter: MeterSnapshot
    queues: tuple[QueueState, ...] = ()
    storages: tuple[StorageState, ...] = ()
    publish_app_metrics: bool = True
    removing: bool = False


class SessionState(Struct, frozen=True):
    """Connection: its peer and its open queues."""

    description: str
    address: str
    kind: str
    host: str = ""
    sdk: str = ""
    since_wall: float = 0.0
    queues: int = 0
    unconfirmed: int = 0
    counters: Mapping[str, float] = field(default_factory=no_numbers)
    channel: Mapping[str, float] = field(default_factory=no_numbers)


class FileState(Struct, frozen=True):
    """Space of one storage file in bytes: written, size limit, and live (still needed)."""

    used: int
    total: int
    outstanding: int


class StoredTotals(Struct, frozen=True):
    """Messages and bytes in this node's copies of all partitions; `led`: partitions of which it is the active primary, and
    their part."""

    messages: int = 0
    bytes: int = 0
    led: int = 0
    led_messages: int = 0
    led_bytes: int = 0


class PartitionSnapshot(Struct, frozen=True):
    """Partition at this node. `queues` counts the queues mapped to it, `active` the open ones; `damaged`, `repaired`,
    `discarded`: messages since the start."""

    partition_id: int
    primary: str
    lease: int
    sequence: int
    status: str = "ACTIVE"
    available: bool = True
    queues: int = 0
    active: int = 0
    data_file: str = ""
    aliased: int = 0
    data: FileState = FileState(0, 0, 0)
    journal: FileState = FileState(0, 0, 0)
    qlist: FileState | None = None
    records: int = 0
    unreceipted: int = 0
    damaged: int = 0
    repaired: int = 0
    discarded: int = 0
    batch: int = 0
    storages: tuple[StorageState, ...] = ()


class NodeState(Struct, frozen=True):
    """Member of the cluster. `connected`: self, true or false; `primary_for`: partition ids; `unable`: why the member cannot
    be leader or primary, "" = it can; `refused`: reason why its versions do not fit, "" = they do."""

    description: str
    name: str
    node_id: int
    data_center: str
    connected: str
    status: str
    primary_for: tuple[int, ...] = ()
    unable: str = ""
    refused: str = ""


class ElectorState(Struct, frozen=True):
    """Leader and term, and position of the metadata log."""

    state: str
    leader: str
    term: int
    sequence: int
    status: str


class AssignedQueue(Struct, frozen=True):
    """Queue in the cluster's metadata. `created`: it is open at this node, its primary."""

    uri: str
    key: str
    partition_id: int
    primary: str
    domain: str
    created: bool


class ClusterSnapshot(Struct, frozen=True):
    """Cluster that this broker is a member of. `unsafe_since`: seconds since the epoch at which this node began to run
    without replication (unsafe mode), 0 = it replicates; `features`: active ones; `pending_features`: seconds until the
    activation of each feature that all members support; `member_state`: name of its `MemberState`; `awaited`: the nodes
    that it waits for; `voters`, `planned`: names of the voters, and of the planned nodes, in the member list."""

    name: str
    self_node: str
    healthy: bool
    nodes: tuple[NodeState, ...]
    elector: ElectorState
    partitions: tuple[PartitionSnapshot, ...] = ()
    queues: tuple[AssignedQueue, ...] = ()
    storage_location: str = ""
    ledger_bytes: int = 0
    ledger_limit: int = 0
    unsafe_since: int = 0
    features: tuple[str, ...] = ()
    pending_features: Mapping[str, float] = field(default_factory=no_numbers)
    storage_version: int = 0
    member_state: str = ""
    awaited: str = ""
    cluster_id: str = ""
    voters: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()

    @property
    def queues_by_domain(self) -> Mapping[str, int]:
        return Counter(queue.domain for queue in self.queues)


class ProcessState(Struct, frozen=True):
    """Resource usage of this process and load of its event loop: seconds, bytes and event counts."""

    cpu_user: float = 0.0
    cpu_system: float = 0.0
    memory_resident: int = 0
    memory_virtual: int = 0
    faults_minor: int = 0
    faults_major: int = 0
    swaps: int = 0
    switches_voluntary: int = 0
    switches_involuntary: int = 0
    loop_lag: float = 0.0
    loop_lag_max: float = 0.0
    turns_slow: int = 0
    turns_stalled: int = 0
    turn_max: float = 0.0


class BrokerState(Struct, frozen=True):
    """State of the whole broker at the time `now` (monotonic) = `wall` (since the epoch)."""

    instance: str
    version: str
    host: str
    now: float
    wall: float
    started_wall: float
    domains: tuple[DomainState, ...] = ()
    sessions: tuple[SessionState, ...] = ()
    clusters: tuple[ClusterSnapshot, ...] = ()
    process: ProcessState = ProcessState()
    invalid_queue: Mapping[str, float] = field(default_factory=no_numbers)
    traffic: Mapping[str, float] = field(default_factory=no_numbers)  # of all clients since the start

    @property
    def queues(self) -> tuple[QueueState, ...]:
        return tuple(queue for domain in self.domains for queue in domain.queues)
