"""Certificates for tests of TLS.

Used by `secure_broker.py` and `integration/test_secure_cluster.py`.
"""

from __future__ import annotations

import datetime
from ipaddress import IPv4Address
from pathlib import Path


def certificate(directory: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate of `localhost` and 127.0.0.1; return the paths of (certificate, key) in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))])
    built = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
             .serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
             .add_extension(names, critical=False)
             .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
             .sign(key, hashes.SHA256()))
    found = directory / "cert.pem", directory / "key.pem"
    found[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    found[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.NoEncryption()))
    return found
