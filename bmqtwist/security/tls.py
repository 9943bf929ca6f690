"""TLS of a listener: certificate, key, certificate authority and versions as `tlsConfig` names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.ssl import Certificate, CertificateOptions, KeyPair, PrivateCertificate, TLSVersion

from bmqtwist.config.broker import TlsConfig
from bmqtwist.errors import LocalError

VERSIONS = {"TLSv1": TLSVersion.TLSv1_0, "TLSv1.0": TLSVersion.TLSv1_0, "TLSv1.1": TLSVersion.TLSv1_1,
            "TLSv1.2": TLSVersion.TLSv1_2, "TLSv1.3": TLSVersion.TLSv1_3}
_ORDER = (TLSVersion.TLSv1_0, TLSVersion.TLSv1_1, TLSVersion.TLSv1_2, TLSVersion.TLSv1_3)
_BEGIN = b"-----BEGIN CERTIFICATE-----"


class ServerContext:
    """The context of TLS listeners, which `reload` makes anew for the connections to come."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._options = server_context(config)

    def reload(self) -> None:
        """Read the files again; LocalError: what was read before stays."""
        self._options = server_context(self._config)

    def getContext(self) -> Any:
        """From Twisted, for each connection."""
        return self._options.getContext()


def server_context(config: TlsConfig) -> CertificateOptions:
    """The context of TLS listeners. A peer need not show a certificate; one that it shows must be good.

    Raises LocalError naming the file or the version that will not do.
    """
    lowest, highest = _versions(config.versions)
    chain = _certificates(config.certificate, "certificate")
    key = _key(config.key)
    options: dict[str, Any] = {}
    if lowest in (TLSVersion.TLSv1_0, TLSVersion.TLSv1_1):
        options["insecurelyLowerMinimumTo"] = lowest
    else:
        options["raiseMinimumTo"] = lowest
    if highest is not TLSVersion.TLSv1_3:
        options["lowerMaximumSecurityTo"] = highest
        if options.get("raiseMinimumTo") is highest:
            options["insecurelyLowerMinimumTo"] = options.pop("raiseMinimumTo")
    if config.certificate_authority:
        authorities = _certificates(config.certificate_authority, "certificateAuthority")
        options |= {"verify": True, "requireCertificate": False, "caCerts": [each.original for each in authorities]}
    try:
        made = CertificateOptions(privateKey=key.original, certificate=chain[0].original,
                                  extraCertChain=[each.original for each in chain[1:]], **options)
        made.getContext()  # now rather than at the first handshake
    except SSL.Error as error:
        raise LocalError(f"tlsConfig: certificate '{config.certificate}' and key '{config.key}' do not fit: "
                         f"{error}") from None
    return made


def _versions(text: str) -> tuple[Any, Any]:
    names = [part for part in text.replace(",", " ").split() if part]
    unknown = [name for name in names if name not in VERSIONS]
    if unknown or not names:
        raise LocalError(f"tlsConfig.versions: found '{text}', expected some of {', '.join(VERSIONS)}, separated by "
                         "commas.")
    places = sorted(_ORDER.index(VERSIONS[name]) for name in names)
    return _ORDER[places[0]], _ORDER[places[-1]]


def _read(path: str, member: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LocalError(f"tlsConfig.{member}: '{path}' cannot be read: {error.strerror or error}.") from None


def _certificates(path: str, member: str) -> list[Certificate]:
    parts = _read(path, member).split(_BEGIN)[1:]
    try:
        found = [Certificate.loadPEM(_BEGIN + part) for part in parts]
    except (SSL.Error, ValueError):
        found = []
    if not found:
        raise LocalError(f"tlsConfig.{member}: '{path}' holds no certificate in PEM form.")
    return found


def _key(path: str) -> KeyPair:
    data = _read(path, "key")
    try:
        return PrivateCertificate.loadPEM(data).privateKey if _BEGIN in data else KeyPair.load(data, crypto.FILETYPE_PEM)
    except (SSL.Error, ValueError, TypeError):
        raise LocalError(f"tlsConfig.key: '{path}' holds no private key in PEM form without a passphrase.") from None
