"""Rows of the console's documents: members, elector, partitions, domains, proxies, clients, and the clients of a queue.

A field is the member of the JSON object with the same name in camel case, in the order of declaration; a field that is
UNSET is omitted. `msgspec.to_builtins` renders a row. Sizes are bytes, counts without a unit are messages, times are
seconds since the epoch. `node_facts.py`, `queue_facts.py`, `replicas.py` and `cluster_facts.py` create the rows; the merge
of all nodes is in `console/merge.py`.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, field

from bmqtwist.view.snapshot import FileState


class MemberRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Member of a cluster. `primary_for`: numbers of partitions; `unable`: why it cannot be leader or primary, "" = it can;
    `url`: of its console, "" = unknown; `refused`: reason why its versions do not fit, "" = they do."""

    name: str
    id: int
    data_center: str
    state: str
    connected: bool
    primary_for: list[int]
    unable: str
    url: str
    refused: str = ""


class ElectorRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Election as this node knows it. `leads`: this node is the leader; `leader` "" = none."""

    state: str
    term: int
    active: bool
    leads: bool
    leader: str


class CopyRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Copy of a partition at one node. `lag_*`: the records that the copy lacks, and the age of the oldest one; None = not
    known to this node. `machine`, `why`, `committed_sequence`, `busy`: of this node's own copy; `in_flight_bytes`: of a
    replica, at the primary."""

    node: str
    role: str
    machine: str | UnsetType = UNSET
    why: str | UnsetType = UNSET
    lease: int | None
    sequence: int | None
    committed_sequence: int | UnsetType = UNSET
    busy: bool | UnsetType = UNSET
    lag_records: int | None = None
    lag_bytes: int | None = None
    lag_ms: float | None = None
    in_flight_bytes: int | UnsetType = UNSET


class StorageRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Space of this node's storage. `free_bytes`, `total_bytes`: of the file system; `used_bytes`, `allocated_bytes`:
    written to the open files, and occupied by them on the disk."""

    location: str
    free_bytes: int
    total_bytes: int
    used_bytes: int
    allocated_bytes: int


class PartitionRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Partition at this node. `messages`, `bytes`: in this node's copy; `state`: of the primary, or why this primary takes
    no records, with the cause in `problem`; `own`: this node's copy; `replicas`: all copies at the primary, the own one at
    a replica."""

    id: int
    primary: str | None
    lease: int
    sequence: int
    state: str
    available: bool
    problem: str
    queues: int
    messages: int
    bytes: int
    journal: FileState
    data: FileState
    rolling_over: bool
    own: CopyRow = field(name="self")
    replicas: list[CopyRow]


class DomainRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Domain at this node. A domain that is not in use has a file only. Limits: 0 = none, None = unknown."""

    name: str
    in_use: bool = False
    cluster: str = ""
    mode: str = ""
    storage: str = ""
    copies: str = ""
    queues: int = 0
    messages: int = 0
    bytes: int = 0
    messages_max: int | None = None
    bytes_max: int | None = None
    ttl_seconds: float | None = None


class ProxyRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Proxy. `ident`: equal at every node that the proxy is connected to; `url`: of its console, "" = it announced none."""

    ident: str
    name: str
    url: str


class ProxyLinkRow(ProxyRow, frozen=True, kw_only=True, rename="camel"):
    """Connection of a proxy to this node. `unacked`: PUTs without an answer; `unread`: bytes that the proxy has not read."""

    host: str
    address: str
    since: float
    queues: int
    unconfirmed: int
    unacked: int
    unread: int
    state: str


class ClientRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Connection of an application or administrator. `proxy`: `node` is a proxy. Totals since the connection began."""

    id: str
    client: str
    node: str
    proxy: bool
    host: str
    address: str
    kind: str
    sdk: str
    since: float
    queues: int
    unconfirmed: int
    state: str = "connected"
    put_messages: float
    push_messages: float
    bytes_in: float
    bytes_out: float


class QueueAppRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """App of a queue at its primary. `put_aside`: messages on the put-aside list."""

    app: str
    messages: int
    bytes: int
    unconfirmed: int
    consumers: int
    redelivery: int
    put_aside: int = field(name="aside")
    registered: bool


class SubscriptionRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Subscription of a consumer. `given`: messages delivered to it; `flow`: key of its flow."""

    expression: str
    unconfirmed: int
    full: bool
    given: int
    flow: str


class QueueClientRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """Client that has a queue open at `node`. `ident`: of a downstream broker, else ""; `queues`: all its open queues, which
    its rates cover."""

    client: str
    ident: str
    node: str
    proxy: bool
    broker: bool
    queues: int


class ConsumerRow(QueueClientRow, frozen=True, kw_only=True, rename="camel"):
    """Consumer of an app of a queue. `stuck`: its oldest unconfirmed message is older than `queue_facts.STUCK_S`."""

    app: str
    unconfirmed: int
    unconfirmed_max: int
    priority: int
    stuck: bool
    subscriptions: list[SubscriptionRow]
