"""Admin session over a blocking socket: connect, authenticate, negotiate, run commands. Used by the commands of `bmq` and by
the broker processes of `bmqtwist.testing`."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from typing import Self

from bmqtwist.addresses import host_and_port
from bmqtwist.cli.exits import NotAllowed, Unreachable
from bmqtwist.errors import PeerError
from bmqtwist.limits import EVENT_BYTES_MAX
from bmqtwist.sdk._adapters.dialing import connect_first
from bmqtwist.sdk.options import Address
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage, encoding_of
from bmqtwist.wire.fast import HEARTBEAT_RSP, EventType
from bmqtwist.wire.frames import FrameBuffer
from bmqtwist.wire.schema import AdminCommand, AuthenticationRequest, ClientIdentity, ClientType

READ_BYTES = 1 << 16


def connect(brokers: Sequence[Address], timeout: float) -> tuple[socket.socket, Address]:
    """Connect to the broker that answers first. Raises Unreachable if none does within `timeout` seconds."""
    try:
        return connect_first(brokers, timeout)
    except OSError as error:
        places = ", ".join(host_and_port(each.host, each.port) for each in brokers)
        raise Unreachable(f"no broker at {places}: {error.strerror or error}. Is it running, and is this its host and "
                          "port?") from None


class AdminClient:
    """One admin session; a context manager. `timeout`: seconds for each answer. `context`: TLS, None = plain TCP. `made`:
    the connected socket, None = connect."""

    def __init__(self, host: str, port: int, timeout: float = 30.0, context: ssl.SSLContext | None = None,
                 made: socket.socket | None = None) -> None:
        self._address = host_and_port(host, port)
        self._timeout = timeout
        self._frames = FrameBuffer(EVENT_BYTES_MAX)
        self._events: list[tuple[int, int, bytes]] = []
        self._requests = 0
        self._accepted = False
        plain = made or connect([Address(host, port)], timeout)[0]
        plain.settimeout(timeout)
        try:
            self._socket = context.wrap_socket(plain, server_hostname=host) if context is not None else plain
        except (OSError, ssl.SSLError) as error:
            plain.close()
            raise Unreachable(f"no TLS with {self._address}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def authenticate(self, mechanism: str, data: bytes) -> None:
        """Send a credential. Raises NotAllowed if the broker refuses it."""
        request = AuthenticationRequest(mechanism, data)
        self._send(control.encode_event(AuthenticationMessage("authenticationRequest", request)))
        specific, body = self._next_event(EventType.AUTHENTICATION, "the answer to the credential")
        status = control.decode_authentication(body, encoding_of(specific)).value.status
        if status.category:
            raise NotAllowed(f"{self._address} refused the credential: {status.message}")

    def negotiate(self, as_client: bool = False) -> str:
        """Negotiate as an administrator, or as a client if `as_client`; return the host name of the broker."""
        kind = ClientType.E_TCPCLIENT if as_client else ClientType.E_TCPADMIN
        identity = ClientIdentity(protocol_version=1, client_type=kind, process_name="bmq",
                                  pid=os.getpid(), features="PROTOCOL_ENCODING:BER,JSON", user_agent="bmqtwist")
        self._send(control.encode_event(NegotiationMessage("clientIdentity", identity)))
        specific, body = self._next_event(EventType.CONTROL, "the negotiation response")
        response = control.decode_negotiation(body, encoding_of(specific)).value
        if response is None or response.result.category:
            raise NotAllowed(f"{self._address} refused the session: "
                             f"{response.result.message if response else 'no reason given'}")
        self._accepted = True
        return str(response.broker_identity.host_name)

    def run(self, command: str) -> str:
        self._requests += 1
        self._send(control.encode_event(ControlMessage(self._requests, "adminCommand", AdminCommand(command))))
        while True:
            specific, body = self._next_event(EventType.CONTROL, "the answer to the command")
            message = control.decode_control(body, encoding_of(specific))
            if message.r_id == self._requests and message.choice == "adminCommandResponse":
                return str(message.value.text)

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Unreachable(f"The connection to {self._address} broke: {error.strerror or error}") from None

    def _next_event(self, event_type: EventType, answer: str) -> tuple[int, bytes]:
        while True:
            while self._events:
                kind, specific, body = self._events.pop(0)
                if kind == event_type:
                    return specific, body
                if kind == EventType.HEARTBEAT_REQ:
                    self._send(HEARTBEAT_RSP)
            self._receive(answer)

    def _receive(self, answer: str) -> None:
        try:
            chunk = self._socket.recv(READ_BYTES)
        except TimeoutError:
            raise Unreachable(f"{self._address} did not send {answer} within {self._timeout:g} s. Is it a broker?") from None
        except OSError as error:
            raise Unreachable(f"The connection to {self._address} broke: {error.strerror or error}") from None
        if not chunk and self._accepted:
            raise Unreachable(f"{self._address} closed the connection before it sent {answer}")
        if not chunk:
            raise NotAllowed(f"{self._address} closed the connection instead of sending {answer}. Does it require "
                             "authentication, or TLS?")
        try:
            buffer, spans = self._frames.receive(chunk)
        except PeerError as error:
            raise Unreachable(f"{self._address} does not use the BlazingMQ protocol: {error}") from None
        self._events += [(kind, specific, buffer[start:end]) for kind, specific, start, end in spans]

