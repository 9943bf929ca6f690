"""Metadata log (cluster/metadata_log.py): effect of each input in each role."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from bmqtwist.cluster.changes import AssignQueue, PrimaryRules
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import (
    Decided,
    Done,
    Flush,
    Follow,
    Input,
    Lead,
    Output,
    Propose,
    RequestRecords,
    Resend,
    Send,
    SetCommitQuorum,
    StepDown,
    WriteFailed,
    Written,
)
from bmqtwist.cluster.metadata_log import MetadataLog, Role
from bmqtwist.wire.cluster_schema import Acknowledged, CatchUp, ClusterStateRecord, Entries, LedgerRecordType, Snapshot

WALL, MIB = 1000, 1 << 20
W, F, L = Role.WAITING, Role.FOLLOWING, Role.LEADING
WRITE_IN_PROGRESS = 2  # its number in every setup


def records(count: int) -> tuple[ClusterStateRecord, ...]:
    """The log of node 1 as leader of term 2: a SNAPSHOT, then assignments."""
    log = MetadataLog(Electorate(1, (0, 1, 2)), "n1", MIB)
    log.step(Lead(0, 2, PrimaryRules(1)), WALL)
    for number in range(count - 1):
        log.step(Propose(number + 1, AssignQueue(f"bmq://d/{number}", ["a"], number)), WALL)
    return tuple(each.record for each in log.log.records)


def following() -> MetadataLog:
    """Node 1 leads; its first record is durable here and acknowledged, the second is being written."""
    log = MetadataLog(Electorate(0, (0, 1, 2)), "n0", MIB)
    log.step(Follow(2, 1), WALL)
    log.step(Entries(1, 2, (0, 0), records(1)), WALL)
    log.step(Flush(), WALL)
    log.step(Written(1), WALL)
    log.step(Flush(), WALL)
    log.step(Entries(1, 2, (2, 1), records(2)[1:]), WALL)
    log.step(Flush(), WALL)
    return log


def waiting() -> MetadataLog:
    """A former follower, without its leader."""
    log = following()
    log.step(StepDown(), WALL)
    return log


def leading() -> MetadataLog:
    """The first record is committed; the second, and its predecessor's COMMIT, are being written, and node 1 has them."""
    log = MetadataLog(Electorate(0, (0, 1, 2)), "n0", MIB)
    log.step(Lead(0, 2, PrimaryRules(1)), WALL)
    log.step(Flush(), WALL)
    log.step(Written(1), WALL)
    log.step(Acknowledged(1, 2, (2, 1)), WALL)
    log.step(Propose(1, AssignQueue("bmq://d/0", ["a"], 0)), WALL)
    log.step(Flush(), WALL)
    log.step(Acknowledged(1, 2, (2, 3)), WALL)
    return log


SETUPS: dict[Role, Callable[[], MetadataLog]] = {W: waiting, F: following, L: leading}
STATE = ClusterStateRecord(LedgerRecordType.SNAPSHOT, 2, 9, WALL, records(1)[0].message)
SAMPLES: dict[type, Input] = {
    Propose: Propose(7, AssignQueue("bmq://d/new", ["a"], 9)), Flush: Flush(), Written: Written(WRITE_IN_PROGRESS),
    WriteFailed: WriteFailed(WRITE_IN_PROGRESS, "no space left"), Lead: Lead(8, 3, PrimaryRules(1)), Follow: Follow(3, 2),
    StepDown: StepDown(), SetCommitQuorum: SetCommitQuorum(3), RequestRecords: RequestRecords((1, 2)), Resend: Resend(),
    Entries: Entries(1, 2, (2, 1), records(3)[1:]), Snapshot: Snapshot(1, 2, STATE),
    Acknowledged: Acknowledged(2, 2, (2, 1)), CatchUp: CatchUp(1, 2, (0, 0))}

# The role afterwards, and the outputs of the input and of the Flush that follows it: independent of the code.
# A write in progress delays every other write.
TABLE: dict[Role, dict[type, tuple[Role, list[str]]]] = {
    W: {Propose: (W, ["refused 7"]), Flush: (W, []), Written: (W, []), WriteFailed: (W, ["alarm"]),
        Lead: (L, ["to 1 Entries", "to 2 Entries"]), Follow: (F, ["to 2 CatchUp"]), StepDown: (W, []), Resend: (W, []),
        SetCommitQuorum: (W, []), RequestRecords: (W, ["to 1 CatchUp", "to 2 CatchUp"]),
        Entries: (W, []), Snapshot: (W, []), Acknowledged: (W, []), CatchUp: (W, ["to 1 Entries"])},
    F: {Propose: (F, ["refused 7"]), Flush: (F, []), Written: (F, ["to 1 Acknowledged"]), WriteFailed: (F, ["alarm"]),
        Lead: (L, ["to 1 Entries", "to 2 Entries"]), Follow: (F, ["to 2 CatchUp"]), StepDown: (W, []), Resend: (F, []),
        SetCommitQuorum: (F, []), RequestRecords: (F, []),
        Entries: (F, ["to 1 Acknowledged"]), Snapshot: (F, []), Acknowledged: (F, []), CatchUp: (F, [])},
    L: {Propose: (L, ["to 1 Entries", "to 2 Entries"]), Flush: (L, []),
        Written: (L, ["changed", "done 1", "write", "to 1 Entries", "to 2 Entries"]),
        WriteFailed: (W, ["alarm", "unknown 1", "lost"]), Lead: (L, ["to 1 Entries", "to 2 Entries"]),
        Follow: (F, ["unknown 1", "to 2 CatchUp"]), StepDown: (W, ["unknown 1"]), Resend: (L, ["to 2 Entries"]),
        SetCommitQuorum: (L, []), RequestRecords: (L, []),
        Entries: (L, []), Snapshot: (L, []), Acknowledged: (L, []), CatchUp: (L, ["to 1 Entries"])},
}


def named(output: Output) -> str:
    """Short form of an output."""
    if isinstance(output, Send):
        return f"to {output.node_id} {type(output.message).__name__}"
    if isinstance(output, Decided):
        done = isinstance(output.outcome, Done)
        return f"{'done' if done else 'unknown' if output.outcome.unknown else 'refused'} {output.token}"  # type: ignore[union-attr]
    return {"WriteFile": "write", "ReplaceFile": "write", "StateChanged": "changed", "LeadershipLost": "lost",
            "Alarm": "alarm"}[type(output).__name__]


def test_the_expected_table_has_every_role_and_input() -> None:
    assert set(SAMPLES) == set(get_args(Input))
    assert set(TABLE) == set(Role) and all(set(row) == set(SAMPLES) for row in TABLE.values())


@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_every_input_in_every_role_has_the_expected_outputs_and_role(role: Role, kind: type) -> None:
    log = SETUPS[role]()
    assert log.role is role
    outputs = log.step(SAMPLES[kind], WALL) + log.step(Flush(), WALL)
    assert (log.role, [named(output) for output in outputs]) == TABLE[role][kind]


@pytest.mark.spec("cluster", 36)
@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
@pytest.mark.parametrize("event", [
    Written(99), WriteFailed(99, ""), Lead(8, 1, PrimaryRules(1)), Follow(1, 1), Follow(1, None),
    Entries(2, 2, (2, 1), records(2)[1:]), Entries(1, 1, (2, 1), records(2)[1:]), Entries(1, 3, (2, 1), records(2)[1:]),
    Snapshot(2, 2, STATE), Snapshot(1, 1, STATE), Snapshot(1, 2, records(2)[1]), Acknowledged(1, 1, (2, 2)),
    Acknowledged(1, 3, (2, 2)), Acknowledged(9, 2, (2, 2)), Acknowledged(1, 2, (2, 99)), CatchUp(9, 2, (0, 0)),
    CatchUp(1, 1, (0, 0)), CatchUp(1, 2, (2, 99))], ids=repr)
def test_a_late_message_or_one_of_an_unknown_node_changes_nothing(role: Role, event: Input) -> None:
    log = SETUPS[role]()
    before = (log.log.last, log.log.durable, log.log.covered, log.term, log.leader, log.role)
    outputs = log.step(event, WALL) + log.step(Flush(), WALL)
    answered = ["refused 8", "alarm"] if isinstance(event, Lead) else []
    if role is W and event == CatchUp(1, 1, (0, 0)):
        answered = ["to 1 Entries"]  # a node may send a CatchUp before it knows the term of this one
    assert [named(output) for output in outputs] == answered
    assert before == (log.log.last, log.log.durable, log.log.covered, log.term, log.leader, log.role)


def test_changes_wait_for_a_larger_quorum_and_are_committed_when_it_is_lowered() -> None:
    """A quorum above the number of nodes commits nothing; a quorum below a majority is raised to a majority."""
    log = MetadataLog(Electorate(0, (0, 1, 2)), "n0", MIB)
    log.step(Lead(0, 2, PrimaryRules(1)), WALL)
    log.step(SetCommitQuorum(4), WALL)
    log.step(Flush(), WALL)
    log.step(Written(1), WALL)
    for sender in (1, 2):
        assert not log.step(Acknowledged(sender, 2, (2, 1)), WALL) and log.committed == (0, 0)
    assert not log.step(SetCommitQuorum(4), WALL)
    assert [named(each) for each in log.step(SetCommitQuorum(0), WALL)] == ["changed", "done 0"] and log.committed == (2, 1)
    log.step(SetCommitQuorum(1), WALL)
    log.step(Propose(1, AssignQueue("bmq://d/other", ["a"], 9)), WALL)
    log.step(Flush(), WALL)
    assert not log.step(Written(2), WALL) and log.committed < (2, 3), "no majority has it"


def pull_records(source: MetadataLog, receiver: MetadataLog) -> None:
    """Let the receiver request records of the source in at most 20 rounds, and write the received ones."""
    inputs: list[tuple[MetadataLog, Input]] = [(receiver, RequestRecords((source.node_id,)))]
    for _ in range(20):
        outputs = []
        for log, event in inputs:
            outputs += [(log, each) for each in log.step(event, WALL)]
        inputs = [(source if log is receiver else receiver, each.message) for log, each in outputs
                  if isinstance(each, Send)]
        for each in receiver.step(Flush(), WALL):
            receiver.step(Written(getattr(each, "number", 0)), WALL)


def test_without_a_leader_a_node_sends_its_newer_records_on_request() -> None:
    """It sends uncommitted records too; they replace the records of an older term. Older records replace nothing."""
    behind = MetadataLog(Electorate(0, (0, 1, 2)), "n0", MIB)
    behind.step(Follow(1, 2), WALL)
    other = MetadataLog(Electorate(2, (0, 1, 2)), "n2", MIB)
    other.step(Lead(0, 1, PrimaryRules(1)), WALL)
    behind.step(Entries(2, 1, (0, 0), tuple(each.record for each in other.log.records)), WALL)
    behind.step(StepDown(), WALL)
    newer = following()
    newer.step(StepDown(), WALL)
    pull_records(newer, behind)
    assert behind.log.last == newer.log.last == (2, 2) and behind.lsn == (2, 2) and behind.term == 2
    assert [each.lsn for each in behind.log.records] == [each.lsn for each in newer.log.records]
    assert behind.committed == (0, 0), "no leader has reported a commit"
    pull_records(behind, newer)
    assert newer.log.last == (2, 2)
    older = MetadataLog(Electorate(2, (0, 1, 2)), "n2", MIB)
    pull_records(older, behind)
    assert behind.log.last == (2, 2)


def test_without_a_leader_a_compacted_log_is_sent_as_a_snapshot() -> None:
    newer = MetadataLog(Electorate(1, (0, 1, 2)), "n1", MIB)
    newer.step(Follow(5, 2), WALL)
    newer.step(Snapshot(2, 5, ClusterStateRecord(LedgerRecordType.SNAPSHOT, 5, 9, WALL, records(1)[0].message)), WALL)
    newer.step(Flush(), WALL)
    newer.step(Written(1), WALL)
    newer.step(StepDown(), WALL)
    behind = MetadataLog(Electorate(0, (0, 1, 2)), "n0", MIB)
    pull_records(newer, behind)
    assert behind.log.last == newer.log.last == (5, 9) and behind.lsn == (5, 9)
