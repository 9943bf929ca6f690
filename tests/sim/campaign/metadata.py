"""Judge of the metadata log and of the state that results from it.

M1  Two records with the same LSN are equal, and the records before them too.
M2  The log of a leader contains all records that were committed before its term.
M3  All nodes apply the same sequence of records.
M4  A node's commit position never decreases in a run, and a committed record is durable at a majority.
M5  The state of a node equals the result of all records from the first one.
M6  In the end each node has applied all committed records.
M7  All member lists that are applied have the same cluster id.
M9  A node that has lost its vote or its ledger starts with another incarnation of its storage. (`copies.py` has M8.)
A1  Queue keys are unique, and each queue is in an existing partition.
A2  No queue key is used for a second queue, and the app keys of a queue are unique.
A3  A queue stays in its partition.
A4  Leases of a partition do not decrease, and each belongs to one node.

The judge stores every record that any node ever had, with the LSN of the record before it, and applies the records to a
state of its own. Created by `play.py`; it checks `bmqtwist/cluster/metadata_log.py`.
"""

from __future__ import annotations

from typing import Any

from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import Input, Lead, Output, StateChanged
from bmqtwist.cluster.metadata_log import MetadataLog, Role
from bmqtwist.cluster.record_log import LogRecord
from bmqtwist.cluster.state import ClusterState, StateMismatch
from bmqtwist.ids import DEFAULT_APP_KEY
from bmqtwist.storage.identity import IdentityFile
from bmqtwist.storage.ledger_file import LEDGER_SUFFIX, LedgerFile
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import NO_LSN, ClusterMessage, LedgerRecordType, Lsn
from sim.campaign.judges import STORAGE, Judge, Loss, Violation, after_power_loss
from sim.campaign.world import CampaignWorld

PARTITIONS = 2  # of the simulated cluster
Comparable = tuple[Any, ...]


def comparable(state: ClusterState) -> Comparable:
    """Return the content of a state as a value that can be compared."""
    queues = sorted((each.uri, each.key, each.partition_id, tuple(each.apps.items())) for each in state.queues.values())
    return tuple(queues), tuple(sorted(state.partitions.items())), repr(state.members)


class History:
    """Every record that any node ever had, by LSN, and the state after it.

    The previous record of a record is the one at the node that created it. The first record of a term is a SNAPSHOT of the
    whole state: the logs of nodes may differ before it in records that were never committed or were torn.
    """

    def __init__(self) -> None:
        self._records: dict[Lsn, tuple[bytes, Lsn, LogRecord]] = {}
        self._states: dict[Lsn, ClusterState] = {NO_LSN: ClusterState()}

    def add(self, record: LogRecord, previous: Lsn) -> None:
        """Add a record of a node; raise Violation if it differs from the one that is known."""
        known = self._records.setdefault(record.lsn, (record.data, previous, record))
        if known[0] != record.data and not same_snapshot(known[2], record):
            raise Violation("M1", f"two different records {record.lsn}")
        if known[1] != previous and record.lsn[1] != 1:
            raise Violation("M1", f"record {record.lsn} follows {known[1]} at one node and {previous} at another")

    def last_change(self, lsn: Lsn) -> Lsn:
        """Return the LSN of the last record up to `lsn` that changes the state, that is, no COMMIT record."""
        while lsn in self._records and not self._records[lsn][2].is_change:
            lsn = self._records[lsn][1]
        return lsn

    def set_state(self, lsn: Lsn, state: ClusterState) -> None:
        """Set the state at an LSN: the one that a cluster of one node has restored."""
        self._states[lsn] = copy(state)

    def previous(self, lsn: Lsn) -> Lsn:
        """Return the LSN of the record before this one."""
        if lsn not in self._records:
            raise Violation("M1", f"no node ever had a record {lsn}")
        return self._records[lsn][1]

    def state(self, lsn: Lsn) -> ClusterState:
        """Return the result of all records up to an LSN."""
        missing = []
        while lsn not in self._states:
            missing.append(lsn)
            lsn = self.previous(lsn)
        found = self._states[lsn]
        for each in reversed(missing):
            record = self._records[each][2]
            if record.is_change:
                found = copy(found)
                try:
                    found.apply(record.record.message)
                except StateMismatch as error:
                    raise Violation("M5", f"record {each} cannot be applied: {error}") from None
            self._states[each] = found
        return found


def same_snapshot(one: LogRecord, two: LogRecord) -> bool:
    """Return whether both are SNAPSHOTs of the same state: a new ledger file may repeat the first SNAPSHOT of a term."""
    states = []
    for each in (one, two):
        if each.record.type is not LedgerRecordType.SNAPSHOT:
            return False
        state = ClusterState()
        state.apply(each.record.message)
        states.append(comparable(state))
    return states[0] == states[1]


def copy(state: ClusterState) -> ClusterState:
    """Return an independent copy of a state."""
    copied = ClusterState()
    copied.apply(ClusterMessage("leaderAdvisory", state.snapshot()))
    return copied


def _durable_log(node: SimulatedNode) -> MetadataLog:
    """Return the metadata log of a node as it would be after a loss of power."""
    file = LedgerFile(after_power_loss(node.disk, LEDGER_SUFFIX), STORAGE.format(node.name))
    file.open()
    log = MetadataLog(Electorate(1, (1, 2)), node.name, 1 << 20)
    log.open(file.read_all())
    return log


class MetadataJudge(Judge):
    """Checks M1 to M7, M9 and A1 to A4."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        self.history = History()
        self.last = NO_LSN  # of the last change that is committed
        self._committed: set[Lsn] = {NO_LSN}
        self._positions: dict[str, Lsn] = {}  # node -> its commit position in this run
        self._keys: dict[bytes, tuple[str, int]] = {}  # key of every queue that ever existed -> its URI and partition
        self._removed: set[bytes] = set()  # keys of removed queues
        self._leases: dict[tuple[int, int], int] = {}  # (partition, lease) -> node
        self._cluster_ids: set[int] = set()
        self._lost: dict[str, int] = {}  # node -> incarnation of its storage at the loss of its vote or ledger
        self._lost_logs: list[tuple[str, MetadataLog]] = []  # node, log: what was durable there before the loss

    def on_storage_lost(self, node: SimulatedNode, lost: Loss) -> None:
        """Store the incarnation of storage that must not count any more, and the log: other nodes may have counted its
        records before, and apply them later."""
        if lost.metadata:
            self._lost_logs.append((node.name, _durable_log(node)))
        identity, _ = IdentityFile(node.disk, STORAGE.format(node.name)).read()
        if (lost.vote or lost.metadata) and not lost.is_old and identity is not None:
            self._lost[node.name] = identity.incarnation

    def on_boot(self, node: SimulatedNode) -> None:
        incarnation = self.world.cluster(node.name).leadership.storage.identity.incarnation
        if self._lost.pop(node.name, 0) == incarnation:
            raise Violation("M9", f"{node.name} has lost its vote or ledger, and counts as intact")
        log = node.broker.clusters[CLUSTER].metadata.log
        self._positions[node.name] = log.committed
        if log.is_only_member:  # a single node: all records in its file count as committed
            self._restart_single_node(node, log)
            return
        covered = log.log.lsn_at(log.log.covered)
        if comparable(log.state) != comparable(self.history.state(covered)):
            raise Violation("M5", f"the ledger of {node.name} has another state at {covered} than all records give")
        previous = log.log.base
        for record in log.log.records:
            self.history.add(record, previous)
            previous = record.lsn

    def _restart_single_node(self, node: SimulatedNode, log: MetadataLog) -> None:
        before = self.history.state(self.last).queues if self.last != NO_LSN else {}
        now = log.state.queues
        lost = [uri for uri, queue in before.items() if now.get(uri) != queue and not self.world.undecided[uri]]
        if lost:
            raise Violation("M4", f"{node.name} has lost {lost}")
        self.last = log.log.last
        self.history.set_state(self.last, log.state)
        self._committed.add(self.last)
        self._check_change(ClusterState(), log.state)

    def on_ledger_append(self, node: SimulatedNode, record: LogRecord, previous: Lsn) -> None:
        self.history.add(record, previous)

    def on_log_step(self, node: SimulatedNode, event: Input, outputs: list[Output]) -> None:
        log = node.broker.clusters[CLUSTER].metadata.log
        if isinstance(event, Lead) and log.role is Role.LEADING:
            # committed records of later terms do not count: a paused node may process an old election, and commits nothing
            needed = max(lsn for lsn in self._committed if lsn[0] <= event.term)
            if log.log.base < needed and not log.log.has_record(needed):
                raise Violation("M2", f"{node.name} leads in term {event.term} without the committed record {needed}")
        if log.committed < self._positions[node.name]:
            raise Violation("M4", f"the commit position of {node.name} went from {self._positions[node.name]} back to "
                                  f"{log.committed}")
        self._positions[node.name] = log.committed
        changed = [output.lsn for output in outputs if isinstance(output, StateChanged)]
        for lsn in changed:
            self._add_committed(node, lsn)
        if changed and comparable(log.state) != comparable(self.history.state(changed[-1])):
            raise Violation("M5", f"the state of {node.name} at {changed[-1]} differs from the result of all records")
        if changed and log.state.members is not None:
            self._cluster_ids.add(log.state.members.cluster_id)
        if len(self._cluster_ids) > 1:
            raise Violation("M7", f"{node.name} applies a list of another cluster: {self._cluster_ids}")

    def _add_committed(self, node: SimulatedNode, lsn: Lsn) -> None:
        """Add all records up to `lsn`, which a node applies, to the committed ones, and check each change."""
        lsn = self.history.last_change(lsn)
        if lsn in self._committed:
            return
        chain, at = [], lsn
        while at not in self._committed:
            chain.append(at)
            at = self.history.last_change(self.history.previous(at))
        if at != self.last:
            raise Violation("M3", f"{node.name} applies {lsn}, which follows {at} instead of {self.last}")
        for members in self.history.state(self.last).members, self.history.state(lsn).members:
            self._check_durable(node, lsn, self.world.voters(members))
        for each in reversed(chain):
            self._check_change(self.history.state(self.last), self.history.state(each))
            self._committed.add(each)
            self.last = each
        self.world.members = self.history.state(lsn).members
        self.world.counts["commits"] += 1

    def _check_durable(self, node: SimulatedNode, lsn: Lsn, voters: frozenset[str]) -> None:
        """Check that a record is durable at a majority of these voters."""
        if len(voters) == 1:
            return
        logs = [*((each, _durable_log(self.world.node(each))) for each in voters), *self._lost_logs]
        holders = sorted({each for each, log in logs if each in voters and (log.log.base >= lsn or log.log.has_record(lsn))})
        if len(holders) < len(voters) // 2 + 1:
            raise Violation("M4", f"{node.name} applies {lsn}, which is durable at {holders} only")

    def _check_change(self, before: ClusterState, after: ClusterState) -> None:
        """Check the difference between two successive committed states."""
        keys = [queue.key for queue in after.queues.values()]
        if len(set(keys)) != len(keys):
            raise Violation("A1", "two queues have the same key")
        self._removed |= before.keys - after.keys
        for queue in after.queues.values():
            if not 0 <= queue.partition_id < PARTITIONS:
                raise Violation("A1", f"{queue.uri} is in partition {queue.partition_id}")
            if queue.key in self._removed:
                raise Violation("A2", f"{queue.uri} has the key of a removed queue")
            uri, partition = self._keys.setdefault(queue.key, (queue.uri, queue.partition_id))
            if uri != queue.uri:
                raise Violation("A2", f"{uri} and {queue.uri} have the same key")
            if partition != queue.partition_id:
                raise Violation("A3", f"{uri} moves from partition {partition} to {queue.partition_id}")
            apps = [key for key in queue.apps.values() if key != DEFAULT_APP_KEY]
            if len(set(apps)) != len(apps):
                raise Violation("A2", f"{uri} has two apps with the same key")
        for number, primary in after.partitions.items():
            if self._leases.setdefault((number, primary.lease), primary.node_id) != primary.node_id:
                raise Violation("A4", f"lease {primary.lease} of partition {number} belongs to two nodes")
            known = before.partitions.get(number)
            if known is not None and primary.lease < known.lease:
                raise Violation("A4", f"the lease of partition {number} goes from {known.lease} to {primary.lease}")

    def on_queue_assigned(self, uri: str, key: bytes) -> None:
        if self._keys.get(key, ("", 0))[0] != uri:
            raise Violation("M4", f"{uri} was reported as assigned without a committed record")

    def check_final_state(self) -> None:
        expected = comparable(self.history.state(self.last))
        for node in self.world.machines:
            if comparable(node.broker.clusters[CLUSTER].metadata.state) != expected:
                raise Violation("M6", f"the state of {node.name} differs from the committed state")
