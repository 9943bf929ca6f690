"""Composition of the configuration at the start: overrides, validation rules, own nodes, listeners.

Pure functions: `load` passes files, environment and host names. Called by `load.py`. Rules of one domain are in
`provider.py`, checks of the machine (ports, directories) in `daemon/preflight.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from typing import Any, TypeAlias, get_args

from bmqtwist.addresses import without_credential
from bmqtwist.config.broker import AppConfig, BoundListener, BrokerConfig, Configuration, Durability
from bmqtwist.config.clusters import ClusterDefinition, ClusterNode, ClusterProxyDefinition, Clusters
from bmqtwist.config.declare import PORT_MAX, ConfigError, Finding, camel_case
from bmqtwist.environment import is_service_address

LOOPBACK, EVERYWHERE = "127.0.0.1", "::"  # `::` = all addresses of both families
LEASE_MS_MIN = 100  # a primary queries its replicas four times per lease
STAT_PLUGINS = frozenset({"PrometheusStatConsumer"})
BUILT_IN_PLUGINS = STAT_PLUGINS | {"BasicAuthenticator", "AnonAuthenticator", "TestAuthenticator", "DefaultAuthorizer",
                                   "BasicCredentialProvider"}
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
CONSOLE_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*")
_ARGON2 = re.compile(r"\$argon2(id|i|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]{11,}\$[A-Za-z0-9+/]{16,}")
_USER_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values of the command line or the environment that replace members of files; None = not given."""

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
        """Return these overrides, replaced by the values of `stronger`."""
        named = {field.name: getattr(stronger, field.name) for field in fields(stronger)}
        return replace(self, **{name: value for name, value in named.items() if value is not None})


NO_OVERRIDES = Overrides()

ENVIRONMENT = {f"BMQ_{field.name.upper()}": field.name for field in fields(Overrides)}  # variable -> field
# field -> attribute path of the replaced member in AppConfig; `port` and `listen_address` apply to listeners
REPLACED = {"instance_id": ("broker_instance_name",), "host_name": ("host_name",), "host_tags": ("host_tags",),
            "host_data_center": ("host_data_center",), "durability": ("bmqtwist", "durability"),
            "http_address": ("bmqtwist", "http", "address"), "http_port": ("bmqtwist", "http", "port")}


def overrides_from(environment: Mapping[str, str], command_line: Overrides, problems: list[Finding],
                   notices: list[Finding]) -> Overrides:
    """Return the overrides of the command line and of environment variables. A variable is ignored if it is empty, or if the
    command line has the value."""
    values: dict[str, Any] = {}
    for variable, field in ENVIRONMENT.items():
        text = environment.get(variable, "")
        is_port = field.endswith("port")
        if not text or getattr(command_line, field) is not None:
            continue
        if is_port and is_service_address(text):
            notices.append(Finding("environment", 0, variable, f'"{text}", set by Kubernetes for a Service, is ignored '
                                                               "(`enableServiceLinks: false` of the pod avoids it)"))
            continue
        if is_port and not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= PORT_MAX):
            problems.append(Finding("environment", 0, variable, f'found "{text}", expected a port from 0 to {PORT_MAX}'))
        elif field == "durability" and text not in get_args(Durability):
            expected = ", ".join(f'"{option}"' for option in get_args(Durability))
            problems.append(Finding("environment", 0, variable, f'found "{text}", expected one of {expected}'))
        else:
            values[field] = int(text) if is_port else text
    return Overrides(**values).merged(command_line)


def compose(directory: str, broker: BrokerConfig, clusters: Clusters, overrides: Overrides,
            local_names: frozenset[str], notices: list[Finding]) -> Configuration:
    """Apply the overrides, validate, and determine own nodes and listeners. Raises ConfigError."""
    broker_file, clusters_file = f"{directory}/bmqbrkrcfg.json", f"{directory}/clusters.json"
    app = _with_bound_port(apply_overrides(broker.app_config, overrides, broker_file, notices))
    broker = replace(broker, app_config=app)
    problems = [Finding(broker_file, 0, *each)
                for each in (*_stats_problems(app), *_listener_problems(app), *console_problems(app))]
    problems += [Finding(clusters_file, 0, *each)
                 for each in (*_endpoint_problems(app, clusters), *_cluster_problems(clusters))]
    notices += [Finding(clusters_file, 0, *each) for each in _timeout_warnings(clusters)]
    if app.authentication.authenticators and app.authentication.credential_provider is None and any(
            len(cluster.nodes) > 1 for cluster in clusters.my_clusters):
        notices.append(Finding(broker_file, 0, "appConfig.authentication.credentialProvider",
                               "is absent: this node sends no credential to other nodes, and nodes with an authenticator "
                               "refuse it"))
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
    several = {cluster.name for cluster in clusters.my_clusters if len(cluster.nodes) > 1}
    problems += [Finding(clusters_file, 0, "myClusters", text) for cluster in clusters.my_clusters if cluster.name in several
                 for node in cluster.nodes if self_nodes.get(cluster.name) == node.id
                 for text in _own_endpoint_problems(node, listeners)]
    if problems:
        raise ConfigError(problems)
    return Configuration(directory=directory, broker=broker, clusters=clusters, self_nodes=self_nodes,
                         listeners=listeners)


def apply_overrides(app: AppConfig, overrides: Overrides, file: str, notices: list[Finding]) -> AppConfig:
    """Return the configuration with the overrides applied; the port applies to a single listener."""
    for name, attributes in REPLACED.items():
        if (value := getattr(overrides, name)) is not None:
            app = _replaced(app, attributes, value)
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


def _replaced(section: Any, attributes: Sequence[str], value: object) -> Any:
    name, *rest = attributes
    return replace(section, **{name: _replaced(getattr(section, name), rest, value) if rest else value})


def _with_bound_port(app: AppConfig) -> AppConfig:
    """Return the configuration with the first listener's port in the deprecated member `port`."""
    tcp = app.network_interfaces.tcp_interface
    if tcp is None or not tcp.listeners:
        return app
    return replace(app, network_interfaces=_replaced(app.network_interfaces, ("tcp_interface", "port"),
                                                     tcp.listeners[0].port))


# -- rules: yield (path, text) of each violation ------------------------------------------------------------------------

Problems: TypeAlias = Iterator[tuple[str, str]]


def _stats_problems(app: AppConfig) -> Problems:
    """Intervals are multiples of the snapshot interval, and plug-ins exist; a dotted name is a class, imported later."""
    stats, path = app.stats, "appConfig.stats"
    snapshot, printing = stats.snapshot_interval, stats.printer.print_interval
    if snapshot and printing % snapshot:
        yield f"{path}.printer.printInterval", f"found {printing}, expected a multiple of snapshotInterval ({snapshot})"
    for i, plugin in enumerate(stats.plugins):
        where, interval = f"{path}.plugins[{i}]", plugin.publish_interval
        if plugin.name not in STAT_PLUGINS:
            yield f"{where}.name", f'found "{plugin.name}", expected one of {_listed(STAT_PLUGINS)}'
        if snapshot and interval % snapshot:
            yield f"{where}.publishInterval", f"found {interval}, expected a multiple of snapshotInterval ({snapshot})"
        if interval > printing:
            yield f"{where}.publishInterval", f"found {interval}, expected at most printInterval ({printing})"
    for i, name in enumerate(app.plugins.enabled):
        if name not in BUILT_IN_PLUGINS and "." not in name:
            yield f"appConfig.plugins.enabled[{i}]", f'found "{name}", expected one of {_listed(BUILT_IN_PLUGINS)}'


def _listener_problems(app: AppConfig) -> Problems:
    """A TLS listener has a certificate, and the port is valid."""
    tcp, path = app.network_interfaces.tcp_interface, "appConfig.networkInterfaces.tcpInterface"
    if tcp is not None and not tcp.listeners and not 0 <= tcp.port <= PORT_MAX:
        yield f"{path}.port", f"found {tcp.port}, expected a port (0 to {PORT_MAX})"
    for i, listener in enumerate(tcp.listeners if tcp else ()):
        if listener.tls and app.tls_config is None:
            yield f"{path}.listeners[{i}].tls", "is true, but there is no appConfig.tlsConfig"


def console_problems(app: AppConfig) -> Problems:
    """Prefix, URL and users of the console are valid."""
    http, path = app.bmqtwist.http, "appConfig.bmqtwist.http"
    if http.prefix and not _PREFIX.fullmatch(http.prefix):
        yield f"{path}.prefix", f'found "{http.prefix}", expected a path as "/bmq", without a trailing slash'
    if http.url and not CONSOLE_URL.fullmatch(http.url):
        yield f"{path}.url", f'found "{http.url}", expected "http://host:port" or "https://...", without a trailing slash'
    seen: set[str] = set()
    for i, user in enumerate(http.users):
        if not user.name or not user.name.isprintable() or len(user.name) > _USER_CHARS_MAX:
            yield f"{path}.users[{i}].name", f"expected 1 to {_USER_CHARS_MAX} printable characters"
        if user.name in seen:
            yield f"{path}.users[{i}].name", f'found "{user.name}" again, expected unique names'
        seen.add(user.name)
        if not _ARGON2.fullmatch(user.password_hash):
            yield f"{path}.users[{i}].passwordHash", "is not an argon2 hash: make one with `bmq password --console`"


def _all_clusters(clusters: Clusters) -> Iterator[tuple[str, ClusterDefinition | ClusterProxyDefinition]]:
    yield from ((f"myClusters[{i}]", cluster) for i, cluster in enumerate(clusters.my_clusters))
    yield from ((f"proxyClusters[{i}]", cluster) for i, cluster in enumerate(clusters.proxy_clusters))


def _endpoint_problems(app: AppConfig, clusters: Clusters) -> Problems:
    """A broker that connects to other brokers by TLS has a certificate authority."""
    if app.tls_config is not None and app.tls_config.certificate_authority:
        return
    for path, cluster in _all_clusters(clusters):
        for j, node in enumerate(cluster.nodes):
            if node.tls:
                yield f"{path}.nodes[{j}].transport.tcp.endpoint", (
                    f'found "{node.endpoint}", but appConfig.tlsConfig.certificateAuthority, which verifies the certificate '
                    "of that node, is missing")


def _own_endpoint_problems(node: ClusterNode, listeners: Sequence[BoundListener]) -> Iterator[str]:
    """The own endpoint and the listener at its port agree on TLS."""
    port = (node.host_and_port or ("", 0))[1]
    at_port = [listener for listener in listeners if listener.port == port and port]
    if at_port and all(listener.tls is not node.tls for listener in at_port):
        tls = at_port[0].tls
        yield (f'found the endpoint "{node.endpoint}" of this node, expected "{"tls" if tls else "tcp"}://...": the '
               f"listener '{at_port[0].name}' at that port has tls {'true' if tls else 'false'}")


def _cluster_problems(clusters: Clusters) -> Problems:
    """Names and node ids are unique, endpoints are well-formed."""
    seen: set[tuple[str, str]] = set()
    for path, cluster in _all_clusters(clusters):
        key = path.partition("[")[0], cluster.name
        if key in seen:
            yield f"{path}.name", f'found "{cluster.name}" again, expected unique names'
        seen.add(key)
        yield from _node_problems(cluster.nodes, f"{path}.nodes")
    for i, mine in enumerate(clusters.my_clusters):
        if len(mine.nodes) > 1:
            yield from _election_problems(mine, f"myClusters[{i}]")
    for i, virtual in enumerate(clusters.my_virtual_clusters):
        ids = [{node.id for node in cluster.nodes} for cluster in clusters.my_clusters if cluster.name == virtual.name]
        if ids and virtual.self_node_id not in ids[-1]:
            yield f"myVirtualClusters[{i}].selfNodeId", (f"found {virtual.self_node_id}, expected a node of the cluster "
                                                         f'"{virtual.name}" in myClusters')


def _timeout_warnings(clusters: Clusters) -> Problems:
    """Timeouts of queue operations are ordered; a violation is a warning only."""
    for path, cluster in _all_clusters(clusters):
        configure, close = cluster.queue_operations.configure_timeout_ms, cluster.queue_operations.close_timeout_ms
        if configure > close:
            yield (f"{path}.queueOperations.configureTimeoutMs",
                   f"found {configure}, expected at most closeTimeoutMs ({close})")


def _election_problems(cluster: ClusterDefinition, path: str) -> Problems:
    """The elector of a multi-node cluster can elect a leader."""
    for i, node in enumerate(cluster.nodes):
        if node.id <= 0:
            yield f"{path}.nodes[{i}].id", f"found {node.id}, expected more than 0"
    elector = cluster.elector
    for name in ("heartbeat_broadcast_period_ms", "heartbeat_check_period_ms", "heartbeat_miss_count",
                 "max_random_wait_timeout_ms", "scouting_result_timeout_ms", "election_result_timeout_ms"):
        if not getattr(elector, name):
            yield f"{path}.elector.{camel_case(name)}", "found 0, expected more"
    if elector.lease_ms and not LEASE_MS_MIN <= elector.lease_ms < elector.inactivity_ms:
        yield f"{path}.elector.leaseMs", (
            f"found {elector.lease_ms}, expected 0, or at least {LEASE_MS_MIN} and less than heartbeatMissCount x "
            f"heartbeatBroadcastPeriodMs ({elector.inactivity_ms}), after which another primary may be appointed")
    wait, most = elector.initial_wait_timeout_ms, elector.max_random_wait_timeout_ms
    if wait <= most:
        yield f"{path}.elector.initialWaitTimeoutMs", f"found {wait}, expected more than maxRandomWaitTimeoutMs ({most})"


def _node_problems(nodes: tuple[ClusterNode, ...], path: str) -> Problems:
    if not nodes:
        yield path, "is empty, expected at least one node"
    ids: set[int] = set()
    for i, node in enumerate(nodes):
        if node.id in ids:
            yield f"{path}[{i}].id", f"found {node.id} again, expected unique ids"
        ids.add(node.id)
        if node.host_and_port is None:
            yield (f"{path}[{i}].transport.tcp.endpoint",
                   f'found "{without_credential(node.endpoint)}", expected "tcp://host:port" or "tls://host:port"')
        elif node.dialled is None and node.transport.tcp is not None:
            yield (f"{path}[{i}].transport.tcp.dial",
                   f'found "{without_credential(node.transport.tcp.dial)}", expected "tcp://host:port" or "tls://host:port"')


# -- this node and its listeners ----------------------------------------------------------------------------------------

def find_self(cluster: ClusterDefinition, clusters: Clusters, local_names: frozenset[str], ports: frozenset[int],
              host_name: str) -> ClusterNode | None:
    """Return the node of this broker in a cluster; None = it cannot be determined.

    In this order: the node id in myVirtualClusters; an endpoint with a name of this host and a port of a listener; a node
    whose name is `host_name`; the only node whose endpoint has a name of this host.
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
    return (f"found {endpoints}; none belongs to this broker (names of this host: {', '.join(sorted(names))}; ports: "
            f"{', '.join(map(str, sorted(ports))) or 'none'}). Set its node id in myVirtualClusters, or set hostName")


def listening_ports(app: AppConfig) -> list[int]:
    """Return the ports of the listeners in order, without listeners the deprecated single port."""
    tcp = app.network_interfaces.tcp_interface
    if tcp is None:
        return []
    return [listener.port for listener in tcp.listeners] if tcp.listeners else [tcp.port]


def resolve_listeners(app: AppConfig, ours: list[ClusterNode], address: str | None) -> tuple[BoundListener, ...]:
    """Return the sockets to open. The address is, in this order: the listener's; `address`, given at the start; that of the
    own node's endpoint; loopback."""
    tcp = app.network_interfaces.tcp_interface
    if tcp is None:
        return ()
    fallback = address or endpoint_address(ours)
    if not tcp.listeners:
        return (BoundListener(name=tcp.name, address=fallback, port=tcp.port, tls=False),)
    return tuple(BoundListener(name=listener.name, address=listener.address or fallback, port=listener.port,
                               tls=listener.tls) for listener in tcp.listeners)


def endpoint_address(ours: list[ClusterNode]) -> str:
    """Return the listening address for the own nodes' endpoints: loopback if all are local, the address if all have the
    same one, else (for host names or different addresses) all addresses."""
    hosts = {(node.host_and_port or (LOOPBACK, 0))[0].lower() for node in ours} - {"localhost"}
    addresses = {host: _is_loopback(host) for host in hosts}
    if all(addresses.values()):
        return next(iter(hosts)) if len(hosts) == 1 else LOOPBACK
    only = next(iter(hosts))
    return only if len(hosts) == 1 and addresses[only] is False else EVERYWHERE


def _is_loopback(host: str) -> bool | None:
    """Return whether an address is loopback; None = a host name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))
