"""Exposures of a configuration: what peers without a credential, every user, the network and local users can do.

`exposures` lists them in order of weight. `daemon/service.py` logs those of START_WEIGHTS at the start, and
`authenticators.py` warns about the administration by every user; `bmq check --security` (`cli/check.py`) prints all. A
custom authorizer counts as a restriction, because its decisions are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address

from bmqtwist.addresses import host_and_port
from bmqtwist.config.broker import Configuration
from bmqtwist.config.load import BROKER_FILE
from bmqtwist.security.authenticators import BasicAuthenticator, Security
from bmqtwist.security.authorization import ADMIN_ACTIONS, Action

_ANY_DOMAIN = "\0"  # matches only patterns that match every domain: no name contains it


class Weight(IntEnum):
    """Weight of an exposure; the heaviest is the smallest number."""

    NETWORK_ADMINISTERS = 1
    NETWORK_USES_QUEUES = 2
    USERS_ADMINISTER = 3
    UNENCRYPTED = 4
    NETWORK_READS_STATUS = 5
    READABLE_SECRET = 6
    LOCAL_USERS = 7
    SECRET_IN_FILE = 8

    @property
    def label(self) -> str:
        """Name in lower case, with spaces."""
        return self.name.lower().replace("_", " ")


START_WEIGHTS = (Weight.NETWORK_ADMINISTERS, Weight.NETWORK_USES_QUEUES, Weight.UNENCRYPTED, Weight.NETWORK_READS_STATUS,
                 Weight.READABLE_SECRET)  # logged at the start


@dataclass(frozen=True, slots=True)
class Exposure:
    """A right of a party that it perhaps should not have, and the configuration that prevents it."""

    weight: Weight
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}. Remedy: {self.remedy}."


def exposures(configuration: Configuration, security: Security, is_readable: Callable[[str], bool]) -> list[Exposure]:
    """Return the exposures of a configuration, the heaviest first. `is_readable`: whether every user of this machine can
    read a file."""
    found = [*_listeners(configuration, security), *_users(security), *_console(configuration),
             *_secret_files(configuration, security, is_readable)]
    return sorted(found, key=lambda exposure: exposure.weight)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can connect to a listener at `address`."""
    if address == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _listeners(configuration: Configuration, security: Security) -> Iterator[Exposure]:
    several = any(len(cluster.nodes) > 1 for cluster in configuration.clusters.my_clusters)
    administers = _rights(configuration, security, several)
    uses = _uses_queues(configuration, security)
    for listener in configuration.listeners:
        place = f"Listener '{listener.name}' at {host_and_port(listener.address, listener.port)}"
        local = is_loopback(listener.address)
        who = "every user of this machine" if local else "an unauthenticated peer on the network"
        if administers:
            yield Exposure(Weight.LOCAL_USERS if local else Weight.NETWORK_ADMINISTERS, f"{place}: {who} can {administers}",
                           "configure authentication (appConfig.authentication) and the default deny in "
                           "appConfig.bmqtwist.authorization, or listen at 127.0.0.1" if not local
                           else "configure authentication (appConfig.authentication)")
        if uses:
            yield Exposure(Weight.LOCAL_USERS if local else Weight.NETWORK_USES_QUEUES, f"{place}: {who} can {uses}",
                           "configure authentication (appConfig.authentication), or rules for this principal")
        if not local and not listener.tls:
            yield Exposure(Weight.UNENCRYPTED, f"{place}: credentials and messages cross the network without TLS",
                           "set listeners[].tls and tlsConfig")


def _rights(configuration: Configuration, security: Security, several: bool) -> str:
    """Return what a peer without a credential can do to the broker as a whole; empty = nothing."""
    rights = []
    for principal in security.open_principals:
        if all(security.is_unrestricted(principal, action) for action in ADMIN_ACTIONS):
            rights.append(f"run admin commands (as '{principal}')")
        if several and security.may_be_broker(principal, Action.CONNECT_CLUSTER_NODE):
            rights.append(f"connect as a node of the cluster (as '{principal}')")
    return " and ".join(rights)


def _uses_queues(configuration: Configuration, security: Security) -> str:
    """Return which actions on queues a peer without a credential can do; empty = none."""
    subjects = [_ANY_DOMAIN, *(rule.domain for rule in configuration.extension.authorization.rules)]
    found = []
    for principal in security.open_principals:
        connects = (security.is_unrestricted(principal, Action.CONNECT_CLIENT)
                    or security.may_be_broker(principal, Action.CONNECT_PROXY))
        for action, verb in ((Action.QUEUE_READ, "read"), (Action.QUEUE_WRITE, "write")):
            domains = [each for each in subjects if connects and security.is_unrestricted(principal, action, each)]
            if domains:
                where = "every queue" if _ANY_DOMAIN in domains else f"queues of {', '.join(sorted(set(domains)))}"
                found.append(f"{verb} {where} (as '{principal}')")
    return " and ".join(found)


def _users(security: Security) -> Iterator[Exposure]:
    if security.is_administration_open:
        yield Exposure(Weight.USERS_ADMINISTER, "Every client with a valid credential can run admin commands",
                       "add rules for ExecuteAdminCommand to bmqtwist.authorization, with the default deny")
    for each in security.authenticators.values():
        if isinstance(each, BasicAuthenticator) and each.literal_users:
            yield Exposure(Weight.SECRET_IN_FILE, f"Passwords of {len(each.literal_users)} users are readable in the "
                           "configuration", "replace them by hashes made with `bmq password`")


def _secret_files(configuration: Configuration, security: Security, is_readable: Callable[[str], bool]
                  ) -> Iterator[Exposure]:
    tls, key_file = configuration.app.tls_config, configuration.extension.http.key_file
    files = {"tlsConfig.key": tls.key if tls is not None else "", "http.keyFile": key_file}
    if security.provider is not None or any(isinstance(each, BasicAuthenticator) and each.literal_users
                                            for each in security.authenticators.values()):
        files["Passwords"] = f"{configuration.directory}/{BROKER_FILE}"
    for what, path in files.items():
        if path and is_readable(path):
            yield Exposure(Weight.READABLE_SECRET, f"{what}: every user of this machine can read '{path}'",
                           f"chmod o-rwx '{path}'")


def _console(configuration: Configuration) -> Iterator[Exposure]:
    http = configuration.extension.http
    place, local = f"The console at {host_and_port(http.address, http.port)}", is_loopback(http.address)
    if http.port and not local:
        if http.users:
            yield Exposure(Weight.UNENCRYPTED, f"{place}: passwords cross the network without TLS",
                           "listen at 127.0.0.1 behind a reverse proxy with TLS")
        yield Exposure(Weight.NETWORK_READS_STATUS, f"{place}: the network can read metrics and health without a login",
                       "listen at 127.0.0.1, or restrict the port by a firewall")
    if http.port and not http.users and http.local_role != "none":
        yield Exposure(Weight.LOCAL_USERS, f"{place}: every user of this machine, and every request that a reverse proxy "
                       f"forwards without X-Forwarded-For, has the role {http.local_role}", "configure http.users")
    for plugin in configuration.app.stats.plugins:
        target = plugin.prometheus_specific
        if target is not None and target.mode == "E_PULL" and plugin.publish_interval and not is_loopback(target.host):
            place = host_and_port(target.host, target.port)
            yield Exposure(Weight.NETWORK_READS_STATUS, f"Metrics plug-in '{plugin.name}' at {place}: "
                           "the network can read metrics", "set its host to 127.0.0.1")
