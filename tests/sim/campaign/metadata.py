"""The metadata: M1-M6, one log and one state; A1-A4, what a state may say.

The judge knows every record that any node ever had, and what precedes it. What a node believes is compared with what comes
of all records from the first one on, applied by a state of the judge's own.
"""

from __future__ import annotations

from typing import Any

from bmqtwist.cluster.log_events import Input, Lead, Output, StateChanged
from bmqtwist.cluster.metadata_log import MetadataLog, Role
from bmqtwist.cluster.record_log import LogRecord
from bmqtwist.cluster.state import ClusterState, StateMismatch
from bmqtwist.ids import DEFAULT_APP_KEY
from bmqtwist.storage.ledger_file import LEDGER_SUFFIX, LedgerFile
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import NO_LSN, ClusterMessage, LedgerRecordType, Lsn
from sim.campaign.judges import Judge, Violation, after_power_loss
from sim.campaign.world import CampaignWorld

PARTITIONS = 2  # of the simulated cluster
Told = tuple[Any, ...]


def told(state: ClusterState) -> Told:
    """What a state says, to be compared."""
    queues = sorted((each.uri, each.key, each.partition_id, tuple(each.apps.items())) for each in state.queues.values())
    return tuple(queues), tuple(sorted(state.partitions.items()))


class History:
    """Every record that any node ever had, by LSN, and the state behind it.

    What precedes a record is what preceded it where it was made. The first record of a term is a SNAPSHOT, which stands for
    everything: before that one, the logs of nodes may differ in what was never committed, or was lost with a torn end.
    """

    def __init__(self) -> None:
        self._records: dict[Lsn, tuple[bytes, Lsn, LogRecord]] = {}
        self._states: dict[Lsn, ClusterState] = {NO_LSN: ClusterState()}

    def note(self, record: LogRecord, previous: Lsn) -> None:
        """A node has it."""
        known = self._records.setdefault(record.lsn, (record.data, previous, record))
        if known[0] != record.data and not same_snapshot(known[2], record):
            raise Violation("M1", f"two records {record.lsn}")
        if known[1] != previous and record.lsn[1] != 1:
            raise Violation("M1", f"record {record.lsn} follows {known[1]} and {previous}")

    def change(self, lsn: Lsn) -> Lsn:
        """The newest change up to there: a COMMIT says something of the log, and nothing depends on how many have it."""
        while lsn in self._records and not self._records[lsn][2].is_change:
            lsn = self._records[lsn][1]
        return lsn

    def anchor(self, lsn: Lsn, state: ClusterState) -> None:
        """What a node that is alone begins with."""
        self._states[lsn] = copy(state)

    def previous(self, lsn: Lsn) -> Lsn:
        """Of which record it is the next one."""
        if lsn not in self._records:
            raise Violation("M1", f"nobody ever had a record {lsn}")
        return self._records[lsn][1]

    def state(self, lsn: Lsn) -> ClusterState:
        """What comes of all records up to there."""
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
                    raise Violation("M5", f"record {each} does not fit: {error}") from None
            self._states[each] = found
        return found


def same_snapshot(one: LogRecord, two: LogRecord) -> bool:
    """A file that is begun anew right behind the first record of a term begins with a SNAPSHOT that has its number."""
    states = []
    for each in (one, two):
        if each.record.type is not LedgerRecordType.SNAPSHOT:
            return False
        state = ClusterState()
        state.apply(each.record.message)
        states.append(told(state))
    return states[0] == states[1]


def copy(state: ClusterState) -> ClusterState:
    """The same, to be changed."""
    made = ClusterState()
    made.apply(ClusterMessage("leaderAdvisory", state.snapshot()))
    return made


class MetadataJudge(Judge):
    """See above."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        self.history = History()
        self.last = NO_LSN  # the newest change that is committed
        self._committed: set[Lsn] = {NO_LSN}
        self._known: dict[str, Lsn] = {}  # node -> up to where it believed in this life that records are committed
        self._keys: dict[bytes, tuple[str, int]] = {}  # of every queue there ever was: its uri and partition
        self._gone: set[bytes] = set()  # keys of queues that are no more
        self._leases: dict[tuple[int, int], int] = {}  # (partition, lease) -> node

    def booted(self, node: SimulatedNode) -> None:
        log = node.broker.clusters[CLUSTER].metadata.log
        self._known[node.name] = log.committed
        if log.alone:  # what it finds counts, whether it came to be committed or not
            self._begin_alone(node, log)
            return
        covered = log.log.lsn_at(log.log.covered)
        if told(log.state) != told(self.history.state(covered)):
            raise Violation("M5", f"the ledger of {node.name} gives another state at {covered} than all records")
        previous = log.log.base
        for record in log.log.records:
            self.history.note(record, previous)
            previous = record.lsn

    def _begin_alone(self, node: SimulatedNode, log: MetadataLog) -> None:
        before = self.history.state(self.last).queues if self.last != NO_LSN else {}
        now = log.state.queues
        lost = [uri for uri, queue in before.items() if now.get(uri) != queue and not self.world.unsettled[uri]]
        if lost:
            raise Violation("M4", f"{node.name} has lost {lost}")
        self.last = log.log.last
        self.history.anchor(self.last, log.state)
        self._committed.add(self.last)
        self._look_at(ClusterState(), log.state)

    def appended(self, node: SimulatedNode, record: LogRecord, previous: Lsn) -> None:
        self.history.note(record, previous)

    def log_stepped(self, node: SimulatedNode, event: Input, outputs: list[Output]) -> None:
        log = node.broker.clusters[CLUSTER].metadata.log
        if isinstance(event, Lead) and log.role is Role.LEADING:
            # a node that was paused when it won may learn of it when others are terms ahead: it can commit nothing
            needed = max(lsn for lsn in self._committed if lsn[0] <= event.term)
            if log.log.base < needed and not log.log.holds(needed):
                raise Violation("M2", f"{node.name} leads term {event.term} without record {needed}, which is committed")
        if log.committed < self._known[node.name]:
            raise Violation("M4", f"{node.name} has forgotten that {self._known[node.name]} is committed: {log.committed}")
        self._known[node.name] = log.committed
        changed = [output.lsn for output in outputs if isinstance(output, StateChanged)]
        for lsn in changed:
            self._count(node, lsn)
        if changed and told(log.state) != told(self.history.state(changed[-1])):
            raise Violation("M5", f"the state of {node.name} at {changed[-1]} is not what comes of all records")

    def _count(self, node: SimulatedNode, lsn: Lsn) -> None:
        """A node takes it that all up to there is committed."""
        lsn = self.history.change(lsn)
        if lsn in self._committed:
            return
        chain, at = [], lsn
        while at not in self._committed:
            chain.append(at)
            at = self.history.change(self.history.previous(at))
        if at != self.last:
            raise Violation("M3", f"{node.name} applies {lsn}, which does not come behind {self.last}, but behind {at}")
        self._check_durable(node, lsn)
        for each in reversed(chain):
            self._look_at(self.history.state(self.last), self.history.state(each))
            self._committed.add(each)
            self.last = each
        self.world.counts["commits"] += 1

    def _check_durable(self, node: SimulatedNode, lsn: Lsn) -> None:
        machines = self.world.machines
        if len(machines) == 1:
            return
        holders = []
        for each in machines:
            location = f"/memory/{each.name}/storage"
            file = LedgerFile(after_power_loss(each.disk, LEDGER_SUFFIX), location)
            file.open()
            log = MetadataLog(1, each.name, range(1, len(machines) + 1), 1 << 20)
            log.open(file.read_all())
            if log.log.base >= lsn or log.log.holds(lsn):
                holders.append(each.name)
        if len(holders) < len(machines) // 2 + 1:
            raise Violation("M4", f"{node.name} applies {lsn}, which would survive a loss of power on {holders} alone")

    def _look_at(self, before: ClusterState, after: ClusterState) -> None:
        """A step of what is committed."""
        keys = [queue.key for queue in after.queues.values()]
        if len(set(keys)) != len(keys):
            raise Violation("A1", "two queues with one key")
        self._gone |= before.keys - after.keys
        for queue in after.queues.values():
            if not 0 <= queue.partition_id < PARTITIONS:
                raise Violation("A1", f"{queue.uri} is in partition {queue.partition_id}")
            if queue.key in self._gone:
                raise Violation("A2", f"{queue.uri} has the key of a queue that is gone")
            uri, partition = self._keys.setdefault(queue.key, (queue.uri, queue.partition_id))
            if uri != queue.uri:
                raise Violation("A2", f"{uri} and {queue.uri} have one key")
            if partition != queue.partition_id:
                raise Violation("A3", f"{uri} moves from partition {partition} to {queue.partition_id}")
            apps = [key for key in queue.apps.values() if key != DEFAULT_APP_KEY]
            if len(set(apps)) != len(apps):
                raise Violation("A2", f"{uri} has two apps with one key")
        for number, primary in after.partitions.items():
            if self._leases.setdefault((number, primary.lease), primary.node_id) != primary.node_id:
                raise Violation("A4", f"two nodes have lease {primary.lease} of partition {number}")
            known = before.partitions.get(number)
            if known is not None and primary.lease < known.lease:
                raise Violation("A4", f"the lease of partition {number} goes from {known.lease} to {primary.lease}")

    def assigned(self, uri: str, key: bytes) -> None:
        if self._keys.get(key, ("", 0))[0] != uri:
            raise Violation("M4", f"{uri} was said to be assigned, and no committed record says so")

    def quiet(self) -> None:
        expected = told(self.history.state(self.last))
        for node in self.world.machines:
            if told(node.broker.clusters[CLUSTER].metadata.state) != expected:
                raise Violation("M6", f"{node.name} does not have what is committed")
