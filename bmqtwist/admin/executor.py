"""Runs admin commands against the broker: one method for each kind of command, found through `_HANDLERS`.

Answers are values (`adminresults`); a refusal is a LocalError or Refused with the words for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from bmqtwist.admin import commands, results
from bmqtwist.admin.json import print_json
from bmqtwist.admin.looks import Looks
from bmqtwist.admin.parse import parse
from bmqtwist.admin.text import print_text
from bmqtwist.admin.tunables import PublishIntervals, Quorum
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.config.text import pretty_json
from bmqtwist.errors import LocalError, Refused
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.link.admin import AdminAnswer, AdminWork
from bmqtwist.machine import TransitionLog
from bmqtwist.member.appointments import Appointments
from bmqtwist.member.cluster import Cluster
from bmqtwist.report import INTERNAL_ERROR, shown, stack
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.view import snapshots
from bmqtwist.view.node_history import NodeHistory
from bmqtwist.view.snapshot import BrokerState, ProcessState
from bmqtwist.view.statistics import Statistics
from bmqtwist.view.tables import tables_in_steps, tree_in_steps

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.queue.root import Domain, RootQueue
    from bmqtwist.storage.message import Message
    from bmqtwist.storage.partition import Partition
    from bmqtwist.storage.state import StoredQueue

_T = TypeVar("_T")
Slowly = Generator[None, None, _T]  # gives a result, and pauses now and then before

WHOLE_QUEUE = "*"
COMMAND_CHARS_MAX = 512  # of a command, where it is logged
_NOT_LOCAL = "Not purging queue '{}' [reason: queue is NOT local]"
_REPLICATION = "non-negative integer count of the number of peers required to persist each message"
_ELECTOR = "non-negative integer count of the number of votes required to become leader, 0 = more than half of the nodes"


class AdminExecutor:
    """The commands of one broker. `execute` is what sessions and the control pipe call; `after_reconfigure` is called
    once a domain has a new configuration. `process` tells how its process is; `history`: what the node remembers.
    """

    def __init__(self, broker: Broker, statistics: Statistics,
                 after_reconfigure: Callable[[], None] = lambda: None,
                 process: Callable[[], ProcessState] = ProcessState, history: NodeHistory | None = None) -> None:
        self._broker, self._statistics, self._after_reconfigure = broker, statistics, after_reconfigure
        self._process = process
        self._looks = Looks(broker, history or NodeHistory("", lambda: float(broker.wall(broker.now))))
        self._replication: dict[str, Quorum] = {}
        self._elector: dict[str, Quorum] = {}
        stats = broker.configuration.app.stats
        self._intervals = PublishIntervals({plugin.name: plugin.publish_interval for plugin in stats.plugins},
                                           stats.snapshot_interval)

    def execute(self, text: str, source: str) -> AdminWork:
        """Run one command; whatever the text is, there is an answer. `source`: who asks, for the log. It pauses now and then
        if it takes long."""
        report = self._broker.report
        told, failed = shown(text, COMMAND_CHARS_MAX), True
        report.info("Received command '%s' [source: %s]", told, source)
        try:
            command, encoding = parse(text)
        except commands.CommandError as error:
            answer = error.answer
        else:
            try:
                result = yield from self.run(command, source)
                answer = (print_text(result) if encoding is commands.AnswerEncoding.TEXT
                          else print_json(result, encoding is commands.AnswerEncoding.JSON_PRETTY))
                failed = isinstance(result, results.Error)
            except Exception as error:
                report.alarm(INTERNAL_ERROR, "Command '%s' [source: %s]: %s", told, source, stack(error))
                answer = f"Internal error: {type(error).__name__}. See the broker's log.\n"
        report.info("Send response message to '%s': %d characters", source, len(answer))
        answer = answer.encode("utf-8", "replace").decode()  # JSON may have smuggled in half a surrogate pair
        return AdminAnswer(answer, failed)

    def run(self, command: commands.Command, source: str = "") -> Slowly[results.Result]:
        """Run a parsed command for somebody; a refusal becomes an Error."""
        try:
            handler = _HANDLERS.get(type(command))
            result = handler(self, command) if handler is not None else self._looks.run(command, source)
            return (yield from result) if isinstance(result, Generator) else result
        except Refused as refused:
            return results.Error(refused.message)
        except LocalError as error:
            return results.Error(str(error))

    # -- finding ----------------------------------------------------------------------------------------------------

    @property
    def _wall(self) -> int:
        return self._broker.wall(self._broker.now)

    def _note(self, kind: str, text: str, **detail: object) -> None:
        self._broker.report.note(kind, text, **detail)

    def _domain(self, name: str) -> Domain:
        """A domain, loaded if need be."""
        try:
            return self._broker.domain(name)
        except Refused:
            raise LocalError(f"Domain '{name}' doesn't exist") from None

    def _active_queue(self, domain_name: str, name: str) -> RootQueue:
        queue = self._domain(domain_name).queues.get(name)
        if queue is None or not snapshots.is_active(queue):
            raise LocalError(f"Queue '{name}' was not found on domain '{domain_name}'")
        return queue

    def _cluster(self, name: str) -> Cluster:
        cluster = self._broker.clusters.get(name)
        if cluster is None:
            raise LocalError(f"cluster '{name}' not found !")
        return cluster

    def _partition(self, cluster_name: str, number: int) -> Partition:
        partitions = self._cluster(cluster_name).partitions
        if number >= len(partitions):
            raise LocalError(f"Too high partitionId value: '{number}'")
        if number < 0:
            raise LocalError(f"Too low partitionId value: '{number}'")
        return partitions[number]

    # -- broker and statistics --------------------------------------------------------------------------------------

    def _help(self, command: commands.Help) -> results.Result:
        return results.HelpText(command.plumbing)

    def _broker_config(self, command: commands.BrokerConfigDump) -> results.Result:
        return results.BrokerConfigResult(pretty_json(self._broker.configuration.app))

    def _stat_show(self, command: commands.StatShow) -> Slowly[results.Result]:
        broker, statistics = self._broker, self._statistics
        if not statistics.enabled:
            raise LocalError("Statistics are switched off (appConfig.stats.snapshotInterval is 0)")
        statistics.admit(broker.now)
        yield from statistics.sampling(broker.now, snapshots.sources(broker))

        def printed(state: BrokerState) -> Slowly[results.Result]:
            return results.StatsResult((yield from tables_in_steps(state, statistics)),
                                       (yield from tree_in_steps(state, statistics)))
        return (yield from snapshots.seen_in_steps(broker, broker.now, self._process(), printed))

    # -- domains ----------------------------------------------------------------------------------------------------

    def _domain_infos(self, command: commands.DomainInfos) -> results.Result:
        return results.DomainInfo(snapshots.domain_state(self._broker, self._domain(command.domain)))

    def _domain_purge(self, command: commands.DomainPurge) -> Slowly[results.Result]:
        return (yield from self._purge_all(self._domain(command.domain)))

    def _purge_all(self, domain: Domain) -> Slowly[results.PurgeReport]:
        elsewhere = self._broker.clusters[domain.cluster].led_elsewhere(domain.name)
        purged = []
        for queue in list(domain.queues.values()):
            if queue.name in domain.queues:  # nobody has deleted it meanwhile
                purged.append((yield from self._purge(queue)))
        return results.PurgeReport(tuple(purged), tuple(_NOT_LOCAL.format(record.uri) for record in elsewhere))

    def _elsewhere(self, domain_name: str, name: str) -> StoredQueue | None:
        """A queue that another node leads, as it is stored here."""
        domain = self._domain(domain_name)
        cluster, uri = self._broker.clusters[domain.cluster], f"bmq://{domain.name}/{name}"
        record = next((each for each in cluster.led_elsewhere(domain.name) if each.uri == uri), None)
        return cluster.partitions[record.partition_id].state.queues.get(record.key) if record is not None else None

    def _purge(self, queue: RootQueue) -> Slowly[results.Purged]:
        count, size = yield from queue.purge(None, self._wall)
        self._broker.metered(queue)
        self._note("queue", f"{queue.uri} is purged: {count} messages", uri=queue.uri, messages=count, state="purged")
        return results.Purged(queue.uri, count, size)

    def _queue_purge(self, command: commands.QueuePurge) -> Slowly[results.Result]:
        if not command.app_id:
            raise LocalError("Queue Purge requires a non-empty appId (Specify '*' to purge the entire queue).")
        try:
            uri = parse_uri(f"bmq://{command.domain}/{command.queue}").canonical
        except InvalidUri as error:
            raise LocalError(f"Unable to build queue uri with error '{error}'") from None
        queue = self._domain(command.domain).queues.get(command.queue)
        if queue is None and self._elsewhere(command.domain, command.queue) is not None:
            return results.PurgeReport((), (_NOT_LOCAL.format(uri),))
        if queue is None:
            raise LocalError(f"Queue was not found in a storage '{uri}'")
        if command.app_id == WHOLE_QUEUE:
            return results.PurgeReport(((yield from self._purge(queue)),))
        app = queue.apps.get(command.app_id)
        if app is None or not app.registered:
            return results.PurgeReport(
                (), (f"Specified appId '{command.app_id}' not found in the storage of queue '{uri}'.",))
        count, size = yield from queue.purge(app, self._wall)
        self._broker.metered(queue)
        self._note("queue", f"{uri} is purged for app '{app.app_id}': {count} messages", uri=uri, app=app.app_id,
                   messages=count, state="purged")
        return results.PurgeReport((results.Purged(uri, count, size, app.app_id, snapshots.hexadecimal(app.key)),))

    def _queue_internals(self, command: commands.QueueInternals) -> results.Result:
        opened = snapshots.relayed_queue(self._broker, command.domain, command.queue)
        if opened is not None and opened.relay is not None:
            return results.QueueInternalsResult(snapshots.relay_state(self._broker, opened, opened.relay))
        return results.QueueInternalsResult(snapshots.queue_state(self._active_queue(command.domain, command.queue)))

    def _queue_list(self, command: commands.QueueList) -> results.Result:
        stored, bits = self._listable(command.domain, command.queue)
        if command.app_id:
            if command.app_id not in bits:
                raise LocalError("Invalid 'LIST' command: invalid APPID")
            stored = [message for message in stored if message.pending & bits[command.app_id]]
        first, last = list_slice(len(stored), command.offset, command.count)
        return results.QueueContents(tuple(map(self._listed, stored[first:last])), first, len(stored))

    def _listable(self, domain_name: str, name: str) -> tuple[list[Message], dict[str, int]]:
        """The messages of a queue at this node, be it primary, replica or proxy, and the bits of its apps."""
        uri = f"bmq://{domain_name}/{name}"
        for proxy in self._broker.proxies.values():
            if uri in proxy.queues:
                relay = proxy.queues[uri]
                return list(relay.messages.values()), {app.app_id: app.bit for app in relay.apps.values()}
        replica = self._elsewhere(domain_name, name)
        if replica is not None:
            return list(replica.messages.values()), {app.app_id: app.bit for app in replica.apps.values()}
        queue = self._active_queue(domain_name, name)
        return list(queue.messages.values()), {app.app_id: app.bit for app in queue.apps.values() if app.registered}

    def _listed(self, message: Message) -> results.ListedMessage:
        return results.ListedMessage(snapshots.hexadecimal(message.guid), message.size,
                                     message.arrived + snapshots.wall_offset(self._broker))

    def _reconfigure(self, command: commands.DomainReconfigure) -> results.Result:
        self._broker.reconfigure(command.domain)
        self._after_reconfigure()
        return results.Success()

    def _resolver_clear(self, command: commands.ResolverClear) -> results.Result:
        self._broker.provider.clear_resolver(command.domain)
        return results.Success()

    def _config_clear(self, command: commands.ConfigProviderClear) -> results.Result:
        self._broker.provider.clear_files(command.domain)
        return results.Success()

    def _domain_remove(self, command: commands.DomainRemove) -> Slowly[results.Result]:
        return self._remove_second(command.domain) if command.finalize else (yield from self._remove_first(command.domain))

    def _remove_first(self, name: str) -> Slowly[results.Result]:
        """Close the domain to new opens, empty it, delete its queues."""
        domain = self._domain(name)
        if domain.opening:
            raise LocalError(f"Trying to remove the domain '{name}' while there are open queue requests on the fly or the"
                             " domain is shutting down")
        if any(queue.handles for queue in domain.queues.values()):
            raise LocalError(f"Trying to remove the domain '{name}' while there are queues opened or opening")
        domain.removing = True
        purged = yield from self._purge_all(domain)
        cluster = self._broker.clusters[domain.cluster]
        for queue in list(domain.queues.values()):
            cluster.delete_queue(queue, self._wall)
        return purged

    def _remove_second(self, name: str) -> results.Result:
        """Forget the domain: what comes under its name afterwards is a new one."""
        domain = self._broker.domains.get(name)
        if domain is None:
            raise LocalError(f"Domain '{name}' doesn't exist")
        if not domain.removing:
            raise LocalError(f"First round of DOMAINS REMOVE '{name}' is not completed.")
        del self._broker.domains[name]
        if all(other.source != domain.source for other in self._broker.domains.values()):
            self._broker.loaded.pop(domain.source, None)
        self._broker.provider.forget(name)
        self._broker.provider.forget(domain.source)
        return results.Success()

    # -- clusters ---------------------------------------------------------------------------------------------------

    def _clusters_list(self, command: commands.ClustersList) -> results.Result:
        return results.ClusterList(tuple(map(snapshots.cluster_state, self._broker.clusters.values())))

    def _cluster_status(self, command: commands.ClusterStatus) -> results.Result:
        return results.ClusterStatusResult(snapshots.cluster_state(self._cluster(command.cluster)))

    def _queue_helper(self, command: commands.ClusterQueueHelper) -> results.Result:
        return results.QueueHelper(snapshots.cluster_state(self._cluster(command.cluster)))

    def _force_gc(self, command: commands.ForceGcQueues) -> results.Result:
        cluster, now = self._cluster(command.cluster), self._broker.now
        for queue in list(cluster.queues.values()):
            if queue.is_collectable(now, 0, self._broker.identity.started):
                cluster.delete_queue(queue, self._wall)
        return results.Success()

    def _storage_summary(self, command: commands.StorageSummary) -> results.Result:
        cluster = snapshots.cluster_state(self._cluster(command.cluster))
        return results.StorageSummaryResult(cluster.storage_location, cluster.partitions)

    def _partition_summary(self, command: commands.PartitionSummary) -> results.Result:
        self._partition(command.cluster, command.partition_id)
        cluster = snapshots.cluster_state(self._cluster(command.cluster))
        return results.StorageSummaryResult(cluster.storage_location, (cluster.partitions[command.partition_id],))

    def _partition_switch(self, command: commands.PartitionSwitch) -> results.Result:
        partition = self._partition(command.cluster, command.partition_id)
        if command.enable:
            partition.enable()
        else:
            partition.disable()
        self._note("config", f"Partition [{partition.partition_id}] is {'enabled' if command.enable else 'disabled'}",
                   cluster=command.cluster, partition=partition.partition_id, enabled=command.enable)
        return results.Success()

    def _rollover(self, command: commands.PartitionRollover) -> results.Result:
        if command.partition_id == -1:
            partitions = self._cluster(command.cluster).partitions
        else:
            partitions = [self._partition(command.cluster, command.partition_id)]
        failures = []
        for partition in partitions:
            try:
                partition.rollover(self._wall)
            except PartitionUnavailable as error:
                failures.append(f"Rollover failed on partition {partition.partition_id}, rc: -1 ({error})")
        if failures:
            raise LocalError("\n".join(failures))
        return results.Success()

    def _queue_status(self, command: commands.StorageQueueStatus) -> results.Result:
        stored = snapshots.storages(self._cluster(command.cluster), command.domain)
        if not stored and command.domain not in self._broker.domains:
            raise LocalError(f"Unknown domain '{command.domain}'")
        return results.StorageContent(tuple(stored))

    # -- tunables ---------------------------------------------------------------------------------------------------

    def _stat_set(self, command: commands.StatSet) -> results.Result:
        return self._intervals.set(command.parameter, command.value)

    def _stat_get(self, command: commands.StatGet) -> results.Result:
        return self._intervals.get(command.parameter)

    def _stat_tunables(self, command: commands.StatTunables) -> results.Result:
        return self._intervals.list()

    def _replication_of(self, name: str) -> Quorum:
        cluster = self._cluster(name)
        return self._replication.setdefault(name, Quorum(
            cluster.replication_factor, _REPLICATION, lambda factor: self._broker.set_replication_factor(cluster, factor)))

    def _elector_of(self, name: str) -> Quorum:
        cluster = self._cluster(name)
        return self._elector.setdefault(name, Quorum(cluster.definition.elector.quorum, _ELECTOR,
                                                      cluster.leadership.set_quorum))

    def _replication_set(self, command: commands.ReplicationSet) -> results.Result:
        return self._told(command.cluster, self._replication_of(command.cluster).set(command.parameter, command.value))

    def _told(self, cluster: str, changed: results.TunableConfirmation) -> results.Result:
        self._note("config", f"Cluster ({cluster}): {changed.name} is {changed.new}, was {changed.old}", cluster=cluster,
                   tunable=changed.name, value=str(changed.new), before=str(changed.old))
        return changed

    def _replication_get(self, command: commands.ReplicationGet) -> results.Result:
        return self._replication_of(command.cluster).get(command.parameter)

    def _replication_tunables(self, command: commands.ReplicationTunables) -> results.Result:
        return self._replication_of(command.cluster).list()

    def _elector_set(self, command: commands.ElectorSet) -> results.Result:
        return self._told(command.cluster, self._elector_of(command.cluster).set(command.parameter, command.value))

    def _elector_get(self, command: commands.ElectorGet) -> results.Result:
        return self._elector_of(command.cluster).get(command.parameter)

    def _elector_tunables(self, command: commands.ElectorTunables) -> results.Result:
        return self._elector_of(command.cluster).list()

    def _elector_story(self, command: commands.ElectorStory) -> results.Result:
        return self._story("electorTransitions", self._cluster(command.cluster).leadership.elector.story)

    def _story(self, name: str, story: TransitionLog) -> results.Result:
        return results.Transitions(name, self._broker.now, story.transitions)

    def _partition_story(self, command: commands.PartitionStory) -> results.Result:
        partition = self._partition(command.cluster, command.partition_id)
        replication = self._cluster(command.cluster).replication
        if replication is None:
            raise LocalError(f"Cluster '{command.cluster}' has no other nodes: this one is always primary")
        return self._story("partitionTransitions", replication.cells[partition.partition_id].machine.story)

    def _queue_story(self, command: commands.QueueStory) -> results.Result:
        opened = snapshots.relayed_queue(self._broker, command.domain, command.queue)
        if opened is None:
            raise LocalError(f"Queue '{command.queue}' of domain '{command.domain}' is not open here on the way to a "
                             "primary elsewhere")
        return self._story("queueTransitions", opened.story)

    def _stop_status(self, command: commands.StopStatus) -> results.Result:
        broker = self._broker
        if broker.shutdown is None:
            return results.StopStatusResult(None)
        return results.StopStatusResult(broker.shutdown.progress(broker.now, broker.applications()))

    def _elector_transfer(self, command: commands.ElectorTransfer) -> results.Result:
        cluster = self._cluster(command.cluster)
        return _done(cluster.leadership.transfer(_node_id(cluster, command.node)))

    def _partition_move(self, command: commands.PartitionMove) -> results.Result:
        self._partition(command.cluster, command.partition_id)
        cluster = self._cluster(command.cluster)
        node_id = _node_id(cluster, command.node)
        return _done(_appointments(cluster).move(command.partition_id, node_id))

    def _rebalance(self, command: commands.ClusterRebalance) -> results.Result:
        return _done(_appointments(self._cluster(command.cluster)).rebalance())

    def _elector_mode(self, command: commands.ElectorMode) -> results.Result:
        modes = {mode.name: mode for mode in ElectionMode if mode is not ElectionMode.LEAVING}
        mode = modes.get(command.mode.upper())
        if mode is None:
            return results.Error(f"MODE is one of {', '.join(modes)}, not '{command.mode}'")
        self._cluster(command.cluster).leadership.set_mode(mode)
        self._note("config", f"Cluster ({command.cluster}): this node {mode.value}", cluster=command.cluster, mode=mode.name)
        return results.Success()


def _node_id(cluster: Cluster, node: str) -> int:
    """A node by its name or id."""
    for each in cluster.definition.nodes:
        if node in (each.name, str(each.id)):
            return each.id
    raise LocalError(f"Cluster '{cluster.name}' has no node '{node}'")


def _appointments(cluster: Cluster) -> Appointments:
    if cluster.replication is None:
        raise LocalError(f"Cluster '{cluster.name}' has one node, which is primary of everything")
    return cluster.replication.appointments


def _done(refused: str) -> results.Result:
    return results.Error(refused) if refused else results.Success()


def list_slice(total: int, offset: int, count: int) -> tuple[int, int]:
    """The part [first, last) of `total` messages that LIST asks for.

    A negative offset counts from just past the last one; a negative count takes what precedes the position; 0 = all.
    """
    position = min(max(offset + total if offset < 0 else offset, 0), total)
    if count < 0:
        return max(position + count, 0), position
    return position, total if count == 0 else min(position + count, total)


_HANDLERS: dict[type, Callable[[AdminExecutor, Any], results.Result | Slowly[results.Result]]] = {
    commands.Help: AdminExecutor._help,
    commands.BrokerConfigDump: AdminExecutor._broker_config,
    commands.DomainPurge: AdminExecutor._domain_purge,
    commands.DomainInfos: AdminExecutor._domain_infos,
    commands.QueuePurge: AdminExecutor._queue_purge,
    commands.QueueInternals: AdminExecutor._queue_internals,
    commands.QueueList: AdminExecutor._queue_list,
    commands.DomainReconfigure: AdminExecutor._reconfigure,
    commands.ResolverClear: AdminExecutor._resolver_clear,
    commands.DomainRemove: AdminExecutor._domain_remove,
    commands.ConfigProviderClear: AdminExecutor._config_clear,
    commands.StatShow: AdminExecutor._stat_show,
    commands.StatSet: AdminExecutor._stat_set,
    commands.StatGet: AdminExecutor._stat_get,
    commands.StatTunables: AdminExecutor._stat_tunables,
    commands.ClustersList: AdminExecutor._clusters_list,
    commands.ClusterStatus: AdminExecutor._cluster_status,
    commands.ClusterQueueHelper: AdminExecutor._queue_helper,
    commands.ForceGcQueues: AdminExecutor._force_gc,
    commands.StorageSummary: AdminExecutor._storage_summary,
    commands.PartitionSwitch: AdminExecutor._partition_switch,
    commands.PartitionSummary: AdminExecutor._partition_summary,
    commands.PartitionRollover: AdminExecutor._rollover,
    commands.StorageQueueStatus: AdminExecutor._queue_status,
    commands.ReplicationSet: AdminExecutor._replication_set,
    commands.ReplicationGet: AdminExecutor._replication_get,
    commands.ReplicationTunables: AdminExecutor._replication_tunables,
    commands.ElectorSet: AdminExecutor._elector_set,
    commands.ElectorGet: AdminExecutor._elector_get,
    commands.ElectorTunables: AdminExecutor._elector_tunables,
    commands.ElectorStory: AdminExecutor._elector_story,
    commands.PartitionStory: AdminExecutor._partition_story,
    commands.QueueStory: AdminExecutor._queue_story,
    commands.StopStatus: AdminExecutor._stop_status,
    commands.ElectorTransfer: AdminExecutor._elector_transfer,
    commands.PartitionMove: AdminExecutor._partition_move,
    commands.ClusterRebalance: AdminExecutor._rebalance,
    commands.ElectorMode: AdminExecutor._elector_mode,
}
