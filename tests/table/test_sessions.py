"""Sessions (link/states.py): effect of every event in every state of every kind of session; refused requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit import codec

from bmqtwist.errors import Category
from bmqtwist.link import admin, negotiation, peer
from bmqtwist.link import client as client_module
from bmqtwist.link.admin import AdminSession
from bmqtwist.link.authentication import Authenticate, Authentication, Credential, Granted
from bmqtwist.link.client import ClientSession
from bmqtwist.link.negotiation import IncomingNegotiation, OutgoingNegotiation, create_incoming, create_outgoing
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.session import Session, SessionKind
from bmqtwist.link.states import EVENT_TYPES, ConnectionEvent, ConnectionState, LifecycleTable, ignore
from bmqtwist.link.unauthenticated import UnauthenticatedConnections
from bmqtwist.machine import IllegalTransition
from bmqtwist.report import ListReport
from bmqtwist.steps import Steps, at_once
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage, encode_event
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import DROPPED, BufferedBytes
from bmqtwist.wire.schema import AuthenticationResponse, BrokerResponse, ClientIdentity, ClientType, Status

CONTROL, PUT, CONFIRM, AUTHENTICATION = EventType.CONTROL, EventType.PUT, EventType.CONFIRM, EventType.AUTHENTICATION
BEAT, BEAT_ANSWER = EventType.HEARTBEAT_REQ, EventType.HEARTBEAT_RSP
EVENTS = [*range(EVENT_TYPES), DROPPED]
Cell = tuple[type[SessionKind], ConnectionState]

# Expected effects, independent of the code: closed, deferred (until the credential is checked), nothing, beat (a heartbeat
# is answered), handed (to the receiver of peer events), or the tag of the log record of an event that is dropped.
NOTHING = dict.fromkeys(EVENTS, "nothing")
SERVED = {0: "#TCP_INVALID_PACKET", DROPPED: "#TCP_INVALID_PACKET", AUTHENTICATION: "#CORRUPTED_EVENT", BEAT: "beat",
          BEAT_ANSWER: "nothing"}
TABLE: dict[Cell, dict[int, str]] = {
    (IncomingNegotiation, ConnectionState.NEGOTIATING): dict.fromkeys(EVENTS, "closed"),
    (IncomingNegotiation, ConnectionState.AUTHENTICATING): {**dict.fromkeys(EVENTS, "deferred"), AUTHENTICATION: "closed"},
    (IncomingNegotiation, ConnectionState.CLOSED): NOTHING,
    (OutgoingNegotiation, ConnectionState.AWAITING_AUTHENTICATION): {
        **dict.fromkeys(EVENTS, "closed"), BEAT: "beat", BEAT_ANSWER: "nothing"},
    (OutgoingNegotiation, ConnectionState.AWAITING_RESPONSE): {
        **dict.fromkeys(EVENTS, "closed"), BEAT: "beat", BEAT_ANSWER: "nothing"},
    (OutgoingNegotiation, ConnectionState.CLOSED): NOTHING,
    (ClientSession, ConnectionState.SERVING): {**dict.fromkeys(EVENTS, "#CLIENT_UNEXPECTED_EVENT"), **SERVED,
                                     CONTROL: "#CORRUPTED_EVENT", PUT: "#CORRUPTED_EVENT", CONFIRM: "#CORRUPTED_EVENT"},
    (ClientSession, ConnectionState.DISCONNECTING): NOTHING,
    (ClientSession, ConnectionState.CLOSED): NOTHING,
    (AdminSession, ConnectionState.SERVING): {**dict.fromkeys(EVENTS, "#ADMCLIENT_UNEXPECTED_EVENT"), **SERVED,
                                    CONTROL: "#CORRUPTED_EVENT"},
    (AdminSession, ConnectionState.CLOSED): NOTHING,
    (PeerSession, ConnectionState.SERVING): {**dict.fromkeys(EVENTS, "#PEER_UNEXPECTED_EVENT"), **SERVED,
                                   **dict.fromkeys((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14), "handed"),
                                   EventType.FRAGMENT: "closed"},  # its body is no event
    (PeerSession, ConnectionState.DISCONNECTING): NOTHING,
    (PeerSession, ConnectionState.CLOSED): NOTHING,
}


class BlockingAuthenticator:
    """An authenticator for another thread: the test supplies its outcome."""

    mechanism, blocking = "SLOW", True


class SessionContext:
    """The broker as a session sees it."""

    serving, now, output_bytes_max, event_bytes_max = True, 0.0, 0, 1 << 20

    def __init__(self) -> None:
        self.report = ListReport()
        self.incomplete_input, self.unauthenticated = BufferedBytes(), UnauthenticatedConnections(0, 1 << 20)
        self.flushes: list[Session] = []
        self.closed_sessions: list[Session] = []
        self.unfinished: list[Session] = []
        self.authentications: list[Authenticate] = []
        self.commands_run: list[str] = []
        self.output = self.queues = self.commands = self
        self.peers = PeerEvents()

    def peers_for(self, identity: ClientIdentity) -> PeerEvents:
        return self.peers

    def wall(self, now: float) -> int:
        return int(now)

    def write_records_first(self) -> None:
        """Do nothing: the test stores no records."""

    def start_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        at_once(steps)

    def add_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        self.unfinished.append(session)

    def flush_at_turn_end(self, session: Session) -> None:
        session.flush_due = True
        self.flushes.append(session)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        self.authentications.append(effect)

    def decide(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        return BrokerResponse(Status(Category.E_SUCCESS, 0, ""), 1, 1, False, identity)

    def run_admin(self, admin: AdminSession, r_id: int, command: str) -> None:
        self.commands_run.append(command)

    def on_closed(self, session: Session) -> None:
        self.closed_sessions.append(session)


class PeerEvents:
    """Receiver of the events of peer sessions: records them."""

    def __init__(self) -> None:
        self.received: list[tuple[Any, ...]] = []

    def on_connected(self, peer: PeerSession) -> None:
        self.received.append(("connected",))

    def on_event(self, peer: PeerSession, kind: int, specific: int, body: bytes) -> None:
        self.received.append((kind, specific, body))

    def on_disconnected(self, peer: PeerSession) -> None:
        self.received.append(("disconnected",))

    def on_negotiation_failed(self, session: Session) -> None:
        self.received.append(("negotiation failed",))


CLIENT_TYPES = {ClientSession: ClientType.E_TCPCLIENT, AdminSession: ClientType.E_TCPADMIN,
                PeerSession: ClientType.E_TCPBROKER, IncomingNegotiation: ClientType.E_TCPCLIENT}


def session(kind: type[SessionKind], state: ConnectionState,
            host: SessionContext | None = None) -> tuple[Session, SessionContext]:
    """Return a session that input of its peer has brought into a state, and its context."""
    host = host or SessionContext()
    context: Any = host
    guard = Authentication({"SLOW": BlockingAuthenticator()}, Credential("SLOW", b""))  # type: ignore[dict-item]
    if kind is OutgoingNegotiation:
        has_credential = state is ConnectionState.AWAITING_AUTHENTICATION
        credential = (lambda: Credential("BASIC", b"node:secret")) if has_credential else None
        made = create_outgoing(context, "peer", guard, 0.0, ClientIdentity(), context.peers, credential)
    else:
        made = create_incoming(context, "peer", guard, 0.0)
        identity = {"protocolVersion": 1, "sdkVersion": 1, "clientType": CLIENT_TYPES[kind].name, "processName": "task",
                    "pid": 1, "sessionId": 1, "hostName": "", "features": "", "clusterName": "c", "clusterNodeId": -1,
                    "sdkLanguage": "E_CPP", "userAgent": ""}
        if state is ConnectionState.AUTHENTICATING or kind is not IncomingNegotiation:
            made.receive(codec.control_frame({"clientIdentity": identity}), 0.0, 0)
        if kind is not IncomingNegotiation:
            made.on_authenticated(host.authentications[-1].token, Granted("principal"), 0.0, 0)
    if state is ConnectionState.DISCONNECTING:
        if isinstance(made.kind, PeerSession):
            made.kind.role = PeerRole.DOWNSTREAM
            made.kind.accept_requests()
        made.receive(codec.control_frame({"rId": 1, "disconnect": {}}), 0.0, 0)
    if state is ConnectionState.CLOSED:
        made.close("over")
    made.take_output()
    host.report.lines.clear()
    host.flushes.clear()
    host.peers.received.clear()
    return made, host


def client(state: ConnectionState = ConnectionState.SERVING) -> tuple[Session, SessionContext]:
    """Return the session of an application in a state, and its context."""
    return session(ClientSession, state)


def frame(kind: int) -> bytes:
    """Return an event of a type, with a body that cannot be decoded."""
    if kind == DROPPED:
        return b"\0\0\0\x0c\x41\x00\0\0junk"  # a header with a length of 0 words
    body = b"" if kind in (BEAT, BEAT_ANSWER) else b"junk"
    return (8 + len(body)).to_bytes(4, "big") + bytes([0x40 | kind, 2, 0, 0]) + body


LIFECYCLES: dict[type[SessionKind], LifecycleTable] = {
    IncomingNegotiation: negotiation.LIFECYCLE, OutgoingNegotiation: negotiation.DIALLED_LIFECYCLE,
    ClientSession: client_module.LIFECYCLE, AdminSession: admin.LIFECYCLE, PeerSession: peer.LIFECYCLE}


@pytest.mark.parametrize("kind", LIFECYCLES)
def test_the_table_of_each_kind_has_a_cell_for_every_state_and_event(kind: type[SessionKind]) -> None:
    lifecycle = LIFECYCLES[kind]
    assert {(kind, state) for state in lifecycle.table} == {cell for cell in TABLE if cell[0] is kind}
    for state, row in lifecycle.table.items():
        assert set(row) == set(ConnectionEvent)
        assert all(cell.action in (ignore, getattr(kind, cell.action.__name__, None)) for cell in row.values())
        assert len(lifecycle.rows[state]) == len(EVENTS)
        for event in EVENTS:
            named = ConnectionEvent(event) if event in {each.value for each in ConnectionEvent} else ConnectionEvent.UNNAMED
            assert lifecycle.rows[state][event] is row[named].action


@pytest.mark.parametrize("kind", LIFECYCLES)
def test_a_transition_that_no_cell_of_the_row_names_is_refused(kind: type[SessionKind]) -> None:
    """In tests and in the simulation (`machine.STRICT`)."""
    for state, row in LIFECYCLES[kind].table.items():
        for after in set(ConnectionState):
            if any(after in cell.after for cell in row.values()):
                LIFECYCLES[kind].check(state, after)
            else:
                with pytest.raises(IllegalTransition):
                    LIFECYCLES[kind].check(state, after)


def test_the_transition_history_has_states_and_causes() -> None:
    made, _ = session(ClientSession, ConnectionState.DISCONNECTING)
    made.close("over: %s", "enough")
    assert [(each.before, each.after, each.cause) for each in made.transitions.transitions] == [
        ("CLOSED", "NEGOTIATING", "the connection is accepted"),
        ("NEGOTIATING", "AUTHENTICATING", "a credential is being checked"),
        ("AUTHENTICATING", "SERVING", "negotiated with a client"), ("SERVING", "DISCONNECTING", "disconnect"),
        ("DISCONNECTING", "CLOSED", "over: enough")]


def test_every_connection_state_occurs_in_the_table_of_a_session_kind() -> None:
    assert {state for _, state in TABLE} == set(ConnectionState)


def name_of(value: object) -> str:
    return value.name if isinstance(value, ConnectionState) else value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize("kind, state", TABLE, ids=name_of)
def test_each_state_is_reached_by_input_of_the_peer(kind: type[SessionKind], state: ConnectionState) -> None:
    made, _ = session(kind, state)
    assert made.state is state and type(made.kind) is kind


@pytest.mark.parametrize("kind, state, event", [(*cell, event) for cell in TABLE for event in EVENTS], ids=name_of)
def test_every_event_in_every_state_has_the_expected_effect(
        kind: type[SessionKind], state: ConnectionState, event: int) -> None:
    made, host = session(kind, state)
    made.receive(frame(event), 1.0, 1)
    written = b"".join(made.take_output())
    expected = TABLE[kind, state][event]
    tags = [text.split(" ", 1)[0] for _, text in host.report.lines]
    if expected == "closed":
        assert made.state is ConnectionState.CLOSED and made.closing and len(tags) == 1 and tags[0].startswith("#")
        reported = {OutgoingNegotiation: [("negotiation failed",)], PeerSession: [("disconnected",)]}
        assert host.peers.received == reported.get(kind, [])
        return
    assert made.state is state and made.closing is (state is ConnectionState.CLOSED)
    assert host.peers.received == ([(event, 0, b"junk")] if expected == "handed" else [])
    if expected == "beat":
        assert written == codec.heartbeat(response=True) and not tags
    elif expected in ("nothing", "handed"):
        assert not written and not tags
    elif expected == "deferred":
        assert not written and not tags
        made.on_authenticated(host.authentications[-1].token, Granted("principal"), 0.0, 0)
        made.take_output()
        assert_processed_as_while_serving(host, event)
    else:
        assert tags == [expected] and not written


@pytest.mark.parametrize("event", EVENTS)
def test_client_events_of_a_downstream_broker_are_processed_as_those_of_a_client(event: int) -> None:
    made, host = session(PeerSession, ConnectionState.SERVING)
    assert isinstance(made.kind, PeerSession)
    made.kind.role = PeerRole.DOWNSTREAM
    made.kind.accept_requests()
    made.receive(frame(event), 1.0, 1)
    tags = [text.split(" ", 1)[0] for _, text in host.report.lines]
    is_client_event = event in (CONTROL, PUT, CONFIRM, EventType.REJECT)
    handed = TABLE[PeerSession, ConnectionState.SERVING][event] == "handed" and not is_client_event
    closed = [("disconnected",)] if event == EventType.FRAGMENT else []
    assert host.peers.received == ([(event, 0, b"junk")] if handed else closed)
    assert made.state is (ConnectionState.CLOSED if event == EventType.FRAGMENT else ConnectionState.SERVING)
    assert ("#CORRUPTED_EVENT" in tags) is (is_client_event or event == AUTHENTICATION)


def assert_processed_as_while_serving(host: SessionContext, event: int) -> None:
    """Assert that a deferred event is logged like one that a serving session receives."""
    served, other = client()
    served.receive(frame(event), 1.0, 1)
    assert [text for _, text in host.report.lines] == [text for _, text in other.report.lines]


def test_deferred_frames_are_processed_in_order_when_the_credential_is_granted() -> None:
    made, host = session(IncomingNegotiation, ConnectionState.AUTHENTICATING)
    made.receive(codec.heartbeat() + codec.control_frame({"rId": 1, "disconnect": {}}) + codec.heartbeat(), 0.0, 0)
    made.on_authenticated(host.authentications[-1].token, Granted("principal"), 0.0, 0)
    frames, _ = codec.split_frames(b"".join(made.take_output()))
    kinds = [event.kind for one in frames[1:] for event in codec.decode_event(one, negotiated=True)]
    assert kinds == ["heartbeat_rsp", "control"] and made.state is ConnectionState.DISCONNECTING


def written_types(made: Session) -> list[str]:
    """Return the types of the messages that the session has written since the last call."""
    frames, _ = codec.split_frames(b"".join(made.take_output()))
    return [next(iter(event.control)) for one in frames for event in codec.decode_event(one, negotiated=False)]


def authentication_response(category: Category = Category.E_SUCCESS, lifetime_ms: int | None = None) -> bytes:
    return encode_event(AuthenticationMessage("authenticationResponse", AuthenticationResponse(
        Status(category, -1 if category else 0, "why not" if category else ""), lifetime_ms)))


def create_with_credential(credential: Callable[[], Credential]) -> tuple[Session, SessionContext]:
    host = SessionContext()
    context: Any = host
    guard = Authentication({}, None)
    return create_outgoing(context, "peer", guard, 0.0, ClientIdentity(), context.peers, credential), host


def test_a_credential_is_sent_before_the_identity_and_renewed_before_it_expires() -> None:
    made, host = create_with_credential(lambda: Credential("BASIC", b"node:secret"))
    assert written_types(made) == ["authenticationRequest"]
    made.receive(authentication_response(lifetime_ms=60_000), 1.0, 1)
    assert made.state is ConnectionState.AWAITING_RESPONSE and written_types(made) == ["clientIdentity"]
    made.receive(encode_event(NegotiationMessage("brokerResponse", BrokerResponse(
        Status(Category.E_SUCCESS, 0, ""), 1, 1, False, ClientIdentity()))), 2.0, 2)
    assert made.state is ConnectionState.SERVING
    for moment, shown in ((54.9, []), (55.0, ["authenticationRequest"]), (57.0, [])):
        made.tick(moment, 0)
        assert written_types(made) == shown, moment
    made.receive(authentication_response(lifetime_ms=1000), 57.0, 57)
    made.tick(58.0, 58)
    assert written_types(made) == ["authenticationRequest"] and made.state is ConnectionState.SERVING
    made.receive(authentication_response(Category.E_REFUSED), 58.0, 58)
    assert made.state is ConnectionState.CLOSED and "it refuses our credential: why not" in host.report.lines[-1][1]


def test_a_refused_or_unavailable_credential_closes_the_connection() -> None:
    made, host = create_with_credential(lambda: Credential("BASIC", b"node:wrong"))
    made.receive(authentication_response(Category.E_REFUSED), 1.0, 1)
    assert made.state is ConnectionState.CLOSED and host.peers.received == [("negotiation failed",)]

    def fails() -> Credential:
        raise ZeroDivisionError("no vault")
    made, host = create_with_credential(fails)
    assert not made.take_output()
    made.tick(1.0, 1)
    assert made.state is ConnectionState.CLOSED
    assert "the credential provider fails: ZeroDivisionError" in host.report.lines[-1][1]


def test_the_number_of_deferred_frames_is_limited() -> None:
    made, host = session(IncomingNegotiation, ConnectionState.AUTHENTICATING)
    for _ in range(1024):
        made.receive(codec.heartbeat(), 0.0, 0)
    assert made.state is ConnectionState.AUTHENTICATING
    made.receive(codec.heartbeat(), 0.0, 0)
    assert made.state is ConnectionState.CLOSED and "more than 1024 events" in host.report.lines[-1][1]


@pytest.mark.parametrize("choice", ["openQueueResponse", "configureStreamResponse", "closeQueueResponse", "status",
                                    "disconnectResponse", "adminCommand", "adminCommandResponse"])
def test_a_message_that_clients_do_not_send_is_logged_and_dropped(choice: str) -> None:
    made, host = client()
    assert isinstance(made.kind, ClientSession)
    made.kind.requests.handle(ControlMessage(1, choice, None))
    assert "unexpected control message" in host.report.lines[-1][1] and not made.take_output()


@pytest.mark.parametrize("request_, answer", [
    ({"configureStream": {"qId": 5, "streamParameters": {"appId": "", "subscriptions": []}}},
     "No queue with specified Id"),
    ({"closeQueue": {"handleParameters": {"uri": "bmq://d/q", "qId": 5, "flags": 2, "readCount": 1, "writeCount": 0,
                                          "adminCount": 0}, "isFinal": True}}, "No queue with specified Id"),
    ({"openQueue": {"handleParameters": {"uri": "no uri", "qId": 5, "flags": 2, "readCount": 1, "writeCount": 0,
                                         "adminCount": 0}}}, "")])
def test_a_refused_request_is_answered_and_the_session_continues(request_: dict[str, Any], answer: str) -> None:
    made, host = client()
    made.receive(codec.control_frame({"rId": 7, **request_}), 0.0, 0)
    (event,) = codec.decode_event(b"".join(made.take_output()), negotiated=True)
    assert event.control["rId"] == 7 and event.control["status"]["category"] != "E_SUCCESS"
    assert answer in event.control["status"]["message"] and made.state is ConnectionState.SERVING
