"""What is decided once, when a broker starts: overrides, the rules a configuration must keep, our node, our listeners.

Pure: files, environment and the host's names are arguments (`load` brings them).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from typing import Any, get_args

from bmqtwist.config.broker import (
    AppConfig,
    BoundListener,
    BrokerConfig,
    ClusterDefinition,
    ClusterNode,
    ClusterProxyDefinition,
    Clusters,
    Configuration,
    Durability,
)
from bmqtwist.config.declare import PORT_MAX, ConfigError, Finding

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
LEASE_MS_MIN = 100  # replicas are asked four times as often
STAT_PLUGINS = frozenset({"PrometheusStatConsumer"})
BUILT_IN_PLUGINS = STAT_PLUGINS | {"BasicAuthenticator", "AnonAuthenticator", "TestAuthenticator", "DefaultAuthorizer",
                                   "BasicCredentialProvider"}
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~-]+)*")
_ARGON2 = re.compile(r"\$argon2(id|i|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]{11,}\$[A-Za-z0-9+/]{16,}")
_USER_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line or the environment says instead of the files; None = nothing."""

    instance_id: str | None = None
    host_name: str | None = None
    host_tags: str | None = None
    host_data_center: str | None = None
    port: int | None = None
    listen_address: str | None = None
    durability: str | None = None
    http_address: str | None = None
    http_port: int | None = None

    def merged(self, stronger: Overrides) -> Overrides:
        """These, with every value that `stronger` has taken from it."""
        named = {field.name: getattr(stronger, field.name) for field in fields(stronger)}
        return replace(self, **{name: value for name, value in named.items() if value is not None})


NO_OVERRIDES = Overrides()

# variable -> (field of Overrides, is it a port?)
ENVIRONMENT = {
    "BMQ_INSTANCE_ID": ("instance_id", False), "BMQ_HOST_NAME": ("host_name", False),
    "BMQ_HOST_TAGS": ("host_tags", False), "BMQ_HOST_DATA_CENTER": ("host_data_center", False),
    "BMQ_PORT": ("port", True), "BMQ_LISTEN_ADDRESS": ("listen_address", False),
    "BMQ_DURABILITY": ("durability", False), "BMQ_HTTP_ADDRESS": ("http_address", False),
    "BMQ_HTTP_PORT": ("http_port", True),
}


def overrides_from(environment: Mapping[str, str], problems: list[Finding]) -> Overrides:
    """The overrides that environment variables hold; an empty variable counts as absent."""
    values: dict[str, Any] = {}
    for variable, (field, is_port) in ENVIRONMENT.items():
        text = environment.get(variable, "")
        if not text:
            continue
        if is_port and not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= 65535):
            problems.append(Finding("environment", 0, variable, f'found "{text}", expected a port from 0 to 65535'))
        elif field == "durability" and text not in get_args(Durability):
            expected = ", ".join(f'"{option}"' for option in get_args(Durability))
            problems.append(Finding("environment", 0, variable, f'found "{text}", expected one of {expected}'))
        else:
            values[field] = int(text) if is_port else text
    return Overrides(**values)


def compose(directory: str, broker: BrokerConfig, clusters: Clusters, overrides: Overrides,
            local_names: frozenset[str], notices: list[Finding]) -> Configuration:
    """Apply the overrides, check the rules, find ourselves and the listeners. Raises ConfigError."""
    problems: list[Finding] = []
    broker_file, clusters_file = f"{directory}/bmqbrkrcfg.json", f"{directory}/clusters.json"
    app = _with_bound_port(apply_overrides(broker.app_config, overrides, broker_file, notices))
    broker = replace(broker, app_config=app)
    check_stats(app, broker_file, problems)
    check_listeners(app, broker_file, problems)
    check_console(app, broker_file, problems)
    _check_endpoints(app, clusters, clusters_file, problems)
    check_clusters(clusters, clusters_file, problems, notices)
    if app.authentication.authenticators and app.authentication.credential_provider is None and any(
            len(cluster.nodes) > 1 for cluster in clusters.my_clusters):
        notices.append(Finding(broker_file, 0, "appConfig.authentication.credentialProvider",
                               "is absent: this node presents nothing to the other nodes, and those that have an "
                               "authenticator refuse it"))
    if problems:
        raise ConfigError(problems)
    names = local_names | {app.host_name.lower()} - {""}
    ports = frozenset(port for port in listening_ports(app) if port)
    self_nodes = {}
    for i, cluster in enumerate(clusters.my_clusters):
        node = find_self(cluster, clusters, names, ports, app.host_name)
        if node is None:
            problems.append(Finding(clusters_file, 0, f"myClusters[{i}].nodes", _not_found(cluster, names, ports)))
        else:
            self_nodes[cluster.name] = node.id
    ours = [node for cluster in clusters.my_clusters for node in cluster.nodes
            if self_nodes.get(cluster.name) == node.id]
    listeners = resolve_listeners(app, ours, overrides.listen_address)
    _check_own_endpoints([node for cluster in clusters.my_clusters for node in cluster.nodes
                          if len(cluster.nodes) > 1 and self_nodes.get(cluster.name) == node.id],
                         listeners, clusters_file, problems)
    if problems:
        raise ConfigError(problems)
    return Configuration(directory=directory, broker=broker, clusters=clusters, self_nodes=self_nodes,
                         listeners=listeners)


def apply_overrides(app: AppConfig, overrides: Overrides, file: str, notices: list[Finding]) -> AppConfig:
    """The configuration with the overrides in their places; the port goes to the only listener if there is one."""
    changes: dict[str, Any] = {
        "broker_instance_name": overrides.instance_id, "host_name": overrides.host_name,
        "host_tags": overrides.host_tags, "host_data_center": overrides.host_data_center}
    app = replace(app, **{name: value for name, value in changes.items() if value is not None})
    extension = app.bmqtwist
    if overrides.durability is not None:
        extension = replace(extension, durability=overrides.durability)  # type: ignore[arg-type]
    if overrides.http_address is not None:
        extension = replace(extension, http=replace(extension.http, address=overrides.http_address))
    if overrides.http_port is not None:
        extension = replace(extension, http=replace(extension.http, port=overrides.http_port))
    app = replace(app, bmqtwist=extension)
    if overrides.port is None:
        return app
    tcp, path = app.network_interfaces.tcp_interface, "appConfig.networkInterfaces.tcpInterface"
    if tcp is None:
        notices.append(Finding(file, 0, path, "is absent: the port given at the start has no effect"))
        return app
    if len(tcp.listeners) > 1:
        notices.append(Finding(file, 0, f"{path}.listeners",
                               "has several entries: the port given at the start has no effect"))
    elif tcp.listeners:
        tcp = replace(tcp, listeners=(replace(tcp.listeners[0], port=overrides.port),))
    else:
        tcp = replace(tcp, port=overrides.port)
    return replace(app, network_interfaces=replace(app.network_interfaces, tcp_interface=tcp))


def _with_bound_port(app: AppConfig) -> AppConfig:
    """The configuration with the first listener's port in the deprecated member, for those who look for it there."""
    tcp = app.network_interfaces.tcp_interface
    if tcp is None or not tcp.listeners:
        return app
    tcp = replace(tcp, port=tcp.listeners[0].port)
    return replace(app, network_interfaces=replace(app.network_interfaces, tcp_interface=tcp))


def check_stats(app: AppConfig, file: str, problems: list[Finding]) -> None:
    """The rules of the intervals, and names of plug-ins that exist. A dotted name is a class that is found later."""
    stats = app.stats
    snapshot, printing = stats.snapshot_interval, stats.printer.print_interval
    if snapshot and printing % snapshot:
        problems.append(Finding(file, 0, "appConfig.stats.printer.printInterval",
                                f"found {printing}, expected a multiple of snapshotInterval ({snapshot})"))
    for i, plugin in enumerate(stats.plugins):
        path = f"appConfig.stats.plugins[{i}]"
        if plugin.name not in STAT_PLUGINS:
            problems.append(Finding(file, 0, f"{path}.name",
                                    f'found "{plugin.name}", expected one of {_listed(STAT_PLUGINS)}'))
        if snapshot and plugin.publish_interval % snapshot:
            problems.append(Finding(file, 0, f"{path}.publishInterval", f"found {plugin.publish_interval}, expected a "
                                    f"multiple of snapshotInterval ({snapshot})"))
        if plugin.publish_interval > printing:
            problems.append(Finding(file, 0, f"{path}.publishInterval", f"found {plugin.publish_interval}, expected "
                                    f"at most printInterval ({printing})"))
    for i, name in enumerate(app.plugins.enabled):
        if name not in BUILT_IN_PLUGINS and "." not in name:
            problems.append(Finding(file, 0, f"appConfig.plugins.enabled[{i}]",
                                    f'found "{name}", expected one of {_listed(BUILT_IN_PLUGINS)}'))


def check_listeners(app: AppConfig, file: str, problems: list[Finding]) -> None:
    """A TLS listener needs a certificate, and the only port has to be one."""
    tcp = app.network_interfaces.tcp_interface
    if tcp is not None and not tcp.listeners and not 0 <= tcp.port <= PORT_MAX:
        problems.append(Finding(file, 0, "appConfig.networkInterfaces.tcpInterface.port",
                                f"found {tcp.port}, expected a port (0 to {PORT_MAX})"))
    for i, listener in enumerate(tcp.listeners if tcp else ()):
        if listener.tls and app.tls_config is None:
            problems.append(Finding(file, 0, f"appConfig.networkInterfaces.tcpInterface.listeners[{i}].tls",
                                    "is true, but there is no appConfig.tlsConfig"))


def check_console(app: AppConfig, file: str, problems: list[Finding]) -> None:
    """Paths and addresses of the console that can be part of a page, and users that can log in."""
    http, path = app.bmqtwist.http, "appConfig.bmqtwist.http"
    if http.prefix and not _PREFIX.fullmatch(http.prefix):
        problems.append(Finding(file, 0, f"{path}.prefix", f'found "{http.prefix}", expected a path as "/bmq", without a '
                                                           "slash at its end"))
    if http.url and not _URL.fullmatch(http.url):
        problems.append(Finding(file, 0, f"{path}.url", f'found "{http.url}", expected "http://host:port" or "https://...", '
                                                        "without a slash at its end"))
    seen: set[str] = set()
    for i, user in enumerate(http.users):
        where = f"{path}.users[{i}]"
        if not user.name or not user.name.isprintable() or len(user.name) > _USER_CHARS_MAX:
            problems.append(Finding(file, 0, f"{where}.name",
                                    f"expected 1 to {_USER_CHARS_MAX} characters that can be shown"))
        if user.name in seen:
            problems.append(Finding(file, 0, f"{where}.name", f'found "{user.name}" again, expected one only'))
        seen.add(user.name)
        if not _ARGON2.fullmatch(user.password_hash):
            problems.append(Finding(file, 0, f"{where}.passwordHash", "is no argon2 hash: make one with `bmq password "
                                                                      "--console`"))


def _groups(clusters: Clusters) -> list[tuple[str, Sequence[ClusterDefinition | ClusterProxyDefinition]]]:
    return [("myClusters", clusters.my_clusters), ("proxyClusters", clusters.proxy_clusters)]


def _check_endpoints(app: AppConfig, clusters: Clusters, file: str, problems: list[Finding]) -> None:
    """Whoever connects by TLS knows whom to trust."""
    if app.tls_config is not None and app.tls_config.certificate_authority:
        return
    for group, members in _groups(clusters):
        for i, cluster in enumerate(members):
            for j, node in enumerate(cluster.nodes):
                if node.tls:
                    problems.append(Finding(file, 0, f"{group}[{i}].nodes[{j}].transport.tcp.endpoint",
                                            f'found "{node.endpoint}", but appConfig.tlsConfig.certificateAuthority, which '
                                            "the certificate of that node is checked against, is missing"))


def _check_own_endpoints(ours: list[ClusterNode], listeners: Sequence[BoundListener], file: str,
                         problems: list[Finding]) -> None:
    """The others connect to us as our listener expects it."""
    for node in ours:
        port = (node.host_and_port or ("", 0))[1]
        at_port = [listener for listener in listeners if listener.port == port and port]
        if at_port and all(listener.tls is not node.tls for listener in at_port):
            expected = "tls" if at_port[0].tls else "tcp"
            problems.append(Finding(file, 0, "myClusters", f'found the endpoint "{node.endpoint}" of this node, expected '
                                    f'"{expected}://...": the listener \'{at_port[0].name}\' at that port has tls '
                                    f"{'true' if at_port[0].tls else 'false'}"))


def check_clusters(clusters: Clusters, file: str, problems: list[Finding], notices: list[Finding]) -> None:
    """Names and node ids that are unique, endpoints that can be taken apart."""
    mine = {cluster.name: cluster for cluster in clusters.my_clusters}
    for group, members in _groups(clusters):
        seen: set[str] = set()
        for i, cluster in enumerate(members):
            path = f"{group}[{i}]"
            if cluster.name in seen:
                problems.append(Finding(file, 0, f"{path}.name", f'found "{cluster.name}" again, expected one only'))
            seen.add(cluster.name)
            _check_nodes(cluster.nodes, f"{path}.nodes", file, problems)
            operations = cluster.queue_operations
            if operations.configure_timeout_ms > operations.close_timeout_ms:
                notices.append(Finding(file, 0, f"{path}.queueOperations.configureTimeoutMs",
                                       f"found {operations.configure_timeout_ms}, expected at most closeTimeoutMs "
                                       f"({operations.close_timeout_ms})"))
    for i, cluster in enumerate(clusters.my_clusters):
        if len(cluster.nodes) > 1:
            _check_election(cluster, f"myClusters[{i}]", file, problems)
    for i, virtual in enumerate(clusters.my_virtual_clusters):
        cluster_found = mine.get(virtual.name)
        if cluster_found is not None and virtual.self_node_id not in {node.id for node in cluster_found.nodes}:
            problems.append(Finding(file, 0, f"myVirtualClusters[{i}].selfNodeId", f"found {virtual.self_node_id}, expected "
                                    f"a node of the cluster \"{virtual.name}\" in myClusters"))


def _check_election(cluster: ClusterDefinition, path: str, file: str, problems: list[Finding]) -> None:
    """What several nodes need to find a leader."""
    for i, node in enumerate(cluster.nodes):
        if node.id <= 0:
            problems.append(Finding(file, 0, f"{path}.nodes[{i}].id", f"found {node.id}, expected more than 0"))
    elector = cluster.elector
    for name, value in (("heartbeatBroadcastPeriodMs", elector.heartbeat_broadcast_period_ms),
                        ("heartbeatCheckPeriodMs", elector.heartbeat_check_period_ms),
                        ("heartbeatMissCount", elector.heartbeat_miss_count),
                        ("maxRandomWaitTimeoutMs", elector.max_random_wait_timeout_ms),
                        ("scoutingResultTimeoutMs", elector.scouting_result_timeout_ms),
                        ("electionResultTimeoutMs", elector.election_result_timeout_ms)):
        if not value:
            problems.append(Finding(file, 0, f"{path}.elector.{name}", "found 0, expected more"))
    if elector.lease_ms and not LEASE_MS_MIN <= elector.lease_ms < elector.inactivity_ms:
        problems.append(Finding(file, 0, f"{path}.elector.leaseMs", f"found {elector.lease_ms}, expected 0, or at least "
                                f"{LEASE_MS_MIN} and less than heartbeatMissCount x heartbeatBroadcastPeriodMs "
                                f"({elector.inactivity_ms}), after which another primary may be appointed"))
    if elector.initial_wait_timeout_ms <= elector.max_random_wait_timeout_ms:
        problems.append(Finding(file, 0, f"{path}.elector.initialWaitTimeoutMs",
                                f"found {elector.initial_wait_timeout_ms}, expected more than maxRandomWaitTimeoutMs "
                                f"({elector.max_random_wait_timeout_ms})"))


def _check_nodes(nodes: tuple[ClusterNode, ...], path: str, file: str, problems: list[Finding]) -> None:
    if not nodes:
        problems.append(Finding(file, 0, path, "is empty, expected at least one node"))
    ids: set[int] = set()
    for i, node in enumerate(nodes):
        if node.id in ids:
            problems.append(Finding(file, 0, f"{path}[{i}].id", f"found {node.id} again, expected one only"))
        ids.add(node.id)
        if node.host_and_port is None:
            problems.append(Finding(file, 0, f"{path}[{i}].transport.tcp.endpoint",
                                    f'found "{node.endpoint}", expected "tcp://host:port" or "tls://host:port"'))


def find_self(cluster: ClusterDefinition, clusters: Clusters, local_names: frozenset[str], ports: frozenset[int],
              host_name: str) -> ClusterNode | None:
    """Our node in a cluster; None = it cannot be told.

    In this order: what myVirtualClusters says; an endpoint with a name of this host and a port we listen at; a node
    that is named as this host; the only node whose endpoint has a name of this host.
    """
    for virtual in clusters.my_virtual_clusters:
        if virtual.name == cluster.name:
            return next((node for node in cluster.nodes if node.id == virtual.self_node_id), None)
    here = [node for node in cluster.nodes if (node.host_and_port or ("", 0))[0].lower() in local_names]
    for node in here:
        if (node.host_and_port or ("", 0))[1] in ports:
            return node
    named = [node for node in cluster.nodes if host_name and node.name == host_name]
    for candidates in (named, here):
        if len(candidates) == 1:
            return candidates[0]
    return None


def _not_found(cluster: ClusterDefinition, names: frozenset[str], ports: frozenset[int]) -> str:
    endpoints = ", ".join(node.endpoint for node in cluster.nodes)
    return (f"found {endpoints}; none is ours (names of this host: {', '.join(sorted(names))}; ports: "
            f"{', '.join(map(str, sorted(ports))) or 'none'}). Name our node in myVirtualClusters, or set hostName")


def listening_ports(app: AppConfig) -> list[int]:
    """The ports of the listeners in order; the deprecated single port counts where there are none."""
    tcp = app.network_interfaces.tcp_interface
    if tcp is None:
        return []
    return [listener.port for listener in tcp.listeners] if tcp.listeners else [tcp.port]


def resolve_listeners(app: AppConfig, ours: list[ClusterNode], address: str | None) -> tuple[BoundListener, ...]:
    """The sockets to open. The address is, in this order: the listener's; the one given at the start; what the
    endpoint of our node says; loopback.
    """
    tcp = app.network_interfaces.tcp_interface
    if tcp is None:
        return ()
    fallback = address or endpoint_address(ours)
    if not tcp.listeners:
        return (BoundListener(name=tcp.name, address=fallback, port=tcp.port, tls=False),)
    return tuple(BoundListener(name=listener.name, address=listener.address or fallback, port=listener.port,
                               tls=listener.tls) for listener in tcp.listeners)


def endpoint_address(ours: list[ClusterNode]) -> str:
    """The address that our nodes' endpoints ask for: loopback if all are local; the address itself where all name the
    same one; every address where a host name (which names no address) or several are given.
    """
    hosts = {(node.host_and_port or (LOOPBACK, 0))[0].lower() for node in ours} - {"localhost"}
    addresses = {host: _is_loopback(host) for host in hosts}
    if all(addresses.values()):
        return next(iter(hosts)) if len(hosts) == 1 else LOOPBACK
    only = next(iter(hosts))
    return only if len(hosts) == 1 and addresses[only] is False else EVERYWHERE


def _is_loopback(host: str) -> bool | None:
    """None = a name, not an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))
