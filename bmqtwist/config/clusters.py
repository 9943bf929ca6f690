"""Members of `clusters.json`: clusters with this broker as a member, virtual clusters, clusters with it as a proxy.

Rules over several members and files are in `compose.py`.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Literal

from bmqtwist.addresses import is_host
from bmqtwist.config.declare import Int32, Natural, PartitionCount, Section, UInt32, UInt64, member
from bmqtwist.wire.cluster_schema import MemberInfo

_TLS = "tls://"
_ENDPOINT = re.compile(r"(?:tcp|tls)://(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\s]+):(?P<port>[0-9]{1,5})")


class Tcp(Section):
    """nodes[].transport.tcp"""

    endpoint: str = member("address of the node: `tcp://host:port`, or `tls://host:port` for a listener with `tls`")
    dial: str = member("address at which this broker reaches the node, of the same form, if it is not the endpoint (address "
                       "translation, relays): it may differ between the nodes, which must have equal endpoints", "")


class Transport(Section, choice=True):
    """nodes[].transport"""

    tcp: Tcp | None = member("TCP", None)


class ClusterNode(Section):
    """nodes[]"""

    id: Int32 = member("number of the node, unique in its cluster")
    name: str = member("name of the node")
    data_center: str = member("data center of the node", "")
    transport: Transport = member("address of the node")

    @property
    def endpoint(self) -> str:
        return self.transport.tcp.endpoint if self.transport.tcp else ""

    @property
    def tls(self) -> bool:
        return self.endpoint.startswith(_TLS)

    @property
    def host_and_port(self) -> tuple[str, int] | None:
        """Host and port of the endpoint; None = invalid."""
        return parse_endpoint(self.endpoint)

    @property
    def dialled(self) -> tuple[str, int] | None:
        """Host and port at which this broker reaches the node; None = invalid."""
        return parse_endpoint(self.transport.tcp.dial or self.endpoint) if self.transport.tcp else None


class StorageSync(Section):
    """partitionConfig.syncConfig"""

    startup_recovery_max_duration_ms: Natural = member("timeout of the recovery at the start", 1200000, unit="ms")
    max_attempts_storage_sync: Natural = member("number of attempts to synchronise", 3)
    storage_sync_req_timeout_ms: Natural = member("timeout of a request to synchronise", 300000, unit="ms")
    master_sync_max_duration_ms: Natural = member("timeout of the synchronisation of a new primary", 600000, unit="ms")
    partition_sync_state_req_timeout_ms: Natural = member("timeout of a request for state", 120000, unit="ms")
    partition_sync_data_req_timeout_ms: Natural = member("timeout of a request for data", 120000, unit="ms")
    startup_wait_duration_ms: Natural = member("wait for peers at the start", 60000, unit="ms")
    file_chunk_size: Natural = member("size of a chunk of a file on the wire", 4194304, unit="B")
    partition_sync_event_size: Natural = member("size of an event with records", 4194304, unit="B")


class PartitionConfig(Section):
    """partitionConfig"""

    name: str = member("name of the storage", "", ignored="partitions are known by their numbers")
    num_partitions: PartitionCount = member("number of partitions, to which queues are distributed, at most 1000; each has "
                                            "three open files")
    location: str = member("directory of the storage; created if missing")
    archive_location: str = member("directory of the archive; created if missing")
    max_data_file_size: UInt64 = member("size of a DATA file", unit="B")
    max_journal_file_size: UInt64 = member("size of a JOURNAL file", unit="B")
    max_qlist_file_size: UInt64 = member("size of a QLIST file", 33554432, unit="B")
    max_csl_file_size: UInt64 = member("size of the file of the cluster state ledger", 67108864, unit="B",
                                       name="maxCSLFileSize")
    preallocate: bool = member("reserve the space of a file when it is created", False)
    max_archived_file_sets: Natural = member("number of file sets in the archive, per partition", 0)
    prefault_pages: bool = member("map the pages of a file when it is created", False,
                                  ignored="files are written, not mapped")
    flush_at_shutdown: bool = member("sync the files at the stop", True)
    sync_config: StorageSync = member("recovery from other nodes", StorageSync)


class ElectorConfig(Section):
    """elector"""

    initial_wait_timeout_ms: Natural = member("maximum wait at the start for the heartbeat of a leader", 8000, unit="ms")
    max_random_wait_timeout_ms: Natural = member("maximum random wait before an election", 3000, unit="ms")
    scouting_result_timeout_ms: Natural = member("timeout of a scouting", 4000, unit="ms")
    election_result_timeout_ms: Natural = member("timeout of an election", 4000, unit="ms")
    heartbeat_broadcast_period_ms: Natural = member("period of the leader's heartbeats", 2000, unit="ms")
    heartbeat_check_period_ms: Natural = member("period of the followers' check", 1000, unit="ms")
    heartbeat_miss_count: Natural = member("missed heartbeats before the leader is considered lost", 10)
    quorum: UInt32 = member("number of votes needed; 0 = more than half of the nodes, which are needed "
                            "with a lower number, too", 0)
    leader_sync_delay_ms: Natural = member("wait of a new leader before it synchronises", 80000, unit="ms")
    lease_ms: Natural = member("time without answers of a majority after which a primary becomes inactive; less than "
                               "heartbeatMissCount times heartbeatBroadcastPeriodMs, after which another one may be "
                               "appointed; 0 = three quarters of that (BlazingMQ: no limit). Half of the round trip is "
                               "added, at most up to that time", 0, unit="ms")

    @property
    def inactivity_ms(self) -> int:
        """Time without heartbeats after which the leader is considered lost."""
        return self.heartbeat_miss_count * self.heartbeat_broadcast_period_ms


class QueueOperations(Section):
    """queueOperations"""

    open_timeout_ms: Natural = member("timeout of an open request", 300000, unit="ms")
    configure_timeout_ms: Natural = member("timeout of a configure request; at most closeTimeoutMs", 300000, unit="ms")
    close_timeout_ms: Natural = member("timeout of a close request", 300000, unit="ms")
    reopen_timeout_ms: Natural = member("timeout of the reopening of a queue upstream after a failover", 43200000, unit="ms")
    reopen_retry_interval_ms: Natural = member("interval between two attempts to reopen", 5000, unit="ms")
    reopen_max_attempts: Natural = member("number of attempts to reopen; after the last one an alarm is raised and pending "
                                          "PUTs are refused", 10)
    assignment_timeout_ms: Natural = member("timeout of the assignment of a queue to a partition", 15000, unit="ms")
    keepalive_duration_ms: Natural = member("time after which an empty queue without handles is deleted", 1800000,
                                            unit="ms")
    consumption_monitor_period_ms: Natural = member("period of the check for stuck queues", 30000, unit="ms")
    stop_timeout_ms: Natural = member("maximum wait for each peer's answer at the stop", 10000, unit="ms")
    shutdown_timeout_ms: Natural = member("maximum wait for unconfirmed messages at the stop", 20000, unit="ms")
    ack_window_size: Natural = member("number of PUTs per ACK that relays of broadcast queues request", 500)


class ClusterAttributes(Section):
    """clusterAttributes"""

    is_csl_mode_enabled: bool = member("generation of the cluster's metadata", False, name="isCSLModeEnabled")
    is_fsm_workflow: bool = member("generation of the cluster's start-up", False, name="isFSMWorkflow")
    does_fsm_write_qlist: bool = member("write QLIST files", True, name="doesFSMwriteQLIST")
    cluster_fsm_watchdog_timeout_sec: Natural = member("timeout until the cluster is healthy", 300, unit="s")
    cluster_fsm_watchdog_num_retries: Natural = member("number of attempts", 1)
    partition_fsm_watchdog_timeout_sec: Natural = member("timeout until a partition is healthy", 300, unit="s")
    partition_fsm_watchdog_num_retries: Natural = member("number of attempts", 1)


class ClusterMonitor(Section):
    """clusterMonitorConfig"""

    max_time_leader: Natural = member("time without a leader before an alarm", 60, unit="s")
    max_time_master: Natural = member("time without a primary before an alarm", 120, unit="s")
    max_time_node: Natural = member("time without a node before an alarm", 120, unit="s")
    max_time_failover: Natural = member("duration of a failover before an alarm", 600, unit="s")
    threshold_leader: Natural = member("time without a leader before a notice", 30, unit="s")
    threshold_master: Natural = member("time without a primary before a notice", 60, unit="s")
    threshold_node: Natural = member("time without a node before a notice", 60, unit="s")
    threshold_failover: Natural = member("duration of a failover before a notice", 300, unit="s")


class MessageThrottle(Section):
    """messageThrottleConfig: delay of the redelivery of possible poison messages; it does not affect producers"""

    low_threshold: UInt32 = member("remaining attempts at or below which lowInterval applies", 2)
    high_threshold: UInt32 = member("remaining attempts at or below which highInterval applies", 4)
    low_interval: UInt32 = member("delay", 1000, unit="ms")
    high_interval: UInt32 = member("delay", 3000, unit="ms")


class ClusterDefinition(Section):
    """myClusters[]"""

    name: str = member("name, matched by a domain's `location`")
    nodes: tuple[ClusterNode, ...] = member("members of the cluster, including this broker")
    partition_config: PartitionConfig = member("storage")
    master_assignment: Literal["E_LEADER_IS_MASTER_ALL", "E_LEAST_ASSIGNED"] = member(
        "assignment of primaries to partitions", "E_LEADER_IS_MASTER_ALL")
    elector: ElectorConfig = member("election of the leader", ElectorConfig)
    queue_operations: QueueOperations = member("time limits of operations on queues", QueueOperations)
    cluster_attributes: ClusterAttributes = member("generation of the cluster", ClusterAttributes,
                                                   ignored="only the newest generation is implemented")
    cluster_monitor_config: ClusterMonitor = member("alarms about the cluster's state", ClusterMonitor)
    message_throttle_config: MessageThrottle = member("delay of the redelivery of possible poison messages", MessageThrottle)

    @property
    def members(self) -> list[MemberInfo]:
        """The nodes as in member lists, in the order of their ids."""
        return [MemberInfo(each.id, each.name, each.endpoint) for each in sorted(self.nodes, key=lambda node: node.id)]


class ClusterProxyDefinition(Section):
    """proxyClusters[]"""

    name: str = member("name, matched by a domain's `location`")
    nodes: tuple[ClusterNode, ...] = member("members of the cluster")
    queue_operations: QueueOperations = member("time limits of operations on queues", QueueOperations)
    cluster_monitor_config: ClusterMonitor = member("alarms about the cluster's state", ClusterMonitor)
    message_throttle_config: MessageThrottle = member("delay of the redelivery of possible poison messages", MessageThrottle)


class VirtualCluster(Section):
    """myVirtualClusters[]"""

    name: str = member("name of one of myClusters; or of a cluster whose nodes are proxies, for proxies of them")
    self_node_id: Int32 = member("node id of this broker")


class Clusters(Section):
    """clusters.json"""

    my_clusters: tuple[ClusterDefinition, ...] = member("clusters with this broker as a member", ())
    my_virtual_clusters: tuple[VirtualCluster, ...] = member("node ids of this broker, where the endpoints do not identify "
                                                             "it", ())
    proxy_clusters: tuple[ClusterProxyDefinition, ...] = member("clusters with this broker as a proxy", ())

    def find(self, name: str) -> ClusterDefinition | ClusterProxyDefinition | None:
        """Return the cluster of that name; myClusters takes precedence over proxyClusters."""
        every: tuple[ClusterDefinition | ClusterProxyDefinition, ...] = (*self.my_clusters, *self.proxy_clusters)
        return next((cluster for cluster in every if cluster.name == name), None)


def parse_endpoint(text: str) -> tuple[str, int] | None:
    """Parse `tcp://host:port` or `tls://host:port` into host, without the brackets of IPv6, and port; None = invalid."""
    match = _ENDPOINT.fullmatch(text)
    host = match["host"].strip("[]") if match else ""
    if not match or int(match["port"]) > 65535 or not is_host(host):
        return None
    return host, int(match["port"])


def node_addresses(clusters: Clusters) -> list[str]:
    """Return the IP addresses in the endpoints of all nodes; host names are omitted."""
    definitions: list[ClusterDefinition | ClusterProxyDefinition] = [*clusters.my_clusters, *clusters.proxy_clusters]
    places = [node.host_and_port for definition in definitions for node in definition.nodes]
    hosts = {place[0].strip("[]") for place in places if place is not None}
    return sorted(filter(_is_address, hosts))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
