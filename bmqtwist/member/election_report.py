"""Reports of elections: log lines in the words of the original, and events for operators."""

from __future__ import annotations

from bmqtwist.cluster.election_events import ElectionChanged, ElectionReason, ElectionState
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report
from bmqtwist.wire.cluster_schema import Lsn


def report_change(change: ElectionChanged, cluster: str, links: ClusterLinks, lsn: Lsn, report: Report) -> None:
    """The elector of a node has changed; `lsn`: of its metadata log."""
    before, after, title = change.before, change.after, f"Cluster ({cluster})"
    leaders = [-1 if each.leader is None else each.leader for each in (after, before)]
    report.info(f"{title}: ElectorStateChangeCb new state: {after.state.name}, new code: {change.reason.name}, "
                f"new leaderNodeId: {leaders[0]}, new term: {after.term}, old state: {before.state.name}, "
                f"old leaderNodeId: {leaders[1]}, old term: {before.term}")
    report.info(f"{title}: {change.cause}")
    report.note("election", election_text(change, links), cluster=cluster, term=after.term,
                leader=links.node_name(after.leader) if after.leader is not None else None, state=after.state.name,
                termBefore=before.term, reason=change.reason.name, cause=change.cause)
    if after.leader != before.leader:
        old, new = ("UNDEFINED" if leader is None else status for leader, status in
                    ((before.leader, "ACTIVE"), (after.leader, "PASSIVE")))
        report.info(f"#ELECTOR_INFO: transition old leader: {_shown(before.leader, links)}, status: {old}, "
                    f"{lsn_text(lsn)} to new leader: {_shown(after.leader, links)}, status: {new}, electorTerm: "
                    f"{after.term}. Transition elector state from {before.state.name} to {after.state.name}.")


def report_active(leader: str, cluster: str, lsn: Lsn, report: Report) -> None:
    """The first record of a leader is committed."""
    report.info(f"#ELECTOR_INFO: leader: {leader}, {lsn_text(lsn)}, transitioning status from PASSIVE to ACTIVE")
    report.info(f"Cluster ({cluster}) onClusterLeader: new leader: {leader}, leader status: ACTIVE")


def lsn_text(lsn: Lsn) -> str:
    """As log lines of the original show it."""
    return f"LSN: [ electorTerm = {lsn[0]} sequenceNumber = {lsn[1]} ]"


def election_text(change: ElectionChanged, links: ClusterLinks) -> str:
    """A change of an elector in one line: what happened, and why."""
    before, after, name = change.before, change.after, links.node_name
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


def _shown(node_id: int | None, links: ClusterLinks) -> str:
    return "** NULL **" if node_id is None else links.name(node_id)
