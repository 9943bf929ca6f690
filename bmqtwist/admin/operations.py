"""Functions of the admin commands: operations on domains, queues, clusters, partitions and tunables, and inspections.

`table.py` names the function of each command; `console/actions.py` calls some of them, too. A refusal is a LocalError
or Refused with a text for the operator. State is read through `view/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from bmqtwist.admin import commands
from bmqtwist.admin.commands import AdminContext, Tunables, quorum
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.config.clusters import parse_endpoint
from bmqtwist.config.text import pretty_json
from bmqtwist.errors import LocalError, Refused
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.member.appointments import Appointments
from bmqtwist.report import LogLine
from bmqtwist.steps import Awaited, Steps
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.view import cluster_facts, queue_facts, replicas, snapshots, stopping, stored_queue, subscriptions
from bmqtwist.view.alarms import AlarmState
from bmqtwist.view.documents import PartitionRow
from bmqtwist.view.events import NodeEvent
from bmqtwist.view.metrics import tables_in_steps, tree_in_steps
from bmqtwist.view.snapshot import BrokerState, ClusterSnapshot, DomainState, QueueState, StorageState
from bmqtwist.wire.cluster_schema import MemberInfo

MOVING_SHOWN = 100  # queues of one domain in the answer to DOMAINS MOVES

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.queue.root import Domain, RootQueue
    from bmqtwist.storage.message import Message
    from bmqtwist.storage.partition import Partition
    from bmqtwist.storage.state import StoredQueue

WHOLE_QUEUE = "*"
_NOT_LOCAL = "Not purging queue '{}' [reason: queue is NOT local]"
ALL_PARTITIONS = -1
# Kinds of quorums, as described by LIST_TUNABLES.
REPLICATION = "non-negative integer count of the number of peers required to persist each message"
ELECTOR = "non-negative integer count of the number of votes required to become leader, 0 = more than half of the nodes"
EVENTS_SHOWN = 100
SUBSCRIPTION_MESSAGES = 50  # newest stored messages on which an expression is evaluated
Tree = dict[str, Any]


def find_domain(broker: Broker, name: str) -> Domain:
    """Return a domain, and load it if necessary."""
    try:
        return broker.domains.get_or_load(name)
    except Refused:
        raise LocalError(f"Domain '{name}' doesn't exist") from None


def _active_queue(broker: Broker, domain_name: str, name: str) -> RootQueue:
    queue = find_domain(broker, domain_name).queues.get(name)
    if queue is None or not queue_facts.is_active(queue):
        raise LocalError(f"Queue '{name}' was not found on domain '{domain_name}'")
    return queue


def _find_replica(broker: Broker, domain_name: str, name: str) -> StoredQueue | None:
    """Return the local copy of a queue whose primary is another node."""
    domain = find_domain(broker, domain_name)
    cluster, uri = broker.clusters[domain.cluster], f"bmq://{domain.name}/{name}"
    record = next((each for each in cluster.queues_of_other_primaries(domain.name) if each.uri == uri), None)
    return cluster.partitions[record.partition_id].state.queues.get(record.key) if record is not None else None


def show_domain(context: AdminContext, name: str) -> Steps[DomainState]:
    return snapshots.domain_in_steps(context.broker, find_domain(context.broker, name))


def purge_domain(context: AdminContext, name: str) -> Steps[commands.PurgeReport]:
    return (yield from _purge_all(context.broker, find_domain(context.broker, name)))


def _purge_all(broker: Broker, domain: Domain) -> Steps[commands.PurgeReport]:
    unpurged = broker.clusters[domain.cluster].queues_of_other_primaries(domain.name)
    purged = []
    for queue in list(domain.queues.values()):
        if queue.name in domain.queues:  # not deleted since the last step
            purged.append((yield from _purge(broker, queue)))
    return commands.PurgeReport(tuple(purged), tuple(_NOT_LOCAL.format(record.uri) for record in unpurged))


def _purge(broker: Broker, queue: RootQueue) -> Steps[commands.Purged]:
    count, size = yield from queue.purge(None, broker.loop.wall(broker.loop.now))
    broker.deliveries.report_meter(queue)
    broker.report.record_event("queue", f"{queue.uri} purged: {count} messages", uri=queue.uri, messages=count,
                               state="purged")
    return commands.Purged(queue.uri, count, size)


def purge_queue(context: AdminContext, domain: str, name: str, app_id: str) -> Steps[commands.PurgeReport]:
    """Purge the messages of a queue or app; `app_id` "*" = the whole queue."""
    if not app_id:
        raise LocalError("Queue Purge requires a non-empty appId (Specify '*' to purge the entire queue).")
    broker = context.broker
    try:
        uri = parse_uri(f"bmq://{domain}/{name}").canonical
    except InvalidUri as error:
        raise LocalError(f"Unable to build queue uri with error '{error}'") from None
    queue = find_domain(broker, domain).queues.get(name)
    if queue is None and _find_replica(broker, domain, name) is not None:
        return commands.PurgeReport((), (_NOT_LOCAL.format(uri),))
    if queue is None:
        raise LocalError(f"Queue was not found in a storage '{uri}'")
    if app_id == WHOLE_QUEUE:
        return commands.PurgeReport(((yield from _purge(broker, queue)),))
    app = queue.apps.get(app_id)
    if app is None or not app.registered:
        return commands.PurgeReport((), (f"Specified appId '{app_id}' not found in the storage of queue '{uri}'.",))
    count, size = yield from queue.purge(app, broker.loop.wall(broker.loop.now))
    broker.deliveries.report_meter(queue)
    broker.report.record_event("queue", f"{uri} purged for app '{app.app_id}': {count} messages", uri=uri, app=app.app_id,
                       messages=count, state="purged")
    return commands.PurgeReport((commands.Purged(uri, count, size, app.app_id, queue_facts.hexadecimal(app.key)),))


def show_queue(context: AdminContext, domain: str, name: str) -> QueueState:
    opened = queue_facts.relayed_queue(context.broker, domain, name)
    if opened is not None and opened.relay is not None:
        return queue_facts.relay_state(context.broker, opened, opened.relay)
    return queue_facts.queue_state(_active_queue(context.broker, domain, name))


def show_queue_history(context: AdminContext, domain: str, name: str) -> commands.Transitions:
    opened = queue_facts.relayed_queue(context.broker, domain, name)
    if opened is None:
        raise LocalError(f"Queue '{name}' of domain '{domain}' is not open at this node with another node as primary")
    return commands.Transitions(context.broker.loop.now, opened.transition_log.transitions)


def list_messages(context: AdminContext, domain: str, name: str, app_id: str | None, offset: int, count: int
                  ) -> commands.QueueContents:
    """Return stored messages; `offset` < 0 counts from the end; `count` 0 = all, < 0 = -count before the position."""
    broker = context.broker
    stored, bits = _find_messages(broker, domain, name)
    if app_id:
        if app_id not in bits:
            raise LocalError("Invalid 'LIST' command: invalid APPID")
        stored = [message for message in stored if message.pending & bits[app_id]]
    first, last = list_slice(len(stored), offset, count)
    wall_offset = broker.loop.wall_offset
    entries = tuple(list_entry(message, wall_offset) for message in stored[first:last])
    return commands.QueueContents(entries, first, len(stored))


def _find_messages(broker: Broker, domain_name: str, name: str) -> tuple[list[Message], dict[str, int]]:
    """Return the messages of a queue at this node (primary, replica or proxy), and the bits of its apps."""
    uri = f"bmq://{domain_name}/{name}"
    for proxy in broker.proxies.values():
        if uri in proxy.queues:
            relay = proxy.queues[uri]
            return list(relay.messages.values()), {app.app_id: app.bit for app in relay.apps.values()}
    replica = _find_replica(broker, domain_name, name)
    if replica is not None:
        return list(replica.messages.values()), {app.app_id: app.bit for app in replica.apps.values()}
    queue = _active_queue(broker, domain_name, name)
    return list(queue.messages.values()), {app.app_id: app.bit for app in queue.apps.values() if app.registered}


def list_entry(message: Message, wall_offset: float) -> commands.ListedMessage:
    """Return a stored message as LIST shows it. `wall_offset`: seconds from the loop's clock to the epoch."""
    return commands.ListedMessage(queue_facts.hexadecimal(message.guid), message.size, message.arrived + wall_offset)


def list_slice(total: int, offset: int, count: int) -> tuple[int, int]:
    """Return the range [first, last) of `total` messages for LIST.

    A negative offset counts from just past the last message; a negative count selects messages before the position; 0 = all.
    """
    position = min(max(offset + total if offset < 0 else offset, 0), total)
    if count < 0:
        return max(position + count, 0), position
    return position, total if count == 0 else min(position + count, total)


def reconfigure_domain(context: AdminContext, name: str) -> None:
    if not context.broker.queues.relocate(name):
        context.broker.domains.reconfigure(name)
    context.broker.loop.performer.request_turn()


def show_moves(context: AdminContext) -> list[dict[str, Any]]:
    """Return the domains that are moved to another cluster, each with the first MOVING_SHOWN queues of its drain."""
    found = []
    for proxy in context.broker.proxies.values():
        for domain, departure in proxy.moves.departures.items():
            queues, first = proxy.moves.progress(domain, MOVING_SHOWN)
            found.append({"domain": domain, "from": proxy.name, "to": departure.to, "queues": queues,
                          "seconds": context.broker.loop.now - departure.since,
                          "first": [{"uri": uri, "waitsFor": reason} for uri, reason in first]})
    return found


def clear_resolver(context: AdminContext, domain: str | None) -> None:
    """Discard the resolution of a domain; None = all."""
    context.broker.domains.provider.clear_resolver(domain)


def clear_files(context: AdminContext, domain: str | None) -> None:
    """Discard the cached file of a domain; None = all."""
    context.broker.domains.provider.clear_files(domain)


def remove_domain(context: AdminContext, name: str, finalize: bool) -> Steps[commands.PurgeReport | None]:
    """First phase: refuse new opens, purge and delete the queues. `finalize`: remove the domain, so that its name can be
    reused."""
    broker = context.broker
    if finalize:
        broker.domains.finalize_removal(name)
        return None
    domain = find_domain(broker, name)
    if domain.opening:
        raise LocalError(f"Trying to remove the domain '{name}' while there are open queue requests on the fly or the"
                         " domain is shutting down")
    if any(queue.handles for queue in domain.queues.values()):
        raise LocalError(f"Trying to remove the domain '{name}' while there are queues opened or opening")
    domain.removing = True
    purged = yield from _purge_all(broker, domain)
    for queue in list(domain.queues.values()):
        broker.clusters[domain.cluster].changes.delete_queue(queue, broker.loop.wall(broker.loop.now))
    return purged


def find_cluster(context: AdminContext, name: str) -> Cluster:
    cluster = context.broker.clusters.get(name)
    if cluster is None:
        raise LocalError(f"cluster '{name}' not found !")
    return cluster


def _partition(cluster: Cluster, number: int) -> Partition:
    if number >= len(cluster.partitions):
        raise LocalError(f"Too high partitionId value: '{number}'")
    if number < 0:
        raise LocalError(f"Too low partitionId value: '{number}'")
    return cluster.partitions[number]


def _node_id(cluster: Cluster, node: str) -> int:
    """Return the id of a node from its name or id."""
    for each in cluster.definition.nodes:
        if node in (each.name, str(each.id)):
            return each.id
    raise LocalError(f"Cluster '{cluster.name}' has no node '{node}'")


def _appointments(cluster: Cluster) -> Appointments:
    if cluster.replication is None:
        raise LocalError(f"Cluster '{cluster.name}' has one node, which is the primary of every partition")
    return cluster.replication.appointments


def _raise_if_refused(refused: str) -> None:
    if refused:
        raise LocalError(refused)


def list_clusters(context: AdminContext) -> Steps[list[ClusterSnapshot]]:
    found = []
    for cluster in list(context.broker.clusters.values()):
        found.append((yield from snapshots.cluster_in_steps(cluster)))
    return found


def show_cluster(context: AdminContext, name: str) -> Steps[ClusterSnapshot]:
    return snapshots.cluster_in_steps(find_cluster(context, name))


def collect_queues(context: AdminContext, name: str) -> None:
    """Delete the empty queues of a cluster that no client has open."""
    cluster, broker = find_cluster(context, name), context.broker
    for queue in list(cluster.queues.values()):
        if queue.is_collectable(broker.loop.now, 0, broker.identity.started):
            cluster.changes.delete_queue(queue, broker.loop.wall(broker.loop.now))


def show_partition(context: AdminContext, name: str, number: int) -> Steps[ClusterSnapshot]:
    """Return a cluster with one of its partitions."""
    _partition(find_cluster(context, name), number)
    cluster = yield from show_cluster(context, name)
    return replace(cluster, partitions=(cluster.partitions[number],))


def switch_partition(context: AdminContext, name: str, number: int, switch: str) -> None:
    """ENABLE or DISABLE a partition."""
    partition, enabled = _partition(find_cluster(context, name), number), switch == "ENABLE"
    (partition.enable if enabled else partition.disable)()
    context.broker.report.record_event("config", f"Partition [{number}] is {'enabled' if enabled else 'disabled'}",
                                       cluster=name, partition=number, enabled=enabled)


def roll_over(context: AdminContext, name: str, number: int | None) -> None:
    """Roll over a partition; None or -1 = all partitions."""
    cluster = find_cluster(context, name)
    partitions = cluster.partitions if number in (None, ALL_PARTITIONS) else [_partition(cluster, number or 0)]
    failures = []
    for partition in partitions:
        try:
            partition.rollover(context.broker.loop.wall(context.broker.loop.now))
        except PartitionUnavailable as error:
            failures.append(f"Rollover failed on partition {partition.partition_id}, rc: -1 ({error})")
    _raise_if_refused("\n".join(failures))


def show_stored_queues(context: AdminContext, name: str, domain: str) -> Steps[list[StorageState]]:
    stored = yield from snapshots.storages_in_steps(find_cluster(context, name), domain)
    if not stored and domain not in context.broker.domains.by_name:
        raise LocalError(f"Unknown domain '{domain}'")
    return stored


def move_partition(context: AdminContext, name: str, number: int, node: str) -> Awaited[str]:
    """Move a partition; the result is the reason why it did not move, "" = it moved."""
    cluster = find_cluster(context, name)
    _partition(cluster, number)
    node_id = _node_id(cluster, node)
    return Awaited(partial(_appointments(cluster).move, number, node_id))


def rebalance(context: AdminContext, name: str) -> None:
    _raise_if_refused(_appointments(find_cluster(context, name)).rebalance())


def _plan_members(context: AdminContext, name: str,
                  plan: Callable[[list[MemberInfo]], list[MemberInfo]]) -> Awaited[str]:
    """Plan other nodes of a cluster; the result is the reason why the plan is not committed, "" = it is. `plan`: returns
    the nodes, from the present ones."""
    cluster = find_cluster(context, name)
    members = cluster.metadata.state.members
    if members is None:
        raise LocalError(f"Cluster '{name}' is not formed yet: all of its nodes must be connected once")
    return Awaited(partial(cluster.leadership.plan_members, plan([replace_info(each) for each in members.nodes])))


def replace_info(info: MemberInfo, **changes: str) -> MemberInfo:
    """Return id, name and endpoint of a node, with changes."""
    return MemberInfo(info.node_id, changes.get("name", info.name), changes.get("endpoint", info.endpoint))


def add_member(context: AdminContext, name: str, number: int, node: str, endpoint: str) -> Awaited[str]:
    """Plan to add a node."""
    _check_endpoint(endpoint)
    return _plan_members(context, name, lambda nodes: [*nodes, MemberInfo(number, node, endpoint)])


def remove_member(context: AdminContext, name: str, node: str) -> Awaited[str]:
    """Plan to remove a node."""
    node_id = _node_id(find_cluster(context, name), node)
    return _plan_members(context, name, lambda nodes: [each for each in nodes if each.node_id != node_id])


def replace_member(context: AdminContext, name: str, node: str, endpoint: str) -> Awaited[str]:
    """Plan to replace a node by one at another endpoint."""
    _check_endpoint(endpoint)
    node_id = _node_id(find_cluster(context, name), node)
    return _plan_members(context, name, lambda nodes: [
        replace_info(each, endpoint=endpoint) if each.node_id == node_id else each for each in nodes])


def cancel_members(context: AdminContext, name: str) -> Awaited[str]:
    """Cancel the planned nodes."""
    return _plan_members(context, name, lambda nodes: [])


def _check_endpoint(endpoint: str) -> None:
    if parse_endpoint(endpoint) is None:
        raise LocalError(f"ENDPOINT must be tcp://host:port or tls://host:port, not '{endpoint}'")


def show_partition_history(context: AdminContext, name: str, number: int) -> commands.Transitions:
    cluster = find_cluster(context, name)
    _partition(cluster, number)
    if cluster.replication is None:
        raise LocalError(f"Cluster '{name}' has no other nodes: this node is always the primary")
    machine = cluster.replication.hosted[number].machine
    return commands.Transitions(context.broker.loop.now, machine.transition_log.transitions)


def show_elector_history(context: AdminContext, name: str) -> commands.Transitions:
    elector = find_cluster(context, name).leadership.elector
    return commands.Transitions(context.broker.loop.now, elector.transition_log.transitions)


def transfer_leadership(context: AdminContext, name: str, node: str) -> Awaited[str]:
    """Transfer the leadership; the result is the reason why the node does not lead, "" = it leads."""
    cluster = find_cluster(context, name)
    node_id = _node_id(cluster, node)
    if cluster.members is not None and node_id in cluster.members.statuses.unable:
        raise LocalError(f"node {node} {cluster.members.statuses.unable[node_id]}")
    return Awaited(partial(cluster.leadership.transfer_and_wait, node_id))


def set_election_mode(context: AdminContext, name: str, word: str) -> None:
    """Set whether this node is a candidate in elections."""
    modes = {mode.name: mode for mode in ElectionMode if mode is not ElectionMode.LEAVING}
    mode = modes.get(word.upper())
    if mode is None:
        raise LocalError(f"MODE must be one of {', '.join(modes)}, not '{word}'")
    cluster = find_cluster(context, name)
    if cluster.replication is None:
        raise LocalError(f"Cluster '{name}' has no other nodes: this node always leads")
    cluster.leadership.set_mode(mode)
    context.broker.report.record_event("config", f"Cluster ({name}): this node {mode.value}", cluster=name, mode=mode.name)


def set_interval(context: AdminContext, name: str, value: commands.Value) -> commands.TunableConfirmation:
    return context.intervals.set(name, value)


def show_interval(context: AdminContext, name: str) -> commands.Tunable:
    return context.intervals.get(name)


def list_intervals(context: AdminContext) -> tuple[commands.Tunable, ...]:
    return context.intervals.list()


def _find_quorum(kind: str, context: AdminContext, name: str) -> Tunables:
    cluster, known = find_cluster(context, name), context.quorums.get((kind, name))
    if known is None:
        known = context.quorums[kind, name] = (
            quorum(cluster.replication_factor, kind, cluster.set_replication_factor)
            if kind == REPLICATION else quorum(cluster.definition.elector.quorum, kind, cluster.leadership.set_quorum))
    return known


def set_quorum(kind: str, context: AdminContext, cluster: str, scope: str, name: str,
               value: commands.Value) -> commands.TunableConfirmation:
    """Set a quorum at this node, for any `scope`."""
    changed = replace(_find_quorum(kind, context, cluster).set(name, value),
                      note="; ".join(_quorum_notes(find_cluster(context, cluster), scope, value.value)))
    context.broker.report.record_event("config", f"Cluster ({cluster}): {changed.name} is {changed.new}, was {changed.old}",
                               cluster=cluster, tunable=changed.name, value=str(changed.new), before=str(changed.old))
    return changed


def _quorum_notes(cluster: Cluster, scope: str, number: object) -> Iterator[str]:
    """Yield the reasons why a quorum has another effect than its number says."""
    nodes, majority = len(cluster.definition.nodes), cluster.leadership.elector.electorate.majority
    if isinstance(number, int) and 0 < number < majority:
        yield (f"a majority, {majority} of {nodes} nodes, is needed nevertheless: a minority could lose what another one "
               "has acknowledged")
    if scope == "SET_ALL" and nodes > 1:
        yield "it is set at this node alone: run the command at each node"


def show_quorum(kind: str, context: AdminContext, cluster: str, scope: str, name: str) -> commands.Tunable:
    return _find_quorum(kind, context, cluster).get(name)


def list_quorums(kind: str, context: AdminContext, cluster: str) -> tuple[commands.Tunable, ...]:
    return _find_quorum(kind, context, cluster).list()


def show_statistics(context: AdminContext) -> Steps[tuple[str, Tree]]:
    broker, statistics = context.broker, context.statistics
    if not statistics.enabled:
        raise LocalError("Statistics are switched off (appConfig.stats.snapshotInterval is 0)")
    statistics.admit(broker.loop.now)
    yield from statistics.sampling(broker.loop.now, snapshots.sources(broker))

    def printed(state: BrokerState) -> Steps[tuple[str, Tree]]:
        tables = yield from tables_in_steps(state, statistics)
        return tables, (yield from tree_in_steps(state, statistics))
    return (yield from snapshots.snapshot_in_steps(broker, broker.loop.now, context.process(), printed))


def show_configuration(context: AdminContext) -> str:
    return pretty_json(context.broker.configuration.app)


def show_events(context: AdminContext, after: int | None) -> list[NodeEvent]:
    """Return the events after event `after`; None = the last ones."""
    log = context.history.events
    return log.last(EVENTS_SHOWN) if after is None else log.after(after)


def show_alarms(context: AdminContext) -> list[AlarmState]:
    return context.history.alarms.alarms()


def mark_alarm(context: AdminContext, alarm_id: str, mark: str) -> AlarmState:
    """ACKNOWLEDGE or CLEAR an alarm."""
    book = context.history.alarms
    return (book.clear if mark == "CLEAR" else book.acknowledge)(alarm_id, context.source)


def show_log(context: AdminContext, count: int) -> list[LogLine]:
    return list(context.broker.report.tail(count or 1 << 31))


def show_stop(context: AdminContext) -> commands.StopStatus:
    broker = context.broker
    return commands.StopStatus(broker.shutdown.progress() if broker.shutdown is not None else None)


def show_stop_preflight(context: AdminContext) -> Tree:
    return stopping.preflight(context.broker)


def show_replicas(context: AdminContext, cluster: str) -> list[PartitionRow]:
    return replicas.partitions(context.broker, cluster)


def show_terms(context: AdminContext, cluster: str) -> Tree:
    return cluster_facts.elections(context.broker, context.history.events, cluster)


def browse_messages(context: AdminContext, domain: str, queue: str, after: str | None, count: int) -> Steps[Tree]:
    """Return stored messages after the GUID `after`; `count` < 0: the newest first."""
    selection = stored_queue.Selection(after or "", abs(count) or stored_queue.LIMIT_MAX, newest=count < 0)
    return stored_queue.messages_in_steps(context.broker, f"bmq://{domain}/{queue}", selection)


def show_message(context: AdminContext, domain: str, queue: str, guid: str) -> Steps[Tree]:
    return stored_queue.message_in_steps(context.broker, f"bmq://{domain}/{queue}", guid)


def evaluate_subscription(context: AdminContext, domain: str, queue: str, expression: str) -> Steps[tuple[str, Tree]]:
    found = yield from subscriptions.evaluate_in_steps(
        context.broker, f"bmq://{domain}/{queue}", expression, None, SUBSCRIPTION_MESSAGES)
    return expression, found
