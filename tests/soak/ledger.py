"""History of one queue as clients observe it, and its violations, in the terms of Jepsen.

States of a message:

attempted     a producer has sent it
acknowledged  the producer has received ACK 0: it must be delivered to every app until the app has confirmed it
delivered     a consumer of an app has received it
confirmed     confirmed by an app, and the broker has answered a later request on the same connection: it must not be
              delivered to the app any more
excused       may be missing for an app: sent before a purge, the removal or the addition of the app was answered
barred        purged for an app, or acknowledged before the app was added: it must not be delivered to the app after the
              next start of the broker (before that, the delivery may have been in progress)

Violations:

lost          acknowledged, neither confirmed nor excused, and not delivered although all queues were drained
duplicated    delivered twice to an app within one run of the broker, without a return to the broker in between
resurrected   delivered although confirmed or barred
unexpected    delivered but never attempted, or with another payload, or to an app that is not registered

Used by `kill9.py`; `test_ledger.py` tests it. The judge of restarts and failovers is `restart_judge.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

VERDICTS = ("lost", "duplicated", "resurrected", "unexpected")


@dataclass(slots=True)
class AppView:
    """State of the messages of one app."""

    delivered: set[bytes] = field(default_factory=set)  # in this run of the broker
    confirming: set[bytes] = field(default_factory=set)  # confirmed, without evidence that the broker has handled it
    confirmed: set[bytes] = field(default_factory=set)
    excused: set[bytes] = field(default_factory=set)
    barred: set[bytes] = field(default_factory=set)
    barred_next: set[bytes] = field(default_factory=set)  # from the next run of the broker on
    registered: bool = True  # the domain has the app
    absent: bool = False  # the app was not registered at any time in this run


class QueueHistory:
    """History of one queue excess all runs of the broker.

    `apps`: apps of the domain; `others`: apps that may be added later.
    """

    def __init__(self, uri: str, apps: tuple[str, ...], others: tuple[str, ...] = ()) -> None:
        self.uri, self.apps = uri, {app: AppView() for app in apps}
        self.apps.update({app: AppView(registered=False, absent=True) for app in others})
        self.attempted: dict[bytes, int] = {}  # GUID: checksum of its payload
        self.acknowledged: set[bytes] = set()
        self.counts = dict.fromkeys(("attempted", "acknowledged", "refused", "delivered", "redelivered", "confirmed",
                                     "purged", *VERDICTS), 0)
        self.examples: list[str] = []

    def _report(self, verdict: str, guid: bytes, detail: str) -> None:
        self.counts[verdict] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{verdict}: {guid.hex().upper()} {self.uri} {detail}")

    def attempt(self, guid: bytes, payload: bytes) -> None:
        """Record a message before it is sent."""
        self.attempted[guid] = crc32(payload)
        self.counts["attempted"] += 1

    def acknowledge(self, guid: bytes, status: int) -> None:
        """Record an ACK."""
        if status:
            self.counts["refused"] += 1
        elif guid not in self.acknowledged:
            self.acknowledged.add(guid)
            self.counts["acknowledged"] += 1

    def deliver(self, app: str, guid: bytes, payload: bytes) -> None:
        """Record a delivery, and report a violation by it."""
        view = self.apps[app]
        self.counts["delivered"] += 1
        if self.attempted.get(guid) != crc32(payload):
            self._report("unexpected", guid, f"{len(payload)} B for {app}")
        elif view.absent:
            self._report("unexpected", guid, f"for {app}, which is not registered")
        elif guid in view.confirmed:
            self._report("resurrected", guid, f"for {app}")
        elif guid in view.barred:
            self._report("resurrected", guid, f"for {app}, after a purge or before the app was added")
        elif guid in view.delivered:
            self._report("duplicated", guid, f"for {app}")
        elif guid in view.confirming:
            self.counts["redelivered"] += 1
        view.delivered.add(guid)

    def on_confirmed(self, app: str, guids: set[bytes]) -> None:
        """Record that the broker has handled CONFIRMs."""
        view = self.apps[app]
        view.confirming -= guids
        self.counts["confirmed"] += len(guids - view.confirmed)
        view.confirmed |= guids

    # -- commands of operators ------------------------------------------------------------------------------------------

    def purge(self, app: str, certain: bool) -> None:
        """Record a purge of an app; not `certain`: the broker was killed before its answer, or failed.

        The caller sends no message and receives no ACK between the command and its answer.
        """
        view = self.apps[app]
        if not view.registered:
            return
        if certain:
            purged = self.acknowledged - view.confirmed - view.barred - view.barred_next
            self.counts["purged"] += len(purged)
            view.barred_next |= purged
        view.excused |= self.attempted.keys()

    def add(self, app: str) -> None:
        """Record the addition of an app: now, or at the next start of the broker, which reads the same file."""
        view = self.apps[app]
        view.registered, view.absent = True, False
        view.delivered.clear()
        view.barred_next |= self.acknowledged
        view.excused |= self.attempted.keys()

    def remove(self, app: str) -> None:
        """Record the removal of an app from the domain."""
        view = self.apps[app]
        view.registered = False
        view.barred_next |= self.attempted.keys()
        view.excused |= self.attempted.keys()

    def restarted_unanswered(self, app: str) -> None:
        """Excuse all messages until a restart, if the broker was killed before it answered the addition of an app."""
        self.apps[app].excused |= self.attempted.keys()

    # -- verdicts ---------------------------------------------------------------------------------------------------

    def on_broker_restart(self) -> None:
        """Start a new run: all unconfirmed messages may be delivered again."""
        for view in self.apps.values():
            view.delivered.clear()
            view.barred |= view.barred_next
            view.barred_next.clear()
            view.absent = not view.registered

    def check_lost(self) -> None:
        """Report lost messages, after all messages in the queue have been delivered in this run."""
        for app, view in self.apps.items():
            if not view.registered:
                continue
            for guid in self.acknowledged - view.confirmed - view.confirming - view.delivered - view.excused:
                self._report("lost", guid, f"for {app}")
                view.confirming.add(guid)  # reported once; a later delivery counts as redelivery

    def drop_confirmed(self, keep: int) -> None:
        """Drop the oldest messages that every app has confirmed or lost by a command; keep the last `keep`."""
        views = list(self.apps.values())
        excess = len(self.attempted) - keep
        for guid in list(self.attempted)[:max(0, excess)]:
            if guid in self.acknowledged and all(
                    guid in view.confirmed or guid in view.excused and guid not in view.delivered for view in views):
                del self.attempted[guid]
                self.acknowledged.discard(guid)
                for view in views:
                    for messages in (view.confirmed, view.excused, view.barred, view.barred_next, view.confirming):
                        messages.discard(guid)
