"""cluster/metadata_log.py ACTIONS: what each role makes of each input, from outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bmqtwist.cluster.changes import AssignQueue, Primaries
from bmqtwist.cluster.log_events import (
    INPUTS,
    Acknowledged,
    CatchUp,
    Decided,
    Done,
    Entries,
    Flush,
    Follow,
    Input,
    Lead,
    Output,
    Propose,
    Resend,
    Send,
    Snapshot,
    StepDown,
    WriteFailed,
    Written,
)
from bmqtwist.cluster.metadata_log import ACTIONS, MetadataLog, Role
from bmqtwist.wire.cluster_events import ClusterStateRecord, LedgerRecordType

WALL, MIB = 1000, 1 << 20
W, F, L = Role.WAITING, Role.FOLLOWING, Role.LEADING
UNDER_WAY = 2  # the number of the write under way in every setup


def records(count: int) -> tuple[ClusterStateRecord, ...]:
    """The log of node 1 as leader of term 2: a SNAPSHOT, then assignments."""
    log = MetadataLog(1, "n1", (0, 1, 2), MIB)
    log.step(Lead(0, 2, Primaries(1)), WALL)
    for number in range(count - 1):
        log.step(Propose(number + 1, AssignQueue(f"bmq://d/{number}", ["a"], number)), WALL)
    return tuple(each.record for each in log.log.records)


def following() -> MetadataLog:
    """Node 1 leads; its first record is durable here and acknowledged, the second is being written."""
    log = MetadataLog(0, "n0", (0, 1, 2), MIB)
    log.step(Follow(2, 1), WALL)
    log.step(Entries(1, 2, (0, 0), records(1)), WALL)
    log.step(Flush(), WALL)
    log.step(Written(1), WALL)
    log.step(Flush(), WALL)
    log.step(Entries(1, 2, (2, 1), records(2)[1:]), WALL)
    log.step(Flush(), WALL)
    return log


def waiting() -> MetadataLog:
    """The same, when the leader is gone."""
    log = following()
    log.step(StepDown(), WALL)
    return log


def leading() -> MetadataLog:
    """The first record is committed; the second, and its predecessor's COMMIT, are being written, and node 1 has them."""
    log = MetadataLog(0, "n0", (0, 1, 2), MIB)
    log.step(Lead(0, 2, Primaries(1)), WALL)
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
    Propose: Propose(7, AssignQueue("bmq://d/new", ["a"], 9)), Flush: Flush(), Written: Written(UNDER_WAY),
    WriteFailed: WriteFailed(UNDER_WAY, "no space left"), Lead: Lead(8, 3, Primaries(1)), Follow: Follow(3, 2),
    StepDown: StepDown(), Resend: Resend(), Entries: Entries(1, 2, (2, 1), records(3)[1:]), Snapshot: Snapshot(1, 2, STATE),
    Acknowledged: Acknowledged(2, 2, (2, 1)), CatchUp: CatchUp(1, 2, (0, 0))}

# The role afterwards, and what comes out of the input and of the end of its turn. Written down here, apart from the code.
# A write under way keeps every other write back.
TABLE: dict[Role, dict[type, tuple[Role, list[str]]]] = {
    W: {Propose: (W, ["refused 7"]), Flush: (W, []), Written: (W, []), WriteFailed: (W, ["alarm"]),
        Lead: (L, ["to 1 Entries", "to 2 Entries"]), Follow: (F, ["to 2 CatchUp"]), StepDown: (W, []), Resend: (W, []),
        Entries: (W, []), Snapshot: (W, []), Acknowledged: (W, []), CatchUp: (W, [])},
    F: {Propose: (F, ["refused 7"]), Flush: (F, []), Written: (F, ["to 1 Acknowledged"]), WriteFailed: (F, ["alarm"]),
        Lead: (L, ["to 1 Entries", "to 2 Entries"]), Follow: (F, ["to 2 CatchUp"]), StepDown: (W, []), Resend: (F, []),
        Entries: (F, ["to 1 Acknowledged"]), Snapshot: (F, []), Acknowledged: (F, []), CatchUp: (F, [])},
    L: {Propose: (L, ["to 1 Entries", "to 2 Entries"]), Flush: (L, []),
        Written: (L, ["changed", "done 1", "write", "to 1 Entries", "to 2 Entries"]),
        WriteFailed: (W, ["alarm", "unknown 1", "lost"]), Lead: (L, ["to 1 Entries", "to 2 Entries"]),
        Follow: (F, ["unknown 1", "to 2 CatchUp"]), StepDown: (W, ["unknown 1"]), Resend: (L, ["to 2 Entries"]),
        Entries: (L, []), Snapshot: (L, []), Acknowledged: (L, []), CatchUp: (L, ["to 1 Entries"])},
}


def named(output: Output) -> str:
    """One output in short."""
    if isinstance(output, Send):
        return f"to {output.node_id} {type(output.message).__name__}"
    if isinstance(output, Decided):
        done = isinstance(output.outcome, Done)
        return f"{'done' if done else 'unknown' if output.outcome.unknown else 'refused'} {output.token}"  # type: ignore[union-attr]
    return {"WriteFile": "write", "ReplaceFile": "write", "StateChanged": "changed", "LeadershipLost": "lost",
            "Alarm": "alarm"}[type(output).__name__]


def test_every_role_has_a_cell_for_every_input() -> None:
    assert set(ACTIONS) == set(TABLE) == set(Role) and set(SAMPLES) == set(INPUTS)
    for role in Role:
        assert set(ACTIONS[role]) == set(INPUTS) == set(TABLE[role])
        assert all(callable(getattr(MetadataLog, name)) for name in ACTIONS[role].values())


@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
@pytest.mark.parametrize("kind", INPUTS, ids=lambda kind: kind.__name__)
def test_each_cell(role: Role, kind: type) -> None:
    log = SETUPS[role]()
    assert log.role is role
    outputs = log.step(SAMPLES[kind], WALL) + log.step(Flush(), WALL)
    assert (log.role, [named(output) for output in outputs]) == TABLE[role][kind]


@pytest.mark.spec("cluster", 36)
@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
@pytest.mark.parametrize("event", [
    Written(99), WriteFailed(99, ""), Lead(8, 1, Primaries(1)), Follow(1, 1), Follow(1, None),
    Entries(2, 2, (2, 1), records(2)[1:]), Entries(1, 1, (2, 1), records(2)[1:]), Entries(1, 3, (2, 1), records(2)[1:]),
    Snapshot(2, 2, STATE), Snapshot(1, 1, STATE), Snapshot(1, 2, records(2)[1]), Acknowledged(1, 1, (2, 2)),
    Acknowledged(1, 3, (2, 2)), Acknowledged(9, 2, (2, 2)), Acknowledged(1, 2, (2, 99)), CatchUp(9, 2, (0, 0)),
    CatchUp(1, 1, (0, 0)), CatchUp(1, 2, (2, 99))], ids=repr)
def test_what_comes_late_or_from_nobody_changes_nothing(role: Role, event: Input) -> None:
    log = SETUPS[role]()
    before = (log.log.last, log.log.durable, log.log.covered, log.term, log.leader, log.role)
    outputs = log.step(event, WALL) + log.step(Flush(), WALL)
    refused = ["refused 8", "alarm"] if isinstance(event, Lead) else []
    assert [named(output) for output in outputs] == refused
    assert before == (log.log.last, log.log.durable, log.log.covered, log.term, log.leader, log.role)
