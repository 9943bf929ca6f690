"""Who asks for a queue, as far as it matters where the queue is: the session of a client, or a part of the broker itself."""

from __future__ import annotations

from typing import Protocol

from bmqtwist.link.states import State


class Authenticated(Protocol):
    """Somebody who has shown who they are."""

    @property
    def principal(self) -> str:
        """Whom authorizers are asked about."""


class Asker(Protocol):
    """`link.session.Session` is one, `broker.local_producer.LocalProducer` another."""

    @property
    def guard(self) -> Authenticated:
        """Who it is."""

    @property
    def kind(self) -> object:
        """What kind of session, if it is one."""

    @property
    def state(self) -> State:
        """CLOSED: nobody waits for the answer any more."""

    @property
    def wall(self) -> int:
        """Seconds since the epoch, of this turn."""
