"""Members of `bmqbrkrcfg.json`, and `Configuration`, the complete configuration of a broker.

Each member is declared once, with type, default, unit and effect. The classes are plain data: `declare` decodes files to
them, `text` formats them, `load` reads the files. docs/configuration.md is generated from it; members of clusters and
domains are in `clusters.py` and `domain.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from bmqtwist.config.clusters import Clusters
from bmqtwist.config.declare import (
    CASELESS,
    Int32,
    Int64,
    Natural,
    Natural64,
    Port,
    Positive,
    Section,
    UInt64,
    member,
)
from bmqtwist.limits import EVENT_BYTES_MAX

PASSWORD_HASH_PREFIX = "$scrypt$"  # prefix of hashed BASIC passwords; other passwords are plain text

Severity: TypeAlias = Annotated[Literal["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "OFF"], CASELESS]

_ONE_THREAD = "the broker has one thread, and no thread pools"
_NO_ALLOCATOR = "memory is managed by Python"


# ---------------------------------------------------------------------------------------------------- taskConfig
class Syslog(Section):
    """taskConfig.logController.syslog"""

    enabled: bool = member("whether to write to syslog", False)
    app_name: str = member("name of the program in syslog", "")
    log_format: str = member("format of a record", "")
    verbosity: str = member("least severe level", "")


class LogDump(Section):
    """taskConfig.logController.logDump"""

    record_buffer_size: Int32 = member("size of the buffer of recent records", 32768, unit="B")
    recording_level: str = member("least severe level buffered", "OFF")
    trigger_level: str = member("level of a record that triggers the dump", "OFF")


class LogController(Section):
    """taskConfig.logController"""

    file_name: str = member("log file; `%T` = time of the start, `%p` = process id; empty = no file", "")
    file_max_age_days: Int32 = member("age at which log files are deleted; 0 = never", 0, unit="days")
    rotation_bytes: Int32 = member("size at which the log file is rotated; 0 = never", 0,
                                   unit="B")
    logfile_format: str = member("format of a record in the file: `%d` time, `%t` thread, `%s` severity, `%F:%l` "
                                 "source line, `%c` category, `%m` message, `%a` attributes",
                                 "%d (%t) %s %F:%l %m\n\n")
    console_format: str = member("format of a record on stdout", "%d (%t) %s %F:%l %m\n")
    logging_verbosity: Severity = member("least severe level logged", "INFO")
    bsls_log_severity_threshold: str = member("level of a C++ library of BlazingMQ", "ERROR",
                                              ignored="this broker does not use that library")
    console_severity_threshold: Severity = member("least severe level copied to stdout", "INFO")
    categories: tuple[str, ...] = member("levels of single categories, `EXPR:SEVERITY:COLOR`; EXPR may end in `*`", ())
    syslog: Syslog = member("copy to syslog", Syslog, ignored="the log goes to the file and to stdout")
    log_dump: LogDump = member("dump of recent records", LogDump, ignored="records are not buffered")


class TaskConfig(Section):
    """taskConfig"""

    allocator_type: Literal["NEWDELETE", "COUNTING", "STACKTRACETEST"] = member(
        "memory allocator", "NEWDELETE", ignored=_NO_ALLOCATOR)
    allocation_limit: UInt64 = member("cap of the memory used", 0, unit="B", ignored=_NO_ALLOCATOR)
    log_controller: LogController = member("the log", LogController)


# ---------------------------------------------------------------------------------------------------- dispatcher
class ProcessorParameters(Section):
    """appConfig.dispatcherConfig.*.processorConfig"""

    queue_size: Int32 = member("capacity of a thread's queue", 0, unit="items")
    queue_size_low_watermark: Int32 = member("low watermark of a thread's queue", 0, unit="items")
    queue_size_high_watermark: Int32 = member("high watermark of a thread's queue", 0, unit="items")


class ProcessorConfig(Section):
    """appConfig.dispatcherConfig.{sessions,queues,clusters}"""

    num_processors: Int32 = member("number of threads", 0)
    processor_config: ProcessorParameters = member("queue of a thread", ProcessorParameters)


class DispatcherConfig(Section):
    """appConfig.dispatcherConfig"""

    sessions: ProcessorConfig = member("threads for sessions", ProcessorConfig, ignored=_ONE_THREAD)
    queues: ProcessorConfig = member("threads for queues", ProcessorConfig, ignored=_ONE_THREAD)
    clusters: ProcessorConfig = member("threads for clusters", ProcessorConfig, ignored=_ONE_THREAD)
    alarm_timeout_ms: Natural = member("duration of a turn of the event loop that raises an alarm; 0 = off", 180000,
                                       unit="ms")
    warning_timeout_ms: Natural = member("duration of a turn of the event loop that logs a warning; 0 = off", 10000,
                                         unit="ms")


# --------------------------------------------------------------------------------------------------------- stats
class Prometheus(Section):
    """appConfig.stats.plugins[].prometheusSpecific"""

    mode: Literal["E_PUSH", "E_PULL"] = member("push to Prometheus, or serve `/metrics`", "E_PULL")
    host: str = member("address to push to, or to serve `/metrics` at", "localhost")
    port: Port = member("port to push to, or to serve `/metrics` at", 8080)


class StatPlugin(Section):
    """appConfig.stats.plugins[]"""

    name: str = member("name of the metrics plug-in", "")
    queue_size: Int32 = member("capacity of its queue", 10000, unit="items", ignored="metrics are not queued")
    queue_high_watermark: Int32 = member("high watermark of its queue", 5000, unit="items",
                                         ignored="metrics are not queued")
    queue_low_watermark: Int32 = member("low watermark of its queue", 1000, unit="items",
                                        ignored="metrics are not queued")
    publish_interval: Natural = member("time between two publications; 0 = off", 30, unit="s")
    namespace_prefix: str = member("prepended to the name of each metric", "")
    hosts: tuple[str, ...] = member("hosts that publish; empty = all", ())
    instance_id: str = member("label of the instance", "")
    prometheus_specific: Prometheus | None = member("address for Prometheus", None)


class StatsPrinter(Section):
    """appConfig.stats.printer"""

    print_interval: Natural = member("time between two prints; 0 = off", 60, unit="s")
    file: str = member("statistics log; `%T` and `%p` as in the log; JSON goes to `<file>.json`; empty = no file", "")
    max_age_days: Int32 = member("age at which files are deleted; 0 = never", 0, unit="days")
    rotate_bytes: Int32 = member("size at which the file is rotated; 0 = never", 268435456,
                                 unit="B")
    rotate_days: Int32 = member("age at which the file is rotated; 0 = never", 1, unit="days")
    encoding: Literal["NONE", "TABLE", "JSON", "TABLE_AND_JSON"] = member("format of the output", "TABLE_AND_JSON")


class Stats(Section):
    """appConfig.stats"""

    snapshot_interval: Natural = member("sampling period; 0 = no statistics", 1, unit="s")
    plugins: tuple[StatPlugin, ...] = member("consumers of metrics", ())
    printer: StatsPrinter = member("statistics log", StatsPrinter)


# ------------------------------------------------------------------------------------------------------- network
class Heartbeats(Section):
    """appConfig.networkInterfaces.heartbeats"""

    client: Natural = member("missed intervals before a client's connection is closed; 0 = never", 0,
                             unit="intervals")
    downstream_broker: Natural = member("missed intervals before a downstream proxy's connection is closed; 0 = never", 0,
                                        unit="intervals")
    upstream_broker: Natural = member("missed intervals before a proxy closes the connection to its upstream broker; "
                                      "0 = never (BlazingMQ: 0)", 4, unit="intervals")
    cluster_peer: Natural = member("missed intervals before the connection to another node of the cluster is closed; "
                                   "0 = never (BlazingMQ: 0)", 4, unit="intervals")


class Listener(Section):
    """appConfig.networkInterfaces.tcpInterface.listeners[]"""

    name: str = member("name in the log")
    address: str | None = member("address to listen at; absent = loopback, unless the node's endpoint names another "
                                 "(BlazingMQ: 0.0.0.0); `::` = all addresses of IPv4 and IPv6", None)
    port: Port = member("port to listen at; 0 = a free port")
    tls: bool = member("serve TLS with the certificate of tlsConfig", False)


class TcpInterface(Section):
    """appConfig.networkInterfaces.tcpInterface"""

    name: str = member("name in the log", "TCPInterface")
    port: Int32 = member("port to listen at if `listeners` is empty, else without effect", 0)
    io_threads: Int32 = member("number of I/O threads", 0, ignored=_ONE_THREAD)
    max_connections: Natural = member("maximum number of connections; 0 = no limit", 10000)
    low_watermark: Natural64 = member("size of a client's output at which the broker writes to it again", 1024, unit="B")
    high_watermark: Natural64 = member("size of a client's output above which the broker warns and buffers it", 2048,
                                       unit="B")
    node_low_watermark: Natural64 = member("size of a cluster node's output at which the broker writes to it again", 1024,
                                           unit="B")
    node_high_watermark: Natural64 = member("size of a cluster node's output above which the broker warns and buffers it",
                                            2048, unit="B")
    heartbeat_interval_ms: Natural = member("period of heartbeats; 0 = no heartbeats", 3000, unit="ms")
    listeners: tuple[Listener, ...] = member("listening sockets; all serve the same queues", ())


class NetworkInterfaces(Section):
    """appConfig.networkInterfaces"""

    heartbeats: Heartbeats = member("missed heartbeats before a connection is closed", Heartbeats)
    tcp_interface: TcpInterface | None = member("TCP; absent = no listening socket", None)


class TlsConfig(Section, strict=True):
    """appConfig.tlsConfig"""

    certificate_authority: str = member("file with the authorities that verify certificates of other brokers", "")
    certificate: str = member("file with the broker's certificate")
    key: str = member("file with the private key of the certificate")
    versions: str = member("allowed versions, separated by commas", "TLSv1.3")


# ------------------------------------------------------------------------------------------------------ security
class PluginSettingValue(Section, choice=True):
    """Value of a setting, exactly one member."""

    bool_val: bool | None = member("true or false", None)
    int_val: Int32 | None = member("integer", None)
    long_val: Int64 | None = member("integer", None)
    double_val: float | None = member("number", None)
    string_val: str | None = member("string; passwords: see \"Passwords\" below", None, secret=True)

    @property
    def value(self) -> bool | int | float | str:
        every = (self.bool_val, self.int_val, self.long_val, self.double_val, self.string_val)
        return next(value for value in every if value is not None)


class PluginSetting(Section):
    """One setting of a plug-in: `settings[]`"""

    key: str = member("name of the setting")
    value: PluginSettingValue = member("its value")


class AuthenticatorConfig(Section):
    """A plug-in and its settings: `authenticators[]`, `credentialProvider`, `authorizer`"""

    name: str = member("name of the plug-in")
    settings: tuple[PluginSetting, ...] = member("its settings", ())

    def setting(self, key: str) -> bool | int | float | str | None:
        """Return the value of the last setting of that name; None = not set."""
        return {setting.key: setting.value.value for setting in self.settings}.get(key)


class Disallow(Section):
    """appConfig.authentication.anonymousCredential.disallow"""


class CredentialConfig(Section):
    """appConfig.authentication.anonymousCredential.credential"""

    mechanism: str = member("mechanism for clients that do not authenticate")
    identity: str = member("credential data for that mechanism", secret=True)


class AnonymousCredential(Section, choice=True):
    """appConfig.authentication.anonymousCredential"""

    disallow: Disallow | None = member("refuse clients that do not authenticate", None)
    credential: CredentialConfig | None = member("credential used for clients that do not authenticate", None)


class AuthenticationConfig(Section, strict=True):
    """appConfig.authentication"""

    authenticators: tuple[AuthenticatorConfig, ...] = member("one per mechanism; none = no authentication", ())
    anonymous_credential: AnonymousCredential | None = member(
        "treatment of clients that do not authenticate; absent = refused if an authenticator is configured", None)
    min_threads: Natural = member("minimum number of threads for authentication", 1)
    max_threads: Natural = member("maximum number of threads for authentication", 8)
    credential_provider: AuthenticatorConfig | None = member("credentials that this broker sends to other brokers", None)


class Authorization(Section, strict=True):
    """appConfig.authorization"""

    authorizer: AuthenticatorConfig | None = member("plug-in that authorizes actions; absent = all are allowed", None)


# ---------------------------------------------------------------------------------------------------- extensions
class ConsoleUser(Section, strict=True):
    """appConfig.bmqtwist.http.users[]"""

    name: str = member("login name")
    password_hash: str = member("argon2 hash of the password, from `bmq password --console`", secret=True)
    role: Literal["viewer", "operator", "admin"] = member(
        "`viewer`: read access; `operator`: may also stop nodes, move primaries, acknowledge alarms and publish; `admin`: "
        "may also purge and reconfigure", "viewer")


class Http(Section):
    """appConfig.bmqtwist.http"""

    address: str = member("address of the console and metrics", "127.0.0.1")
    port: Port = member("port of the console and metrics; 0 = off", 0)
    url: str = member("URL of this console for browsers and the other nodes, as `https://ops.example/bmq`; empty = address "
                      "and port, or the host of the node's endpoint if it listens at all addresses", "")
    hosts: tuple[str, ...] = member("further names by which browsers and scrapers reach this port, besides addresses, "
                                    "`localhost`, the name of the machine, `hostName` and the host of `url`: requests with "
                                    "another Host are refused", ())
    prefix: str = member("path below which a reverse proxy serves the console, as `/bmq`; with it, or from "
                         "trustedProxies, the header X-Forwarded-Prefix is used", "")
    users: tuple[ConsoleUser, ...] = member("users of the console; none = without login, according to localRole", ())
    local_role: Literal["none", "viewer", "operator", "admin"] = member(
        "without users: role of every user of this machine, and of every request that a reverse proxy on it forwards "
        "without X-Forwarded-For; `none` = the console refuses all requests", "none")
    trusted_proxies: tuple[str, ...] = member("addresses of reverse proxies: their X-Forwarded-For is the address of a "
                                              "client in the audit log and for delays of logins", ())
    key_file: str = member("file with a secret of 32 bytes or more, equal at all nodes of a cluster: it authenticates their "
                           "consoles to each other, and makes a login valid at all nodes; empty = a login is valid at one "
                           "node until its process ends, and with users each console shows its own node only", "")
    session_hours: Positive = member("maximum duration of a login", 12, unit="h")
    idle_minutes: Positive = member("idle time after which a login ends", 60, unit="min")
    metrics_queues_max: Natural = member("number of queues above which /metrics has no metrics of single queues "
                                         "that are not open, and number of open queues above which it has none of single "
                                         "queues; also of a metrics plug-in; 0 = no limit", 10_000)
    demo_domains: tuple[str, ...] = member("domains in which operators may start demonstration traffic from the console; "
                                           "none = not offered", ())
    report_directory: str = member("output directory of `bmq pipeline report`, to which the console links; empty = no link",
                                   "")


Action: TypeAlias = Literal["*", "ConnectClient", "ConnectProxy", "ConnectClusterNode", "ConnectAdmin",
                            "ExecuteAdminCommand", "QueueRead", "QueueWrite"]


class RuleConfig(Section):
    """appConfig.bmqtwist.authorization.rules[]"""

    principal: str = member("pattern of the principal with `*` and `?`, as `BASIC_USER-alice`", "*")
    actions: tuple[Action, ...] = member("actions; `*` = all if the effect is `deny`; ConnectClient, QueueRead and "
                                        "QueueWrite if it is `allow`", ("*",))
    domain: str = member("pattern of the domain with `*` and `?`, for QueueRead and QueueWrite", "*")
    effect: Literal["allow", "deny"] = member("the decision")


class AuthorizationRules(Section, strict=True):
    """appConfig.bmqtwist.authorization"""

    rules: tuple[RuleConfig, ...] = member("the first rule that matches decides", ())
    default: Literal["allow", "deny"] = member(
        "the decision if no rule matches; `allow` with rules excludes ConnectAdmin and ExecuteAdminCommand", "allow")


Durability: TypeAlias = Literal["none", "group", "always"]


class BmqtwistConfig(Section):
    """appConfig.bmqtwist: members that BlazingMQ does not have"""

    durability: Durability = member(
        "when a message is stored: `none` = written to the page cache, survives the end of the process, as in BlazingMQ; "
        "`group` = after an fdatasync of a batch, survives a loss of power; `always` = after an fdatasync in each turn",
        "group")
    http: Http = member("console and metrics", Http)
    outbox_bytes_max: Natural64 = member("maximum size of the output for a client that does not read; above it the client "
                                         "is disconnected; 0 = no limit, as in BlazingMQ", 256 << 20,
                                         unit="B")
    payload_cache_bytes: Natural64 = member("size of the cache for payloads of file-backed queues", 64 << 20, unit="B")
    scrub_interval_seconds: Natural = member(
        "time between the beginnings of two scrubs, which read all stored messages and repair damaged ones; 0 = no scrub",
        21600, unit="s")
    scrub_bytes_per_second: Positive = member("maximum rate at which a scrub reads; a message below 4 KiB counts as 4 KiB",
                                              4 << 20, unit="B/s")
    sessions_per_identity_max: Natural = member("maximum number of sessions of one principal; 0 = no limit", 0)
    unauthenticated_seconds_max: Natural = member("time from the connection to the end of the negotiation; "
                                                  "0 = no limit", 180, unit="s")
    unauthenticated_connections_max: Natural = member(
        "maximum number of connections that have not completed negotiation; a further one replaces the oldest silent one of "
        "the address that has the most, or is refused; 0 = no limit", 2000)
    unauthenticated_connections_per_address_max: Natural = member(
        "maximum number of such connections from one address; 0 = no limit", 500)
    connections_per_address_and_second_max: Natural = member(
        "maximum number of new connections per second from one address; further ones are refused; 0 = no limit", 500)
    reserved_addresses: tuple[str, ...] = member(
        "addresses or networks, as `10.0.0.0/24`, of nodes, proxies and important clients: their connections have places of "
        "their own and no limits per address. Addresses in endpoints and of connected nodes are reserved in any case", ())
    queues_per_domain_max: Natural = member(
        "maximum number of queues of a domain whose `maxQueues` is 0; 0 = no limit, as in BlazingMQ", 20_000)
    queue_creations_per_second_max: Natural = member(
        "maximum number of queues that one principal (without authentication: one address) creates per second, after 10,000 "
        "at once; further opens wait, up to their timeout; 0 = no limit", 100)
    input_bytes_max: Natural64 = member("maximum size of incomplete events of all connections; above it the principal or "
                                        "address with the most bytes loses the connection with its largest one", 1 << 30,
                                        unit="B")
    relay_bytes_max: Natural64 = member("maximum size of a proxy's PUTs that the cluster has not acknowledged; above it "
                                        "the proxy stops reading from producers", 256 << 20, unit="B")
    rebalance: bool = member("when a node becomes available, the leader moves partitions, one at a time, until all nodes "
                             "are primary of an equal number of partitions", False)
    rollback_seconds: Natural = member("time after an upgrade of all nodes during which they can be rolled back; then "
                                       "records that older releases do not understand are written", 3600, unit="s")
    event_bytes_max: Natural = member("maximum size of one event; a peer that announces a larger one is disconnected",
                                      EVENT_BYTES_MAX, unit="B")
    control_directory: str = member("directory of the control pipe `bmqbrkr.ctl`, its history `bmqbrkr.hist` and the pid "
                                    "file `bmqbrkr.pid`; empty = the working directory", "")
    require_client_certificate: bool = member("listeners with `tls` refuse clients without a certificate that "
                                              "tlsConfig.certificateAuthority has issued", False)
    authorization: AuthorizationRules = member("authorization rules", AuthorizationRules)


# ----------------------------------------------------------------------------------------------------- appConfig
class BmqconfConfig(Section):
    """appConfig.bmqconfConfig"""

    cache_ttl_seconds: Natural = member("lifetime of a domain file in the cache", 30, unit="s", name="cacheTTLSeconds")


class Plugins(Section):
    """appConfig.plugins"""

    libraries: tuple[str, ...] = member("directories with shared libraries", (),
                                        ignored="plug-ins are built in; shared libraries are not loaded")
    enabled: tuple[str, ...] = member("names of the plug-ins to start", ())


class MessagePropertiesV2(Section):
    """appConfig.messagePropertiesV2"""

    advertise_v2_support: bool = member("announce support of version 2 properties to clients", True)
    min_cpp_sdk_version: Natural = member("minimum version of C++ SDKs for this announcement", 11207)
    min_java_sdk_version: Natural = member("minimum version of Java SDKs for this announcement", 10)


class AppConfig(Section):
    """appConfig"""

    broker_instance_name: str = member("name of this broker in negotiation, log and statistics", "default")
    broker_version: Int32 = member("version of the file's broker", 999999,
                                   ignored="the broker uses the version of the program")
    config_version: Int32 = member("version of the file, informational", 0)
    etc_dir: str = member("configuration directory", "", ignored="the command line names the directory")
    host_name: str = member("host name of this broker in negotiation; also identifies its node in a cluster", "")
    host_tags: str = member("tags of the host", "")
    host_data_center: str = member("data center of the host; a proxy prefers nodes in its own", "")
    logs_observer_max_size: Int32 = member("size of the buffer of an in-memory log", 0,
                                           ignored="there is no in-memory log")
    latency_monitor_domain: str = member("domain of the latency monitor", "bmq.sys.latemon.latency",
                                         ignored="there is no latency monitor")
    dispatcher_config: DispatcherConfig = member("event loop", DispatcherConfig)
    stats: Stats = member("statistics", Stats)
    network_interfaces: NetworkInterfaces = member("network", NetworkInterfaces)
    bmqconf_config: BmqconfConfig = member("cache of domain files", BmqconfConfig)
    plugins: Plugins = member("plug-ins", Plugins)
    message_properties_v2: MessagePropertiesV2 = member("version 2 message properties", MessagePropertiesV2)
    configure_stream: bool = member("use the new form of the configure request upstream", False)
    advertise_subscriptions: bool | None = member("announce support of subscriptions to clients; absent = true (BlazingMQ: "
                                                  "false)", None)
    route_command_timeout_ms: Natural = member("timeout of admin commands routed to other nodes", 3000, unit="ms")
    authentication: AuthenticationConfig = member("authentication", AuthenticationConfig)
    authorization: Authorization = member("authorization", Authorization)
    tls_config: TlsConfig | None = member("TLS of the listeners with `tls`", None)
    bmqtwist: BmqtwistConfig = member("members that BlazingMQ does not have", BmqtwistConfig)


class BrokerConfig(Section):
    """bmqbrkrcfg.json"""

    task_config: TaskConfig = member("the process", TaskConfig)
    app_config: AppConfig = member("the broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundListener:
    """A listening socket with its effective address."""

    name: str
    address: str
    port: Port
    tls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Complete configuration of a broker. `self_nodes`: its node id by cluster."""

    directory: str
    broker: BrokerConfig
    clusters: Clusters
    self_nodes: dict[str, int]
    listeners: tuple[BoundListener, ...]

    @property
    def app(self) -> AppConfig:
        return self.broker.app_config

    @property
    def extension(self) -> BmqtwistConfig:
        return self.broker.app_config.bmqtwist
