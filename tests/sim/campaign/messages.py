"""Messages, as clients and disks tell of them: D1-D8, D10.

Strong queues hold all of it, those of eventual consistency what they promise; a broadcast is delivered at most once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit.codec import Push

from bmqtwist.errors import AckStatus
from bmqtwist.storage.psn import Psn
from bmqtwist.storage.records import CONFIRM, DELETION, FLAGS_MASK, FLAGS_SHIFT, MESSAGE, DeletionReason, RecordType
from bmqtwist.testing.config import domain_config
from sim.campaign.judges import Judge, Violation

if TYPE_CHECKING:
    from sim.campaign.partitions import PartitionJudge
    from sim.campaign.world import CampaignWorld

STRONG, EVENTUAL, FANOUT, BROADCAST = ("bmq://campaign.strong/q", "bmq://campaign.eventual/q", "bmq://campaign.fanout/q",
                                       "bmq://campaign.broadcast/q")
APPS = {STRONG: ("__default",), EVENTUAL: ("__default",), FANOUT: ("foo", "bar", "baz"), BROADCAST: ("__default",)}
LASTING = {"messageTtl": 86400}  # clocks jump by hours
EXTRA_APP = "extra"


def domain_text(name: str, apps: tuple[str, ...] = APPS[FANOUT]) -> str:
    """The file of one of the domains."""
    options = {"campaign.strong": domain_config(name, strong=True, **LASTING),
               "campaign.eventual": domain_config(name, **LASTING),
               "campaign.fanout": domain_config(name, "fanout", apps=apps, strong=True, **LASTING),
               "campaign.broadcast": domain_config(name, "broadcast", in_memory=True, **LASTING)}
    return json.dumps(options[name])


DOMAINS = {name: domain_text(name) for name in ("campaign.strong", "campaign.eventual", "campaign.fanout",
                                                "campaign.broadcast")}


@dataclass(slots=True)
class Posted:
    """One message."""

    uri: str
    payload: bytes
    sent: int = 1
    status: int | None = None  # of its only answer
    purged: bool = False
    delivered: set[str] = field(default_factory=set)  # apps
    places: list[tuple[int, Psn]] = field(default_factory=list)  # partition and PSN of each MESSAGE record of it
    undone: list[Psn] = field(default_factory=list)  # of records that say that no majority got it: it may be posted again
    done: dict[bytes, list[Psn]] = field(default_factory=dict)  # PSNs of what ends it, by key of the app; b"" = for all


class MessageJudge(Judge):
    """See above."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        self.messages: dict[bytes, Posted] = {}

    @property
    def logs(self) -> PartitionJudge:
        """Who knows what is committed."""
        return self.world.logs

    # -- producers ----------------------------------------------------------------------------------------------------

    def posted(self, guid: bytes, uri: str, payload: bytes) -> None:
        """A PUT goes out for the first time."""
        self.messages[guid] = Posted(uri, payload)
        self.world.counts["posted"] += 1

    def posted_again(self, guid: bytes) -> None:
        """The same on another connection."""
        self.messages[guid].sent += 1
        self.world.counts["posted again"] += 1

    def answered(self, guid: bytes, status: int) -> None:
        """Its ACK has come."""
        message = self.messages[guid]
        message.status = status
        self.world.counts["refused" if status else "acknowledged"] += 1
        if not status and message.uri in (STRONG, FANOUT):
            self._is_committed(message, "D1", "is acknowledged")

    def purged(self, uri: str) -> None:
        """Whatever a queue has now may go."""
        for message in self.messages.values():
            message.purged = message.purged or message.uri == uri

    def _is_committed(self, message: Posted, rule: str, what: str) -> None:
        if len(self.world.machines) == 1:
            return
        if not any(self.logs.history(index).is_committed(psn) for index, psn in message.places):
            raise Violation(rule, f"{message.payload[:20]!r} {what}; its records are {message.places}, committed are "
                                  f"{[(index, each.committed) for index, each in self.logs.histories.items()]}")

    # -- consumers ----------------------------------------------------------------------------------------------------

    def delivered(self, uri: str, app: str, push: Push, lease: int, last: list[Psn], again: bool) -> None:
        """A PUSH at a consumer that has opened the queue at a primary with this lease (0: elsewhere); `last`: PSNs of what
        it was given before as new; `again`: on the same connection."""
        self.world.counts["delivered"] += 1
        message = self.messages.get(push.guid)
        if message is None or message.uri != uri or message.payload != push.payload:
            raise Violation("D10", f"{push.guid.hex()} with {push.payload[:20]!r} from {uri}: {message}")
        if uri == BROADCAST:
            if again and message.sent == 1:
                raise Violation("D9", f"{message.payload[:20]!r} came twice")
            return
        if uri != EVENTUAL:
            self._is_committed(message, "D6", f"is delivered to {app}")
        # of what was posted again on another connection, the copy that was refused may not be the one that is on its way
        if message.status not in (None, 0, AckStatus.UNKNOWN) and message.sent == 1:
            raise Violation("D4", f"{message.payload[:20]!r} was refused with status {message.status}, and is delivered")
        self._not_done(message, app, lease)
        psn = max((psn for _, psn in message.places), default=None)
        if psn is not None:
            if last and psn < last[-1] and not push.out_of_order and app not in message.delivered and not again:
                raise Violation("D8", f"{app} is given {message.payload[:20]!r}, {psn}, after {last[-1]}")
            if not push.out_of_order:  # those that come again keep no order, and say so
                last.append(psn)
        message.delivered.add(app)

    def _not_done(self, message: Posted, app: str, lease: int) -> None:
        record = self.world.queue_record(message.uri)
        if record is None or not message.places or not lease:
            return
        index, stored = max(message.places, key=lambda each: each[1])
        history = self.logs.history(index)
        for psn in (*message.done.get(record.apps.get(app, b""), ()), *message.done.get(b"", ())):
            if stored < psn and psn[0] < lease and history.is_committed(psn):
                raise Violation("D7", f"{app} was done with {message.payload[:20]!r} by record {psn}; it comes "
                                      f"again under lease {lease}")

    # -- records ------------------------------------------------------------------------------------------------------

    def recorded(self, index: int, psn: Psn, record: bytes, base: Psn) -> None:
        kind = record[0] >> 4
        if kind == RecordType.MESSAGE:
            guid = MESSAGE.unpack(record)[7]
            message = self.messages.get(guid)
            if message is not None:
                self._stored(message, index, psn, base)
        elif kind == RecordType.CONFIRM:
            _, _, _, _, app_key, guid, _ = CONFIRM.unpack(record)
            if guid in self.messages:
                self.messages[guid].done.setdefault(app_key, []).append(psn)
        elif kind == RecordType.DELETION:
            _, _, _, _, guid, _ = DELETION.unpack(record)
            reason = int.from_bytes(record[:8], "big") >> FLAGS_SHIFT & FLAGS_MASK
            if guid in self.messages and reason == DeletionReason.NO_SC_QUORUM:
                self.messages[guid].undone.append(psn)
            elif guid in self.messages:
                self.messages[guid].done.setdefault(b"", []).append(psn)

    def _stored(self, message: Posted, index: int, psn: Psn, base: Psn) -> None:
        """D2: no second time in one log; after a compaction a message that is gone is not remembered."""
        history = self.logs.history(index)
        for place, earlier in message.places:
            gone = any(each <= base for each in message.done.get(b"", ())) or any(earlier < each for each in message.undone)
            if place == index and earlier != psn and history.has(psn, earlier) and not gone and not message.purged:
                raise Violation("D2", f"{message.payload[:20]!r} is stored as {earlier} and as {psn}")
        message.places.append((index, psn))

    # -- the end ------------------------------------------------------------------------------------------------------

    def quiet(self) -> None:
        """D3, D4, D5."""
        for message in self.messages.values():
            text = f"{message.payload[:20]!r} of {message.uri}"
            if message.status is None:
                raise Violation("D3", f"{text} is not answered when all is quiet, sent {message.sent} times")
            if message.status == 0 and message.uri in (STRONG, FANOUT) and not message.purged:
                missing = [app for app in APPS[message.uri] if app not in message.delivered]
                if missing:
                    raise Violation("D5", f"{text} was acknowledged and never came to {missing}; {message.places}")
