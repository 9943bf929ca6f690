"""What nodes say to each other about partitions, as events of the wire: records and receipts, of which every message needs
some, in STORAGE and REPLICATION_RECEIPT events with a layout of our own, the rest in control messages that are ours. Records
are carried as they lie in the files. Only members that know our extensions are sent any.
"""

from __future__ import annotations

from typing import Final

from bmqtwist.cluster.partition_events import (
    Decline,
    ImagePart,
    Keepalive,
    PartitionTalk,
    Prepare,
    Promise,
    Pull,
    Records,
    ReplicaReceipt,
    Stale,
    Yield,
)
from bmqtwist.errors import PeerError
from bmqtwist.storage.psn import LogSummary, Psn, RecordRun
from bmqtwist.wire import layout
from bmqtwist.wire import partition_schema as schema
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.cluster_schema import ClusterMessage, MetadataLogMessage
from bmqtwist.wire.control import ControlMessage, encode_event
from bmqtwist.wire.fast import EventType, event_header

_RUN: Final = layout.RECORD_RUN.struct  # partition, lease, PSNs before, at the end and committed, bytes of each file, CRC
_RECEIPT: Final = layout.TAKEN_RECEIPT.struct  # partition, lease, PSNs matched and durable, parts, stamp
_RECEIPT_HEADER: Final = event_header(EventType.REPLICATION_RECEIPT, layout.TAKEN_RECEIPT.size)


def encode_partition_message(partition_id: int, message: PartitionTalk | Decline | Yield) -> bytes:
    """A whole event."""
    lease = message.lease
    if isinstance(message, Records):
        return _record_run(partition_id, message)
    if isinstance(message, ReplicaReceipt):
        return _RECEIPT_HEADER + _RECEIPT.pack(partition_id, lease, *message.matched, *message.durable, message.parts,
                                               message.stamp)
    if isinstance(message, Keepalive):
        previous = None if message.previous is None else _end(message.previous)
        body = _body("keepalive", schema.PartitionKeepalive(partition_id, lease, previous, message.parts,
                                                            _end(message.committed), message.stamp))
    elif isinstance(message, ImagePart):
        run = message.run
        body = _body("image", schema.PartitionImage(
            partition_id, lease, message.number, _end(message.at), message.final, run.journal, run.data, run.qlist,
            _crc(run.journal, run.data, run.qlist)))
    elif isinstance(message, Promise):
        log = message.log
        body = _body("promise", schema.PartitionPromise(
            partition_id, lease, _end(log.last), _end(log.base), [_end(each) for each in log.leases],
            _end(message.committed), message.doubtful))
    elif isinstance(message, Pull):
        after = None if message.after is None else _end(message.after)
        body = _body("pull", schema.PartitionPull(partition_id, lease, after))
    elif isinstance(message, Decline):
        body = _body("decline", schema.PartitionDecline(partition_id, lease, message.able, message.used,
                                                        message.successor or 0))
    elif isinstance(message, Yield):
        body = _body("yield", schema.PartitionYield(partition_id, lease, message.successor))
    elif isinstance(message, Prepare):
        body = _body("prepare", schema.PartitionPrepare(partition_id, lease))
    else:
        body = _body("stale", schema.PartitionStale(partition_id, lease))
    return encode_event(ControlMessage(None, "clusterMessage", ClusterMessage(
        "metadataLogMessage", MetadataLogMessage("partition", body))))


def partition_message_of(sender: int, message: ClusterMessage) -> tuple[int, PartitionTalk | Decline | Yield] | None:
    """(partition, message) of a control message; None = it is about something else. PeerError if its records are not what
    was sent."""
    body = message.value.value if message.choice == "metadataLogMessage" else None
    value = body.value if isinstance(body, schema.PartitionLogMessage) else None
    if value is None:
        return None
    found: PartitionTalk | Decline | Yield
    if isinstance(value, schema.PartitionKeepalive):
        previous = None if value.previous is None else _psn(value.previous)
        found = Keepalive(sender, value.lease, previous, value.parts, _psn(value.committed), value.stamp)
    elif isinstance(value, schema.PartitionImage):
        _check(value)
        at = _psn(value.at)
        found = ImagePart(sender, value.lease, value.number, at, value.final,
                          RecordRun(at, at, value.journal, value.data, value.qlist))
    elif isinstance(value, schema.PartitionPromise):
        log = LogSummary(_psn(value.last), _psn(value.base), tuple(_psn(each) for each in value.leases))
        found = Promise(sender, value.lease, log, _psn(value.committed), value.doubtful)
    elif isinstance(value, schema.PartitionPull):
        found = Pull(sender, value.lease, None if value.after is None else _psn(value.after))
    elif isinstance(value, schema.PartitionDecline):
        found = Decline(value.lease, value.able, value.used, f"node {sender} declines", value.successor or None)
    elif isinstance(value, schema.PartitionYield):
        found = Yield(value.lease, value.successor)
    else:
        found = (Prepare if isinstance(value, schema.PartitionPrepare) else Stale)(sender, value.lease)
    return value.partition_id, found


def partition_event_of(sender: int, kind: EventType, body: bytes) -> tuple[int, Records | ReplicaReceipt]:
    """(partition, message) of a STORAGE or REPLICATION_RECEIPT event. PeerError if it is not what was sent."""
    if kind is EventType.REPLICATION_RECEIPT:
        if len(body) != _RECEIPT.size:
            raise PeerError(f"{len(body)} B are no receipt", "REPLICATION_RECEIPT", 0)
        (partition_id, lease, matched_lease, matched, durable_lease, durable, parts, stamp) = _RECEIPT.unpack(body)
        return partition_id, ReplicaReceipt(sender, lease, (matched_lease, matched), (durable_lease, durable), parts, stamp)
    if len(body) < _RUN.size:
        raise PeerError("cut short", "STORAGE", len(body))
    (partition_id, lease, previous_lease, previous, last_lease, last, committed_lease, committed, journal_bytes, data_bytes,
     qlist_bytes, crc) = _RUN.unpack_from(body)
    data_at = _RUN.size + journal_bytes
    qlist_at = data_at + data_bytes
    if qlist_at + qlist_bytes != len(body):
        raise PeerError("sizes do not fit the event", "STORAGE", layout.RECORD_RUN.offset("journal_bytes"))
    if crc32c(memoryview(body)[_RUN.size:]) != crc:
        raise PeerError("wrong checksum", "STORAGE", layout.RECORD_RUN.offset("crc"))
    run = RecordRun((previous_lease, previous), (last_lease, last), body[_RUN.size:data_at], body[data_at:qlist_at],
                    body[qlist_at:])
    return partition_id, Records(sender, lease, (committed_lease, committed), run)


def _record_run(partition_id: int, message: Records) -> bytes:
    run = message.run
    records = b"".join((run.journal, run.data, run.qlist))
    return b"".join((event_header(EventType.STORAGE, _RUN.size + len(records)),
                     _RUN.pack(partition_id, message.lease, *run.previous, *run.last, *message.committed, len(run.journal),
                               len(run.data), len(run.qlist), crc32c(records)), records))


def _body(choice: str, value: object) -> schema.PartitionLogMessage:
    return schema.PartitionLogMessage(choice, value)


def _end(psn: Psn) -> schema.LeaseEnd:
    return schema.LeaseEnd(*psn)


def _psn(end: schema.LeaseEnd) -> Psn:
    return end.lease, end.sequence


def _crc(*parts: bytes) -> int:
    return crc32c(b"".join(parts))


def _check(value: schema.PartitionImage) -> None:
    if _crc(value.journal, value.data, value.qlist) != value.crc:
        raise PeerError("wrong checksum", "records", 0)
