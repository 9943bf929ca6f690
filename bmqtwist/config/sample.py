"""Sample configurations: one node on this machine, or a cluster of nodes and proxies, with domains of each kind.

`etc/` of the source contains `sample_files("data/")`, which `bmq broker` writes to its directory. `etc/cluster/` contains
`cluster_files(SAMPLE_CLUSTER)`, which `bmq cluster up` writes with other ports. `bmqtwist.testing` uses them, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bmqtwist.config.load import BROKER_FILE, CLUSTERS_FILE

CLUSTER = "local"
PORT = 30114  # default port of clients
LOG = "logs/bmqbrkr.log"  # of each broker of a cluster, in its working directory
_DEMO = "bmq.test.persistent.priority", "bmq.test.persistent.fanout"  # for demonstration traffic of the console
_TTL_S, _DEDUPLICATION_MS = 300, 300_000
_WATERMARK = 0.8
_SMALL = (2000, 2 << 20, 1000, 1 << 20)  # messages and bytes of a domain, then of a queue
_LARGE = (1_000_000, 128 << 20, 1_000_000, 128 << 20)  # half of a DATA file of the sample
_PRIORITY: dict[str, Any] = {"priority": {}}
_FANOUT: dict[str, Any] = {"fanout": {"appIDs": ["foo", "bar", "baz"]}}
_BROADCAST: dict[str, Any] = {"broadcast": {}}

# name -> mode, storage, consistency, limits
_DOMAINS: dict[str, tuple[dict[str, Any], str, str, tuple[int, int, int, int]]] = {
    "bmq.test.mem.broadcast": (_BROADCAST, "inMemory", "eventual", _SMALL),
    "bmq.test.mem.fanout": (_FANOUT, "inMemory", "eventual", _SMALL),
    "bmq.test.mem.priority": (_PRIORITY, "inMemory", "eventual", _SMALL),
    "bmq.test.persistent.fanout": (_FANOUT, "fileBacked", "eventual", _SMALL),
    "bmq.test.persistent.fanout.sc": (_FANOUT, "fileBacked", "strong", _SMALL),
    "bmq.test.persistent.priority.large": (_PRIORITY, "fileBacked", "eventual", _LARGE),
    "bmq.test.persistent.priority": (_PRIORITY, "fileBacked", "eventual", _SMALL),
    "bmq.test.persistent.priority.sc": (_PRIORITY, "fileBacked", "strong", _SMALL),
}


# Timeouts of the election. `fast`: for nodes with low latency; without split votes, another node leads within 3 s of the
# last heartbeat. `original`: the defaults of BlazingMQ; up to 24 s.
ELECTORS: dict[str, dict[str, int]] = {
    "fast": {"initialWaitTimeoutMs": 1000, "maxRandomWaitTimeoutMs": 500, "scoutingResultTimeoutMs": 500,
             "electionResultTimeoutMs": 500, "heartbeatBroadcastPeriodMs": 250, "heartbeatCheckPeriodMs": 100,
             "heartbeatMissCount": 6},
    "original": {"initialWaitTimeoutMs": 8000, "maxRandomWaitTimeoutMs": 3000, "scoutingResultTimeoutMs": 4000,
                 "electionResultTimeoutMs": 4000, "heartbeatBroadcastPeriodMs": 2000, "heartbeatCheckPeriodMs": 1000,
                 "heartbeatMissCount": 10}}


# heartbeatIntervalMs, missed intervals for members and upstream brokers, missed intervals for clients and proxies. `fast`: a
# hanging primary is replaced as fast as a hanging leader.
HEARTBEATS = {"fast": (500, 2, 60), "original": (3000, 10, 10)}


@dataclass(frozen=True, slots=True)
class SampleBroker:
    """A node, or a proxy (`node_id` 0), of a cluster on this machine. `http_port`: port of its console, 0 = none."""

    name: str
    port: int
    http_port: int
    node_id: int


def sample_brokers(nodes: int, proxies: int, ports: Sequence[int]) -> list[SampleBroker]:
    """Return nodes n1, n2, ... and proxies p1, p2, ...; `ports`: for clients, followed by those of the consoles."""
    names = [(f"n{number}", number) for number in range(1, nodes + 1)]
    names += [(f"p{number}", 0) for number in range(1, proxies + 1)]
    return [SampleBroker(name, ports[at], ports[len(names) + at], node_id) for at, (name, node_id) in enumerate(names)]


SAMPLE_CLUSTER = sample_brokers(3, 1, [30124, 30125, 30126, 30127, 30134, 30135, 30136, 30137])


def sample_files(root: str = "", port: int = PORT, http_port: int = 0) -> dict[str, str]:
    """Return the text of each file of a configuration directory, by its path below that directory.

    root: prefix of the directories `storage`, `archive` and `logs`; "" or a path with a slash at its end. http_port: port
    of the console, 0 = none.
    """
    broker = SampleBroker("default", port, http_port, 1)
    files = {BROKER_FILE: _broker(broker, f"{root}logs/bmqbrkr.%T.%p.log", f"{root}logs/stat.%T.%p"),
             CLUSTERS_FILE: _clusters(_member(root, [_node(1, "localhost", port)]))}
    return _texts(files) | domain_files()


def domain_files() -> dict[str, str]:
    """Return the text of each domain's file, by its path below a configuration directory."""
    return _texts({f"domains/{name}.json": _domain(*kind) for name, kind in _DOMAINS.items()})


def cluster_files(brokers: Sequence[SampleBroker], elector: str = "fast", durability: str = "group"
                  ) -> dict[str, dict[str, str]]:
    """Return the text of each file of the configuration directories of a cluster, without its domains, by broker name and
    path. Every broker runs in a working directory of its own; `clusters.json` is the same for all nodes, and for all
    proxies. elector: one of ELECTORS."""
    nodes = [_node(each.node_id, each.name, each.port) for each in brokers if each.node_id]
    member = _clusters(_member("", nodes, ELECTORS[elector]))
    proxy = _clusters(proxy={"name": CLUSTER, "nodes": nodes, "queueOperations": _OPERATIONS})
    return {each.name: _texts({
        BROKER_FILE: _broker(each, LOG, "logs/stat.%T.%p", durability, "ERROR", HEARTBEATS[elector]),
        CLUSTERS_FILE: member if each.node_id else proxy}) for each in brokers}


def _texts(files: dict[str, Any]) -> dict[str, str]:
    return {path: json.dumps(document, indent=4) + "\n" for path, document in files.items()}


def _broker(broker: SampleBroker, log: str, statistics: str, durability: str = "group", threshold: str = "INFO",
            heartbeats: tuple[int, int, int] = HEARTBEATS["original"]) -> dict[str, Any]:
    line = "%d (%t) %s %F:%l %m\n"
    interval, brokers, clients = heartbeats
    return {
        "taskConfig": {
            "logController": {
                "fileName": log, "fileMaxAgeDays": 10, "rotationBytes": 256 << 20,
                "logfileFormat": line, "consoleFormat": line, "loggingVerbosity": "INFO",
                "consoleSeverityThreshold": threshold, "categories": []}},
        "appConfig": {
            "brokerInstanceName": broker.name, "configVersion": 1, "hostName": "localhost", "hostTags": "",
            "hostDataCenter": "UNSPECIFIED",
            "stats": {
                "snapshotInterval": 1, "plugins": [],
                "printer": {"printInterval": 60, "file": statistics, "maxAgeDays": 3,
                            "rotateBytes": 256 << 20, "rotateDays": 1, "encoding": "TABLE_AND_JSON"}},
            "networkInterfaces": {
                "heartbeats": {"client": clients, "downstreamBroker": clients, "upstreamBroker": brokers,
                               "clusterPeer": brokers},
                "tcpInterface": {
                    "name": "TCPInterface", "maxConnections": 10000, "lowWatermark": 4 << 20, "highWatermark": 64 << 20,
                    "nodeLowWatermark": 5 << 20, "nodeHighWatermark": 10 << 20, "heartbeatIntervalMs": interval,
                    "listeners": [{"name": "TCPInterface", "port": broker.port}]}},
            "bmqconfConfig": {"cacheTTLSeconds": 30},
            "bmqtwist": {
                "durability": durability,
                "http": {"address": "127.0.0.1", "port": broker.http_port, "localRole": "admin", "demoDomains": list(_DEMO)},
                "outboxBytesMax": 256 << 20, "payloadCacheBytes": 64 << 20, "sessionsPerIdentityMax": 0,
                "unauthenticatedSecondsMax": 180}}}


_OPERATIONS = {"keepaliveDurationMs": 1_800_000, "consumptionMonitorPeriodMs": 30_000, "shutdownTimeoutMs": 20_000}


def _node(node_id: int, name: str, port: int) -> dict[str, Any]:
    return {"id": node_id, "name": name, "dataCenter": "UNSPECIFIED",
            "transport": {"tcp": {"endpoint": f"tcp://localhost:{port}"}}}


def _member(root: str, nodes: list[dict[str, Any]], elector: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "name": CLUSTER, "nodes": nodes,
        "partitionConfig": {
            "numPartitions": 4, "location": f"{root}storage", "archiveLocation": f"{root}archive",
            "maxDataFileSize": 256 << 20, "maxJournalFileSize": 64 << 20, "maxQlistFileSize": 8 << 20,
            "maxCSLFileSize": 8 << 20, "preallocate": False, "maxArchivedFileSets": 0, "flushAtShutdown": True},
        "masterAssignment": "E_LEADER_IS_MASTER_ALL",
        **({"elector": elector} if elector is not None else {}),
        "queueOperations": _OPERATIONS,
        "messageThrottleConfig": {"lowThreshold": 2, "highThreshold": 4, "lowInterval": 1000, "highInterval": 3000}}


def _clusters(member: dict[str, Any] | None = None, proxy: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"myClusters": [] if member is None else [member], "myVirtualClusters": [],
            "proxyClusters": [] if proxy is None else [proxy]}


def _domain(mode: dict[str, Any], storage: str, consistency: str, limits: tuple[int, int, int, int]) -> dict[str, Any]:
    def limit(messages: int, size: int) -> dict[str, Any]:
        return {"messages": messages, "messagesWatermarkRatio": _WATERMARK, "bytes": size,
                "bytesWatermarkRatio": _WATERMARK}

    return {"definition": {"location": CLUSTER, "parameters": {
        "mode": mode,
        "storage": {"domainLimits": limit(*limits[:2]), "queueLimits": limit(*limits[2:]), "config": {storage: {}}},
        "maxConsumers": 0, "maxProducers": 0, "maxQueues": 0, "maxIdleTime": 0, "messageTtl": _TTL_S,
        "maxDeliveryAttempts": 0, "deduplicationTimeMs": _DEDUPLICATION_MS, "consistency": {consistency: {}}}}}
