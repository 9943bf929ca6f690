"""Ability of a member to write its files; a member that cannot write hands its roles over (`role_release.py`).

    on_failed   a write or sync of the metadata ledger, the vote, the promises or a partition failed: the member cannot write
    check       every CHECK_S: collects the failures of partitions, probes the disk in a thread, repeats the alarm

The member can write again when a probe of the storage directory has succeeded and no write has failed for the duration of a
probe pause. The pause is PROBE_S; it doubles with each relapse within RELAPSE_S, up to PROBE_SECONDS_MAX, and so bounds the
rate at which roles move. The alarm appears once, then every ALARM_PERIOD_S with the number of failed writes.

Called by `leadership.py`, `metadata.py` and `promises.py` after a failed write; the probe itself is in
`storage/probe.py`. The alarm is declared in `bmqtwist/alarms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bmqtwist import alarms
from bmqtwist.loop.loop import Loop
from bmqtwist.storage.fileset import Reports

CHECK_S = 1.0
PROBE_S = 4.0  # longer than the pause between two attempts of a leader to send its records again
PROBE_SECONDS_MAX = 60.0
RELAPSE_S = 120.0  # after a recovery
ALARM_PERIOD_S = 60.0


class DiskHealth:
    """Ability of one member. `probe()`: writes to the storage directory, raises OSError; for a thread. `reports()`: those of
    the partitions, which count failures; `on_changed(reason)`: the reason has changed."""

    def __init__(self, title: str, probe: Callable[[], None], reports: Callable[[], Iterable[Reports]], loop: Loop,
                 on_changed: Callable[[str], None]) -> None:
        self._title, self._probe, self._reports, self._loop = title, probe, reports, loop
        self._on_changed = on_changed
        self.reason = ""  # why this member cannot write; "" = it can
        self._failures = 0  # since it cannot write
        self._since = self._failed_at = self._probed_at = self._recovered_at = self._alarm_at = float("-inf")
        self._pause = PROBE_S
        self._probing = False

    def start(self, now: float) -> None:
        """Start the periodic checks."""
        self._loop.timers.every(now, CHECK_S, self.check)

    def on_failed(self, what: str, error: str) -> None:
        """Handle a failed write or sync. `what`: the file, for operators."""
        now = self._loop.now
        self._failures += 1
        self._failed_at = now
        if not self.reason:
            self._pause = min(2 * self._pause, PROBE_SECONDS_MAX) if now - self._recovered_at < RELAPSE_S else PROBE_S
            self.reason = f"cannot write {what}: {error}"
            self._since, self._probed_at, self._alarm_at = now, now, now + ALARM_PERIOD_S
            self._loop.report.alarm(alarms.NODE_CANNOT_WRITE, "%s", f"{self._title}: this node {self.reason}")
            self._on_changed(self.reason)

    def check(self, now: float) -> None:
        """Collect failures, and begin a probe when one is due."""
        for reports in self._reports():
            failure = reports.take_write_failure()
            if failure:
                self.on_failed(f"the files of {reports.subject}", failure)
        if not self.reason:
            return
        if now >= self._alarm_at:
            self._alarm_at = now + ALARM_PERIOD_S
            self._loop.report.alarm(alarms.NODE_CANNOT_WRITE, "%s", f"{self._title}: this node {self.reason}; "
                                    f"{self._failures} failed writes in {now - self._since:.0f} s")
        if now - self._probed_at >= self._pause and not self._probing:
            self._probing = True
            self._loop.run_in_thread(self._probe, self._on_probed, self._on_probe_failed)

    def _on_probe_failed(self, error: OSError, now: float) -> None:
        self._probing, self._probed_at = False, now
        self._failures += 1
        self._failed_at = now

    def _on_probed(self, now: float) -> None:
        self._probing, self._probed_at = False, now
        if now - self._failed_at >= self._pause:
            self._loop.report.info(f"{self._title}: this node can write again, after {self._failures} failed writes in "
                                   f"{now - self._since:.0f} s")
            self.reason, self._failures, self._recovered_at = "", 0, now
            self._on_changed("")
