"""Reception of records and images: from the primary or, at a new primary, from the node whose log it pulls.

Received records are appended, an image replaces the log; each is acknowledged with a receipt. Part of
`partition_machine.py`, whose table calls the actions; `take_over.py` starts and stops the pull of a new primary. The sending
side is `replication_targets.py`.
"""

from __future__ import annotations

from bmqtwist import alarms
from bmqtwist.cluster.partition_events import (
    Append,
    Committed,
    LogAdvanced,
    LogReady,
    PartitionMessage,
    Records,
    ReplicaReceipt,
    StoreImagePart,
    Truncate,
)
from bmqtwist.cluster.partition_standing import FOLLOWING, HEALING, PartitionStanding
from bmqtwist.cluster.replication_targets import ReplicationTargets
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import ImagePart, Keepalive, Promise, Renewal


class Reception:
    """Reception at one node. `source`: the node that sends records; `matched`: PSN up to which this node's log equals the
    source's; `announced`: PSN up to which the primary has committed, according to its messages; that record may not have
    arrived yet. `has_reported`: this node's log was reported to the source, which has not sent records since."""

    def __init__(self, standing: PartitionStanding, targets: ReplicationTargets) -> None:
        self._standing, self._targets = standing, targets
        self.announced = NO_PSN
        self.restart(None)

    def restart(self, source: int | None) -> None:
        """Receive from `source` from now on (None: from no node), without the progress of the former source."""
        self.source, self.matched = source, NO_PSN
        self._appending: Psn | None = None  # last record of the run that is being appended
        self._last_receipt: tuple[Psn, Psn] | None = None  # matched and durable PSN of the last receipt sent
        self._parts = self._stamp = 0  # received parts of an image; stamp of the newest request
        self.has_reported = self._report_due = False

    # -- from the source ------------------------------------------------------------------------------------------------

    def _is_accepted(self, event: PartitionMessage) -> bool:
        """True if a message comes from the source, under the lease that this node has promised."""
        standing = self._standing
        return (not standing.reject_stale(event) and event.lease == standing.lease == standing.promised_lease
                and event.sender == self.source)

    def on_records(self, event: Records) -> None:
        """Append records that follow this node's log; truncate conflicting records first; report a gap."""
        standing = self._standing
        if not self._is_accepted(event):
            return
        self.announced = max(self.announced, event.committed)
        if standing.log.busy or standing.log.broken:
            return
        if not standing.leads:
            self._targets.by_node.clear()
        self._append_records(event)

    def _append_records(self, event: Records) -> None:
        standing, run = self._standing, event.run
        own = standing.log.summary
        if not own.contains(run.previous):
            self._report_mismatch()
            return
        self.has_reported, standing.progressed_at = False, standing.now
        if own.contains(run.last):
            self._advance_matched(run.last)
        else:
            theirs = dict(run.leases()) if own.last != run.previous else {}
            both = ((lease, min(end, theirs[lease])) for lease, end in own.leases if lease in theirs)
            common = max(max(both, default=run.previous), run.previous)
            if own.last > common:
                self._truncate(common)
                return
            self._appending = run.last
            standing.outputs.append(Append(run, common))
        self._update_committed(event.committed)

    def _truncate(self, last: Psn) -> None:
        """Remove the records after `last`, then report the log again."""
        committed = self._standing.committed
        if last < committed:
            self._standing.alarm(
                alarms.COMMITTED_RECORDS_DIFFER,
                f"the log of node {self.source} differs after record {last[0]}-{last[1]}, but {committed[0]}-{committed[1]} "
                "is committed: no record is removed, and no record of that node is appended")
            return
        self._report_due = True
        self._standing.outputs.append(Truncate(last))

    def on_image_part(self, event: ImagePart) -> None:
        standing, committed = self._standing, self._standing.committed
        if not self._is_accepted(event) or standing.log.busy or standing.log.broken:
            return
        if event.at < committed:
            standing.alarm(
                alarms.IMAGE_REFUSED,
                f"the image of node {event.sender} ends with record {event.at[0]}-{event.at[1]}, but "
                f"{committed[0]}-{committed[1]} is committed: the image is refused")
        elif event.number and event.number != self._parts or event.at < self.matched:
            self._report_mismatch()  # a part is missing; or the image was begun for a report before the newest records
        else:
            self.has_reported, standing.progressed_at = False, standing.now
            self._parts = event.number + 1
            self._report_due = event.final
            standing.outputs.append(StoreImagePart(event))
            self.send_receipt(always=True)

    def on_keepalive(self, event: Keepalive) -> None:
        if not self._is_accepted(event):
            return
        log = self._standing.log
        self._stamp = max(self._stamp, event.stamp)
        self.announced = max(self.announced, event.committed)
        if not log.busy:
            # a part counts as sent only a moment after it was sent: this node may have more parts than a Keepalive says
            lacks = self._parts < event.parts if event.previous is None else not log.summary.contains(event.previous)
            if lacks:
                self.send_report()
            elif event.previous is not None:
                self._advance_matched(event.previous)  # heals a replica that lacks no record
            self._update_committed(event.committed)
        self.send_receipt(always=True)

    def on_renewal(self, event: Renewal) -> None:
        if self._is_accepted(event):
            self._stamp = max(self._stamp, event.stamp)
            self.send_receipt(always=True)

    # -- from the own log -----------------------------------------------------------------------------------------------

    def on_log_advanced(self, event: LogAdvanced) -> None:
        self.check_appended()
        self.send_receipt()

    def check_appended(self) -> None:
        """Advance `matched` if the run in progress is appended."""
        if self._appending is not None and self._standing.log.summary.contains(self._appending):
            psn, self._appending = self._appending, None
            self._advance_matched(psn)

    def on_log_ready(self, event: LogReady) -> None:
        self._parts = 0
        if self._report_due:
            self.send_report()

    def cancel_append(self) -> None:
        """Drop the run and the image in progress after a failure of the log."""
        self._appending, self._parts, self._report_due = None, 0, False

    def _advance_matched(self, psn: Psn) -> None:
        """Set `matched`: both logs are equal up to `psn`. A replica with all records known to be committed is healed."""
        standing = self._standing
        self.matched = max(self.matched, psn)
        if standing.role is HEALING and self.matched[0] == standing.lease and self.matched >= self.announced:
            standing.deferred_lease = 0
            standing.change_role(FOLLOWING, standing.primary, "has the primary's log")

    def _update_committed(self, committed: Psn) -> None:
        standing, known = self._standing, min(committed, self.matched)
        if known > standing.committed and not standing.leads:
            standing.committed = known
            standing.outputs.append(Committed(known))

    def has_durable(self, lease: int, psn: Psn) -> bool:
        """True if a record is durable at this voter, as reported to the primary of that lease, or known to be committed."""
        standing = self._standing
        return psn <= standing.committed or lease == standing.lease and psn <= min(
            self.matched, standing.log.durable) and standing.node_id in standing.electorate.voters

    def is_known_committed(self, psn: Psn) -> bool:
        """True if a replica can infer that a record, durable at its primary, is committed; the replica may lack the record.
        With at most three nodes a record is committed once it is durable at two. False for records of an older lease."""
        lease = self._standing.lease
        return psn[0] == lease and (psn <= self.announced or self.has_durable(lease, psn))

    # -- to the source --------------------------------------------------------------------------------------------------

    def _report_mismatch(self) -> None:
        if not self.has_reported:
            self.send_report()

    def send_report(self) -> None:
        """Report this node's log to the primary, once the log is readable. A pulling primary sends no report: it repeats its
        request."""
        standing = self._standing
        self._report_due = standing.log.busy
        if not self._report_due and self.source is not None:
            self.has_reported = True
            if not standing.leads:
                log = standing.log.summary
                standing.send(self.source, Promise(standing.node_id, standing.lease, log.last, log.base, log.leases,
                                                  standing.committed, standing.doubt > Doubt.NONE,
                                                  standing.doubt is Doubt.LOST))

    def send_receipt(self, always: bool = False) -> None:
        """Send the source a receipt if it differs from the last one, or `always`."""
        standing = self._standing
        durable = min(standing.log.durable, self.matched)
        if durable[0] == standing.lease and not standing.leads:
            standing.doubt = Doubt.NONE  # all records up to the present lease are durable here again
        if self.source is None or not always and (self.matched, durable) == self._last_receipt:
            return
        self._last_receipt = self.matched, durable
        standing.send(self.source, ReplicaReceipt(standing.node_id, standing.lease, self.matched, durable, self._parts,
                                                 self._stamp))
