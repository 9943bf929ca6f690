"""An election's changes in the words of people: what happened, and why."""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.election_events import ElectionChanged, ElectionReason, ElectionState


def election_text(change: ElectionChanged, name: Callable[[int], str]) -> str:
    """One line. `name`: of a node."""
    before, after = change.before, change.after
    why = change.cause if change.reason is ElectionReason.NONE else change.reason.value
    if after.state is ElectionState.DORMANT:
        return "takes part in no election any more"
    if after.state is ElectionState.CANDIDATE:
        return f"asks for votes in term {after.term}: {why}"
    if after.leader is None and before.leader is not None:
        return f"gave up leader {name(before.leader)} of term {before.term}: {why}"
    if after.leader is None:
        return f"follows nobody in term {after.term}: {why}"
    if (after.leader, after.term) == (before.leader, before.term):
        return f"node {name(after.leader)} leads term {after.term} still: {why}"
    return f"node {name(after.leader)} leads from term {after.term} on: {change.cause}"
