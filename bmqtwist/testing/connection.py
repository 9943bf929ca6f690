"""Connection of a client to an in-process broker, with wiretap, faults and recorder.

    client's transport -- send, close -->  TappedConnection  -- sessions.received, lost ----------------->  broker
    client's transport <-- ClientEnd ----  TappedConnection  <-- SessionTransport (arrive, end, read) ---  broker

All methods are called with the runner's lock held; a ClientEnd queues the events for its own loop or thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bmqtwist.errors import AckStatus, Category, PeerError
from bmqtwist.ids import NULL_GUID
from bmqtwist.limits import EVENT_BYTES_MAX
from bmqtwist.testing import events
from bmqtwist.testing.faults import Fault, Faults
from bmqtwist.testing.node import ImmediateNode
from bmqtwist.testing.recorder import Recorder
from bmqtwist.testing.wiretap import Unit, Wiretap
from bmqtwist.wire import control, schema
from bmqtwist.wire import events as wire
from bmqtwist.wire.frames import FrameBuffer


class ClientEnd(Protocol):
    """Event handler of the client."""

    def data(self, data: bytes) -> None:
        """Data from the broker."""

    def lost(self, reason: str) -> None:
        """The connection has ended; "" = closed by the broker."""

    def room(self) -> None:
        """Delayed data of the client has been passed to the broker."""


class Lane:
    """One direction of a connection: a queue of actions, each delayed until a time or the end of a fault."""

    def __init__(self) -> None:
        self._held: deque[tuple[float, Fault | None, int, Callable[[], None]]] = deque()
        self.held_bytes = 0
        self.open = True  # False: all actions wait

    def put(self, now: float, due: float, fault: Fault | None, size: int, action: Callable[[], None]) -> None:
        """Run an action at `due`, after all actions before it and after the end of the fault."""
        if not self._held and due <= now and fault is None and self.open:
            action()
            return
        self._held.append((due, fault, size, action))
        self.held_bytes += size

    def release(self, now: float) -> bool:
        """Run the due actions; return whether there were any."""
        moved = False
        while self._held and self.open and self._held[0][0] <= now and not (
                self._held[0][1] is not None and self._held[0][1].active):
            _, _, size, action = self._held.popleft()
            self.held_bytes -= size
            moved = True
            action()
        return moved

    def clear(self) -> None:
        self._held.clear()
        self.held_bytes = 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Environment of a connection: its broker, and functions of the broker's runner."""

    node: ImmediateNode
    faults: Faults
    recorder: Recorder
    began: float
    run: Callable[[], None]  # after each change
    at: Callable[[float, Callable[[], None]], None]  # call a function at a time of the clock
    name_of: Callable[[str], str]  # generated name of an unnamed client, by its negotiated process
    forget: Callable[[TappedConnection, str], None]  # after the end of a connection


class TappedConnection:
    """An established connection. `name`: for faults and the recorder."""

    def __init__(self, surroundings: Surroundings, name: str, end: ClientEnd, port: int) -> None:
        self._env, self.name, self._end = surroundings, name, end
        self._tap = Wiretap(name)
        self._in, self._out = FrameBuffer(EVENT_BYTES_MAX), FrameBuffer(EVENT_BYTES_MAX)
        self.to_broker, self.to_client = Lane(), Lane()
        self.closed = False
        self.session = surroundings.node.broker.sessions.connect(f"127.0.0.1:{port}", surroundings.node.now)
        self.session.transport = self

    # -- from the client --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send data to the broker, which has processed it on return, unless a fault delays it."""
        if not self.closed:
            self._pass(self._in, data, True)
            self._env.run()

    def close(self, reason: str = "closed by the client") -> None:
        """Close the connection and discard delayed data."""
        if not self.closed:
            self._end_of_session()
            self._on_closed(reason)
            self._env.run()

    @property
    def waiting_bytes(self) -> int:
        """Size of the client's delayed data."""
        return self.to_broker.held_bytes

    # -- from the broker (node.SessionTransport) --------------------------------------------------------------------

    def arrive(self, data: bytes) -> int:
        """Write data of the broker; return the size of delayed data."""
        if self.closed:
            return 0
        self._pass(self._out, data, False)
        return self.to_client.held_bytes

    def end(self) -> None:
        """Close the connection after the data that the broker has written."""
        if not self.closed:
            now = self._env.node.now
            self._end_of_session()
            self.to_broker.clear()
            self.to_client.put(now, now, None, 0, self._ended)

    def _ended(self) -> None:
        if not self.closed:
            self._on_closed("closed by the broker")
            self._end.lost("")

    def read(self, wanted: bool) -> None:
        self.to_broker.open = wanted
        if wanted:
            self.release()

    # -- from the test ----------------------------------------------------------------------------------------------

    def cut(self, reason: str) -> None:
        """Break the connection for both ends."""
        if not self.closed:
            self._end_of_session()
            self.abandon(reason)

    def abandon(self, reason: str) -> None:
        """Break the connection without notifying the broker, which has ended."""
        if not self.closed:
            self._on_closed(reason)
            self._end.lost(reason)

    def release(self) -> None:
        """Pass on data whose delay or fault has ended."""
        now = self._env.node.now
        if self.to_client.release(now) and not self.to_client.held_bytes and not self.closed:
            self._env.node.broker.sessions.drained(self.session)
            self._env.node.due = True
            self.read(True)
        if self.to_broker.release(now):
            self._env.node.due = True
            if not self.closed:
                self._end.room()

    # -- data -------------------------------------------------------------------------------------------------------

    def _pass(self, frames: FrameBuffer, data: bytes, to_broker: bool) -> None:
        """Decode data, apply faults, record events, and forward."""
        node, tap, faults, recorder = self._env.node, self._tap, self._env.faults, self._env.recorder
        tap.now = node.now - self._env.began
        try:
            buffer, spans = frames.receive(data)
        except PeerError:  # the receiver will close the connection
            self._forward(data, node.now, None, to_broker)
            return
        begin, hit = 0, False
        passing: list[tuple[Unit, Fault | None]] = []
        for span in spans:
            for unit in tap.units(buffer, begin, span, to_broker):
                if not self.name and unit.kind == "negotiation":
                    self.name = tap.client = unit.event.client = self._env.name_of(tap.process)
                fault = faults.first(unit.kind, self.name, unit.event) if faults.armed else None
                hit = hit or fault is not None
                recorder.add(unit.event)
                passing.append((unit, fault))
            begin = span[3]
        if not hit:
            if begin:
                self._forward(buffer[:begin], node.now, None, to_broker)
        else:
            for unit, fault in passing:
                self._apply_fault(unit, fault, to_broker)
        if frames.error is not None:
            self._forward(buffer[begin:], node.now, None, to_broker)

    def _apply_fault(self, unit: Unit, fault: Fault | None, to_broker: bool) -> None:
        now, event = self._env.node.now, unit.event
        if self.closed:
            event.fate = "lost with the connection"
        elif fault is None:
            self._forward(unit.data, now, None, to_broker)
        elif fault.action == "drop":
            event.fate = "dropped"
        elif fault.action == "delay":
            event.fate = f"delayed {fault.seconds:g} s"
            self._forward(unit.data, now + fault.seconds, None, to_broker)
        elif fault.action == "stall":
            event.fate = "stalled"
            self._forward(unit.data, now, fault, to_broker)
        elif fault.action == "refuse":
            event.fate = "refused"
            self._refuse(unit, fault)
        else:
            event.fate = "then killed" if fault.after else "killed"
            if fault.after:
                self._forward(unit.data, now, None, to_broker)
            lane = self.to_broker if to_broker else self.to_client
            lane.put(now, now, None, 0, lambda: self.cut("killed by the test"))

    def _forward(self, data: bytes, due: float, fault: Fault | None, to_broker: bool) -> None:
        now = self._env.node.now
        if to_broker:
            self.to_broker.put(now, due, fault, len(data), lambda: self._receive(data))
        else:
            self.to_client.put(now, due, fault, len(data), lambda: self._end.data(data))
        if due > now:
            self._env.at(due, self.release)

    def _receive(self, data: bytes) -> None:
        node = self._env.node
        node.broker.sessions.received(self.session, data, node.now)
        node.due = True

    # -- refusals ---------------------------------------------------------------------------------------------------

    def _refuse(self, unit: Unit, fault: Fault) -> None:
        encoding = self._tap.encoding
        if unit.kind == "post" and isinstance(unit.event, events.Post):
            guid = unit.event.guid
            correlation_id = 0 if self.session.remote.makes_guids else int.from_bytes(guid[1:4], "big")
            self._reply(wire.encode_ack([wire.AckMessage(AckStatus[fault.status.name], correlation_id,
                                                NULL_GUID if correlation_id else guid, unit.queue_id)]))
            return
        status = schema.Status(Category[f"E_{fault.status.name}"], -1, fault.reason)
        if unit.kind == "negotiation":
            self._reply(control.encode_event(control.NegotiationMessage(
                "brokerResponse", schema.BrokerResponse(result=status)), encoding))
            self.end()
            return
        self._reply(control.encode_event(control.ControlMessage(unit.request_id, "status", status), encoding))

    def _reply(self, data: bytes) -> None:
        self._pass(self._out, data, False)

    # -- end of the connection --------------------------------------------------------------------------------------

    def _end_of_session(self) -> None:
        node = self._env.node
        node.broker.sessions.lost(self.session, node.now)
        node.due = True

    def _on_closed(self, reason: str) -> None:
        self.closed = True
        self.to_broker.clear()
        self.to_client.clear()
        self._env.forget(self, reason)


