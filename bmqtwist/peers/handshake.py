"""Handshake contents: identity and features of this broker, checks of a peer's features, supported SDK versions.

Used during the negotiation (`link/negotiation.py`) by `broker/sessions.py`, `links.py` and `downstreams.py`. `LinkHost` is
the interface that the latter two need of the broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bmqtwist.cluster.electorate import MemberStorage
from bmqtwist.cluster.member_lists import node_differences
from bmqtwist.config.broker import AppConfig, Configuration, Http
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.config.compose import CONSOLE_URL
from bmqtwist.errors import Category
from bmqtwist.link.extensions import CONFIRM_RECEIPTS, RELAY_EXTENSION, RELAY_FEATURES
from bmqtwist.link.peer import PeerContext
from bmqtwist.link.session import Session
from bmqtwist.loop.loop import Loop
from bmqtwist.report import Report
from bmqtwist.security.authenticators import Security
from bmqtwist.storage.identity import StorageState, id_text
from bmqtwist.versions import OWN, Versions
from bmqtwist.wire.cluster_schema import MemberInfo, MemberList
from bmqtwist.wire.schema import (
    DEVELOPMENT_VERSION,
    BrokerResponse,
    ClientIdentity,
    ClientType,
    GuidInfo,
    SdkLanguage,
    Status,
)

PAIR_EXTENSION = "BMQTWIST_PAIR"  # feature group of members: each applies if the receiver has announced it
RECORD_COPIES = "RECORD_COPIES"  # the member answers requests for messages that are damaged at their sender
CLUSTER_EXTENSION = "BMQTWIST_CLUSTER"  # feature group of configuration that must be equal at all members
NODES_EXTENSION = "BMQTWIST_NODES"  # feature group of the nodes in a member's configuration: `ID_NAME_ENDPOINT`, hexadecimal
STORAGE_EXTENSION = "BMQTWIST_STORAGE"  # feature group of a member's storage: `MemberStorage`, its numbers in hexadecimal
CONSOLE_EXTENSION = "BMQTWIST_CONSOLE"  # feature group of the console's URL and a proxy's name: UTF-8 in hexadecimal
OLDEST_SDK = {SdkLanguage.E_CPP: 10500, SdkLanguage.E_JAVA: 2}
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # listening addresses that stand for all interfaces
URL_CHARS_MAX, NAME_CHARS_MAX = 1024, 255
RECOMMENDED_SDK = {SdkLanguage.E_CPP: 10900}


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of this process, for negotiations and unique GUIDs."""

    process_name: str
    pid: int
    host_name: str
    client_id: bytes  # 6 bytes: "BrokerId"
    started: float  # monotonic
    started_wall: float  # seconds since the epoch at the same moment
    versions: Versions = OWN


def own_features(app: AppConfig) -> str:
    """Return the feature string of this broker, without features that the configuration hides."""
    fields = ["PROTOCOL_ENCODING:BER,JSON", "HA:GRACEFUL_SHUTDOWN,GRACEFUL_SHUTDOWN_V2,BROADCAST_TO_PROXIES"]
    if app.message_properties_v2.advertise_v2_support:
        fields.append("MPS:MESSAGE_PROPERTIES_EX")
    if app.advertise_subscriptions is not False:
        fields.append("SUBSCRIPTIONS:CONFIGURE_STREAM")
    return ";".join(fields)


def console_url(http: Http, host: str) -> str:
    """Return the URL of the console of a node whose endpoint has this host; empty if it has no console."""
    if http.url or not http.port:
        return http.url if http.port else ""
    address = (host or "127.0.0.1") if http.address in EVERY_ADDRESS else http.address
    return f"http://{f'[{address}]' if ':' in address else address}:{http.port}{http.prefix}"


def is_console_url(url: str) -> bool:
    """Return whether a text from another broker is a valid console URL: scheme, host, port and a prefix, without a query, a
    fragment and credentials."""
    return len(url) <= URL_CHARS_MAX and CONSOLE_URL.fullmatch(url) is not None


def announced_url(features: Mapping[str, Sequence[str]]) -> str:
    """Return the console URL in the features of another member or a proxy; empty if it is missing or invalid."""
    url = _announced(features, 0)
    return url if is_console_url(url) else ""


def announced_name(features: Mapping[str, Sequence[str]]) -> str:
    """Return the name in the features of a proxy; empty if it is missing or invalid."""
    name = _announced(features, 1)
    return name if name.isprintable() and len(name) <= NAME_CHARS_MAX else ""


def _announced(features: Mapping[str, Sequence[str]], place: int) -> str:
    try:
        return bytes.fromhex("".join(features.get(CONSOLE_EXTENSION, ())[place:place + 1])).decode()
    except ValueError:
        return ""


def _console(app: AppConfig, definition: ClusterDefinition, node_id: int) -> str:
    """Return the feature group with the URL of this node's console."""
    own = next((node for node in definition.nodes if node.id == node_id), None)
    url = console_url(app.bmqtwist.http, (own.host_and_port or ("", 0))[0] if own is not None else "")
    return f";{CONSOLE_EXTENSION}:{url.encode().hex()}" if url else ""


class LinkHost(Protocol):
    """Interface of `broker.sessions.Sessions` for connections with other brokers."""

    configuration: Configuration
    identity: Identity
    report: Report
    security: Security
    loop: Loop

    def make_response(self, session: Session, identity: ClientIdentity) -> BrokerResponse:
        """Return the response to a negotiation, with the number of its session."""

    def add_dialled(self, peer: str, identity: ClientIdentity, peers: PeerContext, now: float) -> Session:
        """Create the session of a dialled connection; `identity` is sent in the negotiation."""


def broker_response(identity: Identity, app: AppConfig, session_number: int, client: ClientIdentity) -> BrokerResponse:
    """Return the response to a client's identity; it advises SDKs older than OLDEST_SDK to give up."""
    interface = app.network_interfaces.tcp_interface
    admin = client.client_type == ClientType.E_TCPADMIN
    response = BrokerResponse(
        result=Status(Category.E_SUCCESS, 0, ""),
        protocol_version=1,
        broker_version=DEVELOPMENT_VERSION,
        broker_identity=ClientIdentity(
            protocol_version=1, sdk_version=DEVELOPMENT_VERSION, client_type=ClientType.E_TCPBROKER,
            process_name=identity.process_name, pid=identity.pid, session_id=session_number,
            host_name=identity.host_name, features=own_features(app), cluster_name="", cluster_node_id=-1,
            sdk_language=SdkLanguage.E_CPP, user_agent=f"bmqbrkr:{DEVELOPMENT_VERSION}"),
        heartbeat_interval_ms=interface.heartbeat_interval_ms if interface is not None else 0,
        max_missed_heartbeats=0 if admin else app.network_interfaces.heartbeats.client)
    oldest = OLDEST_SDK.get(client.sdk_language, 0)
    if client.sdk_version < oldest:
        response.is_deprecated_sdk = True
        response.result = Status(
            Category.E_NOT_SUPPORTED, -1, f"Client is using an unsupported version of libbmq (minimum supported version: "
                                          f"{oldest}, client version: {client.sdk_version}).")
    elif client.sdk_version < RECOMMENDED_SDK.get(client.sdk_language, 0):
        response.is_deprecated_sdk = True
    return response


def shared_configuration(definition: ClusterDefinition) -> tuple[str, str]:
    """Return the features that must be equal at all members: number of partitions, ids of nodes."""
    ids = sorted(node.id for node in definition.nodes)
    return f"PARTITIONS_{definition.partition_config.num_partitions}", f"NODES_{'_'.join(map(str, ids))}"


def configuration_difference(features: Mapping[str, Sequence[str]], definition: ClusterDefinition,
                             members: MemberList | None) -> str:
    """Describe how another member's configuration differs; empty if it is equal or not sent. While a change of the `members`
    is planned, each node may have the present or the planned nodes."""
    ours, theirs = shared_configuration(definition), features.get(CLUSTER_EXTENSION, shared_configuration(definition))
    nodes = announced_nodes(features)
    wrong = [each for each in theirs if each not in ours and not (nodes and each.startswith("NODES_"))]
    if wrong:
        return f"its configuration has {', '.join(wrong)}, that of this node {', '.join(ours)}"
    different = node_differences(definition.members, nodes) if nodes else []
    if members is not None and members.planned and different and any(
            not node_differences(each, nodes) for each in (members.nodes, members.planned)):
        return ""
    return f"in its configuration, {'; '.join(different)}" if different else ""


def _nodes_feature(definition: ClusterDefinition) -> str:
    """Return the feature group with the nodes in the configuration."""
    nodes = (f"{each.node_id}_{each.name.encode().hex()}_{each.endpoint.encode().hex()}" for each in definition.members)
    return f";{NODES_EXTENSION}:{','.join(nodes)}"


def announced_nodes(features: Mapping[str, Sequence[str]]) -> list[MemberInfo]:
    """Return the nodes in the configuration of another member; none if they are missing or invalid."""
    found = list[MemberInfo]()
    try:
        for each in features.get(NODES_EXTENSION, ()):
            number, name, endpoint = each.split("_")
            found.append(MemberInfo(int(number), bytes.fromhex(name).decode(), bytes.fromhex(endpoint).decode()))
    except ValueError:
        return []
    return found


def member_identity(identity: Identity, app: AppConfig, session_number: int, cluster: str, node_id: int,
                    definition: ClusterDefinition | None = None, console_of: ClusterDefinition | None = None
                    ) -> ClientIdentity:
    """Return the identity of a cluster's node: for another member, with the `definition` of the cluster; or for a proxy,
    with the URL of this node's console in `console_of`."""
    extra = _console(app, console_of, node_id) if console_of is not None else ""
    guid_info = GuidInfo()
    if definition is not None:
        guid_info = GuidInfo(identity.client_id.hex().upper(), int(identity.started_wall))
        extra = f";{CLUSTER_EXTENSION}:{','.join(shared_configuration(definition))}{_nodes_feature(definition)}" + _console(
            app, definition, node_id)
    return ClientIdentity(
        protocol_version=1, sdk_version=DEVELOPMENT_VERSION, client_type=ClientType.E_TCPBROKER,
        process_name=identity.process_name, pid=identity.pid, session_id=session_number, host_name=identity.host_name,
        features=f"{own_features(app)};{identity.versions.announcement()};{PAIR_EXTENSION}:{RECORD_COPIES};"
        f"{RELAY_EXTENSION}:{','.join(RELAY_FEATURES)}{extra}", cluster_name=cluster,
        cluster_node_id=node_id, sdk_language=SdkLanguage.E_CPP, user_agent=f"bmqbrkr:{DEVELOPMENT_VERSION}",
        guid_info=guid_info)


def proxy_identity(identity: Identity, app: AppConfig, session_number: int, cluster: str,
                   node_id: int = -1, upwards: bool = False) -> ClientIdentity:
    """Return the identity of a proxy: `upwards` for its upstream nodes, with its name and console URL, else for its own
    proxies; `node_id`: its id in a cluster whose nodes are proxies themselves."""
    introduction = member_identity(identity, app, session_number, cluster, node_id)
    url = console_url(app.bmqtwist.http, identity.host_name)
    console = f";{CONSOLE_EXTENSION}:{url.encode().hex()},{app.broker_instance_name.encode().hex()}" if upwards else ""
    introduction.features = f"{own_features(app)};{RELAY_EXTENSION}:{','.join(RELAY_FEATURES)}{console}"
    return introduction


def is_same_process(one: ClientIdentity, other: ClientIdentity) -> bool:
    """Return whether two identities of members are from one process; False if one of them does not say."""
    return bool(one.guid_info.client_id) and one.guid_info == other.guid_info and one.pid == other.pid


def supports_record_copies(features: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a member answers requests for messages."""
    return RECORD_COPIES in features.get(PAIR_EXTENSION, ())


def storage_feature(storage: MemberStorage) -> str:
    """Return the feature group with the storage of a member."""
    return (f";{STORAGE_EXTENSION}:{id_text(storage.incarnation)},{storage.state.name},{id_text(storage.cluster_id)},"
            f"{id_text(storage.previous)}")


def announced_storage(features: Mapping[str, Sequence[str]]) -> MemberStorage:
    """Return the storage in the features of a member; that of an earlier version if it is missing or invalid."""
    try:
        incarnation, state, cluster_id, previous = features[STORAGE_EXTENSION][:4]
        return MemberStorage(int(incarnation, 16), StorageState[state], int(cluster_id, 16), int(previous, 16))
    except (KeyError, ValueError):
        return MemberStorage()


def wants_receipts(features: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a broker supports receipts of its CONFIRMs."""
    return CONFIRM_RECEIPTS in features.get(RELAY_EXTENSION, ())


def refuse(response: BrokerResponse, message: str) -> None:
    """Turn a response into a refusal."""
    response.result = Status(Category.E_REFUSED, -1, message)
