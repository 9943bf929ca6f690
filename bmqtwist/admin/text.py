"""Text form of the answers of admin commands. Programs parse this text: its layout is exactly the original's.

One function per kind of answer, named in `table.py`, some also used by `daemon/housekeeping.py`; private functions return
lines, which `indent` indents.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from bmqtwist.admin import commands
from bmqtwist.admin.commands import Entry
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.machine import transition_lines
from bmqtwist.report import LogLine, shown
from bmqtwist.textformat import grouped, pretty_bytes, timestamp_text
from bmqtwist.view import snapshot as seen
from bmqtwist.view.alarms import AlarmState
from bmqtwist.view.documents import PartitionRow
from bmqtwist.view.events import NodeEvent

Lines = list[str]
PRIMARY_QUEUE_ID = 0xFFFFFFFE
UNASSIGNED_QUEUE_ID = 0xFFFFFFFF
WATERMARK_PERCENT = 80
_WINDOW_STATES = ("STATE_NORMAL", "STATE_HIGH_WATERMARK", "STATE_FULL")
STORAGE_HEADER = " QueueKey    Partition    NumMsgs    NumBytes                QueueUri"
PAYLOAD_SHOWN = 1024  # bytes
_HEX_ROW = 16
Tree = dict[str, Any]


def indent(lines: Iterable[str], columns: int) -> Lines:
    """Indent lines; empty lines stay empty."""
    return [" " * columns + line if line else line for line in lines]


def quoted(text: str) -> str:
    """Return text in double quotes, with quotes and backslashes escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def handle_parameters(uri: str, q_id: int, flags: int, read_count: int, write_count: int) -> str:
    """Format the parameters of a handle, or of all handles of a queue, in one line."""
    return (f"[ uri = {quoted(uri)} qId = {q_id} subIdInfo = NULL flags = {flags} readCount = {read_count}"
            f" writeCount = {write_count} adminCount = 0 ]")


def stream_parameters(substream: seen.SubstreamState) -> str:
    """Format the stream parameters of a substream in one line."""
    parts = "".join(
        f"[ sId = {sub.s_id} expression = [ version = {sub.version} text = {quoted(sub.text)} ] consumers = [ ["
        f" maxUnconfirmedMessages = {sub.max_messages} maxUnconfirmedBytes = {sub.max_bytes}"
        f" consumerPriority = {sub.priority} consumerPriorityCount = {sub.count} ] ] ] "
        for sub in substream.subscriptions)
    return f"[ appId = {quoted(substream.app_id)} subscriptions = [ {parts}] ]"


class Window(Struct, frozen=True):
    """State of a subscription's unconfirmed messages and bytes; low and high watermarks are equal."""

    state: str
    messages_state: str
    bytes_state: str
    messages_high: int
    bytes_high: int


def window_states(sub: seen.SubscriptionState) -> Window:
    messages_high = -(-sub.max_messages * WATERMARK_PERCENT // 100)
    bytes_high = sub.max_bytes * WATERMARK_PERCENT // 100
    messages_state = _window_state(sub.messages, messages_high, sub.max_messages)
    bytes_state = _window_state(sub.bytes, bytes_high, sub.max_bytes)
    return Window(max(messages_state, bytes_state, key=_WINDOW_STATES.index), messages_state, bytes_state,
                  messages_high, bytes_high)


def whole_ratio(high: int, limit: int) -> int:
    """Return the ratio of a watermark for INTERNALS, truncated to a whole number: 1 for the limit itself, else 0."""
    return 1 if limit and high >= limit else 0


def window_text(sub: seen.SubscriptionState, whole_ratios: bool = False) -> str:
    """Format a subscription's window in one line: state, then current (low - high - limit) of messages and bytes."""
    window = window_states(sub)
    messages_high, bytes_high = window.messages_high, window.bytes_high
    if whole_ratios:
        messages_high = whole_ratio(messages_high, sub.max_messages) * sub.max_messages
        bytes_high = whole_ratio(bytes_high, sub.max_bytes) * sub.max_bytes
    high, size = grouped(messages_high), pretty_bytes(bytes_high)
    return (f"{window.state} [Messages ({window.messages_state}): {grouped(sub.messages)}"
            f" ({high} - {high} - {grouped(sub.max_messages)}), Bytes ({window.bytes_state}): {pretty_bytes(sub.bytes)}"
            f" ({size} - {size} - {pretty_bytes(sub.max_bytes)})] ")


def _window_state(current: int, high: int, limit: int) -> str:
    normal, warned, full = _WINDOW_STATES
    return full if current >= limit else warned if current >= high else normal


def message_rows(messages: Iterable[commands.ListedMessage], offset: int) -> Lines:
    """Return the table of LIST: header and one row per message, numbered from `offset`."""
    rows = [f"{number:>5}: {message.guid}  {pretty_bytes(message.size):>10}  {timestamp_text(message.arrived)}"
            for number, message in enumerate(messages, offset)]
    return ["       GUID                              Size        Timestamp (UTC)", *rows]


# -- help, domains, queues


def help_text(listed: tuple[bool, Sequence[Entry]]) -> str:
    """HELP (False), or HELP PLUMBING (True) with one line for each command."""
    plumbing, entries = listed
    if plumbing:
        return "".join(f"{entry.syntax} - {entry.summary}\n" for entry in entries)
    body = "".join(f"\n    {entry.syntax}\n        {entry.help or entry.summary}" for entry in entries)
    return f"This process responds to the following CMD subcommands:{body}\n"


def _meter(meter: seen.MeterSnapshot) -> Lines:
    if meter.disabled:
        return ["[ ** DISABLED ** ]"]
    lines = [f"{meter.name}:",
             f"    Messages: [current: {grouped(meter.messages)}, limit: {grouped(meter.message_capacity)}]",
             f"    Bytes   : [current: {pretty_bytes(meter.bytes)}, limit: {pretty_bytes(meter.byte_capacity)}]"]
    return lines + (_meter(meter.parent) if meter.parent else [])


def _storages(storages: Iterable[seen.StorageState]) -> Lines:
    rows = [f"{storage.key} {storage.partition_id:>7}      {grouped(storage.messages):>8}"
            f"  {pretty_bytes(storage.bytes):>10}    {storage.uri}{'' if storage.persistent else '  (non-persistent)'}"
            for storage in sorted(storages, key=lambda storage: -storage.bytes)]
    return [STORAGE_HEADER, *rows] if rows else []


def domain_info(domain: seen.DomainState) -> str:
    """INFOS of a domain."""
    stored = [storage for storage in domain.storages if storage.messages]
    return "\n".join([
        "Domain:", "-------", f"    Name ............: {domain.name}", "    Config ..........:", domain.config_json,
        f"    Cluster .........: {domain.cluster}", "    Capacity Meter ..: ", *indent(_meter(domain.meter), 8),
        "    Queues ..........: ", "    ------------------", f"        ActiveQueues ..: {len(domain.queues)}",
        *(f"           {number}. {queue.uri}" for number, queue in enumerate(domain.queues)), "",
        "Storage .......", f"    Number of assigned queue-storages: {len(stored)}", *indent(_storages(stored), 8)])


def purge_report(result: commands.PurgeReport) -> str:
    if not result.purged and not result.errors:
        return "No queue purged."
    rows = sorted(result.purged, key=lambda row: -row.bytes)
    lines = [(f"Purged {grouped(sum(row.messages for row in rows))} message(s) for a total of"
             f" {pretty_bytes(sum(row.bytes for row in rows))} from {len(rows) + len(result.errors)} queue(s):"),
             "    NumBytes     NumMsgs      AppKey             AppId  QueueName"]
    lines += [(f"  {pretty_bytes(row.bytes):>10}  {grouped(row.messages):>10}  {row.app_key}  {row.app_id:>16}"
               f"  {row.uri}") for row in rows]
    if result.errors:
        lines += ["Errors encountered: ", *result.errors]
    return "\n".join(lines)


def queue_contents(result: commands.QueueContents) -> str:
    """LIST of a queue."""
    count = len(result.messages)
    last = max(result.offset + count - 1, 0)
    total = pretty_bytes(sum(message.size for message in result.messages))
    head = f"Printing {count} message(s) [{result.offset}-{last} / {grouped(result.total)}] (total: {total})"
    return "\n".join([head, *message_rows(result.messages, result.offset)]) + "\n"


def _substream(substream: seen.SubstreamState) -> Lines:
    windows = "".join(" " + window_text(sub, whole_ratios=True) for sub in substream.subscriptions)
    lines = [f"subId .................: {substream.sub_id}", f"appId .................: {substream.app_id}",
             f"Stream Parameters .....: {stream_parameters(substream)}", "UnconfirmedMonitors ...:",
             f"    --------{windows}"]
    if windows:
        lines.append(f"UnconfirmedMessages ...: {grouped(substream.unconfirmed)}")
    return lines


def _handle(number: int, handle: seen.HandleState) -> Lines:
    parameters = handle_parameters(handle.uri, handle.q_id, handle.flags, handle.read_count, handle.write_count)
    body = [f"Handle Parameters .....: {parameters}", "IsClientClusterMember .: false"]
    for substream in handle.substreams:
        body += _substream(substream)
    return [f"{number}. 0x{handle.ident:012x}  ~ {handle.client}", *indent(body, 4)]


def _router(app: seen.AppState) -> Lines:
    entries: Lines = []
    for entry in app.router:
        entries += ["[", f"    priority = {entry.priority}", "    queueHandle = [",
                    f"        clientDescription = {quoted(entry.client)}", '        parametersJson = ""',
                    "        isClientClusterMember = false", "        subStreams = [", "        ]", "    ]",
                    f"    count = {entry.count}", f"    expression = {quoted(entry.expression)}", "]"]
    return ["[", "    consumers = [", *indent(entries, 8), "    ]", "]"]


def _app(app: seen.AppState) -> Lines:
    return [f"Consumers .........: {app.consumers}", f"RedeliveryList ....: {app.redelivery}",
            "RoundRobinRouter ..:", *indent(_router(app), 4)]


def _local_queue(queue: seen.QueueState) -> Lines:
    lines = [f"FanoutQueueEngine ({queue.mode}):", "-----------------"]
    if queue.max_consumers:
        lines.append(f"     (maxConsumers: {queue.max_consumers})")
    width = max((len(app.app_id) for app in queue.apps), default=0)
    for app in queue.apps:
        at_end = "" if app.status == "unauthorized" else f", StorageIter.atEnd={str(app.at_end).lower()}"
        lines += [f"    {app.app_id:<{width}}: status={app.status}{at_end}", "    " + "-" * width,
                  *indent(_app(app), 8)]
    return ["LocalQueue:", "-----------", *indent(lines, 4)]


def _remote_queue(queue: seen.QueueState) -> Lines:
    upstream = queue.upstream or seen.UpstreamState()
    lines = [f"Pending PUTs .......................: {upstream.pending_puts} items",
             f"Pending CONFIRMs ...................: {upstream.pending_confirms} items",
             "Has PUSH expiration timer scheduled : no",
             f"Upstream generation count ..........: {upstream.generation}", "Streams ............................: "]
    lines += [f"    [Id: {ident}, state: {state}, genCount: {generation}]"
              for ident, state, generation in upstream.streams]
    lines += ["", "RelayQueueEngine:", "-----------------", f"    Num SubStreams ....: {len(queue.apps)}"]
    lines += [f"        [{app.app_id}] - [{app.key}] : {app.messages}" for app in queue.apps]
    for app in queue.apps:
        lines += [f"    App: {app.app_id}", "    -----------------", *indent(_app(app), 8)]
    return ["RemoteQueue:", "------------", *indent(lines, 4)]


def queue_internals(queue: seen.QueueState) -> str:
    """INTERNALS of a queue."""
    primary = queue.role is seen.NodeRole.PRIMARY
    lines = ["Queue Internals", "---------------", "    State:", "    ------",
             f"        URI ...............: {queue.uri}",
             "        Handle Parameters .: "
             + handle_parameters(queue.uri, PRIMARY_QUEUE_ID if primary else queue.internal_id, *queue.uses),
             "        Stream Parameters .:  [ ]",
             f"        Id/Key ............: {'primary' if primary else queue.internal_id} ~ {queue.key}",
             f"        PartitionId .......: {queue.partition_id}",
             f"        Storage ...........: {grouped(queue.messages)} messages, {pretty_bytes(queue.bytes)}",
             f"            Num virtual storages: {sum(bool(app.key) for app in queue.apps)}",
             *(f"            {app.app_id} : [appKey: {app.key}, numMessages: {grouped(app.messages)}]"
               for app in queue.apps if app.key),
             "        Capacity Meter ....:", *indent(_meter(queue.meter), 12), "",
             "    QueueHandleCatalog:", "    -------------------", f"            {len(queue.handles)} handles:"]
    for number, handle in enumerate(queue.handles, 1):
        lines += indent(_handle(number, handle), 16)
    lines += ["", *indent(_local_queue(queue) if primary else _remote_queue(queue), 4)]
    return "\n".join(lines) + "\n\n"


# -- clusters


def cluster_list(clusters: Iterable[seen.ClusterSnapshot]) -> str:
    text = "The following clusters are active:"
    for cluster in clusters:
        rows = "".join(f"\n        {node.name:<20}{node.node_id:<7}{node.data_center:<14}" for node in cluster.nodes)
        text += f"\n    [LOCAL ] {cluster.name}:{rows}\n"
    return text


def _nodes(nodes: Iterable[seen.NodeState]) -> Lines:
    lines = ["Nodes", "-----"]
    for node in nodes:
        lines += [node.description, f"    IsConnected: {node.connected}", f"    Node Status: {node.status}"
                  f"{f' ({node.unable})' if node.unable else ''}"]
        if node.primary_for:
            lines.append(f"    Primary for partitions: [ {', '.join(map(str, node.primary_for))} ]")
        if node.refused:
            lines.append(f"    Refused: {node.refused}")
    return lines


def _elector(elector: seen.ElectorState) -> Lines:
    return ["Elector", "-------", f"Self State            : {elector.state}",
            f"Leader Node           : {elector.leader}",
            f"LSN: [ electorTerm = {elector.term} sequenceNumber = {elector.sequence} ]",
            f"Leader Status         : {elector.status}"]


def _partitions(partitions: Iterable[seen.PartitionSnapshot]) -> Lines:
    lines = ["Partitions", "----------"]
    for part in partitions:
        lines += [f"PartitionId: {part.partition_id}",
                  f"    Num Queues    : mapped ({grouped(part.queues)}), active ({grouped(part.active)})",
                  f"    Primary Node   : {part.primary}", f"    Primary LeaseId: {part.lease}",
                  f"    Primary Status : {part.status}"]
    return lines


def _internal_id(queue: seen.AssignedQueue) -> str:
    return "PRIMARY" if queue.created else "UNASSIGNED"


def _queues(cluster: seen.ClusterSnapshot) -> Lines:
    lines = ["Queues", "------", f"Num Queues: {grouped(len(cluster.queues))}"]
    if cluster.queues:
        lines.append(" QueueKey    Partition    Internal QueueId          QueueUri")
    return lines + [f"{queue.key} {queue.partition_id:>7}      {_internal_id(queue):>15}       {queue.uri}"
                    for queue in cluster.queues]


def _file(label: str, file: seen.FileState) -> str:
    percent = file.used * 100 // file.total if file.total else 0
    return (f"{label}(used/total): {pretty_bytes(file.used)} / {pretty_bytes(file.total)}  ({percent} %)."
            f" Outstanding bytes: {grouped(file.outstanding)}")


def _partition_summary(part: seen.PartitionSnapshot) -> Lines:
    lines = [f"Partition [{part.partition_id}]:", "----------------",
             (f"    Primary Node: {part.primary}, PSN: [ primaryLeaseId = {part.lease}"
              f" sequenceNumber = {part.sequence}]"),
             f"    IsAvailable: {str(part.available).lower()}", "    Total maintained file sets: 1", "",
             "    Aliased payload count: ", f"        {part.data_file} : {part.aliased}", "",
             "    Active file set details: ", "        " + _file("Data file size    ", part.data),
             "        " + _file("Journal file size ", part.journal)]
    mapped = part.data.used + part.journal.used
    if part.qlist is not None:
        lines.append("        " + _file("Qlist file size   ", part.qlist))
        mapped += part.qlist.used
    lines += ["", f"    Total mapped size      : {pretty_bytes(mapped)}",
              f"    Num outstanding records: {grouped(part.records)}",
              f"    Num unreceipted messages: {grouped(part.unreceipted)}",
              f"    Current Nagle count: {part.batch}", "",
              f"    Number of assigned queue-storages: {grouped(len(part.storages))}"]
    return lines + indent(_storages(part.storages), 8)


def _summary(cluster: seen.ClusterSnapshot) -> Lines:
    lines = ["Storage Summary:", "----------------", f"    Storage location: {cluster.storage_location}", ""]
    for part in cluster.partitions:
        lines += indent(_partition_summary(part), 4)
    return lines


def storage_summary(cluster: seen.ClusterSnapshot) -> str:
    """Format the answer of STORAGE SUMMARY and PARTITION SUMMARY."""
    return "\n".join(_summary(cluster)) + "\n"


def cluster_status(cluster: seen.ClusterSnapshot) -> str:
    """Format the answer of CLUSTER STATUS."""
    lines = [f"Cluster ('{cluster.name}') :", "-" * (len(cluster.name) + 14),
             f"    Cluster name  : Cluster ({cluster.name})", f"    Cluster size  : {len(cluster.nodes)} node(s)",
             f"    Self Node     : {cluster.self_node}", f"    Is Healthy    : {'Yes' if cluster.healthy else 'No'}"]
    if cluster.unsafe_since:
        since = timestamp_text(cluster.unsafe_since)
        lines.append(f"    UNSAFE        : runs alone since {since}, nothing is replicated")
    if cluster.pending_features:
        pending = "".join(f", {name} in {seconds:.0f} s" for name, seconds in cluster.pending_features.items())
        lines += [f"    Features      : {', '.join(cluster.features) or 'none'}{pending}",
                  f"    Storage       : version {cluster.storage_version}"]
    if cluster.member_state not in ("", MemberState.MEMBER.name):
        waits = f" (waits for {cluster.awaited})" if cluster.awaited else ""
        lines.append(f"    Member state  : {cluster.member_state}{waits}")
    if cluster.planned:
        lines.append(f"    Planned nodes : {', '.join(cluster.planned)}")
    for section in (_nodes(cluster.nodes), _elector(cluster.elector), _partitions(cluster.partitions),
                    _queues(cluster), _summary(cluster)):
        lines += ["", *indent(section, 4)]
    return "\n".join(lines) + "\n"


def queue_helper(cluster: seen.ClusterSnapshot) -> str:
    """Format the answer of QUEUEHELPER."""
    domains = cluster.queues_by_domain
    lines = ["ClusterQueueHelper :", "--------------------",
             f"    cluster......................: {cluster.name} (local)",
             f"    nbQueues.....................: {len(cluster.queues)}",
             f"    nbQueueKeys..................: {len({queue.key for queue in cluster.queues})}",
             "    nbPendingReopenQueueRequests.: 0", "", "    Domains :", "    ---------"]
    for name, count in domains.items():
        lines += [f"        {name}: numAssignedQueues={count}", ""]
    if not domains:
        lines.append("")
    lines += ["    Queues :", "    --------"]
    for queue in cluster.queues:
        lines += [f"        {queue.uri}", "            inFlightContexts.: 0",
                  "            assigned.........: true",
                  "            primaryAvailable..: true",
                  f"            id...............: {_internal_id(queue)}", "            subIds...........: ",
                  f"            partitionId......: {queue.partition_id} (primary: {queue.primary})",
                  f"            key..............: {queue.key}",
                  f"            queue............: {'created' if queue.created else '*NOT* created'}",
                  "            nbContext........: 0"]
    return "\n".join(lines)


def storage_content(storages: Iterable[seen.StorageState]) -> str:
    """Format the answer of QUEUE_STATUS."""
    rows = _storages(storage for storage in storages if storage.messages)
    return "\n" + "\n".join(rows) if rows else ""


# -- tunables and the rest


def tunables(found: Sequence[commands.Tunable]) -> str:
    width = max((len(tunable.name) for tunable in found), default=0)
    return "".join(f"{tunable.name}{'':.<{width - len(tunable.name) + 2}}: {tunable.value}\n    {tunable.description}\n"
                   for tunable in found)


def transitions(result: commands.Transitions) -> str:
    """Format the answer of STORY, the transition history of a state machine."""
    lines = transition_lines(result.transitions, result.now)
    return f"{lines}\n" if lines else ""


def domain_moves(moves: Iterable[Tree]) -> str:
    lines = []
    for each in moves:
        lines.append(f"Domain '{each['domain']}' moves from {each['from']} to {each['to']} for {each['seconds']:.1f} s, "
                     f"queues that are not drained: {grouped(each['queues'])}")
        lines += [f"    {queue['uri']}: {queue['waitsFor']}" for queue in each["first"]]
    return _join_lines(lines, "No domain is being moved.")


def stop_status(result: commands.StopStatus) -> str:
    progress = result.progress
    if progress is None:
        return "This broker is not stopping."
    lines = [f"Stopping for {progress.seconds:.1f} s: {progress.stage}", f"    Clients connected: {progress.clients}"]
    for each in progress.clusters:
        lines += [f"    {each.title}: {each.seconds_left:.1f} s left",
                  f"        Partitions with this primary: {', '.join(map(str, each.partitions)) or 'none'}",
                  f"        Leader of the cluster: {'yes' if each.leads else 'no'}",
                  f"        Unconfirmed messages: {each.unconfirmed}", f"        Unanswered PUTs: {each.unanswered}"]
    return "\n".join(lines) + "\n"


def _join_lines(lines: Iterable[str], empty: str = "") -> str:
    return "\n".join(lines or [empty]) + "\n" if isinstance(lines, list) else _join_lines(list(lines), empty)


def events(found: Iterable[NodeEvent]) -> str:
    lines = [f"{each.n:>6}  {timestamp_text(each.at)}  {each.kind:<8}  {shown(each.text, 400)}" for each in found]
    return _join_lines(lines, "There are no events.")


def alarms(found: Iterable[AlarmState]) -> str:
    """Two lines for each alarm: its state, and its text."""
    lines = []
    for each in found:
        state = (f"cleared at {timestamp_text(each.cleared_at)}" if each.cleared_at else
                 f"acknowledged by {shown(each.acknowledged_by)}" if each.acknowledged_by else "active")
        lines += [f"{each.number:>5}  {each.severity} [{each.category}] {each.kind}  {state}; raised {each.count} time(s), "
                  f"first {timestamp_text(each.raised_at)}, last {timestamp_text(each.last_at)}",
                  f"       {shown(each.text.partition(chr(10))[0], 400)}"]
    return _join_lines(lines, "There are no alarms.")


def log(lines: Iterable[LogLine]) -> str:
    return _join_lines((f"{timestamp_text(line.at)} {line.level} {line.category} {line.text}" for line in lines),
                       "The log is empty.")


def preflight(tree: Tree) -> str:
    lines = [f"Stop of node {tree['node']}: quorum {'survives' if tree['quorumSurvives'] else 'DOES NOT SURVIVE'}",
             f"    Clients connected: {tree['sessions']}, proxies: {tree['proxies']}, unconfirmed messages: "
             f"{tree['unconfirmed']}"]
    for cluster in tree["clusters"]:
        if cluster["leads"]:
            lines.append(f"    Cluster ({cluster['name']}): leader, next leader {cluster['nextLeader'] or 'none'}")
    for move in tree["moves"]:
        lines.append(f"    Cluster ({move['cluster']}) Partition [{move['partition']}]: moves to {move['to'] or 'no node'}")
    lines += [f"    WARNING: {warning}" for warning in tree["warnings"]]
    return _join_lines(lines)


def replicas(partitions: list[PartitionRow]) -> str:
    lines = []
    for partition in partitions:
        lines.append(f"Partition [{partition.id}]: primary {partition.primary or 'none'}, {partition.state}, lease "
                     f"{partition.lease}, sequence {grouped(partition.sequence)}, messages {grouped(partition.messages)}")
        for copy in partition.replicas:
            lag = "" if copy.lag_records is None else (f", {grouped(copy.lag_records)} records behind (about "
                                                       f"{pretty_bytes(copy.lag_bytes or 0)})")
            if copy.lag_ms:
                lag += f", the oldest since {grouped(round(copy.lag_ms))} ms"
            lines.append(f"    {copy.node}: {copy.role}{lag}")
    return _join_lines(lines, "There are no partitions.")


def terms(tree: Tree) -> str:
    standing = tree["standing"]
    lines = [f"Cluster ({tree['cluster']}): {standing['state']}, leader {standing['leader'] or 'none'}, term "
             f"{standing['term']}, quorum {standing['quorum']}, heartbeats missed {standing['heartbeatsMissed']} of "
             f"{standing['heartbeatsMissedMax']}"]
    for each in tree["terms"]:
        until = timestamp_text(each["to"]) if each["to"] is not None else "now"
        lines.append(f"    term {each['term']}: {each['leader']}, {timestamp_text(each['from'])} to {until}"
                     + (f": {each['end']}" if each["end"] else ""))
    return _join_lines(lines)


def _app_states_text(row: Tree) -> str:
    found = []
    for app in row["apps"]:
        to = f" to {', '.join(app['to'])}" if app["to"] else ""
        why = f" ({app['why']})" if app.get("why") else ""
        found.append(f"{app['appId']}: {app['state']}{to}{why}")
    return "; ".join(found)


def messages(tree: Tree) -> str:
    lines = [f"{tree['uri']}: {grouped(len(tree['messages']))} of {grouped(tree['total'])} messages, at the {tree['role']}"]
    for row in tree["messages"]:
        lines.append(f"    {row['guid']}  {pretty_bytes(row['bytes']):>10}  {timestamp_text(row['storedAt'])}  "
                     f"{shown(_app_states_text(row), 300)}")
    if tree["next"]:
        lines.append(f"There are more after {tree['next']}.")
    return _join_lines(lines)


def message(tree: Tree) -> str:
    """One message, with up to PAYLOAD_SHOWN bytes of the payload."""
    payload = base64.b64decode(tree["payload"])
    size = "unknown" if tree["payloadBytes"] is None else f"{grouped(tree['payloadBytes'])} B"
    lines = [f"{tree['guid']} of {tree['uri']}, at the {tree['role']}",
             f"    Stored: {timestamp_text(tree['storedAt'])}, {grouped(tree['bytes'])} B, compression "
             f"{tree['compression']}, PSN {tree['lease']}-{tree['sequence']}",
             f"    Apps: {shown(_app_states_text(tree), 2000)}"]
    for name, each in tree["properties"].items():
        lines.append(f"    {shown(name)} ({each['type']}): {shown(str(each['value']), 400)}"
                     + (" ..." if each.get("truncated") else ""))
    if tree.get("problem"):
        lines.append(f"    PROBLEM: {tree['problem']}")
    lines.append(f"    Payload: {size}")
    for at in range(0, min(len(payload), PAYLOAD_SHOWN), _HEX_ROW):
        row = payload[at:at + _HEX_ROW]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"        {at:04x}  {row.hex(' '):<47}  {plain}")
    if len(payload) > PAYLOAD_SHOWN or tree["truncated"]:
        lines.append("        ...")
    return _join_lines(lines)


def subscription(tried: tuple[str, Tree]) -> str:
    """Messages that match an expression, and their routing; or the error of the expression."""
    expression, tree = tried
    if tree["error"]:
        error = tree["error"]
        return _join_lines([shown(expression, 400), " " * error["offset"] + "^" * max(1, error["length"]), error["message"]])
    lines = [f"{tree['matched']} of {tree['examined']} messages match"]
    for result in tree["results"]:
        reason = f" ({result['reason']})" if result["reason"] else ""
        routed = "; ".join(f"{each['appId']}: {_routing_text(each)}" for each in result["routing"])
        lines.append(f"    {result['guid']}: {'matches' if result['matches'] else 'does not match'}{reason}"
                     + (f" [now: {shown(routed, 300)}]" if routed else ""))
    return _join_lines(lines)


def _routing_text(each: Tree) -> str:
    return f"to {each['to']}" if each["outcome"] == "consumer" else str(each["outcome"])
