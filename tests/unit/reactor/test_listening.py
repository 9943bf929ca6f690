"""Listening sockets: errors with their remedy."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from twisted.internet import reactor
from twisted.internet.protocol import Factory

from bmqtwist.errors import LocalError
from bmqtwist.reactor.listening import listen, listen_reason


def test_a_used_port_asks_for_another_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used, pytest.raises(LocalError, match="Is another broker running"):
        listen(reactor, Factory(), "127.0.0.1", used.getsockname()[1], None, 5)


def test_an_address_of_another_machine_says_so() -> None:
    """The operator must not search for another broker."""
    with pytest.raises(LocalError, match=r"No interface of this machine has the address") as raised:
        listen(reactor, Factory(), "192.0.2.1", 0, None, 5)
    assert "another broker" not in str(raised.value)


def test_a_port_that_needs_a_capability_names_it() -> None:
    assert "CAP_NET_BIND_SERVICE" in listen_reason(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
