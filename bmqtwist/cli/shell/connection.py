"""From settings to a session of the client library."""

from __future__ import annotations

import ssl

from bmqtwist import __version__
from bmqtwist.cli.connection import client_context
from bmqtwist.cli.shell.settings import Settings
from bmqtwist.cli.toolname import TOOL, called_as_tool
from bmqtwist.errors import LocalError
from bmqtwist.sdk.options import DEFAULT_USER_AGENT, Credential, SessionOptions, parse_brokers

_ATTEMPT_S = 15.0
_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


def session_options(settings: Settings, connect_timeout_s: float | None = None) -> SessionOptions:
    """Options of a session; LocalError for a broker address that is none."""
    timeout = float(settings.timeout_sec)
    connect = connect_timeout_s or timeout
    credential = None
    if settings.authn_mechanism:
        credential = Credential(settings.authn_mechanism, settings.authn_data.encode() or None)
    return SessionOptions(
        brokers=parse_brokers(settings.broker), credential=credential, connect_timeout_s=connect,
        attempt_timeout_s=min(connect, _ATTEMPT_S), open_timeout_s=timeout, configure_timeout_s=timeout,
        close_timeout_s=timeout, disconnect_timeout_s=timeout,
        user_agent=f"{TOOL} libbmq:{__version__}" if called_as_tool() else DEFAULT_USER_AGENT)


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS for tls:// addresses, of the versions allowed."""
    if not any(broker.tls for broker in parse_brokers(settings.broker)):
        return None
    context = client_context(settings.tls_authority or None, False)
    names = [name.strip().lower() for name in settings.tls_versions.split(",") if name.strip()]
    if not names or not all(name in _VERSIONS for name in names):
        raise LocalError(f"tlsVersions {settings.tls_versions!r}: TLSv1.3, TLSv1.2, or both with a comma")
    context.minimum_version = min(_VERSIONS[name] for name in names)
    context.maximum_version = max(_VERSIONS[name] for name in names)
    return context
