"""Listening sockets: errors with their remedy."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.protocol import Factory

from bmqtwist.errors import LocalError
from bmqtwist.reactor import listening
from bmqtwist.reactor.listening import listen, listen_reason, open_sockets


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


def addresses(address: str, port: int = 0) -> list[tuple[str, int]]:
    opened = open_sockets(address, port, 5)
    try:
        return [each.getsockname()[:2] for each in opened]
    finally:
        for each in opened:
            each.close()


def test_all_addresses_are_those_of_both_families_at_one_port() -> None:
    """An IPv4 peer of the socket for IPv6 would have another address in logs, limits and reservedAddresses."""
    for address in ("::", ""):
        (first, port), (second, other) = addresses(address)
        assert (first, second) == ("0.0.0.0", "::") and port == other


def test_an_ipv4_address_is_that_alone() -> None:
    assert [host for host, _ in addresses("0.0.0.0")] == ["0.0.0.0"] and [host for host, _ in addresses("::1")] == ["::1"]


def test_a_machine_without_ipv6_listens_at_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = listening._open

    def refuse(family: int, *arguments: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return opened(family, *arguments)
    monkeypatch.setattr(listening, "_open", refuse)
    assert [host for host, _ in addresses("::")] == ["0.0.0.0"]
    with pytest.raises(LocalError, match=r"'\[::1\]:0'"):
        addresses("::1")


@pytest.mark.parametrize("address", ["\udcff", "a..b", "x" * 64, "." * 300])
def test_a_text_that_no_resolver_accepts_is_refused_with_its_reason(address: str) -> None:
    """It may come from the environment, which may hold any bytes."""
    with pytest.raises(LocalError, match="Cannot listen at .*: It is neither an address nor a host name"):
        addresses(address)


def test_a_name_with_an_address_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a cluster has the addresses of all nodes."""
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **more: places)
    assert [host for host, _ in addresses("mq.example")] == ["127.0.0.1"]
    del places[1]
    with pytest.raises(LocalError, match="No interface of this machine has the address"):
        addresses("mq.example")


def test_a_name_is_listened_to_at_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers connect to any of them."""
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
              (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **more: places * 2)
    (first, port), (second, other) = addresses("mq.example")
    assert (first, second) == ("127.0.0.1", "::1") and port == other
