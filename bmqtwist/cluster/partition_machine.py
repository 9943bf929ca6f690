"""One partition at one of several nodes: who may write it, and what counts as committed. A machine without files, sockets
and clock; the log is given as something to look at.

    promise     whoever is appointed primary under a lease asks all others to take nothing of an older lease any more; a
                promise is durable before it is said. It tells what the node's log is
    choice      with the promises of a quorum, its own among them, the primary takes the log that reaches furthest: it holds
                every record that was ever committed. What of its own log is not in there it cuts off, what it lacks it pulls
    lease       then it appends the first record of its lease, and sends each replica what follows their common prefix
    replica     takes what follows a record that it has, cuts off what conflicts, and tells how far its log is the primary's
                and safe. Where the prefix lies before a compaction, it is sent an image of all that is live
    commit      what a quorum has safe is committed, once that reaches into the primary's own lease; then it is active
    end         a primary that hears of a newer lease is none any more; one that a quorum does not answer for the time of its
                lease is active no longer until everything it has is committed

`partition_table.ACTIONS` says for every role and event what is done. `now`: seconds, monotonic.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Stop, WakeAt
from bmqtwist.cluster.log_events import Alarm
from bmqtwist.cluster.partition_events import (
    Activate,
    Append,
    Assigned,
    Committed,
    Cut,
    Decline,
    Fed,
    Feed,
    FeedFailed,
    FeedImage,
    ImageLost,
    ImagePart,
    Keepalive,
    LogFailed,
    LogMoved,
    LogReady,
    LogView,
    PartitionEvent,
    PartitionInput,
    PartitionOutput,
    PartitionRole,
    PartitionTalk,
    Prepare,
    Promise,
    Promised,
    Pull,
    Records,
    ReplicaReceipt,
    ReplicationTiming,
    RoleChanged,
    SavePromise,
    Say,
    Serve,
    Stale,
    TakeImage,
)
from bmqtwist.cluster.partition_table import ACTIONS
from bmqtwist.cluster.replication_target import Target
from bmqtwist.machine import TransitionLog
from bmqtwist.storage.psn import NO_PSN, Psn, common_prefix

UNKNOWN, STG1, STG2, HEALED, WAITING, HEALING, FOLLOWING, STOPPED = PartitionRole
_METHODS = {role: {event.value: action for event, action in row.items()} for role, row in ACTIONS.items()}  # by class

FLIGHT_BYTES_MAX = 4 << 20  # sent to one node and not taken yet; beyond it nothing more is sent to it
FLIGHT_PARTS_MAX = 16  # of an image, likewise
PATIENCE = 3  # times `ReplicationTiming.retry`: a healing that stands still for so long is left to another node


class PartitionMachine:
    """See above. `promised`: what the promise file says; `doubtful`: records that were safe here may be missing; `quorum`:
    how many nodes must have a record, and never fewer than a majority have to promise."""

    def __init__(self, node_id: int, members: Collection[int], log: LogView, timing: ReplicationTiming, promised: int = 0,
                 name: str = "", doubtful: bool = False) -> None:
        self.node_id, self.log, self.timing, self.promised, self.name = node_id, log, timing, promised, name
        self.members = frozenset(members)
        self.others = tuple(sorted(self.members - {node_id}))
        self.majority = self.factor = len(self.members) // 2 + 1
        self.role, self._methods = UNKNOWN, _METHODS[UNKNOWN]
        self.primary: int | None = None
        self.lease = 0  # under which this node leads, or follows
        self.committed = NO_PSN
        self.doubtful = doubtful
        self.up: set[int] = set()
        self.targets: dict[int, Target] = {}
        self.story = TransitionLog()
        self._asked = promised  # the highest lease that a promise was asked for
        self._deferred = 0  # the lease that was declined because another node has more; it is not declined twice in a row
        self._used = max(promised, log.summary.last[0])  # leases up to it may be those of earlier runs of this process
        self._assigned = Assigned(-1, 0)  # the newest one
        self._promises: dict[int, Promise] = {}
        self._heard: dict[int, float] = {}  # while we lead: of which moment the newest Keepalive is that a node has answered
        self._source: int | None = None  # whom this node pulls from
        self._goal = NO_PSN  # what this node has to pull, or to see committed
        self.matched = NO_PSN  # our log is that of whom we take records from, up to here
        self._expected: Psn | None = None  # the last record of what is being appended
        self._told: tuple[Psn, Psn] | None = None  # by the last receipt
        self._told_committed = NO_PSN
        self.announced = NO_PSN  # a primary that we follow has said that it is committed; the record may not be here yet
        self._parts = self._stamp = 0
        self._reported = self._owes_report = False
        self._beat_at: float | None = None
        self._moved_at = 0.0  # when the healing came forward
        self._wake: float | None = None
        self._now = 0.0
        self._event = ""
        self._out: list[PartitionOutput] = []

    def step(self, now: float, event: PartitionInput) -> list[PartitionOutput]:
        """One input; what follows from it."""
        self._now, self._out = now, []
        name = type(event).__name__
        if isinstance(event, Assigned):
            name = "AssignedSelf" if event.primary == self.node_id else "AssignedOther"
        sender = getattr(event, "sender", self.node_id)
        if sender in self.members:
            self._event = name
            getattr(self, self._methods[name])(event)
        if self._beat_at != self._wake:
            self._wake = self._beat_at
            self._out.append(WakeAt(self._wake))
        return self._out

    def promise_unknown(self, lease: int) -> None:
        """Before anything else: what was promised is lost, but it was no newer lease than this one."""
        self._asked = self._used = max(lease, self._asked, self._used)

    @property
    def leads(self) -> bool:
        """Whether this node is primary, active or not."""
        role = self.role
        return role is HEALED or role is STG2 or role is STG1

    @property
    def used(self) -> int:
        """Leases up to this one cannot be used here: they may be those of earlier runs of this process."""
        return self._used

    # -- whose the partition is -----------------------------------------------------------------------------------------

    def _appointed(self, event: Assigned) -> None:
        """This node is to be primary."""
        if event.lease <= self._assigned.lease:
            return
        self._assigned = event
        if event.lease <= self.lease and self.role is not UNKNOWN:
            return  # there is a newer one already
        if event.lease < self._asked:  # metadata were lost, unless a newer lease is on its way
            self._insist(event)
            return
        self._leave("another lease")
        if event.lease <= self._used or self.log.broken:
            self._be(UNKNOWN, None, f"lease {event.lease} cannot be used here")
            self._insist(event)
            return
        self._used = self._asked = event.lease
        self._lead(event.lease)

    def _lead(self, lease: int) -> None:
        self.lease = lease
        self._be(STG1, self.node_id, f"primary under lease {lease}")
        self._moved_at = self._now
        self._out.append(SavePromise(lease))
        for node_id in sorted(self.up):
            self._say(node_id, Prepare(self.node_id, lease))
        self._beat_at = self._now + self.timing.keepalive

    def _follow(self, event: Assigned) -> None:
        """Another node is to be primary."""
        if event.lease <= self._assigned.lease:
            return
        self._assigned = event
        if event.lease < self._asked or event.lease == self.lease and self.primary == event.primary:
            return
        self._leave(f"node {event.primary} is primary under lease {event.lease}")
        self.lease = event.lease
        self._be(WAITING, event.primary, f"node {event.primary} is primary under lease {event.lease}")

    def _insist(self, event: object) -> None:
        """This node was given a lease that it cannot use."""
        assigned = self._assigned
        if assigned.primary != self.node_id:
            self._beat_at = None
            return
        self._used = max(self._used, self._asked)
        able = not self.log.broken
        why = "it may be one of an earlier run" if able else "its files cannot be written"
        self._out.append(Decline(assigned.lease, able, self._used, f"lease {assigned.lease} cannot be used: {why}"))
        self._beat_at = self._now + self.timing.retry

    def _leave(self, cause: str) -> None:
        """Whatever this node was for the partition is over."""
        if self.role is HEALED:
            self._out.append(Serve(self.lease, False, cause))
        self.targets, self._promises, self._heard, self._source, self._beat_at = {}, {}, {}, None, None
        self._begin_taking()

    def _begin_taking(self) -> None:
        """Records come from somebody else from now on, if they come at all."""
        self.matched, self._expected, self._told = NO_PSN, None, None
        self._parts, self._stamp, self._reported, self._owes_report = 0, 0, False, False

    def _demote(self, cause: str) -> None:
        self._leave(cause)
        self._be(UNKNOWN, None, cause)

    def _be(self, role: PartitionRole, primary: int | None, cause: str) -> None:
        before, self.role, self.primary, self._methods = self.role, role, primary, _METHODS[role]
        if before is not role:
            self._out.append(RoleChanged(PartitionEvent(self._event).name, before, role))
        self.story.note(self._now, before.name, role.name, cause)

    def _stop(self, event: Stop) -> None:
        self._leave("stop")
        self._be(STOPPED, None, "stop")

    # -- promises -------------------------------------------------------------------------------------------------------

    def _on_prepare(self, event: Prepare) -> None:
        if event.lease < self._asked:
            self._say(event.sender, Stale(self.node_id, self._asked))
            return
        if event.lease == self.lease and self.leads:
            self._alarm(f"node {event.sender} leads under lease {event.lease}, too")
            return
        if event.lease > self.lease or self.primary != event.sender or self.role in (UNKNOWN, WAITING):
            self._leave(f"node {event.sender} leads under lease {event.lease}")
            self.lease = event.lease
            self._be(WAITING, event.sender, f"node {event.sender} leads under lease {event.lease}")
        if event.lease > self._asked:
            self._asked = event.lease
            self._out.append(SavePromise(event.lease))
        self._answer()

    def _promised(self, event: Promised) -> None:
        self.promised = max(self.promised, event.lease)
        if self.role is STG1:
            self._choose(event)
        elif self.role is WAITING:
            self._answer()

    def _answer(self) -> None:
        """Tell the primary what we have, once our promise is durable."""
        if self.promised != self.lease or self._asked != self.lease or self.primary not in self.up:
            return
        self._begin_taking()
        self.targets = {}
        self._be(HEALING, self.primary, "it has our promise")
        self._report()

    def _report(self) -> None:
        self._owes_report = self.log.busy
        if not self._owes_report and self.primary is not None:
            self._reported = True
            self._say(self.primary, Promise(self.node_id, self.lease, self.log.summary, self.committed, self.doubtful))

    def _is_stale(self, event: Any) -> bool:
        """Whether a message is of a primary that is none any more; it is told."""
        if event.lease < self._asked:
            self._say(event.sender, Stale(self.node_id, self._asked))
            return True
        return False

    def _old(self, event: Any) -> None:
        self._is_stale(event)

    def _on_stale(self, event: Stale) -> None:
        if event.lease > self.lease:
            self._used = max(self._used, event.lease)
            self._demote(f"node {event.sender} has promised lease {event.lease}")
            self._insist(event)

    # -- connections ----------------------------------------------------------------------------------------------------

    def _met(self, event: PeerUp) -> None:
        self.up.add(event.node_id)

    def _met_leading(self, event: PeerUp) -> None:
        self.up.add(event.node_id)
        self._say(event.node_id, Prepare(self.node_id, self.lease))

    def _left(self, event: PeerDown) -> None:
        self.up.discard(event.node_id)
        if event.node_id == self.primary and self.role in (HEALING, FOLLOWING):
            self._leave("the primary is gone")
            self._be(WAITING, self.primary, "the primary is gone")

    def _lost(self, event: PeerDown) -> None:
        self.up.discard(event.node_id)
        self._promises.pop(event.node_id, None)
        self.targets.pop(event.node_id, None)
        if event.node_id == self._source:
            self._again(f"node {event.node_id} is gone")

    # -- choosing and pulling -------------------------------------------------------------------------------------------

    def _on_promise(self, event: Promise) -> None:
        if event.lease == self.lease and event.log.is_whole:
            self._promises[event.sender] = event
            self._moved_at = self._now
            self._choose(event)

    def _choose(self, event: object) -> None:
        """With the promises of a quorum, ours among them: which log is it?"""
        if self.promised < self.lease or self.log.busy:
            return
        answered = len(self._promises) + 1
        firm = sum(not each.doubtful for each in self._promises.values()) + (not self.doubtful)
        if firm < self.majority and answered < len(self.members):
            return
        own = self.log.summary.last
        best = max(self._promises.values(), key=lambda each: (each.log.last, -each.sender), default=None)
        newest = own if best is None else max(own, best.log.last)
        if newest[0] >= self.lease:  # a run of this node that has lost its promises since has written under it
            if self._deferred != self.lease:
                self._deferred, self._used = self.lease, max(self._used, newest[0])
                self._out.append(Decline(self.lease, True, self._used, f"lease {self.lease} was used before"))
        elif best is None or newest == own:
            self._begin_lease()
            return
        elif not self._deferred and common_prefix(self.log.summary, best.log) is None:
            self._deferred = self.lease
            self._out.append(Decline(self.lease, True, self._used, f"it lacks too much, and node {best.sender} does not",
                                     best.sender))
        if best is None or self._deferred == self.lease:
            return
        self._source, self._goal = best.sender, best.log.last
        self._be(STG2, self.node_id, f"pulls from node {best.sender}")
        self._pull()

    def _pull(self) -> None:
        source = self._source
        if source is None or self.log.busy:
            return
        self._begin_taking()
        self._say(source, Pull(self.node_id, self.lease, common_prefix(self.log.summary, self._promises[source].log)))

    def _again(self, cause: str) -> None:
        """Collect promises once more."""
        self._promises.pop(self._source if self._source is not None else -1, None)
        self._source = None
        self._begin_taking()
        self._be(STG1, self.node_id, cause)
        self._choose(cause)

    def _looked(self, event: object) -> None:
        self._check_files()

    def _begin_lease(self) -> None:
        self._source, self._goal = None, (self.lease, 1)
        self._be(STG2, self.node_id, "has the log of a quorum")
        self._out.append(Activate(self.lease))

    @property
    def _begun(self) -> bool:
        """Whether our lease has its first record."""
        return self.log.summary.last[0] == self.lease

    # -- feeding --------------------------------------------------------------------------------------------------------

    def _on_report(self, event: Promise) -> None:
        """While we lead: a node has come, or what we sent it does not fit."""
        if event.lease != self.lease or not event.log.is_whole:
            return
        self._promises[event.sender] = event
        if self._source == event.sender:
            self._goal = event.log.last
            self._pull()
        elif self._begun:
            self._begin_feeding(event.sender)

    def _begin_feeding(self, node_id: int) -> None:
        theirs = self._promises[node_id].log
        common = common_prefix(self.log.summary, theirs) or (theirs.last if self.log.offers(theirs.last) else None)
        target = self.targets[node_id] = Target(common or NO_PSN, theirs.base)
        if common is None:
            self._start_image(node_id, target)  # the next keepalive tells how many parts it has by then
        else:
            self._feed(node_id, target)
            self._say(node_id, self.keepalive(target))

    def _feed(self, node_id: int, target: Target) -> None:
        if target.feeding or self.log.busy or self._now < target.rests_until:
            return
        if target.image:
            if not target.complete and target.parts_sent - target.parts_taken < FLIGHT_PARTS_MAX:
                target.feeding = True
                self._out.append(FeedImage(node_id, target.parts_sent, target.behind))
        elif not self.log.offers(target.sent):  # a compaction has come in between
            self._start_image(node_id, target)
        elif target.sent < self.log.written and target.flying < FLIGHT_BYTES_MAX:
            target.feeding = True
            self._out.append(Feed(node_id, target.sent))

    def _start_image(self, node_id: int, target: Target) -> None:
        target.begin_image()
        target.feeding = True
        self._out.append(FeedImage(node_id, 0, target.behind))

    def _begin_image(self, event: ImageLost) -> None:
        target = self.targets.get(event.node_id)
        if target is not None and target.image:
            self._start_image(event.node_id, target)

    def _unreadable(self, event: FeedFailed) -> None:
        """The node gets all that is live, after a while, since that may be unreadable as well."""
        self._alarm(event.reason)
        target = self.targets.get(event.node_id)
        if target is not None:
            target.begin_image(self._now + self.timing.retry)

    def _on_fed(self, event: Fed) -> None:
        target = self.targets.get(event.node_id)
        if target is None:
            return
        target.feeding = False
        if event.last is None:
            if target.image:
                target.parts_sent += 1
                target.complete = event.final
        elif not target.image and event.last > target.sent:
            target.fed(event.last, event.size)
        else:
            return
        self._feed(event.node_id, target)

    def _on_taken(self, event: ReplicaReceipt) -> None:
        """From whom we feed: how far it is."""
        target = self.targets.get(event.sender)
        if target is None or event.lease != self.lease:
            return
        target.took(event.matched, event.durable, event.parts)
        self._feed(event.sender, target)

    def _on_receipt(self, event: ReplicaReceipt) -> None:
        target = self.targets.get(event.sender)
        if target is None or event.lease != self.lease:
            return
        self._heard[event.sender] = max(self._heard.get(event.sender, 0.0), min(event.stamp / 1000, self._now))
        if event.durable > target.durable or event.parts > target.parts_taken:
            self._moved_at = self._now
        self._on_taken(event)
        self._count()

    def _on_pull(self, event: Pull) -> None:
        if self._is_stale(event) or event.sender != self.primary or event.lease != self.lease:
            return
        after = event.after
        behind = after or self.log.summary.last  # what it has compacted is not known here
        target = self.targets[event.sender] = Target(after or NO_PSN, behind)
        if after is None or not self.log.summary.holds(after):
            self._start_image(event.sender, target)
        else:
            self._feed(event.sender, target)

    # -- taking ---------------------------------------------------------------------------------------------------------

    def _is_from_source(self, event: Records | ImagePart | Keepalive) -> bool:
        """Whether it comes from whom we take records from, under the lease that we have promised."""
        if self._is_stale(event) or event.lease != self.lease or self.promised != self.lease:
            return False
        return event.sender == (self._source if self.leads else self.primary)

    def _on_records(self, event: Records) -> None:
        if not self._is_from_source(event):
            return
        self.announced = max(self.announced, event.committed)
        if self.log.busy or self.log.broken:
            return
        if not self.leads:
            self.targets = {}
        own, run = self.log.summary, event.run
        if not own.holds(run.previous):
            self._mismatch()
            return
        self._reported, self._moved_at = False, self._now
        if own.holds(run.last):
            self._reach(run.last)
        else:
            theirs = dict(run.leases()) if own.last != run.previous else {}
            both = ((lease, min(end, theirs[lease])) for lease, end in own.leases if lease in theirs)
            behind = max(both, default=run.previous)
            behind = max(behind, run.previous)
            if own.last > behind:
                self._cut(behind)
                return
            self._expected = run.last
            self._out.append(Append(run, behind))
        self._learn(event.committed)

    def _cut(self, behind: Psn) -> None:
        if behind < self.committed:
            self._alarm(f"record {behind[0]}-{behind[1]} is to be the last one, but {self.committed[0]}-{self.committed[1]} "
                        "is committed: nothing is cut off")
            return
        self._owes_report = True
        self._out.append(Cut(behind))

    def _mismatch(self) -> None:
        if not self._reported:
            self._report()

    def _reach(self, psn: Psn) -> None:
        """Our log is the primary's up to here: with all that is committed, as far as we know, it follows the primary."""
        self.matched = max(self.matched, psn)
        if self.role is HEALING and self.matched[0] == self.lease and self.matched >= self.announced:
            self._deferred = 0
            self._be(FOLLOWING, self.primary, "has the primary's log")

    def _learn(self, committed: Psn) -> None:
        known = min(committed, self.matched)
        if known > self.committed and not self.leads:
            self.committed = known
            self._out.append(Committed(known))

    def _followed(self, event: LogMoved) -> None:
        self._took()
        self._tell()

    def _took(self) -> None:
        if self._expected is not None and self.log.summary.holds(self._expected):
            psn, self._expected = self._expected, None
            self._reach(psn)

    def _tell(self, always: bool = False) -> None:
        """A receipt, if it says anything new."""
        durable = min(self.log.durable, self.matched)
        if durable[0] == self.lease and not self.leads:
            self.doubtful = False  # what was missing is safe here again
        source = self._source if self.leads else self.primary
        if source is None or not always and (self.matched, durable) == self._told:
            return
        self._told = self.matched, durable
        self._say(source, ReplicaReceipt(self.node_id, self.lease, self.matched, durable, self._parts, self._stamp))

    def _replaced(self, event: LogReady) -> None:
        """A replica's log was cut, or is an image now."""
        self._parts = 0
        if self._owes_report:
            self._report()

    def _on_image(self, event: ImagePart) -> None:
        if not self._is_from_source(event) or self.log.busy or self.log.broken:
            return
        if event.at < self.committed:
            self._alarm(f"an image ends with record {event.at[0]}-{event.at[1]}, but {self.committed[0]}-"
                        f"{self.committed[1]} is committed: it is not taken")
        elif event.number and event.number != self._parts:
            self._mismatch()
        else:
            self._reported, self._moved_at = False, self._now
            self._parts = event.number + 1
            self._owes_report = event.final
            self._out.append(TakeImage(event))
            self._tell(always=True)

    def _on_keepalive(self, event: Keepalive) -> None:
        if not self._is_from_source(event):
            return
        self._stamp = max(self._stamp, event.stamp)
        self.announced = max(self.announced, event.committed)
        if not self.log.busy:
            lacks = self._parts != event.parts if event.previous is None else not self.log.summary.holds(event.previous)
            if lacks:
                self._report()
            elif event.previous is not None:
                self._reach(event.previous)  # whoever has nothing to be sent is healed, too
            self._learn(event.committed)
        self._tell(always=True)

    # -- leading --------------------------------------------------------------------------------------------------------

    def _grown(self, event: object) -> None:
        """Our log has grown, or more of it is safe."""
        self._check_files()
        if not self.leads:
            return
        if self._source is not None:
            self._took()
            if self.log.summary.holds(self._goal):
                self._begin_lease()
            else:
                self._tell()
            return
        if not self._begun:
            return
        for node_id in self._promises:
            if node_id not in self.targets:
                self._begin_feeding(node_id)
        for node_id, target in self.targets.items():
            self._feed(node_id, target)
        self._count()

    def _ready(self, event: LogReady) -> None:
        """While we pull: our log was cut, or is an image now."""
        self._parts = 0
        if self._source is not None and self.log.summary.holds(self._goal):
            self._begin_lease()
        elif self._source is not None:
            self._pull()
        else:
            self._grown(event)

    def _count(self) -> None:
        """What a quorum has is committed, if that is of our own lease."""
        if not self._begun:
            return
        if self.log.durable[0] == self.lease:
            self.doubtful = False
        safe = [self.log.durable]
        for target in self.targets.values():
            safe.append(target.durable)
        safe.sort(reverse=True)
        reach = safe[self.majority - 1] if self.majority <= len(safe) else NO_PSN
        told = safe[self.factor - 1] if self.factor <= len(safe) else NO_PSN
        if reach[0] == self.lease and reach > self.committed:
            self.committed = reach
            self._moved_at = self._now
        if told[0] == self.lease and told > self._told_committed:
            self._told_committed = told
            self._out.append(Committed(told))
        if self.role is STG2 and self.committed >= self._goal and self._is_supported:
            self._be(HEALED, self.node_id, f"record {self.committed[0]}-{self.committed[1]} is committed")
            self._out.append(Serve(self.lease, True, "everything is committed"))

    @property
    def _is_supported(self) -> bool:
        """Whether a majority has answered lately."""
        return self.supported_until > self._now

    @property
    def supported_until(self) -> float:
        """Until when this node may be active if nobody answers any more."""
        if len(self.members) == 1:
            return float("inf")
        heard = sorted(self._heard.values(), reverse=True)
        needed = self.majority - 1
        return heard[needed - 1] + self.timing.lease if needed <= len(heard) else float("-inf")

    def _beat(self, event: object) -> None:
        self._check_files()
        if not self.leads:
            return
        if self.role is HEALED and not self._is_supported:
            self._goal = self.log.summary.last
            cause = f"no majority has answered for {self.timing.lease:g} s"
            self._out.append(Serve(self.lease, False, cause))
            self._be(STG2, self.node_id, cause)
        if self._beat_at is not None and self._now >= self._beat_at:
            self._beat_at = self._now + self.timing.keepalive
            for node_id in sorted(self.up):
                if node_id in self.targets:
                    self._say(node_id, self.keepalive(self.targets[node_id]))
                elif node_id not in self._promises:
                    self._say(node_id, Prepare(self.node_id, self.lease))
        stands = self._now - self._moved_at
        if self.role is HEALED or stands < self.timing.retry:
            return
        if self._source is not None:
            self._moved_at = self._now
            self._say(self._source, Prepare(self.node_id, self.lease))
            self._again(f"node {self._source} sends nothing")
        elif stands >= PATIENCE * self.timing.retry and len(self.up) >= self.majority - 1:
            self._moved_at = self._now
            self._out.append(Decline(self.lease, False, self._used, "it does not come forward"))

    def keepalive(self, target: Target) -> Keepalive:
        """What a node is asked with, and told."""
        previous = None if target.image else target.sent
        return Keepalive(self.node_id, self.lease, previous, target.parts_sent, self.committed, int(self._now * 1000))

    def _check_files(self) -> None:
        if self.log.broken and self.leads:
            self._demote("its files cannot be written")
            self._insist(self)

    def _failed(self, event: LogFailed) -> None:
        self._alarm(event.reason)
        self._expected, self._parts, self._owes_report = None, 0, False
        if self.role is STG2 and not self._begun and self._source is None:
            self._demote(event.reason)
            self._insist(event)

    # -- helpers --------------------------------------------------------------------------------------------------------

    def _say(self, node_id: int, message: PartitionTalk) -> None:
        self._out.append(Say(node_id, message))

    def _alarm(self, text: str) -> None:
        self._out.append(Alarm(f"{self.name}: {text}"))

    def _ignore(self, event: object) -> None:
        """Meant for another role, or too late."""
