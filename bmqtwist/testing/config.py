"""Broker configurations for tests, in files or in memory; by default a single-node cluster `c3` with node `n1`.

`broker_config`, `clusters_config` and `domain_config` return the documents of the configuration files; `plain_domain`
checks and translates the arguments of `Broker.domain`. Used by `runner.py`, `process.py` and both clusters. Configuration
files are decoded in `config/`; samples for operators are in `config/sample.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from bmqtwist.config.broker import BrokerConfig, Configuration
from bmqtwist.config.clusters import Clusters
from bmqtwist.config.compose import NO_OVERRIDES, compose
from bmqtwist.config.declare import Finding, decode_text
from bmqtwist.config.domain import DomainConfig
from bmqtwist.config.provider import DomainFile
from bmqtwist.config.sample import sample_files
from bmqtwist.errors import LocalError

CLUSTER = "c3"
NODE = "n1"
APPS = ("foo", "bar", "baz")

# Parameters of `domain_config` for limits, and their paths below `storage`.
_LIMITS = {"queue_messages": ("queueLimits", "messages"), "queue_bytes": ("queueLimits", "bytes"),
           "queue_messages_ratio": ("queueLimits", "messagesWatermarkRatio"),
           "queue_bytes_ratio": ("queueLimits", "bytesWatermarkRatio"),
           "domain_messages": ("domainLimits", "messages"), "domain_bytes": ("domainLimits", "bytes"),
           "domain_messages_ratio": ("domainLimits", "messagesWatermarkRatio"),
           "domain_bytes_ratio": ("domainLimits", "bytesWatermarkRatio")}

# Parameters of `plain_domain`, and their names in `domain_config`; None = the default there.
_RENAMED = {"max_messages": "queue_messages", "max_bytes": "queue_bytes", "max_delivery_attempts": "maxDeliveryAttempts",
            "ttl": "messageTtl"}
_MODES = ("priority", "fanout", "broadcast")
_CONSISTENCIES = ("eventual", "strong")


def broker_config(storage: PurePath, port: int, **app: Any) -> dict[str, Any]:
    """Return `bmqbrkrcfg.json`; `app` replaces members of appConfig, its item `tcp` those of
    networkInterfaces.tcpInterface."""
    tcp = {"name": "TCPInterface", "port": port, "ioThreads": 4, "lowWatermark": 4194304, "highWatermark": 8388608,
           "nodeLowWatermark": 5242880, "nodeHighWatermark": 10485760, "heartbeatIntervalMs": 3000,
           "listeners": [{"name": "TCPInterface", "address": "127.0.0.1", "port": port, "tls": False}]}
    tcp.update(app.pop("tcp", {}))
    heartbeats = app.pop("heartbeats", {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 0})
    config: dict[str, Any] = {
        "brokerInstanceName": "test", "hostName": NODE, "hostDataCenter": "dc1",
        "stats": {"plugins": [], "printer": {"file": str(storage.parent / "logs" / "stat.log"), "maxAgeDays": 10}},
        "networkInterfaces": {"heartbeats": heartbeats, "tcpInterface": tcp}, "plugins": {"enabled": []},
        "messagePropertiesV2": {"advertiseV2Support": True}, "configureStream": True, "advertiseSubscriptions": True}
    config.update(app)
    task = {"logController": {"fileName": str(storage.parent / "logs" / "bmqbrkr.log"), "fileMaxAgeDays": 10,
                              "rotationBytes": 268435456}}
    return {"taskConfig": task, "appConfig": config}


def clusters_config(storage: PurePath, port: int, partitions: int = 2, **cluster: Any) -> dict[str, Any]:
    """Return `clusters.json`; `cluster` replaces members of the definition, its items `partition`, `queue_operations` and
    `throttle` those of the sub-objects."""
    partition = {"numPartitions": partitions, "location": str(storage),
                 "archiveLocation": str(storage.parent / "archive"), "maxDataFileSize": 268435456,
                 "maxJournalFileSize": 67108864, "maxQlistFileSize": 8388608, "maxArchivedFileSets": 2}
    partition.update(cluster.pop("partition", {}))
    operations = {"openTimeoutMs": 10000, "configureTimeoutMs": 10000, "closeTimeoutMs": 10000,
                  "shutdownTimeoutMs": 4000, "stopTimeoutMs": 2000}
    operations.update(cluster.pop("queue_operations", {}))
    definition = {
        "name": CLUSTER,
        "nodes": [node_config(1, NODE, f"localhost:{port}")],
        "partitionConfig": partition, "queueOperations": operations,
        "messageThrottleConfig": cluster.pop("throttle", {})}
    definition.update(cluster)
    return {"myClusters": [definition], "myVirtualClusters": [{"name": CLUSTER, "selfNodeId": 1}], "proxyClusters": []}


def node_config(number: int, name: str, address: str) -> dict[str, Any]:
    """Return an element of `nodes` of a cluster."""
    return {"id": number, "name": name, "dataCenter": "dc1", "transport": {"tcp": {"endpoint": f"tcp://{address}"}}}


def member_configuration(number: int, count: int, port: int, *, app: Mapping[str, Any] | None = None,
                         cluster: Mapping[str, Any] | None = None, alone: bool = False) -> Configuration:
    """Return the configuration of node `n<number>` in a cluster of `count` nodes, each at this port of its host; `alone`: in
    a single-node cluster."""
    storage = PurePosixPath(f"/memory/n{number}/storage")
    members = [number] if alone else range(1, count + 1)
    nodes = [node_config(each, f"n{each}", f"n{each}:{port}") for each in members]
    clusters = clusters_config(storage, port, **{"nodes": nodes, **(cluster or {})})
    clusters["myVirtualClusters"] = [{"name": CLUSTER, "selfNodeId": number}]
    return configuration(broker_config(storage, port, **{"hostName": f"n{number}", **(app or {})}), clusters)


def proxy_configuration(name: str, port: int, upstream: Mapping[str, int], *, app: Mapping[str, Any] | None = None,
                        cluster: Mapping[str, Any] | None = None,
                        virtual: Sequence[Mapping[str, Any]] = ()) -> Configuration:
    """Return the configuration of a proxy; `upstream`: ids of the upstream nodes by name, each at this port of its host;
    `virtual`: myVirtualClusters."""
    nodes = [node_config(number, each, f"{each}:{port}") for each, number in upstream.items()]
    made = clusters_config(PurePosixPath("/memory"), port)["myClusters"][0]
    definition = {key: made[key] for key in ("name", "queueOperations")}
    clusters = {"myClusters": [], "myVirtualClusters": list(virtual),
                "proxyClusters": [{**definition, "nodes": nodes, **(cluster or {})}]}
    return configuration(broker_config(PurePosixPath(f"/memory/{name}/storage"), port, **{"hostName": name, **(app or {})}),
                         clusters)


def domain_config(name: str, mode: str = "priority", *, apps: tuple[str, ...] | list[str] = APPS,
                  cluster: str = CLUSTER, in_memory: bool = False, subscriptions: list[dict[str, Any]] | None = None,
                  strong: bool = False, **parameters: Any) -> dict[str, Any]:
    """Return `domains/<name>.json`. Limits have the names of `_LIMITS`, other parameters those of the file."""
    storage: dict[str, Any] = {
        "config": {"inMemory": {}} if in_memory else {"fileBacked": {}},
        "domainLimits": {"messages": 1000000, "bytes": 1 << 40}, "queueLimits": {"messages": 1000000, "bytes": 1 << 40}}
    for key, (group, member) in _LIMITS.items():
        if key in parameters:
            storage[group][member] = parameters.pop(key)
    definition: dict[str, Any] = {
        "name": name, "mode": {mode: {"appIDs": list(apps)} if mode == "fanout" else {}}, "storage": storage,
        "messageTtl": 3600, "consistency": {"strong": {}} if strong else {"eventual": {}},
        "subscriptions": subscriptions or []}
    definition.update(parameters)
    return {"definition": {"location": cluster, "parameters": definition}}


def app_subscription(app_id: str, text: str) -> dict[str, Any]:
    """Return an application subscription of a domain file."""
    return {"appId": app_id, "expression": {"version": "E_VERSION_1", "text": text}}


class ConfigDirectory:
    """The files of one broker under a directory: `etc/`, `storage/`, `archive/`, `logs/`."""

    def __init__(self, root: Path, port: int, *, app: dict[str, Any] | None = None,
                 cluster: dict[str, Any] | None = None) -> None:
        self.root, self.port = root, port
        self.etc, self.storage = root / "etc", root / "storage"
        for directory in (self.etc / "domains", self.storage, root / "archive", root / "logs"):
            directory.mkdir(parents=True, exist_ok=True)
        self.broker = broker_config(self.storage, port, **dict(app or {}))
        self.clusters = clusters_config(self.storage, port, **dict(cluster or {}))
        self.write()

    def write(self) -> None:
        """Write bmqbrkrcfg.json and clusters.json."""
        (self.etc / "bmqbrkrcfg.json").write_text(json.dumps(self.broker, indent=2), encoding="utf-8")
        (self.etc / "clusters.json").write_text(json.dumps(self.clusters, indent=2), encoding="utf-8")

    def domain(self, name: str, *args: Any, **parameters: Any) -> None:
        self.domain_text(name, json.dumps(domain_config(name, *args, **parameters), indent=2))

    def domain_text(self, name: str, text: str) -> None:
        """Write the file of a domain."""
        (self.etc / "domains" / f"{name}.json").write_text(text, encoding="utf-8")


def plain_domain(name: str, mode: str = "priority", *, app_ids: tuple[str, ...] | list[str] = (), in_memory: bool = False,
                 subscriptions: Mapping[str, str] | None = None, consistency: str = "eventual", **parameters: Any) -> str:
    """Return the text of a domain's file from the arguments of `Broker.domain`. Raises LocalError if they are invalid."""
    for what, value, known in (("mode", mode, _MODES), ("consistency", consistency, _CONSISTENCIES)):
        if value not in known:
            raise LocalError(f"domain {name}: {what} is one of {', '.join(known)}, not {value!r}")
    members = [each.name for each in DomainConfig.DECLARED]
    for wrong in sorted(parameters.keys() - {*members, *_RENAMED}):
        close = get_close_matches(wrong, ["in_memory", "max_messages", "max_bytes", *members], 1)
        raise LocalError(f"domain {name}: there is no {wrong!r}" + (f", did you mean {close[0]!r}?" if close else ""))
    if (mode == "fanout") != bool(app_ids):
        raise LocalError(f"domain {name}: app_ids are required in a fanout domain, and not allowed in other modes")
    given = [app_subscription(app, text) for app, text in (subscriptions or {}).items()]
    named: dict[str, Any] = {_RENAMED.get(key, key): int(value) if key == "ttl" and value is not None else value
                             for key, value in parameters.items() if value is not None or key not in _RENAMED}
    return json.dumps(domain_config(
        name, mode, apps=tuple(app_ids), in_memory=in_memory or mode == "broadcast", subscriptions=given,
        strong=consistency == "strong", **named), indent=2)


@lru_cache(maxsize=1)
def sample_domains() -> tuple[tuple[str, str], ...]:
    """Return (name, text) of the domains of the sample configuration."""
    found = []
    for path, text in sample_files().items():
        if path.startswith("domains/"):
            document = json.loads(text)
            document["definition"]["location"] = CLUSTER
            found.append((path.removeprefix("domains/").removesuffix(".json"), json.dumps(document, indent=2)))
    return tuple(found)


class DomainTable:
    """`config.provider.DomainSource` over texts in memory, by name of the domain."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def read(self, name: str) -> DomainFile:
        text = self.texts.get(name)
        return DomainFile(f"domains/{name}.json", text, missing=text is None)

    def read_proxy_cluster(self, name: str) -> DomainFile:
        return DomainFile(f"proxyclusters/{name}.json", None, missing=True)

    def stamp(self) -> int:
        """Return a constant: changes take effect by a reconfiguration."""
        return 0

    def names(self) -> list[str]:
        return sorted(self.texts)


def configuration(broker: dict[str, Any], clusters: dict[str, Any]) -> Configuration:
    """Return the configuration of files with this content. Raises ConfigError."""
    notices: list[Finding] = []
    return compose("", decode_text(BrokerConfig, json.dumps(broker), "bmqbrkrcfg.json", notices),
                   decode_text(Clusters, json.dumps(clusters), "clusters.json", notices), NO_OVERRIDES,
                   frozenset({NODE, "localhost"}), notices)
