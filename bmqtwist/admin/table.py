"""Table of all admin commands, `TABLE`: syntax, summary, function, kind of answer, JSON forms.

The functions of the commands are in `operations.py`. `parse.py` finds the entry of a command line or of a JSON command;
`executor.py` uses the kinds of answers DONE and ERROR. Summaries and help texts of the original's commands are copied from
the original, including the misspelling "paramter".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import to_builtins

from bmqtwist.admin import json, operations, text
from bmqtwist.admin.commands import AnswerKind, Arguments, Entry, Json
from bmqtwist.view.metrics import compact_json

if TYPE_CHECKING:
    from bmqtwist.admin.commands import AdminContext

DONE = AnswerKind("success", lambda result: "SUCCESS", lambda result: {})
ERROR = AnswerKind("error", str, lambda message: {"message": message})
HELP = AnswerKind("help", text.help_text, json.help_tree)
CONFIGURATION = AnswerKind("brokerConfig", str, lambda as_json: {"asJSON": as_json})
DOMAIN = AnswerKind("domainInfo", text.domain_info, json.domain_info)
PURGED = AnswerKind("purgedQueues", text.purge_report, json.purge_report)
CONTENTS = AnswerKind("queueContents", text.queue_contents, json.queue_contents)
QUEUE = AnswerKind("queueInternals", text.queue_internals, json.queue_internals)
STATISTICS = AnswerKind("stats", lambda stats: str(stats[0]), lambda stats: compact_json(stats[1]))
TUNABLE = AnswerKind("tunable", lambda one: f"{one.name} = {one.value}", json.tunable)
TUNABLES = AnswerKind("tunables", text.tunables, lambda found: {"tunables": list(map(json.tunable, found))})
CONFIRMATION = AnswerKind("tunableConfirmation", lambda result: (
    f"{result.name} set to {result.new} from {result.old}" + (f": {result.note}" if result.note else "")),
                      json.confirmation)
CLUSTERS = AnswerKind("clusterList", text.cluster_list, json.cluster_list)
CLUSTER = AnswerKind("clusterStatus", text.cluster_status, json.cluster_status)
QUEUE_HELPER = AnswerKind("clusterQueueHelper", text.queue_helper, json.queue_helper)
STORAGE = AnswerKind("clusterStorageSummary", text.storage_summary, json.storage_summary)
STORED_QUEUES = AnswerKind("storageContent", text.storage_content,
                       lambda found: json.storages(one for one in found if one.messages))
ELECTOR_TRANSITIONS, PARTITION_TRANSITIONS, QUEUE_TRANSITIONS = (
    AnswerKind(f"{kind}Transitions", text.transitions, json.transitions) for kind in ("elector", "partition", "queue"))
STOP_STATUS = AnswerKind("stopStatus", text.stop_status, json.stop_status)
MOVES = AnswerKind("domainMoves", text.domain_moves, lambda moves: {"moves": list(moves)})
STOP_PREFLIGHT = AnswerKind("stopPreflight", text.preflight, lambda tree: tree)
EVENTS = AnswerKind("events", text.events, lambda found: [event.tree() for event in found])
ALARMS = AnswerKind("alarms", text.alarms, lambda found: [alarm.tree() for alarm in found])
ALARM = AnswerKind("alarm", lambda alarm: text.alarms([alarm]), lambda alarm: alarm.tree())
LOG = AnswerKind("log", text.log, lambda lines: [line._asdict() for line in lines])
REPLICAS = AnswerKind("replicas", text.replicas, to_builtins)
TERMS = AnswerKind("elections", text.terms, lambda tree: tree)
MESSAGES = AnswerKind("messages", text.messages, lambda tree: tree)
MESSAGE = AnswerKind("message", text.message, lambda tree: tree)
SUBSCRIPTION = AnswerKind("subscription", text.subscription, lambda tried: tried[1])


def show_help(context: AdminContext, plumbing: bool | None) -> tuple[bool, Sequence[Entry]]:
    """Return the commands of the original."""
    return bool(plumbing), [entry for entry in TABLE if not entry.is_extension]


def _domain_json(command: Json) -> Json:
    return {"domains": {"domain": {"name": "<name>", "command": command}}}


def _queue_json(command: Json) -> Json:
    return _domain_json({"queue": {"name": "<queue_name>", "command": command}})


def _cluster_json(command: Json) -> Json:
    return {"clusters": {"cluster": {"name": "<name>", "command": command}}}


def _storage_json(command: Json) -> Json:
    return _cluster_json({"storage": command})


def _elector_json(command: Json) -> Json:
    return _cluster_json({"state": {"elector": command}})


def _partition_json(command: Json) -> Json:
    return _storage_json({"partition": {"partitionId": "<partitionId>", "command": command}})


def _cache_clear_forms(wrap: Callable[[Json], Json]) -> tuple[tuple[Json, Arguments], ...]:
    return (wrap({"clearCache": {"all": {}}}), {"domain": None}), (wrap({"clearCache": {"domain": "<domain>"}}), {})


def _tunable_entries(wrap: Callable[[Json], Json], where: str, name: str, kind: str,
                     texts: tuple[tuple[str, str], ...]) -> tuple[Entry, ...]:
    """Return the entries SET, GET and LIST_TUNABLES of one part of a cluster."""
    change = {"name": "<parameter>", "value": "<value>"}
    ask = {"name": "<parameter>"}
    head = f"CLUSTERS CLUSTER <name> {where} {name}"
    return (
        Entry(f"{head} [SET|SET_ALL] <parameter> <value>", texts[0][0], partial(operations.set_quorum, kind), CONFIRMATION,
              ((wrap({"setTunable": {**change, "all": {}}}), {"word": "SET_ALL"}),
               (wrap({"setTunable": {**change, "?self": {}}}), {"word": "SET"})), texts[0][1]),
        Entry(f"{head} [GET|GET_ALL] <parameter>", texts[1][0], partial(operations.show_quorum, kind), TUNABLE,
              ((wrap({"getTunable": {**ask, "all": {}}}), {"word": "GET_ALL"}),
               (wrap({"getTunable": {**ask, "?self": {}}}), {"word": "GET"})), texts[1][1]),
        Entry(f"{head} LIST_TUNABLES", texts[2][0], partial(operations.list_quorums, kind), TUNABLES,
              ((wrap({"listTunables": {}}), {}),)),
    )


TABLE: tuple[Entry, ...] = (
    Entry("HELP", "Show list of supported commands", show_help, HELP,
          (({"help": {"?plumbing": "<plumbing>"}}, {}),), hidden=" [PLUMBING]"),
    Entry("BROKERCONFIG DUMP", "Dump the broker's configuration", operations.show_configuration, CONFIGURATION,
          (({"brokerConfig": {"dump": {}}}, {}),)),
    Entry("DOMAINS DOMAIN <name> PURGE", "Purge all queues in domain 'name'", operations.purge_domain, PURGED,
          ((_domain_json({"purge": {}}), {}),)),
    Entry("DOMAINS DOMAIN <name> INFOS", "Show information about domain 'name' and its queues",
          operations.show_domain, DOMAIN, ((_domain_json({"info": {}}), {}),)),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> PURGE <appId>",
          "Purge the 'appId' in the 'queue_name' belonging to domain 'name'.",
          operations.purge_queue, PURGED,
          ((_queue_json({"purgeAppId": "<appId>"}), {}),),
          "Purge the 'appId' in the 'queue_name' belonging to domain 'name'. Specify '*' for 'appId' for entire queue"),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> INTERNALS",
          "internals of 'queue_name' belonging to domain 'name'",
          operations.show_queue, QUEUE, ((_queue_json({"internals": {}}), {}),),
          "Dump the internals of 'queue_name' belonging to domain 'name'"),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> LIST [<appId>] <offset> <count>",
          "List 'count' messages pending in 'queue_name' for  (optional) 'appId' starting at 'offset'",
          operations.list_messages, CONTENTS,
          ((_queue_json({"messages": {"?appId": "<appId>", "offset": "<offset>", "count": "<count>"}}), {}),),
          "List information for 'count' messages starting at 'offset' from 'queue_name' for 'appId' in domain 'name'."
          "  If 'offset' is negative, it is relative to the position just past the *last* message.  If 'count' is"
          " 'negative', print '-count' messages *preceding* the specified starting position.  If 'count' is"
          " 'UNLIMITED', print all the messages starting at and after the specified position."),
    Entry("DOMAINS RECONFIGURE <domain>", "Reconfigure 'domain' by reloading its configuration from disk",
          operations.reconfigure_domain, DONE,
          (({"domains": {"reconfigure": {"domain": "<domain>"}}}, {}),)),
    Entry("DOMAINS RESOLVER CACHE_CLEAR (<domain>|ALL)", "Clear the domain's cached resolution.",
          operations.clear_resolver, DONE, _cache_clear_forms(lambda part: {"domains": {"resolver": part}}),
          "Clear the domain resolution cache entry of the optionally specified 'domain', or clear all domain"
          " resolution cache entries if 'ALL' is specified."),
    Entry("DOMAINS REMOVE <domain> [FINALIZE]", "Remove a domain with an optional keyword 'FINALIZE'",
          operations.remove_domain, PURGED,
          (({"domains": {"remove": {"domain": "<domain>", "?finalize": "<finalize>"}}}, {}),),
          "Remove a domain from the cluster.  If the keyword 'FINALIZE' is not supplied, perform the first phase of"
          " domain deletion, failing if there is an open queue on this domain and blocking any open queue requests"
          " subsequent to the command being issued.  After the first phase of domain deletion, it is safe to remove"
          " the domain configuration file from disk.  If the keyword 'FINALIZE' is specified, perform the second"
          " phase of domain deletion, failing if the domain has not had the first phase of domain deletion performed."
          "  After the second phase of domain deletion, it is safe to create a new domain reusing the same name and"
          " to connect to it."),
    Entry("CONFIGPROVIDER CACHE_CLEAR (<domain>|ALL)", "Clear domain's cached configuration.",
          operations.clear_files, DONE, _cache_clear_forms(lambda part: {"configProvider": part}),
          "Clear the cached configuration entry of the optionally specified 'domain' domain, or clear all cached"
          " configuration entries if 'ALL' is specified."),
    Entry("STAT SHOW", "Show statistics", operations.show_statistics, STATISTICS, (({"stat": {"show": {}}}, {}),)),
    Entry("STAT SET <parameter> <value>", "Set the 'parameter' of the stat controller to 'value'",
          operations.set_interval, CONFIRMATION,
          (({"stat": {"setTunable": {"name": "<parameter>", "value": "<value>"}}}, {}),)),
    Entry("STAT GET <parameter>", "Get the 'parameter' of the stat controller",
          operations.show_interval, TUNABLE, (({"stat": {"getTunable": "<parameter>"}}, {}),)),
    Entry("STAT LIST_TUNABLES", "Get the supported settable parameters for the stat controller",
          operations.list_intervals, TUNABLES, (({"stat": {"listTunables": {}}}, {}),)),
    Entry("CLUSTERS LIST", "List all active clusters", operations.list_clusters, CLUSTERS,
          (({"clusters": {"list": {}}}, {}),)),
    Entry("CLUSTERS CLUSTER <name> STATUS", "Show status of cluster 'name'", operations.show_cluster, CLUSTER,
          ((_cluster_json({"status": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> QUEUEHELPER", "Show queueHelper's internal state of cluster 'name'",
          operations.show_cluster, QUEUE_HELPER, ((_cluster_json({"queueHelper": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> FORCE_GC_QUEUES", "Force GC all queues matching GC criteria",
          operations.collect_queues, DONE, ((_cluster_json({"forceGcQueues": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> STORAGE SUMMARY", "Show storage summary of cluster 'name'",
          operations.show_cluster, STORAGE, ((_storage_json({"summary": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> [ENABLE|DISABLE]",
          "Enable/disable the 'partitionId' of cluster 'name'",
          operations.switch_partition, DONE,
          ((_partition_json({"enable": {}}), {"word": "ENABLE"}), (_partition_json({"disable": {}}), {"word": "DISABLE"}))),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> SUMMARY",
          "Show summary of the 'partitionId' of cluster 'name'",
          operations.show_partition, STORAGE, ((_partition_json({"summary": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION (<partitionId>|ALL) ROLLOVER",
          "Rollover the storage files of 'partitionId' of cluster 'name'",
          operations.roll_over, DONE,
          ((_partition_json({"rollover": {}}), {}),),
          "Rollover the storage files of 'partitionId' of cluster 'name'. If 'ALL' is used then rollover all"
          " partitions."),
    Entry("CLUSTERS CLUSTER <name> STORAGE DOMAIN <domain_name> QUEUE_STATUS",
          "Show status of queues belonging to 'domain_name' in the storage of cluster 'name'",
          operations.show_stored_queues, STORED_QUEUES,
          ((_storage_json({"domain": {"name": "<domain_name>", "command": {"queueStatus": {}}}}), {}),)),
    *_tunable_entries(lambda part: _storage_json({"replication": part}), "STORAGE", "REPLICATION", operations.REPLICATION, (
        ("Set the value of the replication 'parameter' of cluster 'name'",
         ("Set the value of the replication 'parameter' of cluster 'name'. If SET_ALL is used then set the parameter"
         " for all nodes in the cluster.")),
        ("Get the value of the replication 'parameter' of cluster 'name'",
         ("Get the value of the replication 'parameter' of cluster 'name'. If GET_ALL is used then get the paramter"
         " value for all nodes in the cluster.")),
        ("Get the supported settable parameters for the replication of cluster 'name'", ""))),
    *_tunable_entries(_elector_json, "STATE", "ELECTOR", operations.ELECTOR, (
        ("Set the 'parameter' of the elector of cluster 'name' to 'value'",
         ("Set the 'parameter' of the elector of cluster 'name' to 'value'. If SET_ALL is used then set the paramter"
         " for all nodes in the cluster.")),
        ("Get the 'parameter' of the elector of cluster 'name'",
         ("Get the 'parameter' of the elector of cluster 'name'. If GET_ALL is used then get the parameter value for"
         " all nodes in the cluster.")),
        ("Get the supported settable parameters for the elector of cluster 'name'", ""))),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> MOVE <node>",
          "Move 'partitionId' of cluster 'name' to 'node' as primary; to be sent to the leader",
          operations.move_partition, DONE,
          ((_partition_json({"move": "<node>"}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> REBALANCE",
          "Distribute the primaries of cluster 'name' equally over its nodes; to be sent to the leader",
          operations.rebalance, DONE, ((_cluster_json({"rebalance": {}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> MEMBERS ADD <id> <node> <endpoint>",
          "Plan to add 'node' with 'id' at 'endpoint' to cluster 'name'; to be sent to the leader",
          operations.add_member, DONE, ((_cluster_json({"members": {"add": {
              "id": "<id>", "node": "<node>", "endpoint": "<endpoint>"}}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> MEMBERS REMOVE <node>",
          "Plan to remove 'node' from cluster 'name'; to be sent to the leader",
          operations.remove_member, DONE, ((_cluster_json({"members": {"remove": "<node>"}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> MEMBERS REPLACE <node> <endpoint>",
          "Plan to replace 'node' of cluster 'name' by one at 'endpoint'; to be sent to the leader",
          operations.replace_member, DONE, ((_cluster_json({"members": {"replace": {
              "node": "<node>", "endpoint": "<endpoint>"}}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> MEMBERS CANCEL",
          "Cancel the planned change of the nodes of cluster 'name'; to be sent to the leader",
          operations.cancel_members, DONE, ((_cluster_json({"members": {"cancel": {}}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR STORY",
          "Show the transition history of the elector of cluster 'name'",
          operations.show_elector_history, ELECTOR_TRANSITIONS, ((_elector_json({"story": {}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> STORY",
          "Show the transition history of this node's role for 'partitionId' of cluster 'name'",
          operations.show_partition_history, PARTITION_TRANSITIONS,
          ((_partition_json({"story": {}}), {}),), is_extension=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> STORY",
          "Show the transition history of 'queue_name' towards its primary at another node",
          operations.show_queue_history, QUEUE_TRANSITIONS, ((_queue_json({"story": {}}), {}),), is_extension=True),
    Entry("DOMAINS MOVES", "Show the domains that this proxy moves to another cluster, and what is drained at the old one",
          operations.show_moves, MOVES, (({"domains": {"moves": {}}}, {}),), is_extension=True),
    Entry("STOP STATUS", "Show the progress of this broker's graceful stop", operations.show_stop, STOP_STATUS,
          (({"stop": {"status": {}}}, {}),), is_extension=True),
    Entry("STOP PREFLIGHT", "Show the effects of a graceful stop of this broker on its clusters",
          operations.show_stop_preflight, STOP_PREFLIGHT, (({"stop": {"preflight": {}}}, {}),), is_extension=True),
    Entry("EVENTS [<after>]", "Show the last events of this node, or the events after event 'after'",
          operations.show_events, EVENTS, (({"events": {"?after": "<after>"}}, {}),), is_extension=True),
    Entry("ALARMS", "Show the alarms of this node and their state", operations.show_alarms, ALARMS,
          (({"alarms": {"list": {}}}, {}),), is_extension=True),
    Entry("ALARM <alarmId> [ACKNOWLEDGE|CLEAR]", "Acknowledge or clear alarm 'alarmId'",
          operations.mark_alarm, ALARM,
          (({"alarms": {"alarm": {"id": "<alarmId>", "acknowledge": {}}}}, {"word": "ACKNOWLEDGE"}),
           ({"alarms": {"alarm": {"id": "<alarmId>", "clear": {}}}}, {"word": "CLEAR"})), is_extension=True),
    Entry("LOG TAIL <count>", "Show the last 'count' lines of this broker's log", operations.show_log, LOG,
          (({"log": {"tail": {"count": "<count>"}}}, {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> STORAGE REPLICAS",
          "Show the role and the lag of each node for each partition of cluster 'name'",
          operations.show_replicas, REPLICAS, ((_storage_json({"replicas": {}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR TERMS", "Show the leaders of cluster 'name' by term, with causes",
          operations.show_terms, TERMS, ((_elector_json({"terms": {}}), {}),), is_extension=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> MESSAGES [<guid>] <count>",
          "Show 'count' messages stored in 'queue_name', after message 'guid'; negative: the newest ones",
          operations.browse_messages, MESSAGES,
          ((_queue_json({"browse": {"?after": "<guid>", "count": "<count>"}}), {}),), is_extension=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> MESSAGE <guid>",
          "Show one message stored in 'queue_name': properties, payload, and state for each app",
          operations.show_message, MESSAGE,
          ((_queue_json({"message": {"guid": "<guid>"}}), {}),), is_extension=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> SUBSCRIPTION <expression>",
          "Evaluate a subscription expression on the newest messages stored in 'queue_name', without delivery",
          operations.evaluate_subscription, SUBSCRIPTION,
          ((_queue_json({"subscription": {"expression": "<expression>"}}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR TRANSFER <node>",
          "Transfer leadership of cluster 'name' to 'node'; to be sent to the leader",
          operations.transfer_leadership, DONE, ((_elector_json({"transfer": "<node>"}), {}),), is_extension=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR MODE <mode>",
          "Set whether this node may become leader of cluster 'name': NORMAL, FORCE (preferred) or NEVER",
          operations.set_election_mode, DONE, ((_elector_json({"mode": "<mode>"}), {}),), is_extension=True),
)
