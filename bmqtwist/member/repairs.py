"""Repair of damaged messages of one cluster at one node, with the copies that other members have.

A repair begins when `storage/payloads.py` detects the damage: in a read for a delivery, a relay or an image, or in a scrub.

    own copy     the data are in memory, or only the header of the record is damaged: written at once
    asking       the primary first, then the other members, one after the other; IN_FLIGHT_MAX requests at a time
    repaired     the copy has the checksum of the message: written in place (`payloads.py`), and read by the deliveries
    postponed    a member did not answer, or the disk failed: all members are asked again after RETRY_S, or when one connects
    discarded    every member has answered that it has no intact copy, and a second read from the disk of the primary finds
                 the same damage: the primary rejects the message for all apps, as a poison message

Only the primary discards a message; the DELETION removes the damaged copies of the replicas. A message whose read fails with
an error of the disk is never discarded. Alarms name the first message; further ones within ALARM_PERIOD_S are counted.

`Cluster` creates it and attaches the partitions; `replication.py` passes the messages of other members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from crc32c import crc32c

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster.partition_events import encode_partition_message
from bmqtwist.cluster.state import Primary
from bmqtwist.loop.loop import Loop
from bmqtwist.peers.handshake import supports_record_copies
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.queue.root import RootQueue, discard_damaged, route_again
from bmqtwist.report import LineLimiter, Report
from bmqtwist.storage.damage import PayloadDamaged, Repair
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.wire.cluster_schema import Copy, Fetch

IN_FLIGHT_MAX = 8  # requests without an answer, each of one message
STEP, PAUSE_S = 32, 0.001  # repairs that begin in one turn, and the pause after them
ANSWER_S = 5.0  # after which the next member is asked
RETRY_S = 30.0  # after which postponed repairs ask again
ALARM_PERIOD_S = 60.0  # between two alarms of a kind about a partition
CHECK_S = 1.0  # between two checks whether a rollover has ended


@dataclass(slots=True)
class RepairCounts:
    """Messages of one partition since the start: found damaged, repaired, discarded."""

    damaged: int = 0
    repaired: int = 0
    discarded: int = 0


@dataclass(slots=True, eq=False)
class RepairTask:
    """One repair. `key`: live key; `remaining`: members to ask; `asked`: the member that is being asked, until `deadline`;
    `refused`: members that have no intact copy."""

    partition: Partition
    repair: Repair
    key: int
    remaining: list[int] = field(default_factory=list)
    asked: int = -1
    deadline: float = 0.0
    refused: set[int] = field(default_factory=set)

    @property
    def message(self) -> Message:
        return self.repair.message


class RepairUser(Protocol):
    """`member.cluster.Cluster`."""

    name: str
    loop: Loop
    report: Report
    partitions: list[Partition]
    queues: dict[str, RootQueue]

    def on_records(self, now: float) -> None:
        """Deliver messages of other primaries that wait for their records."""


class Repairs:
    """Repairs of one cluster. `counts` by partition."""

    def __init__(self, cluster: RepairUser) -> None:
        self._cluster, self._loop, self._report = cluster, cluster.loop, cluster.report
        self._links: ClusterLinks | None = None  # this node is the only member
        self._primary_of: Callable[[int], Primary | None] = lambda index: None
        self._is_primary: Callable[[int], bool] = lambda index: True
        self.counts: dict[int, RepairCounts] = {}
        self._waiting: deque[RepairTask] = deque()
        self._asked: dict[tuple[int, bytes], RepairTask] = {}  # by partition and GUID
        self._postponed: list[RepairTask] = []
        self._alarms = CountedAlarms(cluster)
        self._lines = LineLimiter()

    def connect(self, links: ClusterLinks, primary_of: Callable[[int], Primary | None],
                is_primary: Callable[[int], bool]) -> None:
        """Use the copies of other members. `primary_of(partition)`: the active primary if it is another node;
        `is_primary(partition)`: it is this node."""
        self._links, self._primary_of, self._is_primary = links, primary_of, is_primary

    def attach(self, partition: Partition) -> None:
        """Repair the messages of a partition, which may replace an earlier one over the same files."""
        self.counts.setdefault(partition.partition_id, RepairCounts())
        partition.payloads.on_damaged = partial(self._on_damaged, partition)

    def _on_damaged(self, partition: Partition, repair: Repair) -> None:
        self.counts[partition.partition_id].damaged += 1
        task = RepairTask(partition, repair, repair.message.live_key)
        self._waiting.append(task)
        self._alarms.add(alarms.PAYLOAD_DAMAGED, partition.partition_id, self._described(task))
        self._loop.timers.at(self._loop.now, self._run)  # after the read that found the damage

    # -- requests -------------------------------------------------------------------------------------------------------

    def _run(self, now: float) -> None:
        """Ask the next member after a missing answer, and begin the next repairs."""
        for task in [task for task in self._asked.values() if task.deadline <= now]:
            self._ask_next(task, now)
        for _ in range(STEP):
            if not self._waiting or len(self._asked) >= IN_FLIGHT_MAX:
                return
            self._begin(self._waiting.popleft(), now)
        self._loop.timers.at(now + PAUSE_S, self._run)

    def _begin(self, task: RepairTask, now: float) -> None:
        payloads = task.partition.payloads
        if payloads.closed or task.message.live_key < 0:
            self._end(task, now)
            return
        copy = payloads.own_copy(task.message)
        if copy is not None:
            self._write(task, copy, "the data of this node", now)
            return
        task.remaining, task.refused = self._members(task.partition.partition_id), set()
        self._ask_next(task, now)

    def _members(self, index: int) -> list[int]:
        """Return the other members, the primary of the partition first."""
        if self._links is None:
            return []
        primary = self._primary_of(index)
        first = primary.node_id if primary is not None else -1
        return sorted(self._links.membership.links, key=lambda node_id: (node_id != first, node_id))

    def _ask_next(self, task: RepairTask, now: float) -> None:
        """Ask the next connected member; without one, discard the message or postpone its repair."""
        message, index = task.message, task.partition.partition_id
        request = Fetch(at=(message.lease, message.sequence), queue_key=message.queue_key, guid=message.guid)
        while task.remaining and self._links is not None:
            node_id = task.remaining.pop(0)
            peer = self._links.session(node_id)
            if peer is not None and supports_record_copies(peer.session.remote.features):
                self._links.send(node_id, encode_partition_message(index, request))
                task.asked, task.deadline = node_id, now + ANSWER_S
                self._asked[index, message.guid] = task
                self._loop.timers.at(task.deadline, self._run)
                return
        self._asked.pop((index, message.guid), None)
        if task.refused.issuperset(self._members(index)) and self._discard(task, now):
            return
        self._postpone(task, now)

    def _postpone(self, task: RepairTask, now: float) -> None:
        if not self._postponed:
            self._loop.timers.at(now + RETRY_S, self.retry)
        self._postponed.append(task)
        task.repair.asking = False
        task.repair.notify()

    def retry(self, now: float) -> None:
        """Begin the postponed repairs again."""
        self._waiting += self._postponed
        self._postponed = []
        self._run(now)

    # -- messages of other members --------------------------------------------------------------------------------------

    def on_message(self, sender: int, index: int, message: Fetch | Copy, now: float) -> None:
        """Handle the request of another member, or its answer; late answers are ignored."""
        if isinstance(message, Fetch):
            answer = self._answer(index, message)
            if answer is not None and self._links is not None:
                self._links.send(sender, encode_partition_message(index, answer))
            return
        task = self._asked.get((index, message.guid))
        if task is None or task.asked != sender:
            return
        found = task.message
        if message.intact and len(message.data) == found.size and crc32c(message.data) == found.crc:
            del self._asked[index, message.guid]
            name = self._links.name(sender) if self._links is not None else ""
            self._write(task, message.data, f"the copy of node {name}", now)
        else:
            if not message.intact or crc32c(message.data) != found.crc:  # else the size in this node's DATA record is wrong
                task.refused.add(sender)
            self._ask_next(task, now)
        self._run(now)

    def _answer(self, index: int, request: Fetch) -> Copy | None:
        """Return this node's copy of a message; None if its files cannot be read now."""
        partition = self._cluster.partitions[index]
        queue = partition.state.queues.get(request.queue_key)
        message = queue.messages.get(request.guid) if queue is not None else None
        if partition.payloads.closed:
            return None
        if message is None or (message.lease, message.sequence) != tuple(request.at):
            return Copy(guid=request.guid)
        try:
            return Copy(guid=request.guid, intact=True, data=partition.payloads.read(message))
        except PayloadDamaged:
            return Copy(guid=request.guid)
        except OSError:
            return None

    # -- ends -----------------------------------------------------------------------------------------------------------

    def _write(self, task: RepairTask, data: bytes, source: str, now: float) -> None:
        """Write the record again. If the disk refuses, the data stay in memory, as far as the cache has room."""
        partition, message = task.partition, task.message
        try:
            partition.payloads.write_payload(message, data)
        except OSError as error:
            self._alarms.add(alarms.PAYLOAD_NOT_REPAIRED, partition.partition_id, f"{self._described(task)}: {error}")
            partition.hold_payload(message, data)
            self._postpone(task, now)
            return
        self.counts[partition.partition_id].repaired += 1
        if self._lines.admits(now):
            self._tell(task, f"{self._described(task)} is repaired with {source}")
        self._end(task, now)
        self._check_after_rollover(partition, message, now)

    def _check_after_rollover(self, partition: Partition, message: Message, now: float) -> None:
        """Read a repaired record again after a rollover in progress, which may have copied the damaged one."""
        if partition.payloads.closed or message.live_key < 0:
            return
        if partition.files.has_next:
            self._loop.timers.at(now + CHECK_S, partial(self._check_after_rollover, partition, message))
            return
        try:
            partition.payloads.read_record(message)
        except (PayloadDamaged, OSError):  # the next repair, or closed files
            return

    def _discard(self, task: RepairTask, now: float) -> bool:
        """Reject the message for all apps; False if this node must not, or cannot now."""
        partition, message = task.partition, task.message
        index = partition.partition_id
        if task.repair.unreadable or not self._is_primary(index):
            return False
        offset, size = partition.payloads.offset(message), message.size
        partition.files.current.data.file.drop_cached(offset, size)
        copy = partition.payloads.own_copy(message)
        if copy is not None:
            self._write(task, copy, "the data of this node", now)
            return True
        queue = self._queue_of(task)
        if queue is None:
            return False
        text = self._described(task)
        discard_damaged(queue, message, self._loop.wall(now))
        self.counts[index].discarded += 1
        self._alarms.add(alarms.PAYLOAD_LOST, index, text)
        if self._lines.admits(now):
            self._tell(task, f"{text} and discarded: no member has an intact copy")
        self._end(task, now)
        return True

    def _end(self, task: RepairTask, now: float) -> None:
        """End a repair: deliveries that wait for it continue."""
        task.partition.payloads.damaged.pop(task.key, None)
        queue = self._queue_of(task)
        if queue is not None:
            route_again(queue, task.message)
        task.repair.notify()
        self._cluster.on_records(now)
        self._loop.performer.request_turn()

    def _queue_of(self, task: RepairTask) -> RootQueue | None:
        """Return the queue of a message if this node is its primary, and the queue is active."""
        stored = task.partition.state.queues.get(task.message.queue_key)
        return self._cluster.queues.get(stored.uri) if stored is not None else None

    # -- texts ----------------------------------------------------------------------------------------------------------

    def _described(self, task: RepairTask) -> str:
        stored = task.partition.state.queues.get(task.message.queue_key)
        return (f"message {task.message.guid.hex().upper()} of queue '{stored.uri if stored is not None else ''}', at "
                f"{task.repair.where}, is {'unreadable' if task.repair.unreadable else 'damaged'}")

    def _tell(self, task: RepairTask, text: str) -> None:
        index = task.partition.partition_id
        self._report.warn(f"Cluster ({self._cluster.name}) Partition [{index}]: {text}")
        self._report.record_event("queue", f"Partition [{index}]: {text}", cluster=self._cluster.name, partition=index,
                                  guid=task.message.guid.hex().upper())


class CountedAlarms:
    """Alarms of which one per kind and partition is raised in ALARM_PERIOD_S; the next one has the number of the others."""

    def __init__(self, cluster: RepairUser) -> None:
        self._cluster = cluster
        self._held: dict[tuple[AlarmKind, int], tuple[int, str]] = {}  # number since the last alarm, text of the newest

    def add(self, kind: AlarmKind, index: int, text: str) -> None:
        """Raise an alarm, or count it."""
        held = self._held.get((kind, index))
        if held is not None:
            self._held[kind, index] = held[0] + 1, text
        else:
            self._raise(kind, index, text, self._cluster.loop.now)

    def _raise(self, kind: AlarmKind, index: int, text: str, now: float) -> None:
        self._held[kind, index] = 0, ""
        self._cluster.report.alarm(kind, "%s", f"Cluster ({self._cluster.name}) Partition [{index}]: {text}")
        self._cluster.loop.timers.at(now + ALARM_PERIOD_S, partial(self._on_period_end, kind, index))

    def _on_period_end(self, kind: AlarmKind, index: int, now: float) -> None:
        count, text = self._held.pop((kind, index))
        if count:
            self._raise(kind, index, f"{count} more since the last alarm; the newest: {text}", now)
