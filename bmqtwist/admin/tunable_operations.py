"""Admin operations on tunables: intervals of statistics, quorums of replication and of the elector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmqtwist.admin.cluster_operations import find_cluster
from bmqtwist.admin.commands import Value
from bmqtwist.admin.results import Tunable, TunableConfirmation
from bmqtwist.admin.tunables import Quorum

if TYPE_CHECKING:
    from bmqtwist.admin.context import AdminContext

# The kinds of quorums, as LIST_TUNABLES describes them.
REPLICATION = "non-negative integer count of the number of peers required to persist each message"
ELECTOR = "non-negative integer count of the number of votes required to become leader, 0 = more than half of the nodes"


def set_interval(context: AdminContext, name: str, value: Value) -> TunableConfirmation:
    """Change an interval of statistics."""
    return context.intervals.set(name, value)


def show_interval(context: AdminContext, name: str) -> Tunable:
    """The present one."""
    return context.intervals.get(name)


def list_intervals(context: AdminContext) -> tuple[Tunable, ...]:
    """All of them."""
    return context.intervals.list()


def _quorum(kind: str, context: AdminContext, name: str) -> Quorum:
    """The quorum of an elector, or of replication, of a cluster."""
    cluster, known = find_cluster(context, name), context.quorums.get((kind, name))
    if known is None:
        known = context.quorums[kind, name] = (
            Quorum(cluster.replication_factor, kind, cluster.set_replication_factor)
            if kind == REPLICATION else Quorum(cluster.definition.elector.quorum, kind, cluster.leadership.set_quorum))
    return known


def set_quorum(kind: str, context: AdminContext, cluster: str, scope: str, name: str, value: Value) -> TunableConfirmation:
    """Change it at this node, whatever the `scope`."""
    changed = _quorum(kind, context, cluster).set(name, value)
    context.broker.report.note("config", f"Cluster ({cluster}): {changed.name} is {changed.new}, was {changed.old}",
                               cluster=cluster, tunable=changed.name, value=str(changed.new), before=str(changed.old))
    return changed


def show_quorum(kind: str, context: AdminContext, cluster: str, scope: str, name: str) -> Tunable:
    """The present one."""
    return _quorum(kind, context, cluster).get(name)


def list_quorums(kind: str, context: AdminContext, cluster: str) -> tuple[Tunable]:
    """The tunables of an elector, or of replication."""
    return _quorum(kind, context, cluster).list()
