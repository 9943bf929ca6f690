"""TLS credentials: each invalid file is refused with its name and the reason; a running broker keeps the old credential."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kit.certificates import certificate

from bmqtwist.config.broker import TlsConfig
from bmqtwist.errors import LocalError
from bmqtwist.security.tls import ClientContext, ServerContext


def key_of(made: bytes, form: PrivateFormat, passphrase: bytes = b"") -> bytes:
    """Return a key in another form."""
    key = load_pem_private_key(made, None)
    return key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(passphrase) if passphrase else NoEncryption())


def another_key(made: bytes) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda made: b"", "contains no complete private key"),
    "truncated": (lambda made: made[:len(made) // 2], "contains no complete private key"),
    "damaged": (lambda made: made.replace(made[60:90], b"A" * 30), "contains an invalid private key"),
    "not PEM": (lambda made: bytes(range(256)), "contains no complete private key"),
    "of another certificate": (another_key, "do not match"),
    "passphrase": (lambda made: key_of(made, PrivateFormat.PKCS8, b"secret"), "has a passphrase"),
    "old passphrase": (lambda made: key_of(made, PrivateFormat.TraditionalOpenSSL, b"secret"), "has a passphrase")}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("make", [ServerContext, ClientContext])
def test_an_invalid_key_is_refused_without_a_prompt_and_the_present_credential_stays(
        tmp_path: Path, make: type[ServerContext | ClientContext], kind: str) -> None:
    cert, key = certificate(tmp_path)
    context = make(TlsConfig(certificate_authority=str(cert), certificate=str(cert), key=str(key)))
    before = dict(vars(context))
    change, words = WRONG[kind]
    key.write_bytes(change(key.read_bytes()))
    with pytest.raises(LocalError, match=words) as caught:
        context.reload()
    assert str(key) in str(caught.value) and "secret" not in str(caught.value)
    assert vars(context) == before


@pytest.mark.parametrize("member, text", [("certificate", b""), ("certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n"),
                                          ("certificate_authority", b"x")])
def test_an_invalid_certificate_is_refused_with_its_file(tmp_path: Path, member: str, text: bytes) -> None:
    cert, key = certificate(tmp_path)
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(text)
    files = {"certificate_authority": str(cert), "certificate": str(cert), "key": str(key), member: str(wrong)}
    for make in (ServerContext, ClientContext):
        with pytest.raises(LocalError, match="contains no certificate in PEM form") as caught:
            make(TlsConfig(**files))
        assert str(wrong) in str(caught.value)


@pytest.mark.parametrize("order", ["before", "after"])
def test_certificate_and_key_may_be_in_one_file_and_in_the_traditional_form(tmp_path: Path, order: str) -> None:
    cert, key = certificate(tmp_path)
    made = key_of(key.read_bytes(), PrivateFormat.TraditionalOpenSSL)
    key.write_bytes(made + cert.read_bytes() if order == "before" else cert.read_bytes() + made)
    ServerContext(TlsConfig(certificate_authority=str(cert), certificate=str(key), key=str(key)))
