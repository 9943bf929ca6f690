"""Three nodes and a proxy as processes with TLS and authentication between brokers; others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kit.certificates import certificate

from bmqtwist.cli.cluster.processes import free_ports
from bmqtwist.sdk import simple
from bmqtwist.testing import BrokerProcess, ClusterProcess

QUEUE = "bmq://bmq.test.persistent.priority.sc/q"
SOON = 60.0
pytestmark = pytest.mark.process


def plugin(name: str, **settings: str) -> dict[str, Any]:
    return {"name": name, "settings": [{"key": key, "value": {"stringVal": value}} for key, value in settings.items()]}


def secured(broker: BrokerProcess, files: tuple[Path, Path], tls_port: int, tls_ports: list[int], user: str) -> None:
    """Yield a cluster: brokers connect to a listener with TLS and authenticate, clients use another listener."""
    cert, key = files
    app = broker.config.broker["appConfig"]
    app["tlsConfig"] = {"certificateAuthority": str(cert), "certificate": str(cert), "key": str(key), "versions": "TLSv1.3"}
    if tls_port:
        app["networkInterfaces"]["tcpInterface"]["listeners"].append(
            {"name": "tls", "address": "127.0.0.1", "port": tls_port, "tls": True})
    app["authentication"] = {"authenticators": [plugin("BasicAuthenticator", node="secret", proxy="other")],
                             "anonymousCredential": {"credential": {"mechanism": "ANONYMOUS", "identity": ""}},
                             "credentialProvider": plugin("BasicCredentialProvider", username=user,
                                                          password="secret" if user == "node" else "other")}
    app.setdefault("bmqtwist", {})["authorization"] = {"rules": [
        {"principal": "BASIC_USER-proxy", "actions": ["ConnectProxy"], "effect": "allow"},
        {"principal": "anonymous", "actions": ["ConnectAdmin", "ExecuteAdminCommand"], "effect": "allow"}]}
    for group in ("myClusters", "proxyClusters"):
        for definition in broker.config.clusters[group]:
            for node, port in zip(definition["nodes"], tls_ports, strict=True):
                node["transport"]["tcp"]["endpoint"] = f"tls://127.0.0.1:{port}"
    broker.config.write()


def proxy_of(root: Path, cluster: ClusterProcess) -> BrokerProcess:
    made = BrokerProcess(root / "p1", app={"hostName": "p1"})
    definition = made.config.clusters["myClusters"][0]
    nodes = cluster["n1"].config.clusters["myClusters"][0]["nodes"]
    made.config.clusters.update(myClusters=[], myVirtualClusters=[], proxyClusters=[
        {"name": definition["name"], "queueOperations": definition["queueOperations"], "nodes": nodes}])
    return made


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[ClusterProcess, BrokerProcess]]:
    files, tls_ports = certificate(tmp_path), free_ports(3)
    cluster = ClusterProcess(tmp_path)
    for name, port in zip(cluster.names, tls_ports, strict=True):
        secured(cluster[name], files, port, tls_ports, "node")
    proxy = proxy_of(tmp_path, cluster)
    secured(proxy, files, 0, tls_ports, "proxy")
    with ExitStack() as stack:
        stack.enter_context(cluster)
        yield cluster, stack.enter_context(proxy)


def test_a_cluster_with_tls_and_credentials_refuses_brokers_without_them(
        secure: tuple[ClusterProcess, BrokerProcess]) -> None:
    cluster, proxy = secure
    with simple.Session(proxy.url) as producer, simple.Session(cluster["n2"].url) as consumer:
        posts, reads = producer.open(QUEUE, write=True), consumer.open(QUEUE, read=True)
        assert posts.post(b"through three connections").ok
        message = reads.get(SOON)
        assert message is not None and message.payload == b"through three connections"
        message.confirm()
    cluster["n1"].stop()
    authentication = cluster["n1"].config.broker["appConfig"]["authentication"]
    provider = authentication.pop("credentialProvider")
    cluster["n1"].config.write()
    since, other = len(cluster["n1"].records), len(cluster["n2"].records)
    cluster["n1"].launch()
    cluster["n1"].expect("no connection to node [n2, 2]: the negotiation", "sent no credential", since=since, deadline=SOON)
    cluster["n2"].expect("'anonymous' is not known as a broker", since=other, deadline=SOON)
    cluster["n1"].stop()
    authentication["credentialProvider"] = provider
    for node in cluster["n1"].config.clusters["myClusters"][0]["nodes"][1:]:  # as if the listeners of its peers had no TLS
        node["transport"]["tcp"]["endpoint"] = node["transport"]["tcp"]["endpoint"].replace("tls://", "tcp://")
    cluster["n1"].config.write()
    since, other = len(cluster["n1"].records), len(cluster["n2"].records)
    cluster["n1"].launch()
    cluster["n2"].expect("#TLS '127.0.0.1:", since=other, deadline=SOON)
    cluster["n1"].expect("no connection to node [n2, 2]: the negotiation", since=since, deadline=SOON)
    assert [broker.stop() for broker in (proxy, *(cluster[name] for name in cluster.names))] == [0, 0, 0, 0]
