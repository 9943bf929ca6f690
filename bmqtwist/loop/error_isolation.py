"""Error isolation: an unexpected exception raises an alarm with its traceback and disables only the part that raised it.

    session     is closed; its unconfirmed messages return to their queues, at the cost of a delivery attempt
    queue       delivers nothing until its next event; after QUEUE_FAILURES_MAX failures within QUEUE_FAILURES_S it is
                disabled until a restart: opens are refused, PUTs are NACKed with NOT_READY, messages stay stored
    partition   is closed to producers until a restart, as after a failed sync

`loop.py` creates it; sessions, storage, deliveries and timers run guarded by it. The alarm is INTERNAL_ERROR in
`bmqtwist/alarms.py`; the traceback of a failed job comes from `scheduler.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.link.session import Session
from bmqtwist.loop.performer import Performer
from bmqtwist.report import LineLimiter, Report, traceback_text

if TYPE_CHECKING:
    from bmqtwist.queue.queue import Queue
    from bmqtwist.storage.partition import Partition

QUEUE_FAILURES_MAX = 5  # within QUEUE_FAILURES_S
QUEUE_FAILURES_S = 60.0


class ErrorIsolation:
    """Error isolation of one broker."""

    def __init__(self, report: Report, performer: Performer, clock: Callable[[], float]) -> None:
        self._report, self._performer, self._clock = report, performer, clock
        self._lines = LineLimiter()
        self._failures: WeakKeyDictionary[Queue, deque[float]] = WeakKeyDictionary()

    def alarm(self, what: str, error: Exception, kind: AlarmKind = alarms.INTERNAL_ERROR) -> None:
        """Raise the alarm with the traceback; at most LineLimiter.LINES_PER_S per second."""
        if self._lines.admits(self._clock()):
            self._report.alarm(kind, "%s: %s", what, traceback_text(error))

    def run(self, what: str, action: Callable[[], object]) -> None:
        """Call `action`; an exception raises the alarm and has no further effect."""
        try:
            action()
        except Exception as error:
            self.alarm(what, error)

    # -- sessions ---------------------------------------------------------------------------------------------------

    def isolate_session(self, session: Session, doing: str, error: Exception) -> None:
        """Raise the alarm and close the session."""
        self.alarm(f"{session.description}: {doing}", error, alarms.SESSION_FAILED)
        self.close(session)

    def isolate_output(self, session: Session, error: Exception) -> None:
        """Raise the alarm and close the session without its pending output."""
        self.isolate_session(session, "output", error)
        self._finish(session)

    def close(self, session: Session) -> None:
        """Close a session that raised; an exception in the close raises a second alarm."""
        try:
            session.close("#INTERNAL_ERROR %s: closing", session.description)
        except Exception as error:
            self.alarm(f"{session.description}: close", error, alarms.SESSION_FAILED)
            self._finish(session)
        self._performer.request_turn()

    def _finish(self, session: Session) -> None:
        self.run(f"{session.description}: end of the connection", partial(self._performer.close_when_sent, session))

    # -- queues and partitions --------------------------------------------------------------------------------------

    def isolate_queue(self, queue: Queue, doing: str, error: Exception, disable: bool = False) -> None:
        """Raise the alarm and disable the queue if it fails often, or `disable`: its consumers may be in a wrong state."""
        now = self._clock()
        failures = self._failures.setdefault(queue, deque(maxlen=QUEUE_FAILURES_MAX))
        failures.append(now)
        self.alarm(f"Queue '{queue.uri}': {doing}", error, alarms.QUEUE_FAILED)
        often = len(failures) == QUEUE_FAILURES_MAX and now - failures[0] <= QUEUE_FAILURES_S
        if (disable or often) and not queue.disabled:
            queue.disable(now, f"{doing}: {type(error).__name__}")
            self._report.alarm(alarms.QUEUE_DISABLED, "Queue '%s' is disabled until a restart (failures: %d). Its messages "
                                      "are kept.", queue.uri, len(failures))

    def isolate_partition(self, partition: Partition, doing: str, error: Exception) -> None:
        """Raise the alarm and close the partition to producers: the state of its files is unknown."""
        partition.on_exception()
        self.alarm(f"Partition [{partition.partition_id}]: {doing}; it is closed to producers until a restart", error,
                   alarms.PARTITION_FAILED)
