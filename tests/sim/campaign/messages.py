"""Judge of messages, from the view of clients and from the records on the disks.

D1  A message of a strong queue is committed before it is acknowledged.
D2  A message is stored once in the log of a partition, unless the first copy was removed.
D3  Each PUT gets one answer.
D4  A message that was refused is not delivered, unless the status is UNKNOWN.
D5  In the end each acknowledged message of a strong queue has been delivered to each app.
D6  A message of a strong queue is committed before it is delivered.
D7  A primary does not deliver a message whose confirmation was committed under an earlier lease.
D8  A consumer receives new messages in the order in which they were stored; others are marked as out of order.
D9  A broadcast message is delivered at most once.
D10 A delivered message has the payload and queue that were posted.

D1, D5 and D6 apply to strong queues, D9 to the broadcast queue, the others to all stored queues. Clients of campaigns
(`clients.py`) and of the fault table (`sim/sdk_sessions.py`) report to it; the judge of the single broker's scenario is
`sim/judge.py`.
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
LONG_TTL = {"messageTtl": 86400}  # seconds; clocks jump by hours
EXTRA_APP = "extra"


def domain_text(name: str, apps: tuple[str, ...] = APPS[FANOUT]) -> str:
    """Return the configuration file of a domain."""
    options = {"campaign.strong": domain_config(name, strong=True, **LONG_TTL),
               "campaign.eventual": domain_config(name, **LONG_TTL),
               "campaign.fanout": domain_config(name, "fanout", apps=apps, strong=True, **LONG_TTL),
               "campaign.broadcast": domain_config(name, "broadcast", in_memory=True, **LONG_TTL)}
    return json.dumps(options[name])


DOMAINS = {name: domain_text(name) for name in ("campaign.strong", "campaign.eventual", "campaign.fanout",
                                                "campaign.broadcast")}


@dataclass(slots=True)
class PostedMessage:
    """A message with the answer, deliveries and records that were observed of it."""

    uri: str
    payload: bytes
    sent: int = 1  # number of PUTs with its GUID
    status: int | None = None  # of its ACK
    purged: bool = False
    delivered: set[str] = field(default_factory=set)  # apps
    stored: list[tuple[int, Psn]] = field(default_factory=list)  # partition and PSN of each of its MESSAGE records
    withdrawn: list[Psn] = field(default_factory=list)  # of its DELETION records with the reason "no quorum"
    finished: dict[bytes, list[Psn]] = field(default_factory=dict)  # app key, b"" = all -> its CONFIRM and DELETION records


class MessageJudge(Judge):
    """Checks D1 to D10; the clients call the methods of the first two sections."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        self.messages: dict[bytes, PostedMessage] = {}

    @property
    def partitions(self) -> PartitionJudge:
        """The judge that knows which records are committed."""
        return self.world.partition_judge

    # -- producers ----------------------------------------------------------------------------------------------------

    def on_put_sent(self, guid: bytes, uri: str, payload: bytes) -> None:
        """A producer sends a PUT for the first time."""
        self.messages[guid] = PostedMessage(uri, payload)
        self.world.counts["posted"] += 1

    def on_put_resent(self, guid: bytes) -> None:
        """A producer sends the same PUT on another connection."""
        self.messages[guid].sent += 1
        self.world.counts["posted again"] += 1

    def on_ack_received(self, guid: bytes, status: int) -> None:
        """A producer receives the ACK of a message."""
        message = self.messages[guid]
        message.status = status
        self.world.counts["refused" if status else "acknowledged"] += 1
        if not status and message.uri in (STRONG, FANOUT):
            self._check_committed(message, "D1", "is acknowledged")

    def on_purge(self, uri: str) -> None:
        """All messages of a queue may be removed from now on."""
        for message in self.messages.values():
            message.purged = message.purged or message.uri == uri

    def _check_committed(self, message: PostedMessage, rule: str, what: str) -> None:
        if len(self.world.machines) == 1:
            return
        if not any(self.partitions.history(index).is_committed(psn) for index, psn in message.stored):
            raise Violation(rule, f"{message.payload[:20]!r} {what}; its records are {message.stored}, committed are "
                                  f"{[(index, each.committed) for index, each in self.partitions.histories.items()]}")

    # -- consumers ----------------------------------------------------------------------------------------------------

    def on_push_received(self, uri: str, app: str, push: Push, lease: int, last: list[Psn], again: bool) -> None:
        """A consumer receives a PUSH. `lease`: of the primary at which it opened the queue, 0 = not at the primary; `last`:
        PSNs of the new messages that it received before; `again`: on this connection it has received this message before."""
        self.world.counts["delivered"] += 1
        message = self.messages.get(push.guid)
        if message is None or message.uri != uri or message.payload != push.payload:
            raise Violation("D10", f"{push.guid.hex()} with {push.payload[:20]!r} from {uri}: {message}")
        if uri == BROADCAST:
            if again and message.sent == 1:
                raise Violation("D9", f"{message.payload[:20]!r} was delivered twice")
            return
        if uri != EVENTUAL:
            self._check_committed(message, "D6", f"is delivered to {app}")
        # a PUT that was sent twice may be refused once and stored once
        if message.status not in (None, 0, AckStatus.UNKNOWN) and message.sent == 1:
            raise Violation("D4", f"{message.payload[:20]!r} is delivered after it was refused with status {message.status}")
        self._check_unfinished(message, app, lease)
        psn = max((psn for _, psn in message.stored), default=None)
        if psn is not None:
            if last and psn < last[-1] and not push.out_of_order and app not in message.delivered and not again:
                raise Violation("D8", f"{app} receives {message.payload[:20]!r}, {psn}, after {last[-1]}")
            if not push.out_of_order:
                last.append(psn)
        message.delivered.add(app)

    def _check_unfinished(self, message: PostedMessage, app: str, lease: int) -> None:
        record = self.world.queue_record(message.uri)
        if record is None or not message.stored or not lease:
            return
        index, stored = max(message.stored, key=lambda each: each[1])
        history = self.partitions.history(index)
        for psn in (*message.finished.get(record.apps.get(app, b""), ()), *message.finished.get(b"", ())):
            if stored < psn and psn[0] < lease and history.is_committed(psn):
                raise Violation("D7", f"{message.payload[:20]!r} was finished for {app} by record {psn}; it is "
                                      f"delivered again under lease {lease}")

    # -- records ------------------------------------------------------------------------------------------------------

    def on_new_record(self, index: int, psn: Psn, record: bytes, base: Psn) -> None:
        kind = record[0] >> 4
        if kind == RecordType.MESSAGE:
            guid = MESSAGE.unpack(record)[7]
            message = self.messages.get(guid)
            if message is not None:
                self._check_single_copy(message, index, psn, base)
        elif kind == RecordType.CONFIRM:
            _, _, _, _, app_key, guid, _ = CONFIRM.unpack(record)
            if guid in self.messages:
                self.messages[guid].finished.setdefault(app_key, []).append(psn)
        elif kind == RecordType.DELETION:
            _, _, _, _, guid, _ = DELETION.unpack(record)
            reason = int.from_bytes(record[:8], "big") >> FLAGS_SHIFT & FLAGS_MASK
            if guid in self.messages and reason == DeletionReason.NO_SC_QUORUM:
                self.messages[guid].withdrawn.append(psn)
            elif guid in self.messages:
                self.messages[guid].finished.setdefault(b"", []).append(psn)

    def _check_single_copy(self, message: PostedMessage, index: int, psn: Psn, base: Psn) -> None:
        """Check D2. A message may be stored again if the log does not contain its deletion because it starts at `base`."""
        history = self.partitions.history(index)
        for place, earlier in message.stored:
            removed = (any(each <= base for each in message.finished.get(b"", ()))
                       or any(earlier < each for each in message.withdrawn))
            if place == index and earlier != psn and history.has(psn, earlier) and not removed and not message.purged:
                raise Violation("D2", f"{message.payload[:20]!r} is stored as {earlier} and as {psn}")
        message.stored.append((index, psn))

    # -- the end ------------------------------------------------------------------------------------------------------

    def check_final_state(self) -> None:
        """Check D3 and D5."""
        for message in self.messages.values():
            text = f"{message.payload[:20]!r} of {message.uri}"
            if message.status is None:
                raise Violation("D3", f"{text} was never answered, sent {message.sent} times")
            if message.status == 0 and message.uri in (STRONG, FANOUT) and not message.purged:
                missing = [app for app in APPS[message.uri] if app not in message.delivered]
                if missing:
                    raise Violation("D5", f"{text} was acknowledged and never delivered to {missing}; its records are "
                                          f"{message.stored}")
