"""Fixture: a broker process with TLS and basic authentication.

Used by `integration/conftest.py`; the certificates are made by `certificates.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.certificates import certificate
from kit.process import STARTED, BrokerProcess, free_port


@pytest.fixture
def secure(broker_process: BrokerProcess) -> Iterator[tuple[str, Path]]:
    """Run a broker with a TLS listener and the user alice; yield (address, certificate)."""
    cert, key = certificate(broker_process.root)
    port = free_port()
    app: dict[str, Any] = broker_process.config.broker["appConfig"]
    app["tlsConfig"] = {"certificateAuthority": str(cert), "certificate": str(cert), "key": str(key),
                        "versions": "TLSv1.3"}
    app["networkInterfaces"]["tcpInterface"]["listeners"].append(
        {"name": "tls", "address": "127.0.0.1", "port": port, "tls": True})
    app["authentication"] = {"anonymousCredential": {"disallow": {}}, "authenticators": [
        {"name": "BasicAuthenticator", "settings": [{"key": "alice", "value": {"stringVal": "secret"}}]}]}
    app["plugins"]["enabled"] = ["BasicAuthenticator"]
    broker_process.config.write()
    broker_process.config.domain("d")
    broker_process.launch()
    broker_process.expect(STARTED, deadline=180.0)
    yield f"tls://localhost:{port}", cert
