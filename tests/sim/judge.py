"""The outside judge: knows what clients said and heard and which faults they met, nothing of the broker's inside.

lost          acknowledged, and not delivered to every app although everything was given time to be
duplicated    delivered to two consumers of an app that both hold it, or delivered twice to a connection
resurrected   delivered to an app again after its confirm had arrived for sure
unexpected    delivered but never posted there, with other bytes, against the subscription, or after it was refused
order         the messages of one producer came to one consumer in another order than they were posted
credit        more unconfirmed messages or bytes than the consumer asked for
refused       a PUT was refused without any reason that the faults explain
stuck         not answered or not confirmed at the end, although nothing was in the way any more

A loss of power may bring back what was confirmed, since confirms are not acknowledged to anybody. With durability
`none`, and for queues in memory, it may also lose what was acknowledged: those messages then count as `maybe`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

VERDICTS = ("lost", "duplicated", "resurrected", "unexpected", "order", "credit", "refused", "stuck")


class Violation(AssertionError):
    """The broker did what it never may do."""

    def __init__(self, verdict: str, text: str) -> None:
        assert verdict in VERDICTS
        super().__init__(f"{verdict}: {text}")
        self.verdict = verdict


@dataclass(slots=True)
class PostedMessage:
    """One message as its producer knows it."""

    uri: str
    payload: bytes
    n: int  # its property of that name
    producer: str
    number: int  # counts up per producer and queue
    fate: str = "sent"  # then acked, refused, or maybe: nobody will ever tell its producer
    sent: int = 1
    doubtful: bool = False  # an ACK still under way speaks for a broker that lost the message


@dataclass(slots=True)
class AppView:
    """What the consumers of one app of one queue saw."""

    owner: dict[bytes, object] = field(default_factory=dict)  # GUID: the connection that holds it unconfirmed
    seen: set[bytes] = field(default_factory=set)
    confirmed: set[bytes] = field(default_factory=set)  # confirmed, perhaps in vain
    settled: set[bytes] = field(default_factory=set)  # the confirm arrived for sure


class OutsideJudge:
    """Told everything by the clients and the world; raises Violation."""

    def __init__(self, apps: dict[str, tuple[str, ...]], volatile: set[str], unstored: set[str]) -> None:
        self.apps, self.volatile, self.unstored = apps, volatile, unstored  # unstored: broadcast
        self.puts: dict[bytes, PostedMessage] = {}
        self.views = {(uri, app): AppView() for uri, each in apps.items() for app in each}
        self.bounded: set[str] = set()  # queues with a quota
        self.trouble = False  # the disk refuses something in this life of the broker: confirms may go unrecorded
        self.excused = False  # there was a reason for statuses 6
        self.failures = 0  # statuses 6
        self.mistaken = False  # the broker meets mistakes of its own: it may disable queues and partitions
        self.counts: Counter[str] = Counter()
        self.disordered = False  # power was lost: what was not acknowledged may have holes

    # -- what producers tell

    def posted(self, guid: bytes, put: PostedMessage) -> None:
        """A PUT goes out for the first time."""
        self.puts[guid] = put
        self.counts["posted"] += 1

    def posted_again(self, guid: bytes) -> None:
        """The same PUT on another connection."""
        self.puts[guid].sent += 1
        self.puts[guid].doubtful = False
        self.counts["posted again"] += 1

    def answered(self, guid: bytes, status: int) -> None:
        """Its ACK has come."""
        put = self.puts[guid]
        self.failures += status == 6
        if status and not (status in (1, 2) and put.uri in self.bounded or status == 6 or status == 7 and self.mistaken):
            raise Violation("refused", f"{put} with status {status}")
        put.fate = "refused" if status else "maybe" if put.doubtful else "acked"
        self.counts[put.fate] += 1

    def given_up(self, guid: bytes) -> None:
        """Its producer closed the queue before the ACK came."""
        self.puts[guid].fate = "maybe"

    # -- what consumers tell

    def delivered(self, uri: str, app: str, guid: bytes, payload: bytes, connection: object, late: bool,
                  last: dict[str, int]) -> None:
        """A PUSH; `late` has the out-of-order flag; `last`: of this consumer, producer -> number of the last one."""
        self.counts["delivered late" if late else "delivered"] += 1
        put = self.puts.get(guid)
        if put is None or put.uri != uri or put.payload != payload:
            raise Violation("unexpected", f"{guid.hex()} with {payload[:40]!r} from {uri}: {put}")
        view = self.views[uri, app]
        if put.fate == "refused" and guid not in view.seen:
            raise Violation("unexpected", f"{put} was refused before")
        if guid in view.settled:
            raise Violation("resurrected", f"{put} at {app}")
        if guid in view.owner and uri not in self.unstored:
            raise Violation("duplicated", f"{put} at {app} is with {view.owner[guid]} and with {connection}")
        again = put.sent > 1 and (self.disordered or uri in self.unstored)  # nothing is remembered of a broadcast
        if not late and put.number <= last.get(put.producer, -1) and not again:
            raise Violation("order", f"{put} after number {last[put.producer]}")
        if not late:
            last[put.producer] = max(put.number, last.get(put.producer, -1))
        view.seen.add(guid)
        if uri not in self.unstored:
            view.owner[guid] = connection

    def confirmed(self, uri: str, app: str, guid: bytes, connection: object) -> None:
        """A CONFIRM goes out."""
        view = self.views[uri, app]
        view.confirmed.add(guid)
        if view.owner.get(guid) is connection:
            del view.owner[guid]
        self.counts["confirmed"] += 1

    def settle(self, uri: str, app: str, guids: list[bytes]) -> None:
        """The broker has answered something that was said after these CONFIRMs."""
        self.views[uri, app].settled.update(guids)

    def let_go(self, uri: str, app: str, connection: object) -> None:
        """A consumer closes or is cut off: what it holds may go to others."""
        view = self.views[uri, app]
        for guid in [guid for guid, owner in view.owner.items() if owner is connection]:
            del view.owner[guid]

    # -- what the world tells

    def restarted(self, power: bool, durable: bool) -> None:
        """A broker comes to life after another one: by a loss of `power`, or of the process alone."""
        self.counts["power losses" if power else "kills"] += 1
        for (uri, _), view in self.views.items():
            # What is posted again after a rollover may be taken for new: the old journal with its traces is gone.
            view.settled = set() if power or self.trouble or uri in self.volatile else {
                guid for guid in view.settled if self.puts[guid].fate != "sent"}
        for put in self.puts.values():
            if put.uri in self.volatile or power and not durable:
                put.doubtful = True
                put.fate = "maybe" if put.fate == "acked" else put.fate
        self.disordered = self.disordered or power
        self.trouble = False

    def faulty(self) -> None:
        """The disk begins to refuse something."""
        self.trouble = self.excused = True

    # -- the end

    def close(self, stored: dict[str, int], full: bool) -> None:
        """Everything was mended, and given time. `stored`: messages left in each queue; `full`: a partition said so."""
        if self.failures and not self.excused and not full:
            raise Violation("refused", f"{self.failures} message(s) with status 6")
        for guid, put in self.puts.items():
            if put.fate == "sent":
                raise Violation("stuck", f"{guid.hex()} {put} was never answered")
            if put.fate != "acked" or put.uri in self.unstored:
                continue
            for app in self.apps[put.uri]:
                if guid not in self.views[put.uri, app].seen:
                    raise Violation("lost", f"{guid.hex()} {put} was acknowledged and never delivered to {app}")
        for uri, count in stored.items():
            if count:
                raise Violation("stuck", f"{count} message(s) are left in {uri}")
