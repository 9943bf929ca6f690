"""TLS contexts of listeners and of connections to other brokers, from `tlsConfig`: certificate, key, authority, versions.

`daemon/service.py` makes both contexts; `reactor/performer.py` connects to other brokers with `ClientContext`. TLS of the
client library is in `sdk/_adapters/identity.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.internet import ssl
from twisted.internet.error import VerifyError

from bmqtwist.config.broker import TlsConfig
from bmqtwist.errors import LocalError

VERSIONS = {"TLSv1": ssl.TLSVersion.TLSv1_0, "TLSv1.0": ssl.TLSVersion.TLSv1_0, "TLSv1.1": ssl.TLSVersion.TLSv1_1,
            "TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_ORDER = (ssl.TLSVersion.TLSv1_0, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
_BEGIN = b"-----BEGIN CERTIFICATE-----"
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_INVALID = (SSL.Error, crypto.Error, VerifyError, UnsupportedAlgorithm, ValueError)


class ServerContext:
    """Context of TLS listeners; `reload` replaces it for new connections. `requires_certificate`: of every client."""

    def __init__(self, config: TlsConfig, requires_certificate: bool = False) -> None:
        self._config, self._requires_certificate = config, requires_certificate
        self._options = server_context(config, requires_certificate)

    def reload(self) -> None:
        """Read the files again. LocalError: the present context stays."""
        self._options = server_context(self._config, self._requires_certificate)

    @property
    def expired(self) -> bool:
        """True if the broker's certificate has expired."""
        certificate = self._options.certificate
        return certificate is not None and certificate.has_expired()

    def getContext(self) -> Any:
        """Called by Twisted for each connection."""
        return self._options.getContext()


class ClientContext:
    """Context of connections to other brokers. The peer's certificate must be issued by the authority for the dialled host;
    the broker presents its own certificate on request."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self.reload()
        self.options("localhost")  # detects errors before the first connection

    def reload(self) -> None:
        """Read the files again. LocalError: the present context stays."""
        config = self._config
        trusted = ssl.trustRootFromCertificates(_certificates(config.certificate_authority, "certificateAuthority"))
        chain = _certificates(config.certificate, "certificate")
        try:
            own = ssl.PrivateCertificate.fromCertificateAndKeyPair(chain[0], _key(config.key))
        except _INVALID as error:
            raise LocalError(f"tlsConfig: certificate '{config.certificate}' and key '{config.key}' do not match: "
                             f"{error}") from None
        self._trusted, self._own, self._chain = trusted, own, [each.original for each in chain[1:]]

    def options(self, host: str) -> Any:
        return ssl.optionsForClientTLS(host, self._trusted, self._own, extraCertificateOptions={
            "extraCertChain": self._chain, **_version_options(self._config.versions)})


def server_context(config: TlsConfig, requires_certificate: bool = False) -> ssl.CertificateOptions:
    """Return the context of TLS listeners. A client certificate that is presented must be valid.

    Raises LocalError that names the invalid file or version.
    """
    chain = _certificates(config.certificate, "certificate")
    key = _key(config.key)
    options = _version_options(config.versions)
    if config.certificate_authority:
        authorities = _certificates(config.certificate_authority, "certificateAuthority")
        options |= {"verify": True, "requireCertificate": requires_certificate,
                    "caCerts": [each.original for each in authorities]}
    elif requires_certificate:
        raise LocalError("bmqtwist.requireClientCertificate requires tlsConfig.certificateAuthority, which issues the "
                         "certificates of clients.")
    try:
        made = ssl.CertificateOptions(privateKey=key.original, certificate=chain[0].original,
                                  extraCertChain=[each.original for each in chain[1:]], **options)
        made.getContext()  # detects errors before the first handshake
    except _INVALID as error:
        raise LocalError(f"tlsConfig: certificate '{config.certificate}' and key '{config.key}' do not match: "
                         f"{error}") from None
    return made


def _version_options(versions: str) -> dict[str, Any]:
    lowest, highest = _versions(versions)
    options: dict[str, Any] = {}
    if lowest in (ssl.TLSVersion.TLSv1_0, ssl.TLSVersion.TLSv1_1):
        options["insecurelyLowerMinimumTo"] = lowest
    else:
        options["raiseMinimumTo"] = lowest
    if highest is not ssl.TLSVersion.TLSv1_3:
        options["lowerMaximumSecurityTo"] = highest
        if options.get("raiseMinimumTo") is highest:
            options["insecurelyLowerMinimumTo"] = options.pop("raiseMinimumTo")
    return options


def _versions(text: str) -> tuple[Any, Any]:
    names = [part for part in text.replace(",", " ").split() if part]
    unknown = [name for name in names if name not in VERSIONS]
    if unknown or not names:
        raise LocalError(f"tlsConfig.versions: found '{text}', expected some of {', '.join(VERSIONS)}, separated by "
                         "commas.")
    indexes = sorted(_ORDER.index(VERSIONS[name]) for name in names)
    return _ORDER[indexes[0]], _ORDER[indexes[-1]]


def _read(path: str, member: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LocalError(f"tlsConfig.{member}: '{path}' cannot be read: {error.strerror or error}.") from None


def _certificates(path: str, member: str) -> list[ssl.Certificate]:
    parts = _read(path, member).split(_BEGIN)[1:]
    try:
        found = [ssl.Certificate.loadPEM(_BEGIN + part) for part in parts]
    except _INVALID:
        found = []
    if not found:
        raise LocalError(f"tlsConfig.{member}: '{path}' contains no certificate in PEM form.")
    return found


def _key(path: str) -> ssl.KeyPair:
    """Return the key of a file; a key with a passphrase is refused, never asked for."""
    found = _KEY.search(_read(path, "key"))
    if found is None:
        raise LocalError(f"tlsConfig.key: '{path}' contains no complete private key in PEM form.")
    try:
        key: Any = load_pem_private_key(found.group(), None)
        return ssl.KeyPair(crypto.PKey.from_cryptography_key(key))
    except TypeError:  # raised for encrypted keys only
        raise LocalError(f"tlsConfig.key: '{path}' has a passphrase: store the key without one, readable by the broker "
                         "only.") from None
    except _INVALID as error:
        raise LocalError(f"tlsConfig.key: '{path}' contains an invalid private key: {error}.") from None
