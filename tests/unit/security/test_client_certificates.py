"""Client certificates: optional by default, or required of every client of a TLS listener."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.certificates import certificate
from OpenSSL import SSL

from bmqtwist.config.broker import TlsConfig
from bmqtwist.errors import LocalError
from bmqtwist.security.tls import ServerContext


def handshake(server: ServerContext, own: tuple[Path, Path] | None) -> bool:
    """Return whether a client with or without a certificate completes a handshake, in memory."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    if own is not None:
        context.use_certificate_file(str(own[0]))
        context.use_privatekey_file(str(own[1]))
    client, accepted = SSL.Connection(context, None), SSL.Connection(server.getContext(), None)
    client.set_connect_state()
    accepted.set_accept_state()
    done = set[int]()
    for _ in range(10):
        for number, (end, other) in enumerate(((client, accepted), (accepted, client))):
            try:
                end.do_handshake()
                done.add(number)
            except SSL.WantReadError:
                pass
            except SSL.Error:
                return False
            try:
                other.bio_write(end.bio_read(1 << 16))
            except SSL.WantReadError:
                pass
    return done == {0, 1}


@pytest.mark.parametrize("required", [False, True])
def test_clients_without_a_certificate_are_refused_if_it_is_required(tmp_path: Path, required: bool) -> None:
    files = certificate(tmp_path)
    server = ServerContext(TlsConfig(certificate_authority=str(files[0]), certificate=str(files[0]), key=str(files[1]),
                                     versions="TLSv1.3"), required)
    assert handshake(server, files) and handshake(server, None) is not required
    server.reload()
    assert handshake(server, None) is not required


def test_required_certificates_need_an_authority(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with pytest.raises(LocalError, match="requireClientCertificate requires tlsConfig.certificateAuthority"):
        ServerContext(TlsConfig(certificate_authority="", certificate=str(cert), key=str(key), versions="TLSv1.3"), True)
