"""The metadata of a cluster at this node: the log's machine, its file, and who waits for which change.

    propose         in a turn, any number of times; `done` is called at the commit
    wants_write     at the end of a turn: what to do with the file, on another thread; one thing at a time
    written, failed when that is over: changes take effect, and whoever waited is told
    lead, step      who leads the cluster, and what other nodes say about it; what they are told, and what is committed,
                    goes to `user`
    settle          at the start, when nobody else runs: all of it at once
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

from bmqtwist.cluster.changes import AssignQueue, Change, Primaries
from bmqtwist.cluster.log_events import (
    Alarm,
    Decided,
    FileJob,
    Flush,
    Input,
    Lead,
    LeadershipLost,
    Message,
    Outcome,
    Output,
    Propose,
    ReplaceFile,
    Send,
    StateChanged,
    WriteFailed,
    WriteFile,
    Written,
)
from bmqtwist.cluster.metadata_log import MetadataLog
from bmqtwist.cluster.state import ClusterState
from bmqtwist.errors import LocalError
from bmqtwist.report import INTERNAL_ERROR, Report, stack
from bmqtwist.storage.ledger_file import LedgerFile

OnDecided = Callable[[Outcome, int], None]  # what became of a change, and the wall clock then


class MetadataUnavailable(LocalError):
    """This node cannot lead its cluster."""


class LogUser(Protocol):
    """Who speaks for the log with other nodes; a cluster of one has none."""

    def send(self, node_id: int, message: Message) -> None:
        """A message for another node."""

    def changed(self, change: StateChanged) -> None:
        """A record is committed and applied."""

    def leadership_lost(self, reason: str) -> None:
        """The log cannot lead any more."""


class ClusterMetadata:
    """See above. `wall` is seconds since the epoch, in all methods."""

    def __init__(self, log: MetadataLog, file: LedgerFile, report: Report) -> None:
        self.log = log
        self._file, self._report = file, report
        self._waiting: dict[int, OnDecided] = {}
        self._barriers: list[tuple[set[int], Callable[[], None]]] = []
        self.proposals = 0  # so far; the number of a proposal is its token
        self._job: FileJob | None = None  # not begun yet
        self.user: LogUser | None = None
        self.flush_due = False  # something happened since the last Flush: `wants_write` is to be asked

    @property
    def state(self) -> ClusterState:
        """What is committed."""
        return self.log.state

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a change."""
        return bool(self._waiting)

    def open(self) -> None:
        """Read the file; never fails for what is in it."""
        data = self._file.read_all()
        good, outputs = self.log.open(data)
        self._take(outputs, 0)
        if good < len(data):
            self._file.truncate(good)

    def lead(self, term: int, primaries: Primaries, told: OnDecided, wall: int) -> None:
        """This node leads; `told` when the first record of its term is committed, or is not."""
        self.step(Lead(self._expect(told), term, primaries), wall)

    def step(self, event: Input, wall: int) -> None:
        """Who leads, what other nodes say, what is asked of the log."""
        self.flush_due = True
        self._take(self.log.step(event, wall), wall)

    def propose(self, change: Change, told: OnDecided, wall: int) -> None:
        """Change the metadata."""
        if isinstance(change, AssignQueue):
            self._report.info("'QueueAssignmentAdvisory' will be applied to cluster state ledger: queue '%s'", change.uri)
        self.step(Propose(self._expect(told), change), wall)

    def _expect(self, told: OnDecided) -> int:
        self.proposals += 1
        self._waiting[self.proposals] = told
        return self.proposals

    def after(self, action: Callable[[], None]) -> None:
        """Do something when everything proposed so far is decided."""
        if self._waiting:
            self._barriers.append((set(self._waiting), action))
        else:
            action()

    # -- the file ---------------------------------------------------------------------------------------------------

    def wants_write(self, wall: int) -> FileJob | None:
        """What to do with the file now; `perform` it, on any thread, then call `written` or `failed`."""
        if self.flush_due:
            self.flush_due = False
            self._take(self.log.step(Flush(), wall), wall)
        job, self._job = self._job, None
        return job

    def perform(self, job: FileJob) -> None:
        """Do it; OSError. The only method another thread may call."""
        if isinstance(job, ReplaceFile):
            self._file.replace(job.log_id, job.data, job.wall)
            return
        if job.cut is not None:
            self._file.truncate(job.cut)
        self._file.append(job.data)
        self._file.sync()

    def written(self, job: FileJob, wall: int) -> None:
        """It survives a loss of power now."""
        if isinstance(job, ReplaceFile) and job.replaces:
            self._report.info("Rolled over to log with logId '%s'", job.log_id.hex().upper())
        self.step(Written(job.number), wall)

    def failed(self, job: FileJob, error: OSError, wall: int) -> None:
        """It failed."""
        self.step(WriteFailed(job.number, str(error)), wall)

    def settle(self, wall: int) -> None:
        """Write until nothing is left to be written."""
        while (job := self.wants_write(wall)) is not None:
            try:
                self.perform(job)
            except OSError as error:
                self.failed(job, error, wall)
            else:
                self.written(job, wall)

    # -- the machine ------------------------------------------------------------------------------------------------

    def _take(self, outputs: list[Output], wall: int) -> None:
        user = self.user
        for output in outputs:
            match output:
                case WriteFile():
                    self._job = output
                case ReplaceFile():
                    self._job = output
                    if output.replaces:
                        self._report.info("Rolling over from log with logId '%s' to log with logId '%s' of %d bytes",
                                          output.replaces.hex().upper(), output.log_id.hex().upper(), len(output.data))
                case Decided():
                    self._decided(output, wall)
                case Alarm():
                    self._report.alarm("CLUSTER", "%s", output.text)
                case Send():
                    if user is not None:
                        user.send(output.node_id, output.message)
                case StateChanged():
                    if user is not None:
                        user.changed(output)
                case LeadershipLost():
                    if user is not None:
                        user.leadership_lost(output.reason)
                case _:
                    assert_never(output)

    def _decided(self, decided: Decided, wall: int) -> None:
        try:
            self._waiting.pop(decided.token)(decided.outcome, wall)
        except Exception as error:  # a mistake about one change costs the others nothing
            self._report.alarm(INTERNAL_ERROR, "Metadata: what follows a change: %s", stack(error))
        for outstanding, _ in self._barriers:
            outstanding.discard(decided.token)
        while self._barriers and not self._barriers[0][0]:
            self._barriers.pop(0)[1]()
