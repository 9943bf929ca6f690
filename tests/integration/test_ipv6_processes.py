"""Brokers that have IPv6 addresses alone, as processes: three nodes, a proxy and clients, by address and by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from kit.cli_kit import Cli

from bmqtwist.testing import ClusterProcess

QUEUE = "bmq://bmq.test.persistent.priority/q"
NAME = "six.test"  # has an AAAA record alone
RESOLVER = f"""
import socket
resolve = socket.getaddrinfo
def getaddrinfo(host, *arguments, **more):
    return resolve("::1" if host in ({NAME!r}, {NAME.encode()!r}) else host, *arguments, **more)
socket.getaddrinfo = getaddrinfo
"""

pytestmark = pytest.mark.process


@pytest.mark.parametrize("host", ["[::1]", NAME])
def test_nodes_a_proxy_and_clients_connect_by_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """A listener without an address listens where the endpoint of its node says."""
    (tmp_path / "sitecustomize.py").write_text(RESOLVER)  # executed by every Python of this test
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cluster = ClusterProcess(tmp_path, proxies=1)
    nodes, proxy = [cluster[name] for name in cluster.names], cluster["p1"]
    for broker in (*nodes, proxy):
        config = broker.config
        for listener in config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]["listeners"]:
            listener["address"] = "::1"
            if broker is not proxy:
                del listener["address"]
        config.clusters = json.loads(json.dumps(config.clusters).replace("tcp://127.0.0.1", f"tcp://{host}"))
        config.write()
    try:
        for broker in (*nodes, proxy):
            broker.launch()
        for broker in (*nodes, proxy):
            broker.expect("BMQbrkr started successfully", deadline=60.0)
        urls = [f"tcp://{host}:{broker.port}" for broker in (*nodes, proxy)]
        for number, url in enumerate(urls):
            Cli(url)("produce", "-q", QUEUE, b"%d" % number)
        got = Cli(urls[-1])("consume", QUEUE, "-n", str(len(urls)), "-F", "{payload}\n").lines
        assert got == [str(number) for number in range(len(urls))]
        channels = {channel for broker in (*nodes, proxy) for line in broker.records if "Cluster" in line
                    for channel in re.findall(r"\[channel: '(.*?):\d+'", line)}
        assert channels == {"[::1]"}
    finally:
        cluster.close()
