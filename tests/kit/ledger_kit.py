"""Metadata log with a file whose writes succeed at once, for tests of one node.

Used by `unit/cluster/test_metadata_log.py`; recorded files are in `ledger_files.py`.
"""

from __future__ import annotations

from typing import Any

from bmqtwist.cluster.changes import (
    LEADER_IS_MASTER_ALL,
    AdoptQueue,
    AssignPartitions,
    AssignQueue,
    Change,
    PrimaryRules,
    UnassignQueue,
    UpdateApps,
)
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import (
    Alarm,
    Decided,
    Done,
    FileJob,
    Flush,
    Input,
    Lead,
    NotDone,
    Output,
    Propose,
    ReplaceFile,
    WriteFailed,
    WriteFile,
    Written,
)
from bmqtwist.cluster.metadata_log import MetadataLog
from bmqtwist.report import ListReport

MIB = 1 << 20


class Failed(Exception):
    """The metadata log refused a change, or the change failed."""


class Disk:
    """A LedgerFile in memory: `data` is its content, `safe` the part that survives a loss of power."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = self.safe = data
        self.previous: bytes | None = None
        self.calls: list[str] = []
        self.broken = False

    def read_all(self) -> bytes:
        return self.data

    def append(self, data: bytes) -> None:
        self._use("append")
        self.data += data

    def sync(self) -> None:
        self._use("sync")
        self.safe = self.data

    def truncate(self, size: int) -> None:
        self.calls.append("truncate")
        self.data = self.safe = self.data[:size]

    def replace(self, log_id: bytes, data: bytes, wall: int) -> None:
        self._use("replace")
        self.previous, self.data, self.safe = self.data, data, data

    def close(self) -> None:
        self.calls.append("close")

    def _use(self, name: str) -> None:
        self.calls.append(name)
        if self.broken:
            raise OSError(28, "No space left on device")


class Ledger:
    """Metadata log of one node; methods that change it return when the change is committed, or raise Failed."""

    def __init__(self, disk: Disk, node_id: int, max_bytes: int, members: tuple[int, ...], algorithm: str,
                 report: ListReport) -> None:
        self.log = MetadataLog(Electorate(node_id, members), "n1", max_bytes, algorithm)
        self.disk, self.report = disk, report
        self.outcomes: dict[int, Any] = {}
        self.outputs: list[Output] = []
        self._token = 0

    def open(self) -> None:
        data = self.disk.read_all()
        good, outputs = self.log.open(data)
        self._note(outputs)
        if good < len(data):
            self.disk.truncate(good)

    def step(self, event: Input, wall: int = 1000) -> list[Output]:
        outputs = self.log.step(event, wall)
        self._note(outputs)
        return outputs

    def _note(self, outputs: list[Output]) -> None:
        self.outputs += outputs
        for output in outputs:
            if isinstance(output, Alarm):
                self.report.alarm(output.kind, output.text)
            elif isinstance(output, Decided):
                self.outcomes[output.token] = output.outcome

    def flush(self, wall: int = 1000) -> list[Output]:
        """End a turn and perform all its writes."""
        everything = []
        while True:
            outputs = self.step(Flush(), wall)
            everything += outputs
            jobs = [each for each in outputs if isinstance(each, WriteFile | ReplaceFile)]
            if not jobs:
                return everything
            everything += self.perform(jobs[0], wall)

    def perform(self, job: FileJob, wall: int = 1000) -> list[Output]:
        try:
            if isinstance(job, ReplaceFile):
                self.disk.replace(job.log_id, job.data, job.wall)
            else:
                if job.cut is not None:
                    self.disk.truncate(job.cut)
                self.disk.append(job.data)
                self.disk.sync()
        except OSError as error:
            return self.step(WriteFailed(job.number, str(error)), wall)
        return self.step(Written(job.number), wall)

    def propose(self, change: Change, wall: int = 1000) -> int:
        """Propose a change; return its token."""
        self._token += 1
        self.step(Propose(self._token, change), wall)
        return self._token

    def _make(self, change: Change, wall: int) -> Any:
        return self._made(self.propose(change, wall), wall)

    def _made(self, token: int, wall: int) -> Any:
        self.flush(wall)
        outcome = self.outcomes.get(token)
        if isinstance(outcome, NotDone):
            raise Failed(outcome.reason)
        return outcome.value if isinstance(outcome, Done) else None

    def become_leader(self, partitions: int, wall: int, **options: Any) -> None:
        self._token += 1
        self.step(Lead(self._token, self.log.term + 1, PrimaryRules(partitions, **options)), wall)
        self._made(self._token, wall)

    def assign_partitions(self, wall: int, candidates: list[int], keep: list[int]) -> Any:
        return self._make(AssignPartitions(candidates, keep), wall)

    def assign_queue(self, uri: str, app_ids: list[str], timer_ns: int, wall: int) -> Any:
        return self._make(AssignQueue(uri, app_ids, timer_ns), wall)

    def adopt_queue(self, queue: Any, wall: int) -> Any:
        return self._make(AdoptQueue(queue), wall)

    def unassign_queue(self, uri: str, wall: int) -> Any:
        return self._make(UnassignQueue(uri), wall)

    def update_apps(self, uri: str, added: list[str], removed: list[str], timer_ns: int, wall: int) -> Any:
        return self._make(UpdateApps(uri, added, removed, timer_ns), wall)


def opened(disk: Disk | None = None, *, node_id: int = 1, max_bytes: int = MIB, members: tuple[int, ...] = (),
           algorithm: str = LEADER_IS_MASTER_ALL, report: ListReport | None = None) -> tuple[Ledger, Disk]:
    """Create a log with its file loaded; the only member of its cluster unless `members` are given."""
    disk = Disk() if disk is None else disk
    ledger = Ledger(disk, node_id, max_bytes, members or (node_id,), algorithm,
                    ListReport() if report is None else report)
    ledger.open()
    return ledger, disk


def leading(partitions: int = 1, **options: Any) -> tuple[Ledger, Disk]:
    """Create a loaded log that is the leader."""
    ledger, disk = opened(**options)
    ledger.become_leader(partitions, 1000)
    return ledger, disk
