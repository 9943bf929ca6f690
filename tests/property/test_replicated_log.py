"""Metadata log of 1, 3 or 5 nodes under random faults of the network, the disks and the elections.

Pure machines, connected by a network that loses, repeats and reorders messages, over disks that lose unsynced bytes. The
test chooses the leader: a node whose log is at least as new as those of a majority, as an election would. Tests
`bmqtwist/cluster/metadata_log.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bmqtwist.cluster import leader_term, metadata_log
from bmqtwist.cluster.changes import AssignPartitions, AssignQueue, PrimaryRules, UnassignQueue, UpdateApps
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import (
    Alarm,
    Decided,
    Done,
    FileJob,
    Flush,
    Follow,
    Input,
    Lead,
    NotDone,
    Propose,
    Resend,
    Send,
    StateChanged,
    StepDown,
    WriteFailed,
    WriteFile,
    Written,
)
from bmqtwist.cluster.metadata_log import MetadataLog, Role
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.wire.cluster_schema import (
    LedgerRecordType,  # noqa: E402
    Lsn,
)

WALL = 1000
LEAD = 0  # the token of every Lead
ROUNDS_MAX = 400  # until a cluster without faults is idle


def queue_rows(queues: Mapping[str, QueueRecord]) -> Any:
    """Return the comparable fields of all queues."""
    return sorted((queue.uri, queue.key, queue.partition_id, tuple(queue.apps.items())) for queue in queues.values())


@dataclass
class Machine:
    """One node: a process that starts and ends, and its disk."""

    node_id: int
    log: MetadataLog | None = None
    content: bytes = b""  # the bytes that the process sees
    durable: bytes = b""  # the bytes after a loss of power
    job: FileJob | None = None
    vote: int = 0  # the newest term of the node; an elector stores it on disk
    leader: int | None = None
    applied: Lsn = (0, 0)
    queues: dict[str, QueueRecord] = field(default_factory=dict)  # built from the changes that it reported
    alarms: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Do the job, without its sync."""
        if isinstance(self.job, WriteFile):
            self.content = self.content[:self.job.cut] + self.job.data


class Cluster:
    """All nodes, and the messages in transit between them."""

    def __init__(self, size: int, max_bytes: int) -> None:
        self.nodes = [Machine(number) for number in range(size)]
        self.max_bytes = max_bytes
        self.quorum = size // 2 + 1
        self.flying: list[tuple[int, Input]] = []
        self.term = self.tokens = self.done = self.names = 0
        self.committed: dict[Lsn, Any] = {}  # LSN of a change -> the state after it
        self.outcomes: dict[int, Any] = {}
        for node in self.nodes:
            self.boot(node)

    # -- nodes

    def open(self, node: Machine, data: bytes) -> tuple[MetadataLog, int]:
        log = MetadataLog(Electorate(node.node_id, range(len(self.nodes))), f"n{node.node_id}", self.max_bytes)
        good, outputs = log.open(data)
        assert not [each for each in outputs if isinstance(each, Alarm) and "incomplete" not in each.text], outputs
        return log, good

    def boot(self, node: Machine) -> None:
        node.log, good = self.open(node, node.content)
        node.content = node.durable = node.content[:good]
        node.job, node.applied, node.queues = None, (0, 0), dict(node.log.state.queues)
        if len(self.nodes) > 1:
            assert queue_rows(node.log.state.queues) in [*self.committed.values(), []], "the file has an unknown state"
            self.step(node, Follow(node.vote, None))
        else:  # all found records are applied, committed or not
            assert node.log.lsn >= max(self.committed, default=(0, 0))
            self.committed.setdefault(node.log.lsn, queue_rows(node.queues))

    def crash(self, node: Machine, torn: int) -> None:
        node.log = None
        if node.job is not None:
            node.begin()
            if not isinstance(node.job, WriteFile) and torn % 2:
                node.durable = node.job.data
            elif isinstance(node.job, WriteFile) and node.job.cut is None:
                node.durable = node.content[:len(node.durable) + torn % (len(node.content) - len(node.durable) + 1)]
            elif isinstance(node.job, WriteFile) and torn % 2:
                node.durable = node.content
        node.content = node.durable

    def step(self, node: Machine, event: Input) -> None:
        if node.log is None:
            return
        before = node.log.log.last
        outputs = node.log.step(event, WALL)
        if node.log.role is Role.LEADING and node.log.log.last > before:
            first = next(each.record.type for each in node.log.log.records if each.lsn[0] == node.log.term)
            assert before[0] == node.log.term or first is LedgerRecordType.SNAPSHOT, "the first record is a snapshot"
        numbers = [record.lsn for record in node.log.log.records]
        assert numbers == sorted(set(numbers)), "numbers grow"
        for output in outputs:
            if isinstance(output, Send):
                self.flying.append((output.node_id, output.message))
            elif isinstance(output, StateChanged):
                self.changed(node, output)
            elif isinstance(output, Decided):
                self.decided(node, output)
            elif isinstance(output, Alarm):
                assert "not applied" not in output.text and "does not follow" not in output.text, output
                node.alarms.append(output.text)
            elif hasattr(output, "data"):
                assert node.job is None, "two writes at a time"
                node.job = output
        if len(self.nodes) > 1:
            assert node.log.log.covered <= node.log.log.durable <= len(node.log.log.records)
        if node.log.role is not Role.LEADING and node.leader == node.node_id:
            node.leader = None

    def changed(self, node: Machine, output: StateChanged) -> None:
        assert node.log is not None and output.lsn > node.applied, "applied out of order"
        node.applied = output.lsn
        for queue in output.changes.removed:
            del node.queues[queue.uri]
        node.queues.update((queue.uri, queue) for queue in output.changes.assigned + output.changes.updated)
        known = self.committed.setdefault(output.lsn, queue_rows(node.queues))
        assert known == queue_rows(node.queues), "two nodes applied different changes"
        holders, changed = 0, self.last_change(output.lsn)
        for each in self.nodes:
            log = self.open(each, each.durable)[0].log
            holders += log.base >= changed or any(changed <= record.lsn <= output.lsn for record in log.records)
        assert holders >= self.quorum, "applied before a quorum stored it"

    def last_change(self, lsn: Lsn) -> Lsn:
        """Return the LSN of the last change up to a committed one. A leader's COMMIT has an LSN and changes nothing; a
        member that gets a copy of the state instead of the records applies it with that LSN."""
        for before in sorted((each for each in self.committed if each < lsn), reverse=True):
            if self.committed[before] != self.committed[lsn]:
                break
            lsn = before
        return lsn

    def decided(self, node: Machine, output: Decided) -> None:
        if output.token == LEAD:
            return
        assert output.token not in self.outcomes, "decided twice"
        self.outcomes[output.token] = output.outcome
        if isinstance(output.outcome, Done):
            self.done += 1
            value = output.outcome.value
            assert node.log is not None and node.log.role is Role.LEADING
            if value is not None and not isinstance(value, list) and not node.log.is_pending(value.uri):
                assert any(value.uri == queue[0] and value.key == queue[1] for state in self.committed.values()
                           for queue in state), "done before it was committed"

    # -- what may happen

    def elect(self, node: Machine, absent: Machine | None = None) -> None:
        if node.log is None:
            return
        voters = [each for each in self.nodes
                  if each.log is not None and each.log.lsn <= node.log.lsn and each is not absent]
        if len(voters) < self.quorum:
            return
        self.term = max(self.term, *(each.log.term for each in voters if each.log is not None), 0) + 1
        for each in voters:
            each.vote = self.term
            if each is not node:
                self.step(each, Follow(self.term, None))
        for each in self.nodes:
            if each is not node:
                self.flying.append((each.node_id, Follow(self.term, node.node_id)))
        self.step(node, Lead(LEAD, self.term, PrimaryRules(2, [each.node_id for each in self.nodes])))
        node.leader = node.node_id

    def propose(self, node: Machine, value: int) -> None:
        self.tokens += 1
        uri = f"bmq://d/{value % 5}"
        change: Any = [AssignQueue(uri, ["a", "b"], self.tokens), UnassignQueue(uri),
                       UpdateApps(uri, [f"x{self.tokens}"], [], self.tokens), AssignQueue(uri, ["c"], self.tokens),
                       AssignPartitions([value % len(self.nodes)], [])][value // 5 % 5]
        self.step(node, Propose(self.tokens, change))

    def write(self, node: Machine) -> None:
        job = node.job
        if job is None or node.log is None:
            return
        node.begin()
        if not isinstance(job, WriteFile):
            node.content = job.data
        node.job, node.durable = None, node.content
        self.step(node, Written(job.number))

    def fail_write(self, node: Machine, value: int) -> None:
        job = node.job
        if job is None or node.log is None:
            return
        node.begin()
        node.job = None
        self.step(node, WriteFailed(job.number, "no space left"))

    def deliver(self, value: int, keep: bool) -> None:
        if self.flying:
            at = value % len(self.flying)
            target, event = self.flying[at] if keep else self.flying.pop(at)
            node = self.nodes[target]
            if isinstance(event, Follow):
                node.vote = max(node.vote, event.term)
            self.step(node, event)

    def act(self, kind: str, value: int) -> None:
        node = self.nodes[value % len(self.nodes)]
        value //= len(self.nodes)
        if kind == "propose":
            leaders = [each for each in self.nodes if each.log is not None and each.log.role is Role.LEADING]
            self.propose(leaders[-1] if leaders and value % 4 else node, value // 4)
        elif kind == "flush":
            self.step(node, Flush())
        elif kind == "write":
            self.write(node)
        elif kind == "fail":
            self.fail_write(node, value)
        elif kind == "deliver":
            self.deliver(value, False)
        elif kind == "repeat":
            self.deliver(value, True)
        elif kind == "lose" and self.flying:
            self.flying.pop(value % len(self.flying))
        elif kind == "crash":
            self.crash(node, value)
        elif kind == "boot" and node.log is None:
            self.boot(node)
        elif kind == "elect":
            self.elect(node)
        elif kind == "resend":
            self.step(node, Resend())
        elif kind == "step down":
            self.step(node, StepDown())
        elif kind == "round":
            self.round()
        elif kind == "strand":
            self.strand(value)

    def strand(self, value: int) -> None:
        """A leader fails before or after it wrote a record that it sends to no node; another node takes over."""
        stranded = next((each for each in self.nodes if each.log is not None and each.log.role is Role.LEADING), None)
        if stranded is None:
            return
        for number in range(value % 3 + 1):
            self.propose(stranded, value // 12 + number)
        before = len(self.flying)
        self.step(stranded, Flush())
        if value // 3 % 4:
            self.write(stranded)
        kept = self.flying[before + value // 12 % 2:]
        self.flying = self.flying[:before + value // 12 % 2]
        others = [each for each in self.nodes if each is not stranded and each.log is not None]
        if others:
            self.elect(max(others, key=lambda each: each.log.lsn if each.log is not None else (0, 0)), absent=stranded)
        if value // 24 % 2:
            self.flying += kept

    def round(self) -> None:
        """Each node writes its records and receives the pending messages once."""
        for node in self.nodes:
            self.step(node, Flush())
            self.write(node)
        flying, self.flying = self.flying, []
        for target, event in flying:
            if isinstance(event, Follow):
                self.nodes[target].vote = max(self.nodes[target].vote, event.term)
            self.step(self.nodes[target], event)

    # -- the end

    def recover(self) -> None:
        """Run without faults until all nodes are up to date."""
        for node in self.nodes:
            if node.log is None:
                self.boot(node)
        for _ in range(3):
            self.round()
        newest = max(self.nodes, key=lambda node: node.log.lsn if node.log is not None else (0, 0))
        self.elect(newest)
        self.tokens += 1
        self.step(newest, Propose(self.tokens, AssignQueue("bmq://d/last", ["a"], self.tokens)))
        for _ in range(ROUNDS_MAX):
            self.round()
            for node in self.nodes:
                self.step(node, Resend())
            ends = {self.end(node) for node in self.nodes}
            if not self.flying and not any(node.job for node in self.nodes) and len(ends) == 1 and not ends.pop()[1]:
                break
        assert isinstance(self.outcomes[self.tokens], Done)
        self.check()

    def end(self, node: Machine) -> tuple[Lsn, int]:
        assert node.log is not None
        return node.log.log.last, len(node.log.log.records) - node.log.log.covered

    def check(self) -> None:
        last = self.committed[max(self.committed)]
        partitions = []
        for node in self.nodes:
            assert node.log is not None
            again = self.open(node, node.durable)[0]
            assert queue_rows(node.log.state.queues) == queue_rows(node.queues) == last, "a node has another state"
            assert queue_rows(again.state.queues) == last, "a restart restores another state"
            partitions += [node.log.state.partitions, again.state.partitions]
        assert all(each == partitions[0] for each in partitions)
        before: Any = None
        for lsn in sorted(self.committed):
            if lsn[1] == 1 and before is not None:
                assert self.committed[lsn] == before, "a leader's snapshot lacks a committed change"
            before = self.committed[lsn]


KINDS = ["propose"] * 6 + ["flush"] * 4 + ["write"] * 4 + ["deliver"] * 8 + ["round"] * 4 + [
    "repeat", "lose", "lose", "crash", "boot", "boot", "elect", "elect", "resend", "step down", "fail", "strand",
    "strand", "strand"]
ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 20)), max_size=120)


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the limits that examples change."""
    monkeypatch.setattr(metadata_log, "RETAINED_BYTES", metadata_log.RETAINED_BYTES)
    monkeypatch.setattr(leader_term, "MESSAGE_BYTES", leader_term.MESSAGE_BYTES)
    yield


@pytest.mark.spec("cluster", 33, 34)
@pytest.mark.parametrize("size", [1, 3, 5])
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ACTIONS, st.sampled_from([600, 1500, 1 << 20]), st.sampled_from([0, 500, 1 << 20]),
       st.sampled_from([1, 500, 1 << 20]))
def test_committed_changes_stay_and_are_the_same_at_all_nodes(size: int, actions: list[tuple[str, int]], max_bytes: int,
                                                              retained: int, message: int) -> None:
    """In order, on a quorum, in the files, and in every later leader's log."""
    metadata_log.RETAINED_BYTES, leader_term.MESSAGE_BYTES = retained, message
    cluster = Cluster(size, max_bytes)
    cluster.elect(cluster.nodes[0])
    cluster.round()
    cluster.round()
    for kind, value in actions:
        cluster.act(kind, value)
    cluster.recover()


def test_without_faults_all_proposals_are_committed() -> None:
    """The property would hold for a log that does nothing."""
    cluster = Cluster(3, 1500)
    cluster.elect(cluster.nodes[1])
    for number in range(60):
        cluster.propose(cluster.nodes[1], number % 5 + (0 if number % 10 < 5 else 5))
        cluster.round()
    cluster.recover()
    assert cluster.done == 61 and not [each for each in cluster.outcomes.values() if isinstance(each, NotDone)]
