"""Partition machine (cluster/partition_machine.py): every event in every role; leases, promises, commits, images."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.partition_rules import (
    CHANGES,
    EMPTY,
    EVENTS,
    LEASE,
    NEW,
    NODE,
    OLD,
    OTHER,
    PRIMARY,
    SITUATIONS,
    TIMING,
    Situation,
    following,
    healed,
    healing,
    image,
    journal,
    older,
    promise,
    pulling,
    records,
    stg1,
    stg2,
    unknown,
    waiting,
)

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Tick
from bmqtwist.cluster.electorate import Electorate, MemberStorage
from bmqtwist.cluster.partition_events import (
    Append,
    Assigned,
    BeginLease,
    Committed,
    ImageLost,
    LogAdvanced,
    LogReady,
    PartitionEvent,
    PartitionRole,
    PromiseWritten,
    Records,
    ReplicaReceipt,
    SendCompleted,
    SendFailed,
    SendImagePart,
    SendMessage,
    SendRecords,
    SetActive,
    Truncate,
)
from bmqtwist.cluster.partition_machine import STALLED_RETRIES_MAX, TABLE, PartitionMachine
from bmqtwist.storage.psn import NO_PSN, LogSummary, RecordRun, common_prefix
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import (
    Decline,
    Keepalive,
    MemberInfo,
    MemberList,
    Prepare,
    Promise,
    Pull,
    Renewal,
    Stale,
)

# By role and event: the next role, if it changes, then the outputs. All other events have no effect.
CELLS = {
    "UNKNOWN": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING
        LOG_FAILED: Alarm
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
    """,
    "PRIMARY_HEALING_STG1": """
        ASSIGNED_SELF: SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING
        PEER_UP: Prepare to 2
        LOG_FAILED: Alarm
        TICK: Prepare to 2, Prepare to 3
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
        STALE: UNKNOWN Decline
    """,
    "PRIMARY_HEALING_STG2": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING
        PEER_UP: Prepare to 2
        LOG_FAILED: Alarm
        TICK: Prepare to 2, Keepalive to 3, Renewal to 3
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
        SEND_FAILED: Alarm
        PROMISE: SendRecords, Keepalive to 2
        STALE: UNKNOWN Decline
        RECEIPT: PRIMARY_HEALED Committed, SetActive
    """,
    "PRIMARY_HEALED": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 SetActive, SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING SetActive
        PEER_UP: Prepare to 2
        LOG_FAILED: Alarm
        TICK: Prepare to 2, Keepalive to 3, Renewal to 3
        STOP: STOPPED SetActive
        PREPARE: REPLICA_WAITING SetActive, SavePromise
        SEND_FAILED: Alarm
        PROMISE: SendRecords, Keepalive to 2
        STALE: UNKNOWN SetActive, Decline
    """,
    "REPLICA_WAITING": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 SavePromise, Prepare to 2, Prepare to 3
        LOG_FAILED: Alarm
        STOP: STOPPED
        PREPARE: SavePromise
    """,
    "REPLICA_HEALING": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING
        PEER_DOWN: REPLICA_WAITING
        LOG_ADVANCED: ReplicaReceipt to 2
        LOG_FAILED: Alarm
        SEND_FAILED: Alarm
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
        PULL: SendRecords
        IMAGE_PART: StoreImagePart, ReplicaReceipt to 2
        KEEPALIVE: Promise to 2, ReplicaReceipt to 2
        RENEWAL: ReplicaReceipt to 2
    """,
    "REPLICA_HEALED": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING
        PEER_DOWN: REPLICA_WAITING
        LOG_FAILED: Alarm
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
        RECORDS: Append
        IMAGE_PART: StoreImagePart, ReplicaReceipt to 2
        KEEPALIVE: ReplicaReceipt to 2
        RENEWAL: ReplicaReceipt to 2
    """,
    "STOPPED": "",
}
EXPECTED = {(role, event): rest.split(": ", 1)[1:] for role, rows in CELLS.items() for event, rest in (
    (line.strip().split(":")[0], line.strip()) for line in rows.strip().splitlines())}


@pytest.mark.parametrize("role", PartitionRole, ids=lambda role: role.name)
@pytest.mark.parametrize("event", PartitionEvent, ids=lambda event: event.name)
def test_every_event_in_every_role_has_the_expected_outputs_and_role(role: PartitionRole, event: PartitionEvent) -> None:
    situation = SITUATIONS[role]()
    assert situation.machine.role is role
    outputs = [each for each in situation.output_names(EVENTS[event], 1.5 if event is PartitionEvent.TICK else 0.1)
               if each != "RoleChanged"]
    after = [situation.machine.role.name] if situation.machine.role is not role else []
    wanted = EXPECTED.get((role.name, event.name), [""])[0]
    assert " ".join([*after, ", ".join(outputs)]).strip() == wanted
    assert TABLE[role][event].action is not PartitionMachine.ignore or not wanted


def test_the_table_has_a_cell_for_every_role_and_event() -> None:
    assert set(TABLE) == set(PartitionRole) and all(set(row) == set(PartitionEvent) for row in TABLE.values())
    assert {role.name for role in PartitionRole} == set(CELLS) and set(SITUATIONS) == set(PartitionRole)


@pytest.mark.spec("cluster", 71)
@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("kind", [PartitionEvent.PREPARE, PartitionEvent.PULL, PartitionEvent.RECORDS,
                                  PartitionEvent.IMAGE_PART, PartitionEvent.KEEPALIVE, PartitionEvent.RENEWAL],
                         ids=lambda kind: kind.name)
@pytest.mark.parametrize("make", [healing, following, stg2, healed], ids=lambda make: make.__name__)
def test_a_message_of_an_older_lease_is_answered_with_stale_and_has_no_effect(make: type, kind: PartitionEvent) -> None:
    situation = make()
    event = older(EVENTS[kind]) if kind is not PartitionEvent.PREPARE else Prepare(OTHER, LEASE - 1)
    outputs = situation.do(event)
    assert outputs == [SendMessage(event.sender, Stale(NODE, LEASE))]  # type: ignore[union-attr]


@pytest.mark.spec("cluster", 81)
def test_a_promise_is_sent_once_it_is_durable() -> None:
    situation = unknown()
    assert not [each for each in situation.do(Prepare(PRIMARY, LEASE)) if isinstance(each, SendMessage)]
    assert not situation.do(records())
    outputs = situation.do(PromiseWritten(LEASE))
    assert SendMessage(PRIMARY, promise(NODE, LEASE, OLD, NO_PSN)) in outputs
    assert situation.output_names(Prepare(OTHER, LEASE - 1)) == ["Stale to 3"]


def test_only_the_newest_of_two_prepares_during_a_write_is_answered() -> None:
    situation = unknown()
    situation.do(Prepare(PRIMARY, LEASE))
    situation.do(Prepare(OTHER, LEASE + 1))
    assert situation.output_names(PromiseWritten(LEASE)) == []
    assert situation.output_names(PromiseWritten(LEASE + 1)) == ["RoleChanged", "Promise to 3"]


@pytest.mark.spec("cluster", 81)
def test_a_lease_of_an_earlier_run_is_declined_repeatedly_until_a_newer_one_is_assigned() -> None:
    situation = Situation(promised=LEASE)
    outputs = situation.do(Assigned(NODE, LEASE))
    assert [each for each in outputs if isinstance(each, Decline)] == [
        Decline(LEASE, True, LEASE, "lease 5 cannot be used: an earlier run of the node may have used it")]
    assert situation.output_names(Tick(), TIMING.retry) == ["Decline"]
    assert situation.output_names(Assigned(NODE, LEASE + 1))[1:] == ["SavePromise", "Prepare to 2", "Prepare to 3"]


def test_a_primary_steps_down_if_another_node_has_promised_a_newer_lease() -> None:
    situation = healed()
    assert situation.output_names(Stale(PRIMARY, LEASE)) == [], "the newest promised lease is that of this primary"
    assert situation.output_names(Stale(PRIMARY, LEASE + 3)) == ["SetActive", "RoleChanged", "Decline"]


def test_a_new_primary_pulls_the_newest_log_of_a_quorum_that_has_promised() -> None:
    situation = Situation(EMPTY)
    situation.do(Assigned(NODE, LEASE))
    assert situation.output_names(promise(OTHER, LEASE, OLD, NO_PSN)) == [], "its own promise is not durable"
    outputs = situation.do(PromiseWritten(LEASE))
    assert SendMessage(OTHER, Pull(NODE, LEASE, NO_PSN)) in outputs
    appended = situation.do(records(LEASE, NO_PSN, *[(4, each) for each in range(1, 8)], sender=OTHER))
    assert [type(each) for each in appended] == [Append]
    situation.log.be(OLD)
    assert BeginLease(LEASE) in situation.do(LogAdvanced())


@pytest.mark.spec("cluster", 76)
@pytest.mark.parametrize("how", [PeerDown(OTHER), None])
def test_a_source_that_is_disconnected_or_sends_no_records_is_replaced(how: PeerDown | None) -> None:
    situation = pulling()
    situation.do(promise(PRIMARY, LEASE, LogSummary((4, 5), NO_PSN, ((4, 5),)), NO_PSN))
    if how is not None:
        outputs = situation.do(how)
        assert SendMessage(PRIMARY, Pull(NODE, LEASE, NO_PSN)) in outputs
    else:
        assert SendMessage(OTHER, Prepare(NODE, LEASE)) in situation.do(Tick(), TIMING.retry + 1)


def test_a_source_whose_data_arrives_is_not_replaced() -> None:
    situation = pulling()
    situation.machine.take_over.data_received_at = lambda node_id: situation.now - 1.0 if node_id == OTHER else 0.0
    for _ in range(10):
        assert SendMessage(OTHER, Prepare(NODE, LEASE)) not in situation.do(Tick(), TIMING.retry / 2)
    situation.machine.take_over.data_received_at = lambda node_id: 0.0
    assert SendMessage(OTHER, Prepare(NODE, LEASE)) in situation.do(Tick(), TIMING.retry / 2)


def form_cluster(electorate: Electorate) -> None:
    """Let the three nodes be members with the incarnations 1 to 3."""
    electorate.announced = {node_id: MemberStorage(number) for number, node_id in enumerate((NODE, OTHER, PRIMARY), 1)}
    electorate.set_lists([MemberList(7, 1, 1, [MemberInfo(node_id, "", "", True, each.incarnation)
                                               for node_id, each in electorate.announced.items()])])


def test_logs_without_their_last_records_count_once_all_nodes_have_promised() -> None:
    situation = stg1()
    form_cluster(situation.machine.standing.electorate)
    situation.do(PromiseWritten(LEASE))
    assert situation.output_names(promise(OTHER, LEASE, EMPTY, NO_PSN, Doubt.TAIL)) == []
    assert situation.machine.take_over.lacking == [OTHER]
    assert BeginLease(LEASE) in situation.do(promise(PRIMARY, LEASE, EMPTY, NO_PSN, Doubt.TAIL))


def test_lost_logs_do_not_count_even_if_all_nodes_have_promised() -> None:
    situation = stg1()
    form_cluster(situation.machine.standing.electorate)
    situation.do(PromiseWritten(LEASE))
    for node_id in (OTHER, PRIMARY):
        assert situation.output_names(promise(node_id, LEASE, EMPTY, NO_PSN, Doubt.LOST)) == []
    assert situation.machine.take_over.lacking == sorted((OTHER, PRIMARY))
    assert BeginLease(LEASE) in situation.do(promise(PRIMARY, LEASE, EMPTY, NO_PSN))


def test_lost_logs_count_before_the_first_member_list() -> None:
    situation = stg1()
    situation.do(PromiseWritten(LEASE))
    assert situation.output_names(promise(OTHER, LEASE, EMPTY, NO_PSN, Doubt.LOST)) == []
    assert BeginLease(LEASE) in situation.do(promise(PRIMARY, LEASE, EMPTY, NO_PSN, Doubt.LOST))


def test_a_promise_counts_once_the_storage_of_its_node_is_registered() -> None:
    situation = stg1()
    electorate = situation.machine.standing.electorate
    form_cluster(electorate)
    electorate.announced[OTHER] = MemberStorage(99)
    situation.do(PromiseWritten(LEASE))
    assert situation.output_names(promise(OTHER, LEASE, EMPTY, NO_PSN)) == [], "an old copy of its directory"
    electorate.announced[OTHER] = MemberStorage(2)
    assert BeginLease(LEASE) in situation.do(Tick(), TIMING.keepalive)


def test_a_promise_with_an_inconsistent_log_summary_is_ignored() -> None:
    situation = stg1()
    situation.do(PromiseWritten(LEASE))
    for wrong in (LogSummary((4, 7), NO_PSN, ((4, 6),)), LogSummary((4, 7), NO_PSN, ((4, 7), (3, 1))),
                  LogSummary((4, 7), (4, 9), ((4, 7),)), LogSummary((4, 7))):
        assert situation.output_names(promise(OTHER, LEASE, wrong, NO_PSN)) == []


@pytest.mark.spec("cluster", 67)
def test_records_of_older_leases_are_committed_with_the_first_record_of_the_own_lease() -> None:
    situation = stg2()
    assert situation.do(ReplicaReceipt(OTHER, LEASE, (4, 7), (4, 7), 0, 0)) == []
    assert Committed((5, 1)) in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, int(situation.now * 1000)))
    assert situation.do(ReplicaReceipt(OTHER, LEASE, (4, 7), (4, 7), 0, 0)) == [], "a delayed receipt"
    assert situation.machine.committed == (5, 1)


def test_a_record_that_is_not_durable_at_a_quorum_is_not_committed() -> None:
    situation = stg2()
    assert not [each for each in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 1), (4, 7), 0, 0))
                if isinstance(each, Committed)]


def test_the_lease_of_a_primary_is_longer_by_half_of_the_round_trip() -> None:
    situation = healed()
    sent_at = situation.now
    for after, expected in ((4.0, TIMING.lease + 2.0), (8.0, TIMING.lease_max)):
        situation.do(ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, int(sent_at * 1000)), after)
        assert abs(situation.machine.targets.supported_until - sent_at - expected) < 0.002


def test_an_idle_primary_that_becomes_passive_does_not_decline_its_lease() -> None:
    situation = healed()
    names = situation.output_names(Tick(), STALLED_RETRIES_MAX * TIMING.retry + TIMING.lease + 1)
    assert "SetActive" in names and "Decline" not in names
    assert "Decline" in situation.output_names(Tick(), STALLED_RETRIES_MAX * TIMING.retry)


@pytest.mark.spec("cluster", 80)
def test_a_primary_without_answers_is_passive_until_all_its_records_are_committed() -> None:
    situation = healed()
    assert not [each for each in situation.do(Tick(), TIMING.lease - 1) if isinstance(each, SetActive)]
    assert [each.active for each in situation.do(Tick(), 1.5) if isinstance(each, SetActive)] == [False]
    longer = LogSummary((5, 3), NO_PSN, ((4, 7), (5, 3)))
    situation = healed()
    situation.log.be(longer)
    situation.do(LogAdvanced())
    situation.do(Tick(), TIMING.lease + 1)
    assert situation.machine.role is PartitionRole.PRIMARY_HEALING_STG2
    stamp = int(situation.now * 1000)
    assert not [each for each in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 2), (5, 2), 0, stamp))
                if isinstance(each, SetActive)]
    assert [each.active for each in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 3), (5, 3), 0, stamp))
            if isinstance(each, SetActive)] == [True]


@pytest.mark.spec("cluster", 61)
def test_a_new_primary_without_progress_declines_its_lease() -> None:
    situation = stg1()
    situation.do(PromiseWritten(LEASE))
    names = [name for _ in range(20) for name in situation.output_names(Tick(), STALLED_RETRIES_MAX * TIMING.retry / 10)]
    assert "Decline" in names


def test_a_new_primary_that_sends_data_does_not_decline_its_lease() -> None:
    situation = stg1()
    situation.do(PromiseWritten(LEASE))
    situation.machine.take_over.data_sent_at = lambda node_id: situation.now - 1.0 if node_id == OTHER else 0.0
    names = [name for _ in range(20) for name in situation.output_names(Tick(), STALLED_RETRIES_MAX * TIMING.retry / 10)]
    assert "Decline" not in names


def test_a_renewal_is_answered_while_records_are_on_the_way() -> None:
    situation = following()
    [receipt] = [each.message for each in situation.do(Renewal(PRIMARY, LEASE, 78)) if isinstance(each, SendMessage)]
    assert isinstance(receipt, ReplicaReceipt) and receipt.stamp == 78


@pytest.mark.spec("cluster", 71)
@pytest.mark.parametrize("run, what", [
    (((4, 7), [(5, 1)]), Append), (((4, 5), [(4, 6), (4, 7), (5, 1)]), Append), (((4, 5), [(4, 6), (4, 7)]), None),
    (((4, 5), [(5, 1)]), Truncate), (((4, 6), [(4, 7), (5, 1)]), Append), (((4, 9), [(5, 1)]), Promise),
    (((5, 3), [(5, 4)]), Promise)])
def test_a_replica_appends_truncates_or_reports_a_mismatch_by_the_position_of_the_records(
        run: tuple[tuple[int, int], list[tuple[int, int]]], what: type | None) -> None:
    situation = healing()
    situation.machine.reception.has_reported = False
    previous, psns = run
    outputs = situation.do(Records(PRIMARY, LEASE, NO_PSN, RecordRun(previous, psns[-1], journal(*psns))))
    kinds = [type(each.message) if isinstance(each, SendMessage) else type(each) for each in outputs]
    assert kinds == ([what] if what is not None else [])
    if what is Truncate:
        assert outputs == [Truncate((4, 5))]
        assert situation.output_names(LogReady()) == ["Promise to 2"]


@pytest.mark.spec("cluster", 74)
def test_a_committed_record_is_never_truncated_or_replaced() -> None:
    situation = healing()
    situation.do(Records(PRIMARY, LEASE, (4, 7), RecordRun((4, 5), (4, 7), journal((4, 6), (4, 7)))))
    situation.do(Keepalive(PRIMARY, LEASE, (4, 7), 0, (4, 7), 1))
    assert situation.machine.committed == (4, 7)
    assert situation.output_names(records(LEASE, (4, 5), (5, 1))) == ["Alarm"]
    assert situation.output_names(replace(image(), at=(4, 6))) == ["Alarm"]


@pytest.mark.spec("cluster", 71)
def test_a_gap_is_reported_once_and_again_at_each_keepalive() -> None:
    situation = following()
    gap = records(LEASE, (5, 4), (5, 5))
    assert [situation.output_names(gap) for _ in range(3)] == [["Promise to 2"], [], []]
    assert situation.output_names(Keepalive(PRIMARY, LEASE, (5, 5), 0, NO_PSN, 1)) == ["Promise to 2", "ReplicaReceipt to 2"]
    assert situation.output_names(records(LEASE, (5, 1), (5, 2))) == ["Append"]


def test_a_busy_log_appends_nothing_and_is_reported_when_it_is_ready() -> None:
    situation = healing()
    situation.log.busy = True
    assert situation.output_names(records()) == []
    assert situation.output_names(Prepare(PRIMARY, LEASE)) == []
    situation.log.busy = False
    assert situation.output_names(LogReady()) == ["Promise to 2"]


@pytest.mark.spec("cluster", 82)
def test_records_in_flight_to_a_slow_node_are_limited() -> None:
    situation = healed()
    situation.log.be(LogSummary((5, 1000), NO_PSN, ((4, 7), (5, 1000))))
    outputs = situation.do(LogAdvanced())
    sent = 1
    while SendRecords(OTHER, (5, sent)) in outputs:
        sent += 1
        outputs = situation.do(SendCompleted(OTHER, (5, sent), 1 << 20))
    assert sent == 1 + 4
    assert SendRecords(OTHER, (5, 5)) in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 3), (5, 1), 0, 0))


def test_records_that_cannot_be_read_are_replaced_by_an_image_after_the_retry_interval() -> None:
    situation = healed()

    def sent_after(after: float) -> list[object]:
        receipt = ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, 0)
        return [each for each in situation.do(receipt, after) if isinstance(each, (SendRecords, SendImagePart))]
    situation.log.be(LogSummary((5, 9), NO_PSN, ((4, 7), (5, 9))))
    assert SendRecords(OTHER, (5, 1)) in situation.do(LogAdvanced())
    for _ in range(3):  # an image that cannot be read is retried after the retry interval
        assert situation.output_names(SendFailed(OTHER, "disk")) == ["Alarm"]
        assert sent_after(TIMING.retry / 2) == []
        assert sent_after(TIMING.retry / 2) == [SendImagePart(OTHER, 0, NO_PSN)]
    assert SendImagePart(OTHER, 1, NO_PSN) in situation.do(SendCompleted(OTHER, None, 60))


@pytest.mark.spec("cluster", 74)
def test_an_image_ends_after_the_records_that_the_receiver_has_compacted() -> None:
    """The last records of the receiver were never committed, the compacted ones before them were."""
    situation = healed()
    situation.log.be(LogSummary((5, 9), (3, 50), ((3, 60), (4, 7), (5, 9))))
    theirs = LogSummary((3, 70), (3, 68), ((3, 70),))
    outputs = situation.do(promise(OTHER, LEASE, theirs, NO_PSN))
    assert SendImagePart(OTHER, 0, theirs.base) in outputs
    assert SendImagePart(OTHER, 1, theirs.base) in situation.do(SendCompleted(OTHER, None, 60))
    assert SendImagePart(OTHER, 0, theirs.base) in situation.do(ImageLost(OTHER))


def test_an_image_for_a_pulling_primary_ends_after_the_last_record_of_the_source() -> None:
    situation = healing()
    assert SendImagePart(PRIMARY, 0, OLD.last) in situation.do(Pull(PRIMARY, LEASE, None))


@pytest.mark.spec("cluster", 74)
def test_an_image_without_the_newest_records_of_the_receiver_is_not_stored() -> None:
    """It was begun for a report that was sent before these records arrived; the primary has counted them since."""
    situation = following()
    assert situation.output_names(replace(image(), at=(4, 7))) == ["Promise to 2"]
    assert situation.output_names(replace(image(1, True), at=(4, 7))) == []
    assert situation.machine.log.summary.last == (5, 1)
    assert situation.output_names(image()) == ["StoreImagePart", "ReplicaReceipt to 2"]


def test_an_image_with_a_missing_part_is_requested_again() -> None:
    situation = healing()
    situation.do(image(0))
    assert situation.output_names(image(2)) == ["Promise to 2"]
    assert situation.output_names(image(0)) == ["StoreImagePart", "ReplicaReceipt to 2"]
    assert situation.output_names(Keepalive(PRIMARY, LEASE, None, 3, NO_PSN, 1)) == ["Promise to 2", "ReplicaReceipt to 2"]


def test_a_request_from_before_the_last_received_part_does_not_begin_the_image_again() -> None:
    situation = healing()
    for number in range(2):
        situation.do(image(number))
    assert situation.output_names(Keepalive(PRIMARY, LEASE, None, 1, NO_PSN, 1)) == ["ReplicaReceipt to 2"]


@pytest.mark.parametrize("one, other, common", [
    (OLD, NEW, (4, 7)), (EMPTY, NEW, NO_PSN), (NEW, NEW, (5, 1)),
    (LogSummary((6, 2), NO_PSN, ((4, 9), (6, 2))), NEW, (4, 7)), (LogSummary((6, 2), (6, 1), ((6, 2),)), NEW, None),
    (LogSummary((4, 9), (4, 8), ((4, 9),)), OLD, None), (LogSummary((4, 9), (4, 7), ((4, 9),)), OLD, (4, 7)),
    (LogSummary((3, 2), NO_PSN, ((3, 2),)), NEW, NO_PSN)])
def test_two_log_summaries_have_the_expected_common_prefix(
        one: LogSummary, other: LogSummary, common: tuple[int, int] | None) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == common


def test_a_log_summary_follows_appends_truncation_and_compaction() -> None:
    log = EMPTY.extended((2, 1)).extended((2, 5)).extended((4, 1))
    assert log == LogSummary((4, 1), NO_PSN, ((2, 5), (4, 1))) and log.is_consistent
    assert [log.contains(psn)
            for psn in ((2, 5), (2, 6), (3, 1), (4, 1), (4, 2), NO_PSN)] == [True, False, False, True, False,
                                                                                          True]
    assert (log.distance(NO_PSN), log.distance((2, 3)), log.distance((4, 1))) == (6, 3, 0)
    assert log.truncated((2, 3)) == LogSummary((2, 3), NO_PSN, ((2, 3),)) and log.rebased((4, 1)).leases == ((4, 1),)


def test_a_replica_disconnected_from_its_primary_waits_for_a_prepare_message() -> None:
    situation = following()
    situation.do(PeerDown(PRIMARY))
    assert situation.machine.role is PartitionRole.REPLICA_WAITING
    situation.do(PeerUp(PRIMARY))
    assert situation.output_names(Prepare(PRIMARY, LEASE)) == ["RoleChanged", "Promise to 2"]
    assert waiting().output_names(records()) == []


def test_a_replica_infers_commits_only_under_the_lease_of_its_primary() -> None:
    situation = following()
    reception = situation.machine.reception
    situation.log.durable = (4, 7)
    assert not reception.has_durable(LEASE, (5, 1)), "appended"
    situation.log.durable = (5, 1)
    assert reception.has_durable(LEASE, (5, 1)) and reception.has_durable(LEASE, (4, 7))
    assert not reception.has_durable(LEASE, (5, 2))
    assert not reception.has_durable(LEASE - 1, (5, 1)) and not reception.has_durable(LEASE + 1, (5, 1))
    assert reception.is_known_committed((5, 1)) and not reception.is_known_committed((5, 2))
    situation.do(PeerDown(PRIMARY))
    assert not reception.has_durable(LEASE, (5, 1)), "no source has confirmed that this is the primary's record"
    situation = following()
    reception = situation.machine.reception
    situation.do(Keepalive(PRIMARY, LEASE, (5, 1), 0, (5, 2), 1))
    assert reception.is_known_committed((5, 2)), "the primary has reported it; the record has not arrived"
    assert not reception.is_known_committed((5, 3))
    assert reception.has_durable(LEASE - 1, (5, 1)) and not reception.has_durable(LEASE, (5, 2)), "known to be committed"
    situation.do(Prepare(OTHER, LEASE + 1))
    assert reception.has_durable(LEASE, (5, 1)), "it was committed before"
    assert not reception.is_known_committed((5, 1)), "the next primary posts it again if it was not committed"


def test_a_commit_is_reported_to_nodes_where_the_record_is_not_durable() -> None:
    machine = healed().machine
    assert machine.targets.commit_messages((5, 1)) == []
    (sent,) = machine.targets.commit_messages((5, 2))
    assert sent.node_id == OTHER and isinstance(sent.message, Keepalive) and sent.message.committed == machine.committed


@pytest.mark.parametrize("number", range(len(CHANGES)), ids=lambda number: CHANGES[number][3].replace(" ", "-"))
def test_each_listed_event_leads_to_its_listed_role(number: int) -> None:
    make, happens, after, why = CHANGES[number]
    situation = make()
    assert situation.machine.role is not after and why
    happens(situation)
    assert situation.machine.role is after


def test_a_lease_below_a_promised_one_is_declined_until_a_newer_one_is_assigned() -> None:
    """After a loss of the metadata, leases start again: the Decline reports the highest used lease to the leader."""
    situation = Situation(promised=9)
    [decline] = [each for each in situation.do(Assigned(NODE, 6)) if isinstance(each, Decline)]
    assert decline.lease == 6 and decline.able and decline.used == 9
    assert situation.machine.role is PartitionRole.UNKNOWN
    assert "Decline" in situation.output_names(Tick(), TIMING.retry)
    assert "PRIMARY_HEALING_STG1" in [situation.machine.role.name for _ in situation.output_names(Assigned(NODE, 10))]


def test_a_primary_with_a_stale_lease_requests_a_newer_one() -> None:
    situation = Situation()
    situation.do(Assigned(NODE, 6))
    [decline] = [each for each in situation.do(Stale(OTHER, 8)) if isinstance(each, Decline)]
    assert decline.lease == 6 and decline.used >= 8
