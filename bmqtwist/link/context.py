"""What a session asks of the broker around it: one narrow interface, so that link knows nothing of node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bmqtwist.ids import QueueUri
from bmqtwist.link.authentication import Authenticate
from bmqtwist.queue.handles import OpenRequest
from bmqtwist.queue.queue import Queue
from bmqtwist.report import Report
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

if TYPE_CHECKING:
    from bmqtwist.link.session import Session


class SessionContext(Protocol):
    """The broker as a session sees it."""

    report: Report
    now: float  # of this turn, seconds, monotonic
    serving: bool  # False: stopping, new opens are left for the broker that comes after

    def flush_later(self, session: Session) -> None:
        """The session has something to write at the end of the turn."""

    def queue_failed(self, queue: Queue, doing: str, error: Exception, disable: bool = False) -> None:
        """A queue raised what nobody expected; `disable`: it can go on no more."""

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Let an authenticator judge off the reactor's thread; then session.authenticated(...)."""

    def welcome(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Decide on a negotiation; None = close without a word (the reason is logged)."""

    def find_queue(self, session: Session, uri: QueueUri, request: OpenRequest) -> Queue:
        """The queue of an open, created if need be; raises Refused."""

    def opened(self, session: Session, queue: Queue) -> None:
        """A handle of the queue was opened."""

    def closed(self, session: Session, queue: Queue) -> None:
        """A handle of the queue is gone."""

    def make_guid(self) -> bytes:
        """A GUID for a message of a client that makes none."""

    def invalid_put(self, size: int, accepted: bool) -> None:
        """Book a PUT for a queue that nobody knows."""

    def run_admin(self, session: Session, r_id: int, command: str) -> None:
        """Run a command; the answer comes back as session.admin_answer(r_id, text)."""

    def gone(self, session: Session) -> None:
        """The session is closed; forget it."""
