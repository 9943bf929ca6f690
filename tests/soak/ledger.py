"""Who said what: the history of one queue as clients saw it, and its verdict in Jepsen's words.

attempted     sent by a producer
acknowledged  the producer has got ACK 0: it must be delivered to every app until that app has confirmed it
delivered     pushed to a consumer of an app
settled       confirmed, and the broker has answered something sent later on the same connection: never to be seen again
excused       an operator may have dropped it for the app: sent before a purge, the removal or the addition of the app was
              answered. It may be missing
barred        an operator has certainly dropped it for the app, or the app was added after its ACK: in another life of the
              broker it must not be seen again (in the same one it may have been under way)

lost          acknowledged, not settled, not excused, and yet not delivered after everything was given time to be
duplicated    delivered twice to an app within one life of the broker without having been given back
resurrected   delivered although settled or barred
unexpected    delivered but never attempted, or with other bytes, or to an app that is not there
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

VERDICTS = ("lost", "duplicated", "resurrected", "unexpected")


@dataclass(slots=True)
class AppView:
    """What the consumers of one app did and saw."""

    held: set[bytes] = field(default_factory=set)  # delivered in this life of the broker
    confirming: set[bytes] = field(default_factory=set)  # confirmed, not known to have arrived
    settled: set[bytes] = field(default_factory=set)
    excused: set[bytes] = field(default_factory=set)
    barred: set[bytes] = field(default_factory=set)
    barred_next: set[bytes] = field(default_factory=set)  # from the next life of the broker on
    there: bool = True  # the domain has the app
    absent: bool = False  # it has not had it in all of this life


class QueueHistory:
    """One queue over all lives of the broker. `apps` are those that the domain has, `others` those that it may get."""

    def __init__(self, uri: str, apps: tuple[str, ...], others: tuple[str, ...] = ()) -> None:
        self.uri, self.apps = uri, {app: AppView() for app in apps}
        self.apps.update({app: AppView(there=False, absent=True) for app in others})
        self.attempted: dict[bytes, int] = {}  # GUID: checksum of its payload
        self.acknowledged: set[bytes] = set()
        self.counts = dict.fromkeys(("attempted", "acknowledged", "refused", "delivered", "redelivered", "settled",
                                     "purged", *VERDICTS), 0)
        self.examples: list[str] = []

    def _accuse(self, verdict: str, guid: bytes, detail: str) -> None:
        self.counts[verdict] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{verdict}: {guid.hex().upper()} {self.uri} {detail}")

    def attempt(self, guid: bytes, payload: bytes) -> None:
        """A message is about to be sent."""
        self.attempted[guid] = crc32(payload)
        self.counts["attempted"] += 1

    def acknowledge(self, guid: bytes, status: int) -> None:
        """An ACK came."""
        if status:
            self.counts["refused"] += 1
        elif guid not in self.acknowledged:
            self.acknowledged.add(guid)
            self.counts["acknowledged"] += 1

    def deliver(self, app: str, guid: bytes, payload: bytes) -> None:
        """A PUSH came."""
        view = self.apps[app]
        self.counts["delivered"] += 1
        if self.attempted.get(guid) != crc32(payload):
            self._accuse("unexpected", guid, f"{len(payload)} B for {app}")
        elif view.absent:
            self._accuse("unexpected", guid, f"for {app}, which is not there")
        elif guid in view.settled:
            self._accuse("resurrected", guid, f"for {app}")
        elif guid in view.barred:
            self._accuse("resurrected", guid, f"for {app}, although an operator dropped it")
        elif guid in view.held:
            self._accuse("duplicated", guid, f"for {app}")
        elif guid in view.confirming:
            self.counts["redelivered"] += 1
        view.held.add(guid)

    def settle(self, app: str, guids: set[bytes]) -> None:
        """The broker has certainly seen these confirms."""
        view = self.apps[app]
        view.confirming -= guids
        self.counts["settled"] += len(guids - view.settled)
        view.settled |= guids

    # -- what operators do ------------------------------------------------------------------------------------------

    def purge(self, app: str, certain: bool) -> None:
        """A purge of an app was answered; not `certain`: the broker died before, or could not do it.

        Nothing was sent or acknowledged between the command and its answer: whoever sends commands waits for them.
        """
        view = self.apps[app]
        if not view.there:
            return
        if certain:
            gone = self.acknowledged - view.settled - view.barred - view.barred_next
            self.counts["purged"] += len(gone)
            view.barred_next |= gone
        view.excused |= self.attempted.keys()

    def add(self, app: str) -> None:
        """The domain was told to have an app: now, or from the next life of the broker on, which reads the same file."""
        view = self.apps[app]
        view.there, view.absent = True, False
        view.held.clear()
        view.barred_next |= self.acknowledged
        view.excused |= self.attempted.keys()

    def remove(self, app: str) -> None:
        """The domain was told not to have an app any more."""
        view = self.apps[app]
        view.there = False
        view.barred_next |= self.attempted.keys()
        view.excused |= self.attempted.keys()

    def restarted_unanswered(self, app: str) -> None:
        """The broker died before it answered that it adds an app: what was sent up to its return may be before the app."""
        self.apps[app].excused |= self.attempted.keys()

    # -- verdicts ---------------------------------------------------------------------------------------------------

    def broker_died(self) -> None:
        """A new life: whatever was delivered may be delivered again."""
        for view in self.apps.values():
            view.held.clear()
            view.barred |= view.barred_next
            view.barred_next.clear()
            view.absent = not view.there

    def judge(self) -> None:
        """Everything that is in the queue has been delivered in this life: is anything missing?"""
        for app, view in self.apps.items():
            if not view.there:
                continue
            for guid in self.acknowledged - view.settled - view.confirming - view.held - view.excused:
                self._accuse("lost", guid, f"for {app}")
                view.confirming.add(guid)  # said once; should it come back after all, that is another life's redelivery

    def forget_settled(self, keep: int) -> None:
        """Bound memory: drop the oldest messages that every app has settled or was rid of, but for the last `keep`."""
        views = list(self.apps.values())
        over = len(self.attempted) - keep
        for guid in list(self.attempted)[:max(0, over)]:
            if guid in self.acknowledged and all(
                    guid in view.settled or guid in view.excused and guid not in view.held for view in views):
                del self.attempted[guid]
                self.acknowledged.discard(guid)
                for view in views:
                    for known in (view.settled, view.excused, view.barred, view.barred_next, view.confirming):
                        known.discard(guid)
