"""`bmq shell` with TLS and a password, in all its modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.shell import run

pytestmark = pytest.mark.process


def test_the_shell_connects_only_with_tls_and_password(secure: tuple[str, Path]) -> None:  # noqa: F811
    address, cert = secure
    known = ("-b", address, "--tls-authority", str(cert), "--authnMechanism", "BASIC", "--authnData")
    script = 'start\nopen uri="bmq://d/q" flags="read,write,ack"\npost uri="bmq://d/q" payload="x"\nwait\n'
    assert run(*known, "alice:secret", text=script)[0] == 0
    code, output = run(*known, "alice:secret", "--mode", "auto", "-q", "bmq://d/q", "-f", "read", "-c",
                       "--shutdownGrace", "1")
    assert code == 0 and "consumed 1 messages" in output

    code, output = run(*known, "alice:guess", text="start\n")
    assert code == 1 and "<-- session.start(5.0) => REFUSED (-6)" in output
    assert run(*known, "alice:guess", "--mode", "syschk")[0] == 4
    assert run("-b", address, "--mode", "syschk", "--timeout", "2", "--authn-mechanism", "BASIC", "--authn-data",
               "alice:secret")[0] == 3  # a certificate without a known authority
