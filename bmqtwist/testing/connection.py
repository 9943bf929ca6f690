"""One connection to an in-process broker: bytes both ways, with a wiretap, faults and a recorder in between.

    client's transport -- send, close -->  TappedConnection  -- sessions.received, lost ----------------->  broker
    client's transport <-- ClientEnd ----  TappedConnection  <-- SessionTransport (arrive, end, read) ---  broker

All methods are called with the runner's lock held; a ClientEnd only takes note and lets its own loop or thread act.
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
    """The client's end."""

    def data(self, data: bytes) -> None:
        """Bytes from the broker."""

    def lost(self, reason: str) -> None:
        """The connection is gone; an empty reason = the broker closed it."""

    def room(self) -> None:
        """Something that waited to be sent is through."""


class Lane:
    """One direction: things that happen in order, each at its moment or when a fault has ended."""

    def __init__(self) -> None:
        self._held: deque[tuple[float, Fault | None, int, Callable[[], None]]] = deque()
        self.held_bytes = 0
        self.open = True  # False: everything waits

    def put(self, now: float, due: float, fault: Fault | None, size: int, action: Callable[[], None]) -> None:
        """Let it happen at `due` (now, if nothing is before it), and not before the fault, if any, has ended."""
        if not self._held and due <= now and fault is None and self.open:
            action()
            return
        self._held.append((due, fault, size, action))
        self.held_bytes += size

    def release(self, now: float) -> bool:
        """Let happen what may; did anything?"""
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
    """The broker of a connection, and what the runner of that broker does for it."""

    node: ImmediateNode
    faults: Faults
    recorder: Recorder
    began: float
    run: Callable[[], None]  # after each change
    at: Callable[[float, Callable[[], None]], None]  # at a moment of the clock
    name_of: Callable[[str], str]  # of a client that was given no name, by how it introduces itself
    forget: Callable[[TappedConnection, str], None]  # it is closed


class TappedConnection:
    """A connection that is up. `name` is what faults and the recorder call it."""

    def __init__(self, surroundings: Surroundings, name: str, end: ClientEnd, port: int) -> None:
        self._around, self.name, self._end = surroundings, name, end
        self._tap = Wiretap(name)
        self._in, self._out = FrameBuffer(EVENT_BYTES_MAX), FrameBuffer(EVENT_BYTES_MAX)
        self.to_broker, self.to_client = Lane(), Lane()
        self.closed = False
        self.session = surroundings.node.broker.sessions.connect(f"127.0.0.1:{port}", surroundings.node.now)
        self.session.transport = self

    # -- from the client --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Bytes for the broker, which has dealt with them when this returns, unless a fault holds them."""
        if not self.closed:
            self._pass(self._in, data, True)
            self._around.run()

    def close(self, reason: str = "closed by the client") -> None:
        """The client is gone: nothing that is held arrives any more."""
        if not self.closed:
            self._end_of_session()
            self._gone(reason)
            self._around.run()

    @property
    def waiting_bytes(self) -> int:
        """What the client sent and the broker has not got."""
        return self.to_broker.held_bytes

    # -- from the broker (node.SessionTransport) --------------------------------------------------------------------

    def arrive(self, data: bytes) -> int:
        """The broker wrote; what is still held."""
        if self.closed:
            return 0
        self._pass(self._out, data, False)
        return self.to_client.held_bytes

    def end(self) -> None:
        """The broker closes, after what it has written."""
        if not self.closed:
            now = self._around.node.now
            self._end_of_session()
            self.to_broker.clear()
            self.to_client.put(now, now, None, 0, self._ended)

    def _ended(self) -> None:
        if not self.closed:
            self._gone("closed by the broker")
            self._end.lost("")

    def read(self, wanted: bool) -> None:
        self.to_broker.open = wanted
        if wanted:
            self.release()

    # -- from the test ----------------------------------------------------------------------------------------------

    def cut(self, reason: str) -> None:
        """The connection breaks, for both."""
        if not self.closed:
            self._end_of_session()
            self.abandon(reason)

    def abandon(self, reason: str) -> None:
        """The connection breaks, and the broker is not there to learn of it."""
        if not self.closed:
            self._gone(reason)
            self._end.lost(reason)

    def release(self) -> None:
        """Let go of what need not be held any more."""
        now = self._around.node.now
        if self.to_client.release(now) and not self.to_client.held_bytes and not self.closed:
            self._around.node.broker.sessions.drained(self.session)
            self._around.node.due = True
            self.read(True)
        if self.to_broker.release(now):
            self._around.node.due = True
            if not self.closed:
                self._end.room()

    # -- what passes ------------------------------------------------------------------------------------------------

    def _pass(self, frames: FrameBuffer, data: bytes, to_broker: bool) -> None:
        """Read along, ask the faults, hand on."""
        node, tap, faults, recorder = self._around.node, self._tap, self._around.faults, self._around.recorder
        tap.now = node.now - self._around.began
        try:
            buffer, spans = frames.receive(data)
        except PeerError:  # whoever gets this ends the connection
            self._forward(data, node.now, None, to_broker)
            return
        begin, hit = 0, False
        passing: list[tuple[Unit, Fault | None]] = []
        for span in spans:
            for unit in tap.units(buffer, begin, span, to_broker):
                if not self.name and unit.kind == "negotiation":
                    self.name = tap.client = unit.event.client = self._around.name_of(tap.process)
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
                self._subject(unit, fault, to_broker)
        if frames.error is not None:
            self._forward(buffer[begin:], node.now, None, to_broker)

    def _subject(self, unit: Unit, fault: Fault | None, to_broker: bool) -> None:
        now, event = self._around.node.now, unit.event
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
        now = self._around.node.now
        if to_broker:
            self.to_broker.put(now, due, fault, len(data), lambda: self._receive(data))
        else:
            self.to_client.put(now, due, fault, len(data), lambda: self._end.data(data))
        if due > now:
            self._around.at(due, self.release)

    def _receive(self, data: bytes) -> None:
        node = self._around.node
        node.broker.sessions.received(self.session, data, node.now)
        node.due = True

    # -- refusals ---------------------------------------------------------------------------------------------------

    def _refuse(self, unit: Unit, fault: Fault) -> None:
        encoding = self._tap.encoding
        if unit.kind == "post" and isinstance(unit.event, events.Post):
            guid = unit.event.guid
            correlation_id = 0 if self.session.remote.makes_guids else int.from_bytes(guid[1:4], "big")
            self._say(wire.encode_ack([wire.AckMessage(AckStatus[fault.status.name], correlation_id,
                                                NULL_GUID if correlation_id else guid, unit.queue_id)]))
            return
        status = schema.Status(Category[f"E_{fault.status.name}"], -1, fault.reason)
        if unit.kind == "negotiation":
            self._say(control.encode_event(control.NegotiationMessage(
                "brokerResponse", schema.BrokerResponse(result=status)), encoding))
            self.end()
            return
        self._say(control.encode_event(control.ControlMessage(unit.request_id, "status", status), encoding))

    def _say(self, data: bytes) -> None:
        self._pass(self._out, data, False)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _end_of_session(self) -> None:
        node = self._around.node
        node.broker.sessions.lost(self.session, node.now)
        node.due = True

    def _gone(self, reason: str) -> None:
        self.closed = True
        self.to_broker.clear()
        self.to_client.clear()
        self._around.forget(self, reason)


