"""Admin commands: one table says how each is written, in words and in JSON, and what HELP says about it.

The words of a syntax are the grammar itself: `WORD` is a keyword (any case), `<name>` an argument, `[A|B]` one of the
keywords, `[A]` a keyword and `[<name>]` an argument that may be left out, `(<name>|ALL)` an argument or the keyword.
A JSON template is an object whose `"<name>"` values are the arguments; `?key` marks a member that may be absent or null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bmqtwist.errors import LocalError


class AnswerEncoding(Enum):
    """How the answer is written."""

    TEXT = "TEXT"
    JSON_COMPACT = "JSON_COMPACT"
    JSON_PRETTY = "JSON_PRETTY"


class CommandError(LocalError):
    """The text is no admin command; the message says why."""

    @property
    def answer(self) -> str:
        """What the sender of the text is told, in every encoding."""
        return f"Unable to decode command (rc: -1, error: '{self}')"


@dataclass(frozen=True, slots=True)
class Value:
    """A value given to a tunable. `kind` is theNull, theBool, theInteger, theDouble, theString, theDate,
    theTime or theDatetime; dates and times keep their ISO 8601 text."""

    kind: str
    value: object

    def __str__(self) -> str:
        if self.kind == "theNull":
            return "NULL"
        if self.kind == "theBool":
            return "true" if self.value else "false"
        return str(self.value)

    @property
    def described(self) -> str:
        """The value with its kind, as error messages name it."""
        text = f'"{self.value}"' if self.kind == "theString" else str(self)
        return f"[ {self.kind} = {text} ]"


def integer(value: int) -> Value:
    """A whole number as a Value."""
    return Value("theInteger", value)


class Command:
    """Base of all commands; never made itself."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Help(Command):
    plumbing: bool = False


@dataclass(frozen=True, slots=True)
class BrokerConfigDump(Command):
    pass


@dataclass(frozen=True, slots=True)
class DomainPurge(Command):
    domain: str


@dataclass(frozen=True, slots=True)
class DomainInfos(Command):
    domain: str


@dataclass(frozen=True, slots=True)
class QueuePurge(Command):
    """`app_id` "*" stands for the whole queue."""

    domain: str
    queue: str
    app_id: str


@dataclass(frozen=True, slots=True)
class QueueInternals(Command):
    domain: str
    queue: str


@dataclass(frozen=True, slots=True)
class QueueList(Command):
    """`offset` < 0 counts from the end; `count` 0 = all, < 0 = that many before the position."""

    domain: str
    queue: str
    app_id: str | None
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class DomainReconfigure(Command):
    domain: str


@dataclass(frozen=True, slots=True)
class ResolverClear(Command):
    """`domain` None = all."""

    domain: str | None


@dataclass(frozen=True, slots=True)
class DomainRemove(Command):
    domain: str
    finalize: bool = False


@dataclass(frozen=True, slots=True)
class ConfigProviderClear(Command):
    """`domain` None = all."""

    domain: str | None


@dataclass(frozen=True, slots=True)
class StatShow(Command):
    pass


@dataclass(frozen=True, slots=True)
class StatSet(Command):
    parameter: str
    value: Value


@dataclass(frozen=True, slots=True)
class StatGet(Command):
    parameter: str


@dataclass(frozen=True, slots=True)
class StatTunables(Command):
    pass


@dataclass(frozen=True, slots=True)
class ClustersList(Command):
    pass


@dataclass(frozen=True, slots=True)
class ClusterStatus(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class ClusterQueueHelper(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class ForceGcQueues(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class StorageSummary(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class PartitionSwitch(Command):
    cluster: str
    partition_id: int
    enable: bool


@dataclass(frozen=True, slots=True)
class PartitionSummary(Command):
    cluster: str
    partition_id: int


@dataclass(frozen=True, slots=True)
class PartitionRollover(Command):
    """`partition_id` -1 = all."""

    cluster: str
    partition_id: int


@dataclass(frozen=True, slots=True)
class PartitionMove(Command):
    cluster: str
    partition_id: int
    node: str


@dataclass(frozen=True, slots=True)
class ClusterRebalance(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class StorageQueueStatus(Command):
    cluster: str
    domain: str


@dataclass(frozen=True, slots=True)
class ReplicationSet(Command):
    cluster: str
    parameter: str
    value: Value
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ReplicationGet(Command):
    cluster: str
    parameter: str
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ReplicationTunables(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class ElectorSet(Command):
    cluster: str
    parameter: str
    value: Value
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ElectorGet(Command):
    cluster: str
    parameter: str
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ElectorTunables(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class ElectorStory(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class PartitionStory(Command):
    cluster: str
    partition_id: int


@dataclass(frozen=True, slots=True)
class QueueStory(Command):
    domain: str
    queue: str


@dataclass(frozen=True, slots=True)
class StopStatus(Command):
    pass


@dataclass(frozen=True, slots=True)
class ElectorTransfer(Command):
    cluster: str
    node: str


@dataclass(frozen=True, slots=True)
class ElectorMode(Command):
    cluster: str
    mode: str


@dataclass(frozen=True, slots=True)
class Events(Command):
    """Those younger than event `after`; None = the last ones."""

    after: int | None


@dataclass(frozen=True, slots=True)
class Alarms(Command):
    pass


@dataclass(frozen=True, slots=True)
class AlarmMark(Command):
    """Somebody has seen an alarm, or (`clear`) says that it is over."""

    alarm_id: str
    clear: bool


@dataclass(frozen=True, slots=True)
class LogLines(Command):
    count: int


@dataclass(frozen=True, slots=True)
class StopQuestion(Command):
    pass


@dataclass(frozen=True, slots=True)
class StorageReplicas(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class ElectorTerms(Command):
    cluster: str


@dataclass(frozen=True, slots=True)
class QueueMessages(Command):
    """`after`: a GUID; None = from the oldest message on. `count` < 0: the newest ones, backwards."""

    domain: str
    queue: str
    after: str | None
    count: int


@dataclass(frozen=True, slots=True)
class QueueMessage(Command):
    domain: str
    queue: str
    guid: str


@dataclass(frozen=True, slots=True)
class QueueSubscription(Command):
    domain: str
    queue: str
    expression: str


Arguments = dict[str, Any]
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: how it is written, what HELP says, and how arguments become a Command.

    `json` holds (template, arguments that the template implies) pairs; `hidden` is an end of the syntax that HELP
    does not show; `help` is the text of HELP when it is longer than the summary. HELP is that of the original: commands
    that are `ours` are not in it.
    """

    syntax: str
    summary: str
    make: Callable[[Arguments], Command]
    json: tuple[tuple[Json, Arguments], ...]
    help: str = ""
    hidden: str = ""
    ours: bool = False

    @property
    def grammar(self) -> list[str]:
        """The words of the syntax, hidden ones included."""
        return (self.syntax + self.hidden).split()


def _domain(command: Json) -> Json:
    return {"domains": {"domain": {"name": "<name>", "command": command}}}


def _queue(command: Json) -> Json:
    return _domain({"queue": {"name": "<queue_name>", "command": command}})


def _cluster(command: Json) -> Json:
    return {"clusters": {"cluster": {"name": "<name>", "command": command}}}


def _storage(command: Json) -> Json:
    return _cluster({"storage": command})


def _elector(command: Json) -> Json:
    return _cluster({"state": {"elector": command}})


def _partition(command: Json) -> Json:
    return _storage({"partition": {"partitionId": "<partitionId>", "command": command}})


def _clear(wrap: Callable[[Json], Json]) -> tuple[tuple[Json, Arguments], ...]:
    return (wrap({"clearCache": {"all": {}}}), {"domain": None}), (wrap({"clearCache": {"domain": "<domain>"}}), {})


def _tunables(wrap: Callable[[Json], Json], where: str, name: str, setter: type, getter: type, lister: type,
              texts: tuple[tuple[str, str], ...]) -> tuple[Entry, ...]:
    """SET, GET and LIST_TUNABLES of one part of a cluster: the three entries differ in words only."""
    def scope(args: Arguments) -> bool:
        return str(args["word"]).endswith("_ALL")

    change = {"name": "<parameter>", "value": "<value>"}
    ask = {"name": "<parameter>"}
    head = f"CLUSTERS CLUSTER <name> {where} {name}"
    return (
        Entry(f"{head} [SET|SET_ALL] <parameter> <value>", texts[0][0],
              lambda args: setter(args["name"], args["parameter"], args["value"], scope(args)),
              ((wrap({"setTunable": {**change, "all": {}}}), {"word": "SET_ALL"}),
               (wrap({"setTunable": {**change, "?self": {}}}), {"word": "SET"})), texts[0][1]),
        Entry(f"{head} [GET|GET_ALL] <parameter>", texts[1][0],
              lambda args: getter(args["name"], args["parameter"], scope(args)),
              ((wrap({"getTunable": {**ask, "all": {}}}), {"word": "GET_ALL"}),
               (wrap({"getTunable": {**ask, "?self": {}}}), {"word": "GET"})), texts[1][1]),
        Entry(f"{head} LIST_TUNABLES", texts[2][0], lambda args: lister(args["name"]),
              ((wrap({"listTunables": {}}), {}),)),
    )


TABLE: tuple[Entry, ...] = (
    Entry("HELP", "Show list of supported commands", lambda args: Help(bool(args.get("plumbing"))),
          (({"help": {"?plumbing": "<plumbing>"}}, {}),), hidden=" [PLUMBING]"),
    Entry("BROKERCONFIG DUMP", "Dump the broker's configuration", lambda args: BrokerConfigDump(),
          (({"brokerConfig": {"dump": {}}}, {}),)),
    Entry("DOMAINS DOMAIN <name> PURGE", "Purge all queues in domain 'name'", lambda args: DomainPurge(args["name"]),
          ((_domain({"purge": {}}), {}),)),
    Entry("DOMAINS DOMAIN <name> INFOS", "Show information about domain 'name' and its queues",
          lambda args: DomainInfos(args["name"]), ((_domain({"info": {}}), {}),)),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> PURGE <appId>",
          "Purge the 'appId' in the 'queue_name' belonging to domain 'name'.",
          lambda args: QueuePurge(args["name"], args["queue_name"], args["appId"]),
          ((_queue({"purgeAppId": "<appId>"}), {}),),
          "Purge the 'appId' in the 'queue_name' belonging to domain 'name'. Specify '*' for 'appId' for entire queue"),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> INTERNALS",
          "internals of 'queue_name' belonging to domain 'name'",
          lambda args: QueueInternals(args["name"], args["queue_name"]), ((_queue({"internals": {}}), {}),),
          "Dump the internals of 'queue_name' belonging to domain 'name'"),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> LIST [<appId>] <offset> <count>",
          "List 'count' messages pending in 'queue_name' for  (optional) 'appId' starting at 'offset'",
          lambda args: QueueList(args["name"], args["queue_name"], args.get("appId"), args["offset"], args["count"]),
          ((_queue({"messages": {"?appId": "<appId>", "offset": "<offset>", "count": "<count>"}}), {}),),
          "List information for 'count' messages starting at 'offset' from 'queue_name' for 'appId' in domain 'name'."
          "  If 'offset' is negative, it is relative to the position just past the *last* message.  If 'count' is"
          " 'negative', print '-count' messages *preceding* the specified starting position.  If 'count' is"
          " 'UNLIMITED', print all the messages starting at and after the specified position."),
    Entry("DOMAINS RECONFIGURE <domain>", "Reconfigure 'domain' by reloading its configuration from disk",
          lambda args: DomainReconfigure(args["domain"]),
          (({"domains": {"reconfigure": {"domain": "<domain>"}}}, {}),)),
    Entry("DOMAINS RESOLVER CACHE_CLEAR (<domain>|ALL)", "Clear the domain's cached resolution.",
          lambda args: ResolverClear(args["domain"]), _clear(lambda part: {"domains": {"resolver": part}}),
          "Clear the domain resolution cache entry of the optionally specified 'domain', or clear all domain"
          " resolution cache entries if 'ALL' is specified."),
    Entry("DOMAINS REMOVE <domain> [FINALIZE]", "Remove a domain with an optional keyword 'FINALIZE'",
          lambda args: DomainRemove(args["domain"], bool(args.get("finalize"))),
          (({"domains": {"remove": {"domain": "<domain>", "?finalize": "<finalize>"}}}, {}),),
          "Remove a domain from the cluster.  If the keyword 'FINALIZE' is not supplied, perform the first phase of"
          " domain deletion, failing if there is an open queue on this domain and blocking any open queue requests"
          " subsequent to the command being issued.  After the first phase of domain deletion, it is safe to remove"
          " the domain configuration file from disk.  If the keyword 'FINALIZE' is specified, perform the second"
          " phase of domain deletion, failing if the domain has not had the first phase of domain deletion performed."
          "  After the second phase of domain deletion, it is safe to create a new domain reusing the same name and"
          " to connect to it."),
    Entry("CONFIGPROVIDER CACHE_CLEAR (<domain>|ALL)", "Clear domain's cached configuration.",
          lambda args: ConfigProviderClear(args["domain"]), _clear(lambda part: {"configProvider": part}),
          "Clear the cached configuration entry of the optionally specified 'domain' domain, or clear all cached"
          " configuration entries if 'ALL' is specified."),
    Entry("STAT SHOW", "Show statistics", lambda args: StatShow(), (({"stat": {"show": {}}}, {}),)),
    Entry("STAT SET <parameter> <value>", "Set the 'parameter' of the stat controller to 'value'",
          lambda args: StatSet(args["parameter"], args["value"]),
          (({"stat": {"setTunable": {"name": "<parameter>", "value": "<value>"}}}, {}),)),
    Entry("STAT GET <parameter>", "Get the 'parameter' of the stat controller",
          lambda args: StatGet(args["parameter"]), (({"stat": {"getTunable": "<parameter>"}}, {}),)),
    Entry("STAT LIST_TUNABLES", "Get the supported settable parameters for the stat controller",
          lambda args: StatTunables(), (({"stat": {"listTunables": {}}}, {}),)),
    Entry("CLUSTERS LIST", "List all active clusters", lambda args: ClustersList(),
          (({"clusters": {"list": {}}}, {}),)),
    Entry("CLUSTERS CLUSTER <name> STATUS", "Show status of cluster 'name'", lambda args: ClusterStatus(args["name"]),
          ((_cluster({"status": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> QUEUEHELPER", "Show queueHelper's internal state of cluster 'name'",
          lambda args: ClusterQueueHelper(args["name"]), ((_cluster({"queueHelper": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> FORCE_GC_QUEUES", "Force GC all queues matching GC criteria",
          lambda args: ForceGcQueues(args["name"]), ((_cluster({"forceGcQueues": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> STORAGE SUMMARY", "Show storage summary of cluster 'name'",
          lambda args: StorageSummary(args["name"]), ((_storage({"summary": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> [ENABLE|DISABLE]",
          "Enable/disable the 'partitionId' of cluster 'name'",
          lambda args: PartitionSwitch(args["name"], args["partitionId"], args["word"] == "ENABLE"),
          ((_partition({"enable": {}}), {"word": "ENABLE"}), (_partition({"disable": {}}), {"word": "DISABLE"}))),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> SUMMARY",
          "Show summary of the 'partitionId' of cluster 'name'",
          lambda args: PartitionSummary(args["name"], args["partitionId"]), ((_partition({"summary": {}}), {}),)),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION (<partitionId>|ALL) ROLLOVER",
          "Rollover the storage files of 'partitionId' of cluster 'name'",
          lambda args: PartitionRollover(args["name"], -1 if args["partitionId"] is None else args["partitionId"]),
          ((_partition({"rollover": {}}), {}),),
          "Rollover the storage files of 'partitionId' of cluster 'name'. If 'ALL' is used then rollover all"
          " partitions."),
    Entry("CLUSTERS CLUSTER <name> STORAGE DOMAIN <domain_name> QUEUE_STATUS",
          "Show status of queues belonging to 'domain_name' in the storage of cluster 'name'",
          lambda args: StorageQueueStatus(args["name"], args["domain_name"]),
          ((_storage({"domain": {"name": "<domain_name>", "command": {"queueStatus": {}}}}), {}),)),
    *_tunables(lambda part: _storage({"replication": part}), "STORAGE", "REPLICATION", ReplicationSet, ReplicationGet,
               ReplicationTunables, (
        ("Set the value of the replication 'parameter' of cluster 'name'",
         ("Set the value of the replication 'parameter' of cluster 'name'. If SET_ALL is used then set the parameter"
         " for all nodes in the cluster.")),
        ("Get the value of the replication 'parameter' of cluster 'name'",
         ("Get the value of the replication 'parameter' of cluster 'name'. If GET_ALL is used then get the paramter"
         " value for all nodes in the cluster.")),
        ("Get the supported settable parameters for the replication of cluster 'name'", ""))),
    *_tunables(_elector, "STATE", "ELECTOR", ElectorSet, ElectorGet,
               ElectorTunables, (
        ("Set the 'parameter' of the elector of cluster 'name' to 'value'",
         ("Set the 'parameter' of the elector of cluster 'name' to 'value'. If SET_ALL is used then set the paramter"
         " for all nodes in the cluster.")),
        ("Get the 'parameter' of the elector of cluster 'name'",
         ("Get the 'parameter' of the elector of cluster 'name'. If GET_ALL is used then get the parameter value for"
         " all nodes in the cluster.")),
        ("Get the supported settable parameters for the elector of cluster 'name'", ""))),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> MOVE <node>",
          "Let 'node' be primary of the 'partitionId' of cluster 'name'; said to its leader",
          lambda args: PartitionMove(args["name"], args["partitionId"], args["node"]),
          ((_partition({"move": "<node>"}), {}),), ours=True),
    Entry("CLUSTERS CLUSTER <name> REBALANCE",
          "Let every node be primary of equally many partitions of cluster 'name'; said to its leader",
          lambda args: ClusterRebalance(args["name"]), ((_cluster({"rebalance": {}}), {}),), ours=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR STORY",
          "Show what the elector of cluster 'name' went through lately, and why",
          lambda args: ElectorStory(args["name"]), ((_elector({"story": {}}), {}),), ours=True),
    Entry("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> STORY",
          "Show what this node has been for 'partitionId' of cluster 'name' lately, and why",
          lambda args: PartitionStory(args["name"], args["partitionId"]), ((_partition({"story": {}}), {}),), ours=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> STORY",
          "Show what a queue that is led elsewhere went through on its way to its primary, and why",
          lambda args: QueueStory(args["name"], args["queue_name"]), ((_queue({"story": {}}), {}),), ours=True),
    Entry("STOP STATUS", "Show how far the graceful stop of this broker is", lambda args: StopStatus(),
          (({"stop": {"status": {}}}, {}),), ours=True),
    Entry("STOP PREFLIGHT", "Show what the graceful stop of this broker would mean for its clusters",
          lambda args: StopQuestion(), (({"stop": {"preflight": {}}}, {}),), ours=True),
    Entry("EVENTS [<after>]", "Show what has happened at this node lately, or since event 'after'",
          lambda args: Events(args.get("after")), (({"events": {"?after": "<after>"}}, {}),), ours=True),
    Entry("ALARMS", "Show the alarms of this node, and what has become of them", lambda args: Alarms(),
          (({"alarms": {"list": {}}}, {}),), ours=True),
    Entry("ALARM <alarmId> [ACKNOWLEDGE|CLEAR]", "Say that alarm 'alarmId' has been seen, or is over",
          lambda args: AlarmMark(args["alarmId"], args["word"] == "CLEAR"),
          (({"alarms": {"alarm": {"id": "<alarmId>", "acknowledge": {}}}}, {"word": "ACKNOWLEDGE"}),
           ({"alarms": {"alarm": {"id": "<alarmId>", "clear": {}}}}, {"word": "CLEAR"})), ours=True),
    Entry("LOG TAIL <count>", "Show the last 'count' lines of this broker's log", lambda args: LogLines(args["count"]),
          (({"log": {"tail": {"count": "<count>"}}}, {}),), ours=True),
    Entry("CLUSTERS CLUSTER <name> STORAGE REPLICAS",
          "Show what each node is for each partition of cluster 'name', and how far it is behind",
          lambda args: StorageReplicas(args["name"]), ((_storage({"replicas": {}}), {}),), ours=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR TERMS", "Show who led cluster 'name' when, and why that changed",
          lambda args: ElectorTerms(args["name"]), ((_elector({"terms": {}}), {}),), ours=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> MESSAGES [<guid>] <count>",
          "Look at 'count' messages stored in 'queue_name', those behind message 'guid'; negative: the newest ones",
          lambda args: QueueMessages(args["name"], args["queue_name"], args.get("guid"), args["count"]),
          ((_queue({"browse": {"?after": "<guid>", "count": "<count>"}}), {}),), ours=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> MESSAGE <guid>",
          "Look at one message stored in 'queue_name': its properties, its payload, and who has it",
          lambda args: QueueMessage(args["name"], args["queue_name"], args["guid"]),
          ((_queue({"message": {"guid": "<guid>"}}), {}),), ours=True),
    Entry("DOMAINS DOMAIN <name> QUEUE <queue_name> SUBSCRIPTION <expression>",
          "Try a subscription expression on the last messages stored in 'queue_name'; nobody is given anything",
          lambda args: QueueSubscription(args["name"], args["queue_name"], args["expression"]),
          ((_queue({"subscription": {"expression": "<expression>"}}), {}),), ours=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR TRANSFER <node>", "Let 'node' lead cluster 'name'; said to its leader",
          lambda args: ElectorTransfer(args["name"], args["node"]), ((_elector({"transfer": "<node>"}), {}),), ours=True),
    Entry("CLUSTERS CLUSTER <name> STATE ELECTOR MODE <mode>",
          "Whether this node stands as leader of cluster 'name': NORMAL, FORCE (before others) or NEVER",
          lambda args: ElectorMode(args["name"], args["mode"]), ((_elector({"mode": "<mode>"}), {}),), ours=True),
)
