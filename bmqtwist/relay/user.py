"""Interface of relayed queues: what they need of the cluster whose queues they are."""

from __future__ import annotations

from typing import Protocol

from bmqtwist.config.clusters import QueueOperations
from bmqtwist.ids import QueueUri
from bmqtwist.queue.domain import DomainRules
from bmqtwist.relay.upstream_queue import Upstream
from bmqtwist.storage.message import Message
from bmqtwist.wire.schema import OpenQueueResponse


class RelayUser(Protocol):
    """Who knows the nodes above. `title`: how the cluster is shown to people."""

    name: str
    title: str
    operations: QueueOperations

    def upstream_of(self, uri: str) -> Upstream | None:
        """Where a queue is to be opened."""

    def domain_of(self, uri: QueueUri, response: OpenQueueResponse) -> DomainRules:
        """The domain of a queue that was opened above."""

    def stored(self, uri: str, guid: bytes) -> Message | None:
        """The message that a PUSH without payload speaks of, with its payload; None: it is not here yet. PeerError: none can
        be."""

    def payload(self, uri: str, guid: bytes) -> bytes:
        """The application data of a message that came to its consumer while this node was primary. PartitionUnavailable."""
