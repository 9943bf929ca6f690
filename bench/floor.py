"""Baseline server: the least work that a broker on Twisted can do, measured by `bench.run --floor`.

It has one queue and one consumer, without checks, persistence guarantees or recovery: control messages get a response, a PUT
is copied to a memory-mapped file, acknowledged and pushed, and a CONFIRM is looked up. Its cost is that of sockets, reactor
and client; the difference of the broker is the cost of its functions.

`python -m bench.floor PORT` serves until it is killed. `python -m bench.floor PORT TARGET` relays the frames between its
clients and a broker at the port TARGET: the baseline of a node between client and broker. The broker itself is measured
with `broker.py`.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.broker import STARTED, Broker
from bmqtwist.wire import control, schema
from bmqtwist.wire.fast import (
    ACK_MESSAGE,
    CONFIRM_MESSAGE,
    EVENT_HEADER_BYTES,
    ITEMS_HEADER,
    OPTION_ONE_ID_HEAD,
    OPTION_SUB_QUEUE_ID,
    PUSH_HEADER,
    PUT_HEADER,
    EventType,
    event_header,
)
from bmqtwist.wire.frames import FrameBuffer

_FEATURES = "PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX;SUBSCRIPTIONS:CONFIGURE_STREAM"
_FILE_BYTES = 1 << 30


def serve(port: int) -> None:
    """Run the baseline server."""
    from twisted.internet import epollreactor

    epollreactor.install()
    from twisted.internet import reactor
    from twisted.internet.protocol import Factory, Protocol

    file = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process ends
    file.truncate(_FILE_BYTES)
    store = mmap.mmap(file.fileno(), _FILE_BYTES)
    outstanding: dict[bytes, int] = {}
    consumer: list[Any] = []  # protocol, queue id, subscription id
    position = 0

    class Floor(Protocol):
        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)
            self.frames, self.negotiated = FrameBuffer(1 << 28), False

        def dataReceived(self, data: bytes) -> None:
            buffer, spans = self.frames.receive(data)
            acks: list[bytes] = []
            pushes: list[bytes] = []
            for kind, specific, start, end in spans:
                if kind == EventType.PUT:
                    self.puts(buffer, start, end, acks, pushes)
                elif kind == EventType.CONFIRM:
                    for _, guid, _ in CONFIRM_MESSAGE.iter_unpack(buffer[start + 4:end]):
                        outstanding.pop(guid, None)
                elif kind == EventType.CONTROL:
                    self.transport.write(self.answer(buffer[start:end], specific >> 5))
            if pushes and consumer:
                consumer[0].transport.write(b"".join((event_header(EventType.PUSH, sum(map(len, pushes))), *pushes)))
            if acks:
                self.transport.write(b"".join((event_header(EventType.ACK, 4 + 24 * len(acks)), ITEMS_HEADER, *acks)))

        def puts(self, buffer: bytes, at: int, end: int, acks: list[bytes], pushes: list[bytes]) -> None:
            nonlocal position
            while at < end:
                first, _, q_id, guid, _, _, _ = PUT_HEADER.unpack_from(buffer, at)
                stop = at + ((first & 0x0FFFFFFF) << 2)
                body = buffer[at + 36:stop]
                at = stop
                size = len(body)
                if position + size + 60 > _FILE_BYTES:
                    position = 0
                store[position:position + size] = body
                store[position + size:position + size + 60] = bytes(60)
                position += size + 60
                outstanding[guid] = position
                acks.append(ACK_MESSAGE.pack(0, guid, q_id))
                if consumer:
                    pushes += (PUSH_HEADER.pack(10 + (size >> 2), 2 << 8 | 8, consumer[1], guid, 0, 0),
                               OPTION_SUB_QUEUE_ID.pack(OPTION_ONE_ID_HEAD, consumer[2]), body)

        def answer(self, body: bytes, encoding: int) -> bytes:
            if not self.negotiated:
                self.negotiated = True
                return control.encode_event(control.NegotiationMessage("brokerResponse", schema.BrokerResponse(
                    protocol_version=1, broker_version=999999, max_missed_heartbeats=0,
                    broker_identity=schema.ClientIdentity(protocol_version=1, client_type=schema.ClientType.E_TCPBROKER,
                                                          features=_FEATURES))))
            request = control.decode_control(body, encoding)
            value: Any = {"openQueue": lambda: schema.OpenQueueResponse(request.value, schema.RoutingConfiguration(2)),
                          "closeQueue": schema.CloseQueueResponse, "disconnect": schema.DisconnectResponse,
                          "configureStream": lambda: schema.ConfigureStreamResponse(request.value)}[request.choice]()
            if request.choice == "configureStream" and request.value.stream_parameters.subscriptions:
                parameters = request.value
                consumer[:] = self, parameters.q_id, parameters.stream_parameters.subscriptions[0].s_id
            return control.encode_event(control.ControlMessage(request.r_id, request.choice + "Response", value))

    factory = Factory.forProtocol(Floor)
    factory.noisy = False
    reactor.listenTCP(port, factory, interface="127.0.0.1")  # type: ignore[attr-defined]
    print(STARTED, flush=True)
    reactor.run()  # type: ignore[attr-defined]


def relay(port: int, target: int) -> None:
    """Run the baseline relay."""
    from twisted.internet import epollreactor

    epollreactor.install()
    from twisted.internet import reactor
    from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
    from twisted.internet.protocol import Factory, Protocol

    class Side(Protocol):
        other: Any = None

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)
            self.frames, self.early = FrameBuffer(1 << 28), list[bytes]()

        def dataReceived(self, data: bytes) -> None:
            buffer, spans = self.frames.receive(data)
            if spans:
                whole = bytes(buffer[spans[0][2] - EVENT_HEADER_BYTES:spans[-1][3]])
                if self.other is None:
                    self.early.append(whole)
                else:
                    self.other.transport.write(whole)

        def join(self, other: Any) -> None:
            self.other = other
            other.transport.write(b"".join(self.early))

        def connectionLost(self, reason: Any = None) -> None:
            if self.other is not None:
                self.other.transport.loseConnection()

    class Near(Side):
        def connectionMade(self) -> None:
            super().connectionMade()
            far = TCP4ClientEndpoint(reactor, "127.0.0.1", target)  # type: ignore[arg-type]
            connectProtocol(far, Side()).addCallback(lambda side: (side.join(self), self.join(side)))

    factory = Factory.forProtocol(Near)
    factory.noisy = False
    reactor.listenTCP(port, factory, interface="127.0.0.1")  # type: ignore[attr-defined]
    print(STARTED, flush=True)
    reactor.run()  # type: ignore[attr-defined]


class FloorBroker(Broker):
    """The baseline server as a target; it supports only priority cells with one queue."""

    name = "floor"

    def start(self, seconds: float = 60) -> float:
        """Start the server."""
        begin = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "bench.floor", *map(str, self.arguments)], stdout=log,
                                             cwd=Path(__file__).parent.parent, env={**os.environ})
        self.pid = self._process.pid
        while STARTED not in self.output():
            if self._process.poll() is not None or time.monotonic() - begin > seconds:
                raise RuntimeError("the baseline server did not start")
            time.sleep(0.01)
        return time.monotonic() - begin

    @property
    def arguments(self) -> list[int]:
        """Arguments of the command."""
        return [self.port]

    def stop(self) -> int:
        """Kill the process."""
        self.kill()
        return -signal.SIGKILL


class FloorRelay(FloorBroker):
    """A baseline server with a baseline relay in front of it, to which clients connect."""

    name = "floor behind a relay"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._floor = FloorBroker(root / "floor")

    @property
    def arguments(self) -> list[int]:
        """Arguments of the command."""
        return [self.port, self._floor.port]

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of both processes."""
        return self.pid, self._floor.pid

    def start(self, seconds: float = 60) -> float:
        """Start both processes."""
        return self._floor.start(seconds) + super().start(seconds)

    def stop(self) -> int:
        """Kill both processes."""
        self._floor.stop()
        return super().stop()


if __name__ == "__main__":
    (relay if len(sys.argv) > 2 else serve)(*map(int, sys.argv[1:]))
