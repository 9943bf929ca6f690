"""Free space of a partition's files, at its primary.

    check_share   for a new queue: PartitionUnavailable if its domain uses more than QLIST_SHARE times the free bytes of
                  QLIST. So queues never make a rollover impossible, and domains with few queues find room
    make_room     for a record that does not fit: appends the pending records, rolls over. PartitionUnavailable if the
                  rollover would leave less than AVAILABLE_PERCENT_MIN (20 %) of a file free (`FileSizes.leaves_enough`)
    add_pending   keeps a CONFIRM or DELETION that cannot be appended now
    check_usage   soft alarm when 60 % of a file are outstanding, at most every 15 minutes

Called by `partition.py` and `queue_records.py`. AVAILABLE_PERCENT_MIN and reserves are in `store.py`, alarms are
declared in `bmqtwist/alarms.py`. Quotas of queues are in `queue/meter.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist import alarms
from bmqtwist.limits import QLIST_SHARE
from bmqtwist.report import RepeatLimiter
from bmqtwist.storage.availability import WriterEvent, WriterState
from bmqtwist.storage.partition_log import NORMAL_RESERVE, PartitionLog
from bmqtwist.storage.rollover import Rollover
from bmqtwist.storage.store import AVAILABLE_PERCENT_MIN, PartitionUnavailable

SOFT_LIMIT_PERCENT = 60  # outstanding part of a file that raises the soft alarm
SOFT_ALARM_PERIOD_S = 15 * 60  # between two soft alarms


class Room:
    """Free space of one partition, at its primary."""

    def __init__(self, log: PartitionLog, roll: Rollover) -> None:
        self._log, self._roll = log, roll
        self._appending = False
        self.full_alarmed = False  # since the last rollover
        self._shares = RepeatLimiter()  # of alarms about domains
        self._soft_until = 0  # epoch seconds: no soft alarm before

    def check_available(self) -> None:
        """Raise PartitionUnavailable unless records are taken."""
        log = self._log
        if not (log.available and log.is_primary):
            why = ("without a primary at this node" if not log.is_primary
                   else "disabled by an operator" if log.availability.has_reason(WriterState.DISABLED)
                   else "full: purge a queue" if log.availability.has_reason(WriterState.FULL)
                   else "failing to write its files")
            raise PartitionUnavailable(f"{log.reports.subject} is {why}")

    def can_roll_over(self, needed: tuple[int, int, int] = (0, 0, 0)) -> bool:
        """Return whether a rollover would leave enough of every file free, with `needed` bytes of each in use."""
        return self._log.files.sizes.leaves_enough(self._log.state.outstanding(), needed)

    def check_share(self, domain: str, size: int, wall: int) -> None:
        """Raise PartitionUnavailable if a new queue of a domain, with a QLIST record of `size` bytes, exceeds its share."""
        log = self._log
        used = log.state.domain_qlist_bytes.get(domain, 0) + size
        free = log.files.sizes.qlist * (100 - AVAILABLE_PERCENT_MIN) // 100 - log.state.qlist_bytes - size
        if used <= QLIST_SHARE * free:
            return
        text = (f"domain '{domain}' has too many queues: their records would have {used} B of QLIST, and {max(free, 0)} B "
                "would be left for all domains")
        times = self._shares.suffix(domain, wall)
        if times is not None:
            log.reports.alarm(alarms.QUEUE_LIST_SHARE, f": {text}{times}")
        raise PartitionUnavailable(f"{log.reports.subject}: {text}")

    def make_room(self, data: int, qlist: int, wall: int) -> None:
        """Append pending records, roll over if a record with `data` and `qlist` bytes does not fit. PartitionUnavailable."""
        log = self._log
        self.check_available()
        if log.pending_records and not self._appending:
            self.append_pending(wall)
        sizes, (journal_end, data_end, qlist_end) = log.files.sizes, log.tail.positions()
        if data_end + data > sizes.data:
            name, needed = "DATA", (0, data, 0)
        elif qlist_end + qlist > sizes.qlist:
            name, needed = "QLIST", (0, 0, qlist)
        elif journal_end > sizes.journal - NORMAL_RESERVE:
            name, needed = "JOURNAL", (NORMAL_RESERVE, 0, 0)
        else:
            return
        subject = log.reports.subject
        if self.can_roll_over(needed):
            if self.roll_over(wall):
                return
            raise PartitionUnavailable(f"{subject} cannot roll over: see its alarms")
        if log.state.purging:
            raise PartitionUnavailable(f"{subject} is full until a purge is complete")
        if not self.full_alarmed:
            self.full_alarmed = True
            log.reports.alarm(alarms.PARTITION_READONLY, self.usage_text(
                f" takes no records: its {name} file is full and a rollover would not free {AVAILABLE_PERCENT_MIN}%."
                " Purge all messages of a queue."))
        if name == "JOURNAL":
            log.on_event(WriterEvent.NO_ROOM)
        raise PartitionUnavailable(f"{subject} is full ({name} file)")

    def roll_over(self, wall: int) -> bool:
        """Roll over within this call; False if the old set stays."""
        if not self._roll.finish_at_once(wall):
            return False
        self._log.write_sync_point(wall, force=True)
        return True

    # ---- pending records -----------------------------------------------------------------------------------------

    def add_pending(self, record: Callable[[int], None]) -> None:
        """Add a record to the pending ones: it cannot be appended now, and must not be refused."""
        self._log.pending_records.append(record)
        self._log.update_journal_limit()

    def append_pending(self, wall: int) -> None:
        """Append the pending records, oldest first. PartitionUnavailable: the rest stays pending."""
        pending = self._log.pending_records
        self._appending = True
        try:
            while pending:
                pending[0](wall)
                pending.popleft()
        finally:
            self._appending = False
            self._log.update_journal_limit()

    def write_pending(self, wall: int) -> None:
        """Append and write the pending records, in a turn without other records."""
        if not self._log.pending_records or not self._log.available:
            return
        try:
            self.append_pending(wall)
        except PartitionUnavailable:
            pass  # reported already; the rest stays pending
        self._log.write_rest()

    # ---- monitoring ----------------------------------------------------------------------------------------------

    def usage_text(self, what: str) -> str:
        """Return an alarm text with the outstanding part of each file."""
        return f"{what} Outstanding: {self._log.files.sizes.usage_text(self._log.state.outstanding())}."

    def check_usage(self, wall: int) -> None:
        """Raise the soft alarm if a file's outstanding part is large, every 15 minutes."""
        state = self._log.state
        if wall >= self._soft_until and self._log.files.sizes.exceeds_percent(state.outstanding(), SOFT_LIMIT_PERCENT):
            self._soft_until = wall + SOFT_ALARM_PERIOD_S
            text = self.usage_text(f" has passed {SOFT_LIMIT_PERCENT}% of a file.")
            self._log.reports.alarm(alarms.PARTITION_AVAILABLESPACE_SOFTLIMIT, f"{text} {state.biggest_queues_text()}")
