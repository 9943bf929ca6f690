"""Listening sockets of broker and console, and the error text of a socket that cannot be opened.

A host name listens at all of its addresses that this machine has, `::` at all addresses of both families. The sockets of
IPv6 accept IPv6 only, so that the address of an IPv4 peer is an IPv4 address. Called by `daemon/service.py`;
`daemon/trial_start.py` opens the same sockets for a moment. Connections are in `tcp.py`, attempts to connect in
`dialing.py`.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from twisted.protocols.tls import TLSMemoryBIOFactory

from bmqtwist.addresses import host_and_port
from bmqtwist.errors import LocalError

_REMEDIES = {
    errno.EADDRINUSE: "Is another broker running?",
    errno.EADDRNOTAVAIL: "No interface of this machine has the address.",
    errno.EACCES: "This user may not listen at the port; ports below 1024 need the capability CAP_NET_BIND_SERVICE."}
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # an address of another machine, or IPv6 on a machine without it


def listen(reactor: Any, factory: Any, address: str, port: int, context: Any, backlog: int) -> list[Any]:
    """Open the listening sockets of an address, with TLS if `context` is not None; return their ports. LocalError if one
    cannot be opened."""
    if context is not None:
        factory = TLSMemoryBIOFactory(context, False, factory)
    ports = []
    for channel in open_sockets(address, port, backlog):
        ports.append(reactor.adoptStreamPort(channel.fileno(), channel.family, factory))
        channel.close()  # the reactor has a copy
    return ports


def open_sockets(address: str, port: int, backlog: int) -> list[socket.socket]:
    """Return a listening socket for each address; port 0: one free port for all. LocalError if one cannot be opened."""
    opened: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for host in ("0.0.0.0", "::") if address in ("::", "") else (address,):
            for family, kind, protocol, _, place in _resolve(host, port):
                if opened and not port:
                    place = (place[0], opened[0].getsockname()[1], *place[2:])
                try:
                    opened.append(_open(family, kind, protocol, place, backlog))
                except OSError as error:
                    if error.errno not in _NOT_HERE:
                        raise
                    missing = missing or error
        if missing is not None and not opened:
            raise missing
    except OSError as error:
        for each in opened:
            each.close()
        raise LocalError(f"Cannot listen at '{host_and_port(address, port)}': {listen_reason(error)}") from None
    return opened


def _resolve(host: str, port: int) -> list[Any]:
    try:
        return list(dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)))
    except UnicodeError:
        raise OSError(errno.EINVAL, "It is neither an address nor a host name") from None


def _open(family: int, kind: int, protocol: int, place: Any, backlog: int) -> socket.socket:
    channel = socket.socket(family, kind, protocol)
    try:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            channel.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        channel.bind(place)
        channel.listen(backlog)
        channel.setblocking(False)
    except OSError:
        channel.close()
        raise
    return channel


def listen_reason(error: OSError) -> str:
    """Return the error of a listening socket with its remedy."""
    text, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0)
    return f"{text}. {remedy}" if remedy else f"{text}."
