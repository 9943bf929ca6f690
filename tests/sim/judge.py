"""Judge of a scenario: checks the sent and received messages of clients against the faults that occurred.

lost          acknowledged, but not delivered to every app by the end
duplicated    delivered to an app while it is unconfirmed at the same or another consumer
resurrected   delivered to an app again after the broker had processed its confirm
unexpected    delivered though never posted to this queue, with another payload, against the subscription, or after a NACK
order         messages of one producer delivered to one consumer in another order than they were posted
credit        more unconfirmed messages or bytes than the limits of the subscription
refused       a PUT was refused for a reason that the faults do not explain
stuck         a PUT without an ACK, or a message left in a queue, at the end

A loss of power may undo confirms, because confirms are not acknowledged. With durability `none`, and for queues in memory,
it may also lose acknowledged messages: their fate is then `maybe`. `clients.py` reports to it, `scenario.py` asks it at the
end. The judges of clusters are in `campaign/judges.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

VERDICTS = ("lost", "duplicated", "resurrected", "unexpected", "order", "credit", "refused", "stuck")


class Violation(AssertionError):
    """A broken guarantee; `verdict`: one of VERDICTS."""

    def __init__(self, verdict: str, text: str) -> None:
        assert verdict in VERDICTS
        super().__init__(f"{verdict}: {text}")
        self.verdict = verdict


@dataclass(slots=True)
class PostedMessage:
    """A message as its producer knows it."""

    uri: str
    payload: bytes
    n: int  # value of its property "n"
    producer: str
    number: int  # counts up per producer and queue
    fate: str = "sent"  # then "acked", "refused", or "maybe": its producer will never know
    sent: int = 1  # number of PUTs with its GUID
    doubtful: bool = False  # an ACK in progress may be from a run of the broker that lost the message


@dataclass(slots=True)
class AppView:
    """The deliveries and confirms of one app of one queue."""

    owner: dict[bytes, object] = field(default_factory=dict)  # GUID of an unconfirmed message -> connection of its consumer
    seen: set[bytes] = field(default_factory=set)
    confirmed: set[bytes] = field(default_factory=set)  # a CONFIRM was sent
    processed: set[bytes] = field(default_factory=set)  # the broker has processed the CONFIRM


class OutsideJudge:
    """Receives the events of all clients and the faults of the scenario; raises Violation."""

    def __init__(self, apps: dict[str, tuple[str, ...]], volatile: set[str], unstored: set[str]) -> None:
        self.apps, self.volatile, self.unstored = apps, volatile, unstored  # volatile: in memory; unstored: broadcast
        self.puts: dict[bytes, PostedMessage] = {}
        self.views = {(uri, app): AppView() for uri, each in apps.items() for app in each}
        self.bounded: set[str] = set()  # queues with a quota
        self.disk_faulty = False  # in this run of the broker: confirms may not be stored
        self.failures_expected = False  # a fault explains NACKs with status 6
        self.failures = 0  # NACKs with status 6, STORAGE_FAILURE
        self.defective = False  # defects are injected into the broker: it may disable queues and partitions
        self.counts: Counter[str] = Counter()
        self.disordered = False  # power was lost: unacknowledged messages may be lost and be stored later

    # -- events of producers

    def on_put_sent(self, guid: bytes, put: PostedMessage) -> None:
        """A producer sends a PUT for the first time."""
        self.puts[guid] = put
        self.counts["posted"] += 1

    def on_put_resent(self, guid: bytes) -> None:
        """A producer sends the same PUT on another connection."""
        self.puts[guid].sent += 1
        self.puts[guid].doubtful = False
        self.counts["posted again"] += 1

    def on_ack_received(self, guid: bytes, status: int) -> None:
        """A producer receives the ACK of a PUT."""
        put = self.puts[guid]
        self.failures += status == 6
        if status and not (status in (1, 2) and put.uri in self.bounded or status == 6 or status == 7 and self.defective):
            raise Violation("refused", f"{put} with status {status}")
        put.fate = "refused" if status else "maybe" if put.doubtful else "acked"
        self.counts[put.fate] += 1

    def on_producer_closed(self, guid: bytes) -> None:
        """A producer closed its queue before it received the ACK of a PUT."""
        self.puts[guid].fate = "maybe"

    # -- events of consumers

    def on_push_received(self, uri: str, app: str, guid: bytes, payload: bytes, connection: object, late: bool,
                         last: dict[str, int]) -> None:
        """A consumer receives a PUSH. `late`: it has the out-of-order flag; `last`: producer -> number of its last message
        at this consumer, updated here."""
        self.counts["delivered late" if late else "delivered"] += 1
        put = self.puts.get(guid)
        if put is None or put.uri != uri or put.payload != payload:
            raise Violation("unexpected", f"{guid.hex()} with {payload[:40]!r} from {uri}: {put}")
        view = self.views[uri, app]
        if put.fate == "refused" and guid not in view.seen:
            raise Violation("unexpected", f"{put} was refused before")
        if guid in view.processed:
            raise Violation("resurrected", f"{put} at {app}")
        if guid in view.owner and uri not in self.unstored:
            raise Violation("duplicated", f"{put} of {app} is unconfirmed at {view.owner[guid]}; delivered to {connection}")
        again = put.sent > 1 and (self.disordered or uri in self.unstored)  # no deduplication
        if not late and put.number <= last.get(put.producer, -1) and not again:
            raise Violation("order", f"{put} after number {last[put.producer]}")
        if not late:
            last[put.producer] = max(put.number, last.get(put.producer, -1))
        view.seen.add(guid)
        if uri not in self.unstored:
            view.owner[guid] = connection

    def on_confirm_sent(self, uri: str, app: str, guid: bytes, connection: object) -> None:
        """A consumer sends a CONFIRM."""
        view = self.views[uri, app]
        view.confirmed.add(guid)
        if view.owner.get(guid) is connection:
            del view.owner[guid]
        self.counts["confirmed"] += 1

    def on_confirms_processed(self, uri: str, app: str, guids: list[bytes]) -> None:
        """The broker has answered a request that was sent after these CONFIRMs."""
        self.views[uri, app].processed.update(guids)

    def on_consumer_closed(self, uri: str, app: str, connection: object) -> None:
        """A consumer closes or loses its connection: its unconfirmed messages may be delivered to other consumers."""
        view = self.views[uri, app]
        for guid in [guid for guid, owner in view.owner.items() if owner is connection]:
            del view.owner[guid]

    # -- faults

    def on_restart(self, power: bool, durable: bool) -> None:
        """The broker restarts after a loss of `power` or a kill; `durable`: its durability is not `none`."""
        self.counts["power losses" if power else "kills"] += 1
        for (uri, _), view in self.views.items():
            # A PUT that is sent again after a rollover may be stored again: the GUID was in the removed journal.
            view.processed = set() if power or self.disk_faulty or uri in self.volatile else {
                guid for guid in view.processed if self.puts[guid].fate != "sent"}
        for put in self.puts.values():
            if put.uri in self.volatile or power and not durable:
                put.doubtful = True
                put.fate = "maybe" if put.fate == "acked" else put.fate
        self.disordered = self.disordered or power
        self.disk_faulty = False

    def on_disk_fault(self) -> None:
        """The disk starts to fail operations."""
        self.disk_faulty = self.failures_expected = True

    # -- the end

    def check_final_state(self, stored: dict[str, int], full: bool) -> None:
        """Check the end of a scenario. `stored`: messages left in each queue; `full`: a partition was full at some time."""
        if self.failures and not self.failures_expected and not full:
            raise Violation("refused", f"{self.failures} message(s) with status 6")
        for guid, put in self.puts.items():
            if put.fate == "sent":
                raise Violation("stuck", f"{guid.hex()} {put} got no ACK")
            if put.fate != "acked" or put.uri in self.unstored:
                continue
            for app in self.apps[put.uri]:
                if guid not in self.views[put.uri, app].seen:
                    raise Violation("lost", f"{guid.hex()} {put} was acknowledged and never delivered to {app}")
        for uri, count in stored.items():
            if count:
                raise Violation("stuck", f"{count} message(s) are left in {uri}")
