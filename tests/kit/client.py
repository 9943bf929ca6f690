"""Client of the wire protocol for tests: sends exactly the requested messages, and keeps all received events.

A `ClientLink` transports bytes; `Client` is one session on it; `Queue` is one (queue id, sub-queue id) of a session. All
waits have a deadline and none sleeps. `Client.barrier()` is a request: when its answer arrives, all messages that the
broker had for the session before have arrived. Used by most scenarios, through the worlds of `world.py`; frames are made
and read by `codec.py`, an official client is in `sdk.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bmqtwist.testing.process import NotInTime as Expired
from kit import codec
from kit.codec import Ack, Event, Push

DEADLINE = 10.0  # s for the next bytes of the broker
OTHERS_SECONDS_MAX = 100.0  # s for an event while other events arrive
READ, WRITE, ACK = 2, 4, 8
INT_MIN = -(1 << 31)
FEATURES = "PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX"


class Closed(AssertionError):
    """The broker closed the connection during a wait."""


class RequestRefused(AssertionError):
    """The broker answered a request with a status."""

    def __init__(self, status: dict[str, Any]) -> None:
        super().__init__(status)
        self.category: str = status["category"]
        self.code: int = status["code"]
        self.message: str = status["message"]


class ClientLink(Protocol):
    """Client end of a connection."""

    closed: bool  # closed by the broker or the client

    def send(self, data: bytes) -> None:
        """Send bytes to the broker."""

    def receive(self, deadline: float) -> bytes:
        """Return bytes from the broker; b"" if none arrive within `deadline` seconds, or if the connection is closed."""

    def drop(self) -> None:
        """Close the connection without a message."""


def consumer_info(priority: int = 0, count: int = 1, m: int = 1000, b: int = 33554432) -> dict[str, int]:
    """Create a ConsumerInfo."""
    return {"maxUnconfirmedMessages": m, "maxUnconfirmedBytes": b, "consumerPriority": priority,
            "consumerPriorityCount": count}


class Client:
    """A session with a broker; methods that wait raise Expired after `deadline` seconds."""

    def __init__(self, link: ClientLink, name: str, *, client_type: str = "E_TCPCLIENT", encoding: str = "BER",
                 features: str = FEATURES, sdk_version: int = 11300, language: str = "E_CPP", pid: int = 4242,
                 session_id: int = 1, guids: bool = True, user_agent: str = "", cluster: str = "",
                 answer_heartbeats: bool = True, on_drop: Callable[[Client], None] | None = None) -> None:
        self.link, self.name, self.encoding = link, name, encoding
        self.answer_heartbeats = answer_heartbeats
        self.client_id = codec.client_id(name) if guids else b""
        self.identity: dict[str, Any] = {
            "protocolVersion": 1, "sdkVersion": sdk_version, "clientType": client_type, "processName": name,
            "pid": pid, "sessionId": session_id, "hostName": "", "features": features, "clusterName": cluster,
            "clusterNodeId": -1, "sdkLanguage": language, "userAgent": user_agent}
        if guids:
            self.identity["guidInfo"] = {"clientId": self.client_id.hex().upper(), "nanoSecondsFromEpoch": 1}
        self.description = f"{name}:{pid}" + (f".{session_id}" if session_id != 1 else "")
        self.inbox: deque[Event] = deque()
        self.events: list[Event] = []  # all received events, in order
        self.broker_response: dict[str, Any] = {}
        self.queues: dict[int, list[Queue]] = {}
        self._buffer = b""
        self._rid = 0
        self._next_q_id = 0
        self._next_s_id = 0
        self._guid_counter = 0
        self._on_drop = on_drop

    # Bytes

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.link.send(data)

    def pump(self, deadline: float = DEADLINE) -> bool:
        """Read the link and decode its events; return False if no bytes arrived within `deadline` seconds."""
        data = self.link.receive(deadline)
        if not data:
            return False
        self._buffer += data
        frames, self._buffer = codec.split_frames(self._buffer)
        for frame in frames:
            for event in codec.decode_event(frame, negotiated=bool(self.broker_response)):
                if event.kind == "heartbeat_req" and self.answer_heartbeats:
                    self.send(codec.heartbeat(response=True))
                elif event.kind == "control" and "brokerResponse" in event.control:
                    self.broker_response = event.control["brokerResponse"]
                self.events.append(event)
                self.inbox.append(event)
        return True

    def wait(self, wanted: Callable[[Event], bool], what: str, deadline: float = DEADLINE) -> Event:
        """Wait for an event, remove it from the inbox and return it.

        Other events stay in the inbox; while they arrive, the wait continues up to `OTHERS_SECONDS_MAX`.
        """
        seen = 0
        end = time.monotonic() + max(deadline, OTHERS_SECONDS_MAX)
        while True:
            for index in range(seen, len(self.inbox)):
                if wanted(self.inbox[index]):
                    event = self.inbox[index]
                    del self.inbox[index]
                    return event
            seen = len(self.inbox)
            if time.monotonic() > end or not self.pump(deadline):
                raise (Closed if self.link.closed else Expired)(f"{self.name}: {what}; the inbox holds {self.inbox}")

    # Requests

    def negotiate(self) -> dict[str, Any]:
        """Negotiate and return the response of the broker, which may be a refusal."""
        self.send(codec.control_frame({"clientIdentity": self.identity}, self.encoding))
        self.wait(lambda e: e.kind == "control" and "brokerResponse" in e.control, "no brokerResponse")
        return self.broker_response

    def authenticate(self, mechanism: str, data: bytes | None = None) -> dict[str, Any]:
        """Send an authenticationRequest and return the members of the response."""
        self.send_authentication(mechanism, data)
        return self.wait(lambda e: e.kind == "authentication", "no authenticationResponse").control[
            "authenticationResponse"]

    def send_authentication(self, mechanism: str, data: bytes | None = None) -> None:
        """Send an authenticationRequest without a wait for the response."""
        self.send(codec.authentication_frame(mechanism, data, self.encoding))

    def send_request(self, choice: dict[str, Any], rid: int | None = None) -> int:
        """Send a request and return its id."""
        if rid is None:
            self._rid += 1
            rid = self._rid
        self.send(codec.control_frame({"rId": rid, **choice}, self.encoding))
        return rid

    def response(self, rid: int, deadline: float = DEADLINE) -> dict[str, Any]:
        """Wait for the response to a request; raises RequestRefused if it is a status."""
        event = self.wait(lambda e: e.kind == "control" and e.control.get("rId") == rid, f"no answer to {rid}",
                          deadline)
        if "status" in event.control:
            raise RequestRefused(event.control["status"])
        return {key: value for key, value in event.control.items() if key != "rId"}

    def request(self, choice: dict[str, Any], deadline: float = DEADLINE) -> dict[str, Any]:
        """Send a request and return its response; raises RequestRefused."""
        return self.response(self.send_request(choice), deadline)

    def barrier(self) -> None:
        """Return when all events that the broker had for this session before this request have arrived."""
        if self.link.closed:
            return
        try:
            self.request({"closeQueue": {"handleParameters": {
                "uri": "bmq://barrier/q", "qId": 0x7FFFFF00, "flags": READ, "readCount": 1, "writeCount": 0,
                "adminCount": 0}, "isFinal": True}})
        except RequestRefused:
            return

    def heartbeat(self) -> None:
        """Send a heartbeat request and wait for the response."""
        self.send(codec.heartbeat())
        self.wait(lambda e: e.kind == "heartbeat_rsp", "no heartbeat response")

    def admin(self, command: str) -> str:
        """Run an admin command (admin sessions only) and return the text of the answer."""
        return str(self.request({"adminCommand": {"command": command}})["adminCommandResponse"]["text"])

    def disconnect(self) -> None:
        """Send a disconnect request, wait for the response and close the connection."""
        self.request({"disconnect": {}})
        self.drop()

    def kill(self) -> None:
        """Close the connection without a disconnect request, as a crashed process does."""
        self.drop()

    def drop(self) -> None:
        """Close the connection and report it to the owner."""
        if not self.link.closed:
            self.link.drop()
        if self._on_drop:
            self._on_drop(self)

    def wait_closed(self, deadline: float = DEADLINE) -> None:
        """Wait until the broker has closed the connection."""
        end = time.monotonic() + max(deadline, OTHERS_SECONDS_MAX)
        while not self.link.closed:
            if (time.monotonic() > end or not self.pump(deadline)) and not self.link.closed:
                raise Expired(f"{self.name}: the connection is still open; the inbox holds {self.inbox}")

    # Queues

    def handle_parameters(self, uri: str, q_id: int, *, read: int = 0, write: int = 0, admin: int = 0,
                          flags: int | None = None, app_id: str | None = None, sub_id: int = 0) -> dict[str, Any]:
        """Create QueueHandleParameters; flags follow from the counts unless given."""
        if flags is None:
            flags = (READ if read else 0) | (WRITE | ACK if write else 0) | (1 if admin else 0)
        parameters: dict[str, Any] = {"uri": uri, "qId": q_id, "flags": flags, "readCount": read,
                                      "writeCount": write, "adminCount": admin}
        if app_id is not None:
            parameters["subIdInfo"] = {"subId": sub_id, "appId": app_id}
        return parameters

    def open(self, uri: str, *, read: int = 0, write: int = 0, admin: int = 0, flags: int | None = None,
             app_id: str | None = None, sub_id: int | None = None, q_id: int | None = None) -> Queue:
        """Open a queue; raises RequestRefused. Opens of the same URI have the same queue id, unless `q_id` is given."""
        if q_id is None:
            q_id = next((q for q, opened in self.queues.items() if opened and opened[0].uri == uri), None)
            if q_id is None:
                q_id, self._next_q_id = self._next_q_id, self._next_q_id + 1
        if sub_id is None:
            sub_id = 0 if app_id is None else 1 + max((q.sub_id for q in self.queues.get(q_id, [])), default=0)
        parameters = self.handle_parameters(uri, q_id, read=read, write=write, admin=admin, flags=flags,
                                            app_id=app_id, sub_id=sub_id)
        answer = self.request({"openQueue": {"handleParameters": parameters}})["openQueueResponse"]
        queue = Queue(self, uri, q_id, app_id, sub_id, parameters, answer)
        self.queues.setdefault(q_id, []).append(queue)
        return queue

    def consume(self, uri: str, app: str | None = None, *, sub_id: int | None = None, **options: Any) -> Queue:
        """Open a queue for reading and configure it; options as of Queue.configure."""
        queue = self.open(uri, read=1, app_id=app, sub_id=sub_id)
        queue.configure(**options)
        return queue

    def new_s_id(self) -> int:
        """Return an unused subscription id."""
        self._next_s_id += 1
        return self._next_s_id

    def new_guid(self) -> bytes:
        """Return an unused message GUID."""
        self._guid_counter += 1
        return codec.make_guid(self._guid_counter, self.client_id or b"\0" * 6)


class Queue:
    """An opened queue, or one substream of it."""

    def __init__(self, client: Client, uri: str, q_id: int, app_id: str | None, sub_id: int,
                 parameters: dict[str, Any], answer: dict[str, Any]) -> None:
        self.client, self.uri, self.q_id, self.app_id, self.sub_id = client, uri, q_id, app_id, sub_id
        self.parameters, self.answer = parameters, answer
        self.s_ids: set[int] = set()
        self.old_form = False

    # Producing

    def put(self, payload: bytes = b"x", *, ack: bool = True, guid: bytes | None = None, **shape: Any) -> bytes:
        """Send one PUT without a wait for its ACK; return its GUID. `shape` as of codec.put_message."""
        if guid is None:
            guid = self.client.new_guid()
        self.client.send(codec.put_frame([codec.put_message(self.q_id, guid, payload, ack=ack, **shape)]))
        return guid

    def next_ack(self, guid: bytes | None = None, deadline: float = DEADLINE) -> Ack:
        """Wait for the next ACK of this queue (of the message `guid`)."""
        event = self.client.wait(
            lambda e: e.kind == "ack" and e.ack.q_id == self.q_id and guid in (None, e.ack.guid),
            f"no ACK of {guid.hex() if guid else 'anything'}", deadline)
        assert event.ack is not None
        return event.ack

    def post(self, payload: bytes = b"x", **shape: Any) -> bytes:
        """Send one PUT, require a successful ACK, and return the GUID."""
        guid = self.put(payload, **shape)
        ack = self.next_ack(guid)
        assert ack.status == 0, ack
        return guid

    def post_all(self, *payloads: bytes, **shape: Any) -> list[bytes]:
        """Post several messages, one after the other; return their GUIDs."""
        return [self.post(payload, **shape) for payload in payloads]

    def status_of(self, payload: bytes = b"x", **shape: Any) -> int:
        """Send one PUT and return the status of its ACK."""
        return self.next_ack(self.put(payload, **shape)).status

    def acks(self) -> list[Ack]:
        """Return the ACKs that arrived before a barrier and were not returned before."""
        self.client.barrier()
        return [e.ack for e in self._take("ack", lambda e: e.ack.q_id == self.q_id)]

    # Consuming

    def stream_parameters(self, priority: int = 0, count: int = 1, m: int = 1000, b: int = 33554432,
                          x: str | None = None, subscriptions: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Create StreamParameters with new subscription ids, for one subscription or several.

        `subscriptions`: dicts of the same keywords, one per subscription.
        `x`: text of the expression; None: undefined, it matches all messages.
        """
        given = [{"priority": priority, "count": count, "m": m, "b": b, "x": x}] if subscriptions is None \
            else subscriptions
        return {"appId": self.app_id or "__default", "subscriptions": [
            {"sId": one.pop("s_id", None) or self.client.new_s_id(),
             "expression": {"version": "E_UNDEFINED" if one.get("x") is None else "E_VERSION_1",
                            "text": one.pop("x", None) or ""},
             "consumers": [consumer_info(**one)]} for one in (dict(o) for o in given)]}

    def configure(self, **options: Any) -> dict[str, Any]:
        """Replace the configuration with configureStream; options as of stream_parameters. Return the response."""
        return self.configure_stream(self.stream_parameters(**options))

    def configure_stream(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Send configureStream with these parameters and return the response."""
        # Until the response the old subscription ids are valid, after it the new ones.
        fresh = {s["sId"] for s in parameters["subscriptions"]}
        self.s_ids |= fresh
        try:
            answer = self.client.request({"configureStream": {"qId": self.q_id, "streamParameters": parameters}})
        except RequestRefused:
            self.s_ids -= fresh
            raise
        return answer["configureStreamResponse"]  # type: ignore[no-any-return]

    def deconfigure(self) -> dict[str, Any]:
        """Configure the substream without subscriptions."""
        return self.configure(subscriptions=[])

    def configure_old(self, priority: int = 0, count: int = 1, m: int = 1000, b: int = 33554432) -> dict[str, Any]:
        """Configure with configureQueueStream, the old form; return the response."""
        self.old_form = True
        parameters: dict[str, Any] = consumer_info(priority, count, m, b)
        if self.app_id is not None:
            parameters["subIdInfo"] = {"subId": self.sub_id, "appId": self.app_id}
        answer = self.client.request({"configureQueueStream": {"qId": self.q_id, "streamParameters": parameters}})
        return answer["configureQueueStreamResponse"]  # type: ignore[no-any-return]

    def mine(self, event: Event) -> bool:
        """Return whether an event is a PUSH for this substream."""
        if event.kind != "push" or event.push.q_id != self.q_id:
            return False
        ids = event.push.ids
        return self.sub_id in ids if self.old_form else bool(self.s_ids.intersection(ids))

    def next_push(self, deadline: float = DEADLINE) -> Push:
        """Wait for the next PUSH for this substream; where several substreams share a PUSH, use `pushes`."""
        event = self.client.wait(self.mine, "no PUSH", deadline)
        assert event.push is not None
        return event.push

    def take(self, count: int, deadline: float = DEADLINE) -> list[Push]:
        """Wait for the next `count` PUSHes."""
        return [self.next_push(deadline) for _ in range(count)]

    def pushes(self) -> list[Push]:
        """Return the PUSHes that arrived before a barrier and were not returned before; a shared PUSH for each substream."""
        self.client.barrier()
        taken = []
        for event in list(self.client.inbox):
            if self.mine(event):
                taken.append(event.push)
                event.push.ids[:] = [i for i in event.push.ids
                                     if i not in ({self.sub_id} if self.old_form else self.s_ids)]
                if not event.push.ids:
                    self.client.inbox.remove(event)
        return taken

    def confirm(self, *messages: Push | bytes) -> None:
        """Confirm messages with one CONFIRM event."""
        guids = [m if isinstance(m, bytes) else m.guid for m in messages]
        self.client.send(codec.confirm_frame([(self.q_id, guid, self.sub_id) for guid in guids]))

    def close(self, *, final: bool = True, read: int | None = None, write: int | None = None) -> None:
        """Close as an SDK does: a reader deconfigures first; the counts are by default those of the open."""
        if self.parameters["readCount"] and read is None and not self.old_form:
            self.deconfigure()
        self.close_only(final=final, read=read, write=write)

    def close_only(self, *, final: bool = True, read: int | None = None, write: int | None = None) -> None:
        """Send closeQueue only; raises RequestRefused."""
        self.client.request({"closeQueue": self.close_parameters(final=final, read=read, write=write)})
        opened = self.client.queues.get(self.q_id, [])
        if self in opened:
            opened.remove(self)

    def close_parameters(self, *, final: bool = True, read: int | None = None,
                         write: int | None = None) -> dict[str, Any]:
        """Create a CloseQueue."""
        parameters = dict(self.parameters)
        if read is not None or write is not None:
            parameters["readCount"], parameters["writeCount"] = read or 0, write or 0
        return {"handleParameters": parameters, "isFinal": final}

    def _take(self, kind: str, wanted: Callable[[Event], bool]) -> list[Event]:
        found = [e for e in self.client.inbox if e.kind == kind and wanted(e)]
        for event in found:
            self.client.inbox.remove(event)
        return found


def payloads(messages: list[Push]) -> list[bytes]:
    """Return the payloads, decompressed and without properties."""
    return [message.payload for message in messages]


@dataclass(frozen=True)
class Refusal:
    """Status of a refused request."""

    category: str
    code: int
    message: str


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Refusal:
    """Call a function whose request must be refused; return the status."""
    try:
        call(*args, **kwargs)
    except RequestRefused as error:
        return Refusal(error.category, error.code, error.message)
    raise AssertionError(f"{call} was not refused")
