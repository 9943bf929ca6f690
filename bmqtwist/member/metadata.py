"""Metadata of a cluster at this node: the metadata log's state machine, its file, and callbacks of proposed changes.

    propose                propose a change, any number in a turn; the callback receives the outcome after the commit
    next_job               at the end of a turn: the next file job, for another thread; one job at a time
    on_written, on_failed  result of a file job: changes take effect, callbacks are called
    lead, step             events of elections and messages of other nodes; messages to them and commits go to `user`
    perform_jobs           at the start: perform all file jobs on the calling thread

`member/cluster.py` (a single node), `leadership.py` and `proposals.py` call it, and `broker/broker.py` for the file jobs.
The log's rules are in `cluster/metadata_log.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, assert_never

from bmqtwist import alarms
from bmqtwist.cluster.changes import AssignQueue, Change, PrimaryRules
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
from bmqtwist.report import RepeatLimiter, Report, traceback_text
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.versions import ActiveFeatures

OnDecided = Callable[[Outcome, int], None]  # outcome of a change, wall clock


class MetadataUnavailable(LocalError):
    """This node cannot lead its cluster."""


class LogUser(Protocol):
    """Receiver of the log's messages and events; None in a cluster of one node."""

    def send(self, node_id: int, message: Message) -> None:
        """Send a message to another node."""

    def on_applied(self, change: StateChanged) -> None:
        """Handle a record that is committed and applied."""

    def on_leadership_lost(self, reason: str) -> None:
        """Handle the log's loss of leadership."""


class ClusterMetadata:
    """Metadata of one cluster. `wall`: seconds since the epoch, in all methods."""

    def __init__(self, log: MetadataLog, file: LedgerFile, report: Report) -> None:
        self.log = log
        self._file, self._report = file, report
        self._callbacks: dict[int, OnDecided] = {}
        self._barriers: list[tuple[set[int], Callable[[], None]]] = []  # undecided proposals, and the call after them
        self.proposals = 0  # count; the number of a proposal is its token
        self._job: FileJob | None = None  # not started yet
        self.user: LogUser | None = None
        self._repeats, self._fails = RepeatLimiter(), False
        self.on_write_failed: Callable[[str, str], None] = lambda what, error: None  # for `disk_health`
        self.on_features: Callable[[ActiveFeatures], None] = lambda active: None  # prepares for features that are active
        self.features = ActiveFeatures()  # that this node may use: `on_features` has prepared for them
        self._features_alarmed = False
        self.flush_due = False  # an input has come since the last Flush: call `next_job`

    @property
    def state(self) -> ClusterState:
        """The committed state."""
        return self.log.state

    @property
    def has_pending(self) -> bool:
        """True while a proposed change is undecided."""
        return bool(self._callbacks)

    def open(self) -> None:
        """Read the file; damaged contents do not raise. Raises LocalError if the active features are unknown."""
        data = self._file.read_all()
        good, outputs = self.log.open(data)
        self._perform_outputs(outputs, 0)
        self.on_features(self.state.features)
        self.features = self.state.features
        if good < len(data):
            self._file.truncate(good)

    def lead(self, term: int, primaries: PrimaryRules, on_decided: OnDecided, wall: int,
             features: Collection[str] = ()) -> None:
        """Lead the cluster; `on_decided` receives the outcome of the first record. `features`: of all members."""
        self.step(Lead(self._register(on_decided), term, primaries, features), wall)

    def step(self, event: Input, wall: int) -> None:
        """Pass an input to the log and perform its outputs."""
        self.flush_due = True
        self._perform_outputs(self.log.step(event, wall), wall)

    def propose(self, change: Change, on_decided: OnDecided, wall: int) -> None:
        """Propose a change of the metadata."""
        if isinstance(change, AssignQueue):
            self._report.info("'QueueAssignmentAdvisory' will be applied to cluster state ledger: queue '%s'", change.uri)
        self.step(Propose(self._register(on_decided), change), wall)

    def _register(self, on_decided: OnDecided) -> int:
        self.proposals += 1
        self._callbacks[self.proposals] = on_decided
        return self.proposals

    def call_after_pending(self, action: Callable[[], None]) -> None:
        """Call `action` when all changes proposed so far are decided."""
        if self._callbacks:
            self._barriers.append((set(self._callbacks), action))
        else:
            action()

    # -- the file ---------------------------------------------------------------------------------------------------

    def next_job(self, wall: int) -> FileJob | None:
        """Return the next file job: `perform` it on any thread, then call `on_written` or `on_failed`."""
        if self.flush_due:
            self.flush_due = False
            self._perform_outputs(self.log.step(Flush(), wall), wall)
        job, self._job = self._job, None
        return job

    def perform(self, job: FileJob) -> None:
        """Perform a file job; raises OSError. The only method that another thread may call."""
        if isinstance(job, ReplaceFile):
            self._file.replace(job.log_id, job.data, job.wall)
            return
        if job.cut is not None:
            self._file.truncate(job.cut)
        self._file.append(job.data)
        self._file.sync()

    def on_written(self, job: FileJob, wall: int) -> None:
        """Handle a completed file job: its data are durable."""
        self._fails = False
        if isinstance(job, ReplaceFile) and job.replaces:
            self._report.info("Rolled over to log with logId '%s'", job.log_id.hex().upper())
        self.step(Written(job.number), wall)

    def on_failed(self, job: FileJob, error: OSError, wall: int) -> None:
        """Handle a failed file job."""
        self._fails = True
        self.step(WriteFailed(job.number, str(error)), wall)
        self.on_write_failed("its metadata ledger", str(error))

    def perform_jobs(self, wall: int) -> None:
        """Perform file jobs until none is left."""
        while (job := self.next_job(wall)) is not None:
            try:
                self.perform(job)
            except OSError as error:
                self.on_failed(job, error, wall)
            else:
                self.on_written(job, wall)

    # -- the machine ------------------------------------------------------------------------------------------------

    def _perform_outputs(self, outputs: list[Output], wall: int) -> None:
        user = self.user
        for output in outputs:
            match output:
                case WriteFile():
                    self._job = output
                case ReplaceFile():
                    self._job = output
                    if output.replaces and not self._fails:
                        self._report.info("Rolling over from log with logId '%s' to log with logId '%s' of %d bytes",
                                          output.replaces.hex().upper(), output.log_id.hex().upper(), len(output.data))
                case Decided():
                    self._on_decided(output, wall)
                case Alarm():
                    repeats = output.kind is alarms.LEDGER_NOT_WRITTEN
                    times = self._repeats.suffix(output.kind.id, wall) if repeats else ""
                    if times is not None:
                        self._report.alarm(output.kind, "%s", output.text + times)
                case Send():
                    if user is not None:
                        user.send(output.node_id, output.message)
                case StateChanged():
                    self.update_features()
                    if user is not None:
                        user.on_applied(output)
                case LeadershipLost():
                    if user is not None:
                        user.on_leadership_lost(output.reason)
                case _:
                    assert_never(output)

    def update_features(self) -> None:
        """Take over the active features of the committed state. A failure raises one alarm; the next call tries again."""
        active = self.state.features
        if active == self.features:
            return
        try:
            self.on_features(active)
        except (LocalError, OSError) as error:
            if not self._features_alarmed:
                self._features_alarmed = True
                self._report.alarm(alarms.FEATURES_NOT_USABLE, "Metadata: %s cannot be used: %s", ", ".join(active), error)
            return
        self.features, self._features_alarmed = active, False
        self._report.info("Metadata: active features: %s. Releases without them are refused", ", ".join(active))

    def _on_decided(self, decided: Decided, wall: int) -> None:
        try:
            self._callbacks.pop(decided.token)(decided.outcome, wall)
        except Exception as error:  # the other changes continue
            self._report.alarm(alarms.INTERNAL_ERROR, "Metadata: callback of a decided change: %s", traceback_text(error))
        for undecided, _ in self._barriers:
            undecided.discard(decided.token)
        while self._barriers and not self._barriers[0][0]:
            self._barriers.pop(0)[1]()
