"""Partition machine: every cell of its table, and its rules."""

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
from bmqtwist.cluster.partition_events import (
    Activate,
    Append,
    Assigned,
    Committed,
    Cut,
    Fed,
    Feed,
    FeedFailed,
    FeedImage,
    ImageLost,
    LogMoved,
    LogReady,
    PartitionEvent,
    PartitionRole,
    Promised,
    Records,
    ReplicaReceipt,
    Say,
    Serve,
)
from bmqtwist.cluster.partition_machine import STALLED_RETRIES_MAX, TABLE, PartitionMachine
from bmqtwist.storage.psn import NO_PSN, LogSummary, RecordRun, common_prefix
from bmqtwist.wire.cluster_schema import Decline, Keepalive, Prepare, Promise, Pull, Stale

# What follows from an input in a role: the role after it, if it is another one, then the outputs. What is not here does
# nothing.
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
        TICK: Prepare to 2, Keepalive to 3
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
        FEED_FAILED: Alarm
        PROMISE: Feed, Keepalive to 2
        STALE: UNKNOWN Decline
        RECEIPT: PRIMARY_HEALED Committed, Serve
    """,
    "PRIMARY_HEALED": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 Serve, SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING Serve
        PEER_UP: Prepare to 2
        LOG_FAILED: Alarm
        TICK: Prepare to 2, Keepalive to 3
        STOP: STOPPED Serve
        PREPARE: REPLICA_WAITING Serve, SavePromise
        FEED_FAILED: Alarm
        PROMISE: Feed, Keepalive to 2
        STALE: UNKNOWN Serve, Decline
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
        LOG_MOVED: ReplicaReceipt to 2
        LOG_FAILED: Alarm
        FEED_FAILED: Alarm
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
        PULL: Feed
        IMAGE_PART: TakeImage, ReplicaReceipt to 2
        KEEPALIVE: Promise to 2, ReplicaReceipt to 2
    """,
    "REPLICA_HEALED": """
        ASSIGNED_SELF: PRIMARY_HEALING_STG1 SavePromise, Prepare to 2, Prepare to 3
        ASSIGNED_OTHER: REPLICA_WAITING
        PEER_DOWN: REPLICA_WAITING
        LOG_FAILED: Alarm
        STOP: STOPPED
        PREPARE: REPLICA_WAITING SavePromise
        RECORDS: Append
        IMAGE_PART: TakeImage, ReplicaReceipt to 2
        KEEPALIVE: ReplicaReceipt to 2
    """,
    "STOPPED": "",
}
EXPECTED = {(role, event): rest.split(": ", 1)[1:] for role, rows in CELLS.items() for event, rest in (
    (line.strip().split(":")[0], line.strip()) for line in rows.strip().splitlines())}


@pytest.mark.parametrize("role", PartitionRole, ids=lambda role: role.name)
@pytest.mark.parametrize("event", PartitionEvent, ids=lambda event: event.name)
def test_every_cell(role: PartitionRole, event: PartitionEvent) -> None:
    situation = SITUATIONS[role]()
    assert situation.machine.role is role
    said = [each for each in situation.output_names(EVENTS[event], 1.5 if event is PartitionEvent.TICK else 0.1)
            if each != "RoleChanged"]
    after = [situation.machine.role.name] if situation.machine.role is not role else []
    wanted = EXPECTED.get((role.name, event.name), [""])[0]
    assert " ".join([*after, ", ".join(said)]).strip() == wanted
    assert TABLE[role][event].action is not PartitionMachine.ignore or not wanted


def test_the_table_has_every_cell() -> None:
    assert set(TABLE) == set(PartitionRole) and all(set(row) == set(PartitionEvent) for row in TABLE.values())
    assert {role.name for role in PartitionRole} == set(CELLS) and set(SITUATIONS) == set(PartitionRole)


@pytest.mark.spec("cluster", 71)
@pytest.mark.spec("cluster", 81)
@pytest.mark.parametrize("kind", [PartitionEvent.PREPARE, PartitionEvent.PULL, PartitionEvent.RECORDS,
                                  PartitionEvent.IMAGE_PART, PartitionEvent.KEEPALIVE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("make", [healing, following, stg2, healed], ids=lambda make: make.__name__)
def test_a_primary_of_an_older_lease_is_told_so_and_nothing_of_it_is_taken(make: type, kind: PartitionEvent) -> None:
    situation = make()
    event = older(EVENTS[kind]) if kind is not PartitionEvent.PREPARE else Prepare(OTHER, LEASE - 1)
    outputs = situation.do(event)
    assert outputs == [Say(event.sender, Stale(NODE, LEASE))]  # type: ignore[union-attr]


@pytest.mark.spec("cluster", 81)
def test_a_promise_is_durable_before_it_is_said() -> None:
    situation = unknown()
    assert not [each for each in situation.do(Prepare(PRIMARY, LEASE)) if isinstance(each, Say)]
    assert not situation.do(records())
    said = situation.do(Promised(LEASE))
    assert Say(PRIMARY, promise(NODE, LEASE, OLD, NO_PSN)) in said
    assert situation.output_names(Prepare(OTHER, LEASE - 1)) == ["Stale to 3"]


def test_a_newer_primary_that_asks_before_the_promise_is_written_gets_the_only_answer() -> None:
    situation = unknown()
    situation.do(Prepare(PRIMARY, LEASE))
    situation.do(Prepare(OTHER, LEASE + 1))
    assert situation.output_names(Promised(LEASE)) == []
    assert situation.output_names(Promised(LEASE + 1)) == ["RoleChanged", "Promise to 3"]


@pytest.mark.spec("cluster", 81)
def test_a_lease_of_an_earlier_run_is_declined_again_and_again() -> None:
    situation = Situation(promised=LEASE)
    outputs = situation.do(Assigned(NODE, LEASE))
    assert [each for each in outputs if isinstance(each, Decline)] == [
        Decline(LEASE, True, LEASE, "lease 5 cannot be used: it may be one of an earlier run")]
    assert situation.output_names(Tick(), TIMING.retry) == ["Decline"]
    assert situation.output_names(Assigned(NODE, LEASE + 1))[1:] == ["SavePromise", "Prepare to 2", "Prepare to 3"]


def test_what_others_have_promised_ends_a_primary() -> None:
    situation = healed()
    assert situation.output_names(Stale(PRIMARY, LEASE)) == [], "it is ours"
    assert situation.output_names(Stale(PRIMARY, LEASE + 3)) == ["Serve", "RoleChanged", "Decline"]


def test_with_the_promises_of_a_quorum_the_longest_log_is_pulled() -> None:
    situation = Situation(EMPTY)
    situation.do(Assigned(NODE, LEASE))
    assert situation.output_names(promise(OTHER, LEASE, OLD, NO_PSN)) == [], "its own promise is not durable"
    outputs = situation.do(Promised(LEASE))
    assert Say(OTHER, Pull(NODE, LEASE, NO_PSN)) in outputs
    appended = situation.do(records(LEASE, NO_PSN, *[(4, each) for each in range(1, 8)], sender=OTHER))
    assert [type(each) for each in appended] == [Append]
    situation.log.be(OLD)
    assert Activate(LEASE) in situation.do(LogMoved())


@pytest.mark.spec("cluster", 76)
@pytest.mark.parametrize("how", [PeerDown(OTHER), None])
def test_a_source_that_is_gone_or_silent_is_replaced(how: PeerDown | None) -> None:
    situation = pulling()
    situation.do(promise(PRIMARY, LEASE, LogSummary((4, 5), NO_PSN, ((4, 5),)), NO_PSN))
    if how is not None:
        outputs = situation.do(how)
        assert Say(PRIMARY, Pull(NODE, LEASE, NO_PSN)) in outputs
    else:
        assert Say(OTHER, Prepare(NODE, LEASE)) in situation.do(Tick(), TIMING.retry + 1)


def test_damaged_logs_count_only_when_everybody_has_answered() -> None:
    situation = stg1()
    situation.do(Promised(LEASE))
    assert situation.output_names(promise(OTHER, LEASE, EMPTY, NO_PSN, doubtful=True)) == []
    assert Activate(LEASE) in situation.do(promise(PRIMARY, LEASE, EMPTY, NO_PSN, doubtful=True))


def test_a_log_that_makes_no_sense_is_no_promise() -> None:
    situation = stg1()
    situation.do(Promised(LEASE))
    for wrong in (LogSummary((4, 7), NO_PSN, ((4, 6),)), LogSummary((4, 7), NO_PSN, ((4, 7), (3, 1))),
                  LogSummary((4, 7), (4, 9), ((4, 7),)), LogSummary((4, 7))):
        assert situation.output_names(promise(OTHER, LEASE, wrong, NO_PSN)) == []


@pytest.mark.spec("cluster", 67)
def test_records_of_older_leases_are_committed_by_one_of_our_own() -> None:
    situation = stg2()
    assert situation.do(ReplicaReceipt(OTHER, LEASE, (4, 7), (4, 7), 0, 0)) == []
    assert Committed((5, 1)) in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, int(situation.now * 1000)))
    assert situation.do(ReplicaReceipt(OTHER, LEASE, (4, 7), (4, 7), 0, 0)) == [], "a receipt that comes late"
    assert situation.machine.committed == (5, 1)


def test_what_a_quorum_has_written_and_not_synced_is_not_committed() -> None:
    situation = stg2()
    assert not [each for each in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 1), (4, 7), 0, 0))
                if isinstance(each, Committed)]


@pytest.mark.spec("cluster", 80)
def test_a_primary_that_nobody_answers_is_active_again_when_everything_is_committed() -> None:
    situation = healed()
    assert not [each for each in situation.do(Tick(), TIMING.lease - 1) if isinstance(each, Serve)]
    assert [each.active for each in situation.do(Tick(), 1.5) if isinstance(each, Serve)] == [False]
    longer = LogSummary((5, 3), NO_PSN, ((4, 7), (5, 3)))
    situation = healed()
    situation.log.be(longer)
    situation.do(LogMoved())
    situation.do(Tick(), TIMING.lease + 1)
    assert situation.machine.role is PartitionRole.PRIMARY_HEALING_STG2
    stamp = int(situation.now * 1000)
    assert not [each for each in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 2), (5, 2), 0, stamp))
                if isinstance(each, Serve)]
    assert [each.active for each in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 3), (5, 3), 0, stamp))
            if isinstance(each, Serve)] == [True]


@pytest.mark.spec("cluster", 61)
def test_a_primary_that_does_not_come_forward_gives_the_partition_back() -> None:
    situation = stg1()
    situation.do(Promised(LEASE))
    names = [name for _ in range(20) for name in situation.output_names(Tick(), STALLED_RETRIES_MAX * TIMING.retry / 10)]
    assert "Decline" in names


@pytest.mark.spec("cluster", 71)
@pytest.mark.parametrize("run, what", [
    (((4, 7), [(5, 1)]), Append), (((4, 5), [(4, 6), (4, 7), (5, 1)]), Append), (((4, 5), [(4, 6), (4, 7)]), None),
    (((4, 5), [(5, 1)]), Cut), (((4, 6), [(4, 7), (5, 1)]), Append), (((4, 9), [(5, 1)]), Promise),
    (((5, 3), [(5, 4)]), Promise)])
def test_what_a_replica_does_with_records(run: tuple[tuple[int, int], list[tuple[int, int]]], what: type | None) -> None:
    situation = healing()
    situation.machine.reception.has_reported = False
    previous, psns = run
    outputs = situation.do(Records(PRIMARY, LEASE, NO_PSN, RecordRun(previous, psns[-1], journal(*psns))))
    kinds = [type(each.message) if isinstance(each, Say) else type(each) for each in outputs]
    assert kinds == ([what] if what is not None else [])
    if what is Cut:
        assert outputs == [Cut((4, 5))]
        assert situation.output_names(LogReady()) == ["Promise to 2"]


@pytest.mark.spec("cluster", 74)
def test_what_is_committed_is_never_cut_off() -> None:
    situation = healing()
    situation.do(Records(PRIMARY, LEASE, (4, 7), RecordRun((4, 5), (4, 7), journal((4, 6), (4, 7)))))
    situation.do(Keepalive(PRIMARY, LEASE, (4, 7), 0, (4, 7), 1))
    assert situation.machine.committed == (4, 7)
    assert situation.output_names(records(LEASE, (4, 5), (5, 1))) == ["Alarm"]
    assert situation.output_names(replace(image(), at=(4, 6))) == ["Alarm"]


@pytest.mark.spec("cluster", 71)
def test_a_gap_is_told_once_and_again_when_the_primary_asks() -> None:
    situation = following()
    gap = records(LEASE, (5, 4), (5, 5))
    assert [situation.output_names(gap) for _ in range(3)] == [["Promise to 2"], [], []]
    assert situation.output_names(Keepalive(PRIMARY, LEASE, (5, 5), 0, NO_PSN, 1)) == ["Promise to 2", "ReplicaReceipt to 2"]
    assert situation.output_names(records(LEASE, (5, 1), (5, 2))) == ["Append"]


def test_a_log_that_is_busy_takes_nothing_and_is_told_of_later() -> None:
    situation = healing()
    situation.log.busy = True
    assert situation.output_names(records()) == []
    assert situation.output_names(Prepare(PRIMARY, LEASE)) == []
    situation.log.busy = False
    assert situation.output_names(LogReady()) == ["Promise to 2"]


@pytest.mark.spec("cluster", 82)
def test_what_a_slow_node_has_not_taken_is_bounded() -> None:
    situation = healed()
    situation.log.be(LogSummary((5, 1000), NO_PSN, ((4, 7), (5, 1000))))
    outputs = situation.do(LogMoved())
    sent = 1
    while Feed(OTHER, (5, sent)) in outputs:
        sent += 1
        outputs = situation.do(Fed(OTHER, (5, sent), 1 << 20))
    assert sent == 1 + 4
    assert Feed(OTHER, (5, 5)) in situation.do(ReplicaReceipt(OTHER, LEASE, (5, 3), (5, 1), 0, 0))


def test_what_cannot_be_read_for_a_node_is_replaced_by_an_image_after_a_while() -> None:
    situation = healed()

    def fed(after: float) -> list[object]:
        told = ReplicaReceipt(OTHER, LEASE, (5, 1), (5, 1), 0, 0)
        return [each for each in situation.do(told, after) if isinstance(each, (Feed, FeedImage))]
    situation.log.be(LogSummary((5, 9), NO_PSN, ((4, 7), (5, 9))))
    assert Feed(OTHER, (5, 1)) in situation.do(LogMoved())
    for _ in range(3):  # an image that cannot be read either is tried again, and not at once
        assert situation.output_names(FeedFailed(OTHER, "disk")) == ["Alarm"]
        assert fed(TIMING.retry / 2) == []
        assert fed(TIMING.retry / 2) == [FeedImage(OTHER, 0, NO_PSN)]
    assert FeedImage(OTHER, 1, NO_PSN) in situation.do(Fed(OTHER, None, 60))


@pytest.mark.spec("cluster", 74)
def test_an_image_ends_behind_whatever_the_other_node_has_compacted() -> None:
    """Its last records were never committed; what comes before them was, and it is to keep that."""
    situation = healed()
    situation.log.be(LogSummary((5, 9), (3, 50), ((3, 60), (4, 7), (5, 9))))
    theirs = LogSummary((3, 70), (3, 68), ((3, 70),))
    outputs = situation.do(promise(OTHER, LEASE, theirs, NO_PSN))
    assert FeedImage(OTHER, 0, theirs.base) in outputs
    assert FeedImage(OTHER, 1, theirs.base) in situation.do(Fed(OTHER, None, 60))
    assert FeedImage(OTHER, 0, theirs.base) in situation.do(ImageLost(OTHER))


def test_a_source_does_not_know_what_a_primary_has_compacted() -> None:
    situation = healing()
    assert FeedImage(PRIMARY, 0, OLD.last) in situation.do(Pull(PRIMARY, LEASE, None))


def test_an_image_that_is_torn_is_asked_for_again() -> None:
    situation = healing()
    situation.do(image(0))
    assert situation.output_names(image(2)) == ["Promise to 2"]
    assert situation.output_names(image(0)) == ["TakeImage", "ReplicaReceipt to 2"]
    assert situation.output_names(Keepalive(PRIMARY, LEASE, None, 3, NO_PSN, 1)) == ["Promise to 2", "ReplicaReceipt to 2"]


@pytest.mark.parametrize("one, other, common", [
    (OLD, NEW, (4, 7)), (EMPTY, NEW, NO_PSN), (NEW, NEW, (5, 1)),
    (LogSummary((6, 2), NO_PSN, ((4, 9), (6, 2))), NEW, (4, 7)), (LogSummary((6, 2), (6, 1), ((6, 2),)), NEW, None),
    (LogSummary((4, 9), (4, 8), ((4, 9),)), OLD, None), (LogSummary((4, 9), (4, 7), ((4, 9),)), OLD, (4, 7)),
    (LogSummary((3, 2), NO_PSN, ((3, 2),)), NEW, NO_PSN)])
def test_the_common_prefix_of_two_logs(one: LogSummary, other: LogSummary, common: tuple[int, int] | None) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == common


def test_a_summary_follows_its_log() -> None:
    log = EMPTY.extended((2, 1)).extended((2, 5)).extended((4, 1))
    assert log == LogSummary((4, 1), NO_PSN, ((2, 5), (4, 1))) and log.is_consistent
    assert [log.contains(psn)
            for psn in ((2, 5), (2, 6), (3, 1), (4, 1), (4, 2), NO_PSN)] == [True, False, False, True, False,
                                                                                          True]
    assert (log.distance(NO_PSN), log.distance((2, 3)), log.distance((4, 1))) == (6, 3, 0)
    assert log.truncated((2, 3)) == LogSummary((2, 3), NO_PSN, ((2, 3),)) and log.rebased((4, 1)).leases == ((4, 1),)


def test_a_replica_that_lost_its_primary_waits_for_it() -> None:
    situation = following()
    situation.do(PeerDown(PRIMARY))
    assert situation.machine.role is PartitionRole.REPLICA_WAITING
    situation.do(PeerUp(PRIMARY))
    assert situation.output_names(Prepare(PRIMARY, LEASE)) == ["RoleChanged", "Promise to 2"]
    assert waiting().output_names(records()) == []


def test_what_a_replica_has_safe_beside_its_primary_is_committed_under_that_lease_alone() -> None:
    situation = following()
    reception = situation.machine.reception
    situation.log.durable = (4, 7)
    assert not reception.has_safe(LEASE, (5, 1)), "appended"
    situation.log.durable = (5, 1)
    assert reception.has_safe(LEASE, (5, 1)) and reception.has_safe(LEASE, (4, 7)) and not reception.has_safe(LEASE, (5, 2))
    assert not reception.has_safe(LEASE - 1, (5, 1)) and not reception.has_safe(LEASE + 1, (5, 1))
    assert reception.knows_committed((5, 1)) and not reception.knows_committed((5, 2))
    situation.do(PeerDown(PRIMARY))
    assert not reception.has_safe(LEASE, (5, 1)), "nobody has said that this is the primary's record"
    situation = following()
    reception = situation.machine.reception
    situation.do(Keepalive(PRIMARY, LEASE, (5, 1), 0, (5, 2), 1))
    assert reception.knows_committed((5, 2)), "the primary says so; it is not here yet"
    assert not reception.knows_committed((5, 3))
    assert reception.has_safe(LEASE - 1, (5, 1)) and not reception.has_safe(LEASE, (5, 2)), "known to be committed"
    situation.do(Prepare(OTHER, LEASE + 1))
    assert reception.has_safe(LEASE, (5, 1)), "it was committed before"
    assert not reception.knows_committed((5, 1)), "who leads next posts it again if it was not"


def test_a_primary_has_news_for_those_who_lack_a_record() -> None:
    machine = healed().machine
    assert machine.replicas.commit_messages((5, 1)) == []
    (told,) = machine.replicas.commit_messages((5, 2))
    assert told.node_id == OTHER and isinstance(told.message, Keepalive) and told.message.committed == machine.committed


@pytest.mark.parametrize("number", range(len(CHANGES)), ids=lambda number: CHANGES[number][3].replace(" ", "-"))
def test_what_changes_a_role(number: int) -> None:
    make, happens, after, why = CHANGES[number]
    situation = make()
    assert situation.machine.role is not after and why
    happens(situation)
    assert situation.machine.role is after


def test_a_lease_below_what_was_promised_is_declined_until_there_is_a_newer_one() -> None:
    """Metadata that were lost give out leases anew: who leads learns which were used."""
    situation = Situation(promised=9)
    [decline] = [each for each in situation.do(Assigned(NODE, 6)) if isinstance(each, Decline)]
    assert decline.lease == 6 and decline.able and decline.used == 9
    assert situation.machine.role is PartitionRole.UNKNOWN
    assert "Decline" in situation.output_names(Tick(), TIMING.retry)
    assert "PRIMARY_HEALING_STG1" in [situation.machine.role.name for _ in situation.output_names(Assigned(NODE, 10))]


def test_a_primary_whose_lease_others_have_left_behind_asks_for_a_newer_one() -> None:
    situation = Situation()
    situation.do(Assigned(NODE, 6))
    [decline] = [each for each in situation.do(Stale(OTHER, 8)) if isinstance(each, Decline)]
    assert decline.lease == 6 and decline.used >= 8
