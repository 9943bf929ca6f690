"""Connection of a client to an in-process broker, with wiretap, faults and recorder.

    client's transport -- send, disconnect -->  TappedConnection  -- sessions.on_received, on_lost ---------------->  broker
    client's transport <-- ClientEnd ---------  TappedConnection  <-- SessionTransport (write, close, set_reading) --  broker

All methods are called with the runner's lock held; a ClientEnd queues the events for its own loop or thread. `runner.py`
creates a TappedConnection for each client. `faults.py` chooses faults, `wiretap.py` decodes, `recorder.py` stores;
connections of a simulated cluster are in `network.py`.
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

    def on_data(self, data: bytes) -> None:
        """Handle data from the broker."""

    def on_lost(self, reason: str) -> None:
        """Handle the end of the connection; "" = closed by the broker."""

    def on_room(self) -> None:
        """Handle the end of a delay: delayed data of the client has been passed to the broker."""


class DelayLine:
    """One direction of a connection: a queue of actions, each delayed until a time or the end of a fault. `delayed_bytes`:
    size of the delayed data."""

    def __init__(self) -> None:
        self._delayed: deque[tuple[float, Fault | None, int, Callable[[], None]]] = deque()
        self.delayed_bytes = 0
        self.open = True  # False = all actions wait

    def run_in_order(self, now: float, when: float, fault: Fault | None, size: int, action: Callable[[], None]) -> None:
        """Run an action at the time `when`, after all actions before it and after the end of the fault."""
        if not self._delayed and when <= now and fault is None and self.open:
            action()
            return
        self._delayed.append((when, fault, size, action))
        self.delayed_bytes += size

    def release(self, now: float) -> bool:
        """Run the due actions; return whether there were any."""
        released = False
        while self._delayed and self.open and self._delayed[0][0] <= now and not (
                self._delayed[0][1] is not None and self._delayed[0][1].active):
            _, _, size, action = self._delayed.popleft()
            self.delayed_bytes -= size
            released = True
            action()
        return released

    def clear(self) -> None:
        self._delayed.clear()
        self.delayed_bytes = 0


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """Objects that all connections of a broker share, and functions of the broker's runner."""

    node: ImmediateNode
    faults: Faults
    recorder: Recorder
    started_at: float
    run: Callable[[], None]  # after each change
    at: Callable[[float, Callable[[], None]], None]  # call a function at a time of the clock
    name_client: Callable[[str], str]  # return the generated name of an unnamed client, by its negotiated process
    remove_connection: Callable[[TappedConnection, str], None]  # after the end of a connection


class TappedConnection:
    """An established connection. `name`: for faults and the recorder."""

    def __init__(self, context: ConnectionContext, name: str, end: ClientEnd, port: int) -> None:
        self._context, self.name, self._end = context, name, end
        self._tap = Wiretap(name)
        self._in, self._out = FrameBuffer(EVENT_BYTES_MAX), FrameBuffer(EVENT_BYTES_MAX)
        self.to_broker, self.to_client = DelayLine(), DelayLine()
        self.closed = False
        self.session = context.node.broker.sessions.add_accepted(f"127.0.0.1:{port}", context.node.now)
        self.session.transport = self

    # -- from the client --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send data to the broker, which has processed it on return, unless a fault delays it."""
        if not self.closed:
            self._pass_events(self._in, data, True)
            self._context.run()

    def disconnect(self, reason: str = "closed by the client") -> None:
        """Close the connection and discard delayed data."""
        if not self.closed:
            self._end_session()
            self._on_closed(reason)
            self._context.run()

    @property
    def waiting_bytes(self) -> int:
        """Size of the client's delayed data."""
        return self.to_broker.delayed_bytes

    # -- from the broker (node.SessionTransport) --------------------------------------------------------------------

    def write(self, data: bytes) -> int:
        """Write data of the broker; return the size of delayed data."""
        if self.closed:
            return 0
        self._pass_events(self._out, data, False)
        return self.to_client.delayed_bytes

    def close(self) -> None:
        """Close the connection after the data that the broker has written."""
        if not self.closed:
            now = self._context.node.now
            self._end_session()
            self.to_broker.clear()
            self.to_client.run_in_order(now, now, None, 0, self._close_client)

    def _close_client(self) -> None:
        if not self.closed:
            self._on_closed("closed by the broker")
            self._end.on_lost("")

    def set_reading(self, wanted: bool) -> None:
        self.to_broker.open = wanted
        if wanted:
            self.release()

    # -- from the test ----------------------------------------------------------------------------------------------

    def cut(self, reason: str) -> None:
        """Break the connection for both ends."""
        if not self.closed:
            self._end_session()
            self.abandon(reason)

    def abandon(self, reason: str) -> None:
        """Break the connection without notifying the broker, which has ended."""
        if not self.closed:
            self._on_closed(reason)
            self._end.on_lost(reason)

    def release(self) -> None:
        """Pass on data whose delay or fault has ended."""
        now = self._context.node.now
        if self.to_client.release(now) and not self.to_client.delayed_bytes and not self.closed:
            self._context.node.broker.sessions.on_drained(self.session, now)
            self._context.node.turn_requested = True
            self.set_reading(True)
        if self.to_broker.release(now):
            self._context.node.turn_requested = True
            if not self.closed:
                self._end.on_room()

    # -- data -------------------------------------------------------------------------------------------------------

    def _pass_events(self, frames: FrameBuffer, data: bytes, to_broker: bool) -> None:
        """Decode data, apply faults, record events, and forward."""
        node, tap, faults, recorder = self._context.node, self._tap, self._context.faults, self._context.recorder
        tap.now = node.now - self._context.started_at
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
                    self.name = tap.client = unit.event.client = self._context.name_client(tap.process)
                fault = faults.find_fault(unit.kind, self.name, unit.event) if faults.armed else None
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
        now, event = self._context.node.now, unit.event
        if self.closed:
            event.fault_effect = "lost with the connection"
        elif fault is None:
            self._forward(unit.data, now, None, to_broker)
        elif fault.action == "drop":
            event.fault_effect = "dropped"
        elif fault.action == "delay":
            event.fault_effect = f"delayed {fault.seconds:g} s"
            self._forward(unit.data, now + fault.seconds, None, to_broker)
        elif fault.action == "stall":
            event.fault_effect = "stalled"
            self._forward(unit.data, now, fault, to_broker)
        elif fault.action == "refuse":
            event.fault_effect = "refused"
            self._send_refusal(unit, fault)
        else:
            event.fault_effect = "then killed" if fault.after else "killed"
            if fault.after:
                self._forward(unit.data, now, None, to_broker)
            line = self.to_broker if to_broker else self.to_client
            line.run_in_order(now, now, None, 0, lambda: self.cut("killed by the test"))

    def _forward(self, data: bytes, when: float, fault: Fault | None, to_broker: bool) -> None:
        now = self._context.node.now
        if to_broker:
            self.to_broker.run_in_order(now, when, fault, len(data), lambda: self._receive(data))
        else:
            self.to_client.run_in_order(now, when, fault, len(data), lambda: self._end.on_data(data))
        if when > now:
            self._context.at(when, self.release)

    def _receive(self, data: bytes) -> None:
        node = self._context.node
        node.broker.sessions.on_received(self.session, data, node.now)
        node.turn_requested = True

    # -- refusals ---------------------------------------------------------------------------------------------------

    def _send_refusal(self, unit: Unit, fault: Fault) -> None:
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
            self.close()
            return
        self._reply(control.encode_event(control.ControlMessage(unit.request_id, "status", status), encoding))

    def _reply(self, data: bytes) -> None:
        self._pass_events(self._out, data, False)

    # -- end of the connection --------------------------------------------------------------------------------------

    def _end_session(self) -> None:
        node = self._context.node
        node.broker.sessions.on_lost(self.session, node.now)
        node.turn_requested = True

    def _on_closed(self, reason: str) -> None:
        self.closed = True
        self.to_broker.clear()
        self.to_client.clear()
        self._context.remove_connection(self, reason)


