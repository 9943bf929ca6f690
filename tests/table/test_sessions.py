"""link/states.py ANSWERS: what each state makes of each type of event, from outside; and the requests of a client."""

from __future__ import annotations

from typing import Any

import pytest
from kit import codec

from bmqtwist.errors import Category
from bmqtwist.link import requests
from bmqtwist.link.authentication import Authenticate, Authentication, Credential, Granted
from bmqtwist.link.session import Session
from bmqtwist.link.states import ANSWERS, EVENT_TYPES, State
from bmqtwist.report import ListReport
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import DROPPED
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType, Status

CONTROL, PUT, CONFIRM, AUTHENTICATION = EventType.CONTROL, EventType.PUT, EventType.CONFIRM, EventType.AUTHENTICATION
BEAT, BEAT_ANSWER = EventType.HEARTBEAT_REQ, EventType.HEARTBEAT_RSP
KINDS = [*range(EVENT_TYPES), DROPPED]

# What happens: closed, kept (until a credential was looked at), nothing, beat (a heartbeat is answered), or the tag
# of the log record that tells of an event that was dropped. Written down here, apart from the code.
CLOSED = dict.fromkeys(KINDS, "nothing")
TABLE: dict[State, dict[int, str]] = {
    State.NEGOTIATING: {**dict.fromkeys(KINDS, "closed")},
    State.HOLDING: {**dict.fromkeys(KINDS, "kept"), AUTHENTICATION: "closed"},
    State.SERVING: {**dict.fromkeys(KINDS, "#CLIENT_UNEXPECTED_EVENT"), 0: "#TCP_INVALID_PACKET",
                    DROPPED: "#TCP_INVALID_PACKET", CONTROL: "#CORRUPTED_EVENT", PUT: "#CORRUPTED_EVENT",
                    CONFIRM: "#CORRUPTED_EVENT",
                    AUTHENTICATION: "#CORRUPTED_EVENT", BEAT: "beat", BEAT_ANSWER: "nothing"},
    State.ADMINISTERING: {**dict.fromkeys(KINDS, "#ADMCLIENT_UNEXPECTED_EVENT"), 0: "#TCP_INVALID_PACKET",
                          DROPPED: "#TCP_INVALID_PACKET", CONTROL: "#CORRUPTED_EVENT",
                          AUTHENTICATION: "#CORRUPTED_EVENT", BEAT: "beat", BEAT_ANSWER: "nothing"},
    State.LEAVING: CLOSED,
    State.CLOSED: CLOSED,
}


class Judge:
    """An authenticator that is asked on another thread."""

    mechanism, blocking = "SLOW", True


class SessionContext:
    """The broker as a session sees it."""

    serving, now = True, 0.0

    def __init__(self) -> None:
        self.report = ListReport()
        self.flushes: list[Session] = []
        self.gone_sessions: list[Session] = []
        self.judged: list[Authenticate] = []
        self.commands: list[str] = []

    def flush_later(self, session: Session) -> None:
        session.waiting = True
        self.flushes.append(session)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        self.judged.append(effect)

    def welcome(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        return BrokerResponse(Status(Category.E_SUCCESS, 0, ""), 1, 1, False, identity)

    def run_admin(self, session: Session, r_id: int, command: str) -> None:
        self.commands.append(command)

    def gone(self, session: Session) -> None:
        self.gone_sessions.append(session)


def session(state: State, host: SessionContext | None = None) -> tuple[Session, SessionContext]:
    """A session brought into a state in the way a client does it."""
    host = host or SessionContext()
    authenticators: Any = {"SLOW": Judge()}
    made = Session(host, "peer", Authentication(authenticators, Credential("SLOW", b"")), 0.0, 1 << 20)  # type: ignore[arg-type]
    if state is State.NEGOTIATING:
        return made, host
    identity = {"protocolVersion": 1, "sdkVersion": 1, "clientType": "E_TCPCLIENT", "processName": "task", "pid": 1,
                "sessionId": 1, "hostName": "", "features": "", "clusterName": "", "clusterNodeId": -1,
                "sdkLanguage": "E_CPP", "userAgent": ""}
    if state is State.ADMINISTERING:
        identity["clientType"] = ClientType.E_TCPADMIN.name
    made.receive(codec.control_frame({"clientIdentity": identity}), 0.0, 0)
    if state is State.HOLDING:
        return made, host
    made.authenticated(host.judged[-1].token, Granted("somebody"), 0.0, 0)
    if state is State.LEAVING:
        made.receive(codec.control_frame({"rId": 1, "disconnect": {}}), 0.0, 0)
    if state is State.CLOSED:
        made.close("over")
    made.take()
    host.report.lines.clear()
    host.flushes.clear()
    return made, host


def frame(kind: int) -> bytes:
    """An event that says nothing sensible."""
    if kind == DROPPED:
        return b"\0\0\0\x0c\x41\x00\0\0junk"  # a header of no words
    body = b"" if kind in (BEAT, BEAT_ANSWER) else b"junk"
    return (8 + len(body)).to_bytes(4, "big") + bytes([0x40 | kind, 2, 0, 0]) + body


def test_the_table_has_a_cell_for_everything() -> None:
    assert set(ANSWERS) == set(State) == set(TABLE)
    for row in ANSWERS.values():
        assert set(row) == set(KINDS)
        assert all(hasattr(Session, action) for action in row.values())


@pytest.mark.parametrize("state", State)
def test_the_state_is_reached_as_clients_reach_it(state: State) -> None:
    assert session(state)[0].state is state


@pytest.mark.parametrize("state, kind", [(state, kind) for state in State for kind in KINDS],
                         ids=lambda value: value.name if isinstance(value, State) else str(value))
def test_every_event_in_every_state(state: State, kind: int) -> None:
    made, host = session(state)
    made.receive(frame(kind), 1.0, 1)
    written = b"".join(made.take())
    expected = TABLE[state][kind]
    tags = [text.split(" ", 1)[0] for _, text in host.report.lines]
    if expected == "closed":
        assert made.state is State.CLOSED and made.closing and len(tags) == 1 and tags[0].startswith("#")
        return
    assert made.state is state and made.closing is (state is State.CLOSED)
    if expected == "beat":
        assert written == codec.heartbeat(response=True) and not tags
    elif expected == "nothing":
        assert not written and not tags
    elif expected == "kept":
        assert not written and not tags and len(made._held) == 1
    else:
        assert tags == [expected] and not written


def test_what_was_kept_is_answered_in_order_when_the_credential_is_good() -> None:
    made, host = session(State.HOLDING)
    made.receive(codec.heartbeat() + codec.control_frame({"rId": 1, "disconnect": {}}) + codec.heartbeat(), 0.0, 0)
    made.authenticated(host.judged[-1].token, Granted("somebody"), 0.0, 0)
    frames, _ = codec.split_frames(b"".join(made.take()))
    kinds = [event.kind for one in frames[1:] for event in codec.decode_event(one, negotiated=True)]
    assert kinds == ["heartbeat_rsp", "control"] and made.state is State.LEAVING


def test_what_is_kept_is_bounded() -> None:
    made, host = session(State.HOLDING)
    for _ in range(1025):
        made.receive(codec.heartbeat(), 0.0, 0)
    assert made.state is State.CLOSED and "more than 1024 events" in host.report.lines[-1][1]


CHOICES = ["openQueue", "configureStream", "configureQueueStream", "closeQueue", "disconnect", "clusterMessage"]


def test_every_request_about_a_queue_has_an_action_and_nothing_else_has() -> None:
    assert set(requests._QUEUE_REQUESTS) == set(CHOICES) - {"disconnect", "clusterMessage"}


@pytest.mark.parametrize("choice", ["openQueueResponse", "configureStreamResponse", "closeQueueResponse", "status",
                                    "disconnectResponse", "adminCommand", "adminCommandResponse"])
def test_a_message_that_clients_do_not_send_is_logged_and_dropped(choice: str) -> None:
    made, host = session(State.SERVING)
    requests.handle(made, ControlMessage(1, choice, None))
    assert "unexpected control message" in host.report.lines[-1][1] and not made.take()


@pytest.mark.parametrize("request_, answer", [
    ({"configureStream": {"qId": 5, "streamParameters": {"appId": "", "subscriptions": []}}},
     "No queue with specified Id"),
    ({"closeQueue": {"handleParameters": {"uri": "bmq://d/q", "qId": 5, "flags": 2, "readCount": 1, "writeCount": 0,
                                          "adminCount": 0}, "isFinal": True}}, "No queue with specified Id"),
    ({"openQueue": {"handleParameters": {"uri": "no uri", "qId": 5, "flags": 2, "readCount": 1, "writeCount": 0,
                                         "adminCount": 0}}}, "")])
def test_a_refused_request_is_answered_and_the_session_goes_on(request_: dict[str, Any], answer: str) -> None:
    made, host = session(State.SERVING)
    made.receive(codec.control_frame({"rId": 7, **request_}), 0.0, 0)
    (event,) = codec.decode_event(b"".join(made.take()), negotiated=True)
    assert event.control["rId"] == 7 and event.control["status"]["category"] != "E_SUCCESS"
    assert answer in event.control["status"]["message"] and made.state is State.SERVING
