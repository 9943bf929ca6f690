"""What a session asks of the broker around it: one narrow interface, so that link knows nothing of node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from bmqtwist.errors import Refused
from bmqtwist.ids import QueueUri
from bmqtwist.link.authentication import Authenticate
from bmqtwist.link.newcomers import Newcomers
from bmqtwist.queue.handles import OpenRequest
from bmqtwist.queue.queue import ConsumerSpec, Handle, Queue
from bmqtwist.report import Report
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import Held
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

if TYPE_CHECKING:
    from bmqtwist.link.admin import AdminSession
    from bmqtwist.link.peer import PeerSession
    from bmqtwist.link.session import Session


class PeerContext(Protocol):
    """Whoever speaks with the other brokers of one cluster."""

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Decide on a broker that introduces itself; None = close without a word (the reason is logged)."""

    def connected(self, peer: PeerSession) -> None:
        """The negotiation with a broker has succeeded: `peer.send` works from now on."""

    def received(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """One event: its type, its type-specific byte, and what follows its header. What is wrong with it is told here."""

    def disconnected(self, peer: PeerSession) -> None:
        """The session of a broker is over."""

    def not_connected(self, session: Session) -> None:
        """A connection that we have made is over before the negotiation was."""

    def stop(self) -> None:
        """The broker goes away: nobody is dialled any more, and nobody is taken."""


class SessionContext(Protocol):
    """The broker as a session sees it."""

    report: Report
    now: float  # of this turn, seconds, monotonic
    output_bytes_max: int  # that may wait for a client; 0 = any number
    newcomers: Newcomers  # connections that are not negotiated
    held: Held  # incomplete events of all connections
    input_bytes_max: int  # of them
    serving: bool  # False: stopping, new opens are left for the broker that comes after

    def peers_for(self, identity: ClientIdentity) -> PeerContext | None:
        """Who speaks with a broker that introduces itself so; None = it is turned away."""

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""

    def worked(self) -> float:
        """Seconds this thread has worked so far: to end in time what could take long."""

    def go_on_later(self, session: Session) -> None:
        """The session has begun what may not be done in one turn: nothing is read from it, and the next turn calls
        session.go_on(...)."""

    def flush_later(self, session: Session) -> None:
        """The session has something to write at the end of the turn."""

    def write_now(self) -> None:
        """What is stored so far is written before the output of this turn."""

    def flush_soon(self, session: Session) -> None:
        """The session has something to write that may wait for a moment; `session.lingered` is called then."""

    def share_a_turn(self, session: Session) -> None:
        """The same, and it is called by the first turn after a shorter moment, if there is one."""

    def queue_failed(self, queue: Queue, doing: str, error: Exception, disable: bool = False) -> None:
        """A queue raised what nobody expected; `disable`: it can go on no more."""

    def too_much_held(self) -> None:
        """More than `input_bytes_max` is held of incomplete events: the connection with the most of it is closed."""

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Let an authenticator judge off the reactor's thread; then session.authenticated(...)."""

    def welcome(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Decide on a negotiation; None = close without a word (the reason is logged)."""

    # A request about a queue is answered by a call of `answer`: once, at once or in a later turn before its end. Nothing
    # here raises Refused. The session may be gone by then, or the request timed out: the answer is dropped then.

    def find_queue(self, session: Session, uri: QueueUri, request: OpenRequest,
                   answer: Callable[[Queue | Refused], None]) -> None:
        """The queue of an open, created if need be."""

    def configure_queue(self, session: Session, handle: Handle, app_id: str, consumers: list[ConsumerSpec],
                        answer: Callable[[Refused | None], None]) -> None:
        """Replace the subscriptions of one substream; None = done."""

    def close_queue(self, session: Session, handle: Handle, request: OpenRequest, final: bool,
                    answer: Callable[[bool | Refused], None]) -> None:
        """Subtract counts from a handle; True = it is gone, False = something of it is left."""

    def request_timeout(self, choice: str, domain: str) -> float:
        """Seconds after which a request about a queue of a domain has failed."""

    def unused(self, queue: Queue) -> None:
        """A handle of the queue is gone, or did not come to be: perhaps nobody has the queue open now."""

    def make_guid(self) -> bytes:
        """A GUID for a message of a client that makes none."""

    def invalid_put(self, size: int) -> None:
        """Book a PUT for a queue that nobody knows."""

    def run_admin(self, admin: AdminSession, r_id: int, command: str) -> None:
        """Run a command; the answer comes back as admin.answer(r_id, text)."""

    def gone(self, session: Session) -> None:
        """The session is closed; forget it."""
