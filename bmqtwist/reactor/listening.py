"""Listening sockets of broker and console, and the errors of those that cannot be opened.

Called by `daemon/service.py`; `daemon/trial_start.py` reports the same errors before a start. Connections are in `tcp.py`.
"""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.error import CannotListenError

from bmqtwist.addresses import host_and_port
from bmqtwist.errors import LocalError

_REMEDIES = {
    errno.EADDRINUSE: "Is another broker running?",
    errno.EADDRNOTAVAIL: "No interface of this machine has the address.",
    errno.EACCES: "This user may not listen at the port; ports below 1024 need the capability CAP_NET_BIND_SERVICE."}


def listen(reactor: Any, factory: Any, address: str, port: int, context: Any, backlog: int) -> Any:
    """Open a listening socket, with TLS if `context` is not None; LocalError if the address cannot be bound."""
    try:
        if context is None:
            return reactor.listenTCP(port, factory, backlog=backlog, interface=address)
        return reactor.listenSSL(port, factory, context, backlog=backlog, interface=address)
    except CannotListenError as error:
        raise LocalError(f"Cannot listen at '{host_and_port(address, port)}': {listen_reason(error.socketError)}") from None


def listen_reason(error: OSError) -> str:
    """Return the error of a listening socket with its remedy."""
    text, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0)
    return f"{text}. {remedy}" if remedy else f"{text}."
