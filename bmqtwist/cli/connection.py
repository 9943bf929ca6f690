"""Connection options that the commands share: broker addresses, credential, TLS, timeout.

    @click.command()
    @connection_options
    def command(connection: ConnectionOptions) -> None:
        with connection.open_admin() as client: ...          # an admin session
        options = connection.session_options()          # for a client session, with connection.tls_context()

The client options go to `client_command.py`, which opens the session; admin sessions are in `adminclient.py`.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bmqtwist.cli.exits import Unreachable
from bmqtwist.cli.optiongroups import grouped_options
from bmqtwist.environment import is_service_address
from bmqtwist.errors import LocalError

if TYPE_CHECKING:
    import ssl

    from bmqtwist.cli.adminclient import AdminClient
    from bmqtwist.sdk.options import Address, SessionOptions

_TIMEOUT_S = 30.0
_RETRY_S = 0.2  # between two attempts of --wait


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Values of the connection options. `timeout`: seconds to wait for a connection and for each answer."""

    brokers: tuple[Address, ...]
    user: str | None
    password: str
    authority: str | None
    insecure: bool
    timeout: float
    wait: bool

    @property
    def broker_text(self) -> str:
        return ", ".join(map(str, self.brokers))

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, None if no broker address uses TLS."""
        return make_tls_context(self.authority, self.insecure) if any(each.tls for each in self.brokers) else None

    def session_options(self, **changes: Any) -> SessionOptions:
        from bmqtwist.sdk.options import Credential, SessionOptions

        credential = Credential.basic(self.user, self.password) if self.user is not None else None
        return replace(SessionOptions(
            brokers=self.brokers, credential=credential, connect_timeout_s=self.timeout,
            attempt_timeout_s=min(self.timeout, 15.0), open_timeout_s=self.timeout, configure_timeout_s=self.timeout,
            close_timeout_s=self.timeout, disconnect_timeout_s=min(self.timeout, 5.0)), **changes)

    def open_admin(self, as_client: bool = False) -> AdminClient:
        """Return a session with the first broker that accepts it. `as_client`: negotiate as a client instead of an
        administrator, and do not wait for a broker that is unreachable.

        Raises Unreachable or NotAllowed, the error of the last broker.
        """
        end = time.monotonic() + (self.timeout if self.wait and not as_client else 0.0)
        while True:
            try:
                return self._open_first_admin(as_client)
            except Unreachable:
                if time.monotonic() >= end:
                    raise
            time.sleep(_RETRY_S)

    def _open_first_admin(self, as_client: bool) -> AdminClient:
        from bmqtwist.cli.adminclient import AdminClient, connect

        context = self.tls_context()
        last: LocalError = Unreachable("no broker address is given")
        left = list(self.brokers)
        while left:
            try:
                made, broker = connect(left, self.timeout)
            except Unreachable as error:
                raise last if len(left) < len(self.brokers) else error from None
            left.remove(broker)
            try:
                with ExitStack() as stack:
                    stack.callback(made.close)
                    client = AdminClient(broker.host, broker.port, self.timeout, context if broker.tls else None, made)
                    stack.callback(client.close)
                    if self.user is not None:
                        client.authenticate("BASIC", f"{self.user}:{self.password}".encode())
                    client.negotiate(as_client)
                    stack.pop_all()
                    return client
            except LocalError as error:
                last = error
        raise last


def _make_connection(broker: tuple[str, ...], host: str | None, port: int | None, user: str | None,
                     password_file: str | None, **more: Any) -> ConnectionOptions:
    tls = more.pop("tls") or more["authority"] is not None or more["insecure"]
    return ConnectionOptions(_choose_addresses(broker, host, port, tls), user, _read_password(user, password_file), **more)


class PortType(click.IntRange):
    """Type of a port option with an environment variable. The variable is ignored if the command line names the broker, or
    if Kubernetes has set it for a Service."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if ctx is not None and param is not None and param.name is not None:
            source = ctx.get_parameter_source
            if source(param.name) is ParameterSource.ENVIRONMENT and (
                    source("broker") is ParameterSource.COMMANDLINE or is_service_address(value)):
                return None
        return super().convert(value, param, ctx)


connection_options = grouped_options(
    "connection", _make_connection,
    click.option("-b", "--broker", multiple=True, metavar="ADDRESS", envvar=["BMQ_BROKER_URI", "BMQ_BROKER"],
                 help="tcp://host:port or tls://host:port. Repeatable, or separated by commas; the first broker that "
                      "answers is used.  [env: BMQ_BROKER_URI; default: tcp://localhost:30114]"),
    click.option("--host", envvar="BMQ_HOST", hidden=True, help="Host of the broker, instead of --broker."),
    click.option("--port", envvar="BMQ_PORT", hidden=True, type=PortType(1, 65535), help="Port of the broker."),
    click.option("--user", envvar="BMQ_USER", help="Authenticate as this user (BASIC).  [env: BMQ_USER]"),
    click.option("--password-file", type=click.Path(exists=True, dir_okay=False),
                 help="File with the password. Default: BMQ_PASSWORD, else a prompt."),
    click.option("--tls", is_flag=True, help="Connect with TLS, as tls:// does."),
    click.option("--ca", "authority", type=click.Path(exists=True, dir_okay=False),
                 help="Certificate authorities that verify the broker's certificate; implies --tls."),
    click.option("--insecure", is_flag=True, help="TLS without verification of the broker's certificate."),
    click.option("--timeout", default=_TIMEOUT_S, show_default=True, type=click.FloatRange(0, min_open=True),
                 help="Seconds to wait for a connection, for each answer, and for a reconnection."),
    click.option("--wait", is_flag=True, help="Retry until --timeout if no broker is reachable."),
)


def _choose_addresses(brokers: tuple[str, ...], host: str | None, port: int | None, tls: bool) -> tuple[Address, ...]:
    from bmqtwist.sdk.options import DEFAULT_PORT, Address, parse_brokers

    source = click.get_current_context().get_parameter_source
    explicit = any(source(name) is ParameterSource.COMMANDLINE for name in ("host", "port"))
    if brokers and not (explicit and source("broker") is ParameterSource.ENVIRONMENT):
        try:
            found = parse_brokers(list(",".join(brokers).split(",")))
        except LocalError as error:
            plain = [text.strip() for text in ",".join(brokers).split(",")]
            hint = "" if any("://" in text or "@" in text for text in plain) else f" (did you mean tcp://{plain[0]}?)"
            raise click.UsageError(f"{error}{hint}") from None
    else:
        found = (Address(host or "localhost", port or DEFAULT_PORT),)
    return tuple(replace(each, tls=each.tls or tls) for each in found)


def _read_password(user: str | None, password_file: str | None) -> str:
    if user is None:
        return ""
    if password_file is not None:
        try:
            return (Path(password_file).read_text(encoding="utf-8").splitlines() or [""])[0]
        except UnicodeDecodeError as error:
            raise LocalError(f"{password_file}: the password file is not UTF-8: byte {error.start} is "
                             f"0x{error.object[error.start]:02x}. Save it as UTF-8.") from None
    known = os.environ.get("BMQ_PASSWORD")
    if known is not None:
        return known
    if not sys.stdin.isatty():
        raise click.UsageError("--user needs a password: give --password-file or set BMQ_PASSWORD.")
    return str(click.prompt("Password", hide_input=True, err=True))


def make_tls_context(authority: str | None, insecure: bool) -> ssl.SSLContext:
    """Return a TLS context that verifies brokers by the system's authorities or those of a file, or (`insecure`) not."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise LocalError(f"'{authority}' contains no certificates: {error}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
