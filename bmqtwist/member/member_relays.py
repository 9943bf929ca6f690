"""Relays at a member: queues that its clients have open while another member is primary of their partition.

A partition has an upstream while its active primary is known and connected (`Replication.primary_of`); the generation
of the upstream is the primary's lease. The primary sends PUSHes without payload: this node has the records, or receives
them soon. When this node becomes primary, its relays become queues, and the reverse (`queue.handover`). `relay.relays`
has the part that members and proxies share; `relay/proxy.py` is the counterpart of a proxy. Called by `dispatch.py` and
`cluster.py`; limits are in `bmqtwist/limits.py`. docs/architecture.md shows the way of a PUT through three nodes, and
of its ACK back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bmqtwist.cluster.gates import CLOSED
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.errors import PeerError
from bmqtwist.ids import QueueUri
from bmqtwist.limits import HELD_ACK_EVENTS_MAX
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.requests import is_of_a_client
from bmqtwist.member.interfaces import ReplicatedCluster
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.member.replication import Replication
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.queue.root import Domain
from bmqtwist.relay.relays import Relays
from bmqtwist.relay.upstream_queue import Upstream
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.psn import Psn
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.events import AckMessage, decode_ack
from bmqtwist.wire.fast import ACK_EARLY, RECEIPT
from bmqtwist.wire.schema import OpenQueueResponse

CHECK_PERIOD_S = 0.2


class MemberRelays:
    """`relay.upstream_queue.RelayUser` of one cluster. `record_of`: a queue's record in the metadata; `bytes_max`: the limit
    of PUTs that wait for ACKs, in bytes."""

    def __init__(self, cluster: ReplicatedCluster, record_of: Callable[[str], QueueRecord | None], replication: Replication,
                 links: ClusterLinks, statuses: NodeStatuses, bytes_max: int) -> None:
        definition, self._loop = cluster.definition, cluster.loop
        self.name, self.title = definition.name, f"Cluster ({definition.name})"
        self.operations = definition.queue_operations
        self._cluster, self._record_of, self._replication = cluster, record_of, replication
        self._links, self.statuses = links, statuses
        self._upstreams: dict[int, Upstream] = {}  # by partition
        self._held_acks: dict[int, deque[tuple[Psn, list[AckMessage]]]] = {}  # by partition, each with its record
        self.relays = Relays(self, cluster.loop, cluster.context, bytes_max)
        self.leadership: Leadership
        self._cut_off_since: float | None = None  # since when leader and a primary are unknown
        self._election_seconds = definition.elector.max_random_wait_timeout_ms / 1000  # other nodes elect a leader within it
        self._loop.timers.every(self._loop.now, CHECK_PERIOD_S, self._report_usable)

    # -- the primaries ----------------------------------------------------------------------------------------------------

    def awaited_members(self) -> str:
        """Return the members that have not connected yet after the start; see `ClusterLinks.awaited_nodes`."""
        return self._links.awaited_nodes(self._loop.now)

    def on_primary_changed(self, index: int) -> None:
        """Attach the queues of a partition to its new active primary, or detach them if it has none."""
        primary, known = self._replication.primary_of(index), self._upstreams.get(index)
        gates = self.statuses.gates(primary.node_id) if primary is not None else CLOSED
        if not gates.confirm:
            primary = None
        peer = self._links.session(primary.node_id) if primary is not None else None
        if known is not None and (primary is None or peer is not known.peer or primary.lease != known.generation):
            del self._upstreams[index]
            self._held_acks.pop(index, None)
            self.relays.detach([opened for opened in self.relays.opened.values() if opened.upstream is known])
        if primary is not None and peer is not None and peer.upstream_batch is not None and index not in self._upstreams:
            upstream = self._upstreams[index] = Upstream(peer, peer.upstream_batch, primary.lease)
            upstream.stopping = not gates.put
            self.relays.attach(upstream)
        elif known is not None and index in self._upstreams and not gates.put and not known.stopping:
            self.relays.stop_posting(known)

    def on_statuses_changed(self) -> None:
        """Check the upstreams of all partitions after a change of a member's status."""
        for index in range(len(self._cluster.partitions)):
            self.on_primary_changed(index)

    def on_queue_moved(self, uri: str) -> None:
        """Attach a queue to another upstream if the metadata move it to another partition."""
        opened = self.relays.opened.get(uri)
        if opened is not None and opened.upstream is not self.upstream_of(uri):
            self.relays.detach([opened])
            upstream = self.upstream_of(uri)
            if upstream is not None:
                self.relays.attach(upstream)

    def on_records(self, now: float) -> None:
        """Release PUSHes and early acknowledgements whose records have been written."""
        self.relays.incoming.on_records(now)
        for index in list(self._held_acks):
            self._release_acks(index, now)

    def _on_early_acks(self, peer: PeerSession, body: bytes, now: float) -> None:
        """Hold early acknowledgements until their record is committed; raises PeerError, then none is held."""
        if len(body) < RECEIPT.size:
            raise PeerError("event cut short", "ACK", len(body))
        index, sequence, lease = RECEIPT.unpack_from(body)
        upstream = self._upstreams.get(index)
        found, error = decode_ack(body, RECEIPT.size, len(body))
        if error is not None:
            raise error
        if upstream is None or upstream.peer is not peer or upstream.generation != lease:
            return  # the next primary receives these PUTs again
        self._replication.on_early_ack(index)
        held = self._held_acks.setdefault(index, deque())
        held.append(((lease, sequence), found))
        if len(held) > HELD_ACK_EVENTS_MAX:
            peer.session.close("#PEER_IMPROPER_BEHAVIOR %s: too many ACKs in partition %d without their records (limit: %d "
                               "events)", peer.session.description, index, HELD_ACK_EVENTS_MAX)
        else:
            self._release_acks(index, now)

    def _release_acks(self, index: int, now: float) -> None:
        held, upstream = self._held_acks[index], self._upstreams[index]
        while held and self._replication.is_known_committed(index, held[0][0]):
            self.relays.incoming.pass_acks(upstream.peer, held.popleft()[1], now)
        if not held:
            del self._held_acks[index]

    def _report_usable(self, now: float) -> None:
        """Report to proxies that this node is not available while it is cut off from leader and primary."""
        for index in list(self._held_acks):
            self._release_acks(index, now)
        missing = any(index not in self._upstreams and not self._replication.is_active_primary(index)
                      for index in range(len(self._cluster.partitions)))
        if not missing or self.leadership.knows_leader:
            self._cut_off_since = None
        elif self._cut_off_since is None:
            self._cut_off_since = now
        self.statuses.set_usable_by_proxies(self._cut_off_since is None or now < self._cut_off_since + self._election_seconds
                                or not self.leadership.may_be_cut_off_from_leader)

    # -- relay.upstream_queue.RelayUser ---------------------------------------------------------------------------------

    def upstream_of(self, uri: str) -> Upstream | None:
        """Return the active primary of the queue's partition."""
        record = self._record_of(uri)
        return self._upstreams.get(record.partition_id) if record is not None else None

    def domain_of(self, uri: QueueUri, response: OpenQueueResponse) -> Domain:
        """Return this node's own domain object, since this node may become primary."""
        return self._cluster.domains.get_or_load(uri.qualified_domain)

    def find_stored(self, uri: str, guid: bytes) -> Message | None:
        """Read a message from this node's files once its record is durable here, or known to be committed; else None."""
        found = self._find(uri, guid)
        if found is None:
            return None
        partition, message = found
        index, psn = partition.partition_id, (message.lease, message.sequence)
        upstream = self._upstreams.get(index)
        if isinstance(partition, ReplicatedPartition) and (upstream is None or psn > partition.written_psn or not
                                                           self._replication.has_durable(index, upstream.generation, psn)):
            return None
        try:
            payload = partition.payloads.read(message)
        except (PartitionUnavailable, OSError):  # already reported; the message returns to the primary
            return None
        now = self._loop.now
        copy = Message(guid, payload, message.options, message.has_properties, message.compression, message.schema_id,
                       message.crc, now, self._loop.wall(now))
        copy.lease, copy.sequence = message.lease, message.sequence  # `App.is_late` compares them
        return copy

    def payload(self, uri: str, guid: bytes) -> bytes:
        """Read a payload from this node's files; raises PartitionUnavailable."""
        found = self._find(uri, guid)
        if found is None:
            raise PartitionUnavailable(f"message {guid.hex().upper()} is gone")
        return found[0].payloads.read(found[1])

    def _find(self, uri: str, guid: bytes) -> tuple[Partition, Message] | None:
        record = self._record_of(uri)
        if record is None:
            return None
        partition = self._cluster.partitions[record.partition_id]
        queue = partition.state.queues.get(record.key)
        message = queue.messages.get(guid) if queue is not None else None
        return None if message is None else (partition, message)

    # -- messages of other members ----------------------------------------------------------------------------------------

    def on_acks(self, peer: PeerSession, specific: int, body: bytes, now: float) -> None:
        """Handle ACKs, or early acknowledgements, of a primary; raises PeerError."""
        if specific == ACK_EARLY:
            self._on_early_acks(peer, body, now)
        else:
            self.relays.incoming.on_acks(peer, body, now)

    def on_control_message(self, peer: PeerSession, message: ControlMessage) -> None:
        """Handle a request of another member about queues, or its response; late responses are ignored."""
        answered = self.relays.requests.on_response(peer, message, self._links.name(peer.node_id))
        if not answered and is_of_a_client(message) and peer.accepts_requests:
            peer.requests.handle(message)
