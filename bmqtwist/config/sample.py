"""A configuration to begin with: one node on this machine, and domains of every kind.

`etc/` of the source holds what `sample_files("data/")` makes; `bmq broker` writes the same into its directory.
"""

from __future__ import annotations

import json
from typing import Any

from bmqtwist.config.load import BROKER_FILE, CLUSTERS_FILE

CLUSTER = "local"
PORT = 30114  # clients find a broker there if they are told nothing else
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


def sample_files(root: str = "", port: int = PORT, http_port: int = 0) -> dict[str, str]:
    """The text of each file of a configuration directory, by its path below that.

    root: put before the directories `storage`, `archive` and `logs`; "" or with a slash at its end. http_port: of the
    console, 0 = none.
    """
    files: dict[str, Any] = {BROKER_FILE: _broker(root, port, http_port), CLUSTERS_FILE: _clusters(root, port)}
    files |= {f"domains/{name}.json": _domain(*kind) for name, kind in _DOMAINS.items()}
    return {path: json.dumps(document, indent=4) + "\n" for path, document in files.items()}


def _broker(root: str, port: int, http_port: int) -> dict[str, Any]:
    line = "%d (%t) %s %F:%l %m\n"
    return {
        "taskConfig": {
            "logController": {
                "fileName": f"{root}logs/bmqbrkr.%T.%p.log", "fileMaxAgeDays": 10, "rotationBytes": 256 << 20,
                "logfileFormat": line, "consoleFormat": line, "loggingVerbosity": "INFO",
                "consoleSeverityThreshold": "INFO", "categories": []}},
        "appConfig": {
            "brokerInstanceName": "default", "configVersion": 1, "hostName": "localhost", "hostTags": "",
            "hostDataCenter": "UNSPECIFIED",
            "stats": {
                "snapshotInterval": 1, "plugins": [],
                "printer": {"printInterval": 60, "file": f"{root}logs/stat.%T.%p", "maxAgeDays": 3,
                            "rotateBytes": 256 << 20, "rotateDays": 1, "encoding": "TABLE_AND_JSON"}},
            "networkInterfaces": {
                "heartbeats": {"client": 10, "downstreamBroker": 10, "upstreamBroker": 10, "clusterPeer": 10},
                "tcpInterface": {
                    "name": "TCPInterface", "maxConnections": 10000, "lowWatermark": 4 << 20, "highWatermark": 64 << 20,
                    "nodeLowWatermark": 5 << 20, "nodeHighWatermark": 10 << 20, "heartbeatIntervalMs": 3000,
                    "listeners": [{"name": "TCPInterface", "port": port}]}},
            "bmqconfConfig": {"cacheTTLSeconds": 30},
            "bmqtwist": {
                "durability": "group", "http": {"address": "127.0.0.1", "port": http_port},
                "outboxBytesMax": 256 << 20, "payloadCacheBytes": 64 << 20, "sessionsPerIdentityMax": 0,
                "unauthenticatedSecondsMax": 180}}}


def _clusters(root: str, port: int) -> dict[str, Any]:
    node = {"id": 1, "name": "localhost", "dataCenter": "UNSPECIFIED",
            "transport": {"tcp": {"endpoint": f"tcp://localhost:{port}"}}}
    return {
        "myClusters": [{
            "name": CLUSTER, "nodes": [node],
            "partitionConfig": {
                "numPartitions": 4, "location": f"{root}storage", "archiveLocation": f"{root}archive",
                "maxDataFileSize": 256 << 20, "maxJournalFileSize": 64 << 20, "maxQlistFileSize": 8 << 20,
                "maxCSLFileSize": 8 << 20, "preallocate": False, "maxArchivedFileSets": 0, "flushAtShutdown": True},
            "masterAssignment": "E_LEADER_IS_MASTER_ALL",
            "queueOperations": {"keepaliveDurationMs": 1_800_000, "consumptionMonitorPeriodMs": 30_000,
                                "shutdownTimeoutMs": 20_000},
            "messageThrottleConfig": {"lowThreshold": 2, "highThreshold": 4, "lowInterval": 1000,
                                      "highInterval": 3000}}],
        "myVirtualClusters": [], "proxyClusters": []}


def _domain(mode: dict[str, Any], storage: str, consistency: str, limits: tuple[int, int, int, int]) -> dict[str, Any]:
    def limit(messages: int, size: int) -> dict[str, Any]:
        return {"messages": messages, "messagesWatermarkRatio": _WATERMARK, "bytes": size,
                "bytesWatermarkRatio": _WATERMARK}

    return {"definition": {"location": CLUSTER, "parameters": {
        "mode": mode,
        "storage": {"domainLimits": limit(*limits[:2]), "queueLimits": limit(*limits[2:]), "config": {storage: {}}},
        "maxConsumers": 0, "maxProducers": 0, "maxQueues": 0, "maxIdleTime": 0, "messageTtl": _TTL_S,
        "maxDeliveryAttempts": 0, "deduplicationTimeMs": _DEDUPLICATION_MS, "consistency": {consistency: {}}}}}
