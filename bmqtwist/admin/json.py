"""JSON form of the answers of admin commands: an object with one member, named after the kind of answer.

`executor.py` calls `dump`; the functions are named in `table.py`, which also has the JSON form of answers that need no
function here (events, alarms, log lines, elections). The text form is in `text.py`. The values are made in `operations.py`;
their classes are in `commands.py` and `view/`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any

from bmqtwist.admin import commands, text
from bmqtwist.admin.commands import Entry, Value
from bmqtwist.view import snapshot as seen

Tree = dict[str, Any]


def dump(tree: Tree, pretty: bool) -> str:
    """Format JSON in one line, or (`pretty`) indented by 4 with a newline at the end."""
    if pretty:
        return json.dumps(tree, indent=4, ensure_ascii=False).replace("/", "\\/") + "\n"
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).replace("/", "\\/")


def _timestamp(wall: float) -> str:
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=round(wall * 1e6))
    return moment.isoformat(timespec="milliseconds")


def _value(value: Value) -> Tree:
    return {value.kind: {} if value.kind == "theNull" else value.value}


def help_tree(listed: tuple[bool, Sequence[Entry]]) -> Tree:
    plumbing, entries = listed
    return {"commands": [{"command": entry.syntax, "description": entry.summary if plumbing else entry.help or entry.summary}
                         for entry in entries], "isPlumbing": plumbing}


def _meter(meter: seen.MeterSnapshot) -> Tree:
    tree: Tree = {
        "name": meter.name, "isDisabled": meter.disabled, "numMessages": meter.messages,
        "messageCapacity": meter.message_capacity, "numMessagesReserved": 0,
        "numBytes": meter.bytes, "byteCapacity": meter.byte_capacity, "numBytesReserved": 0}
    if meter.parent is not None:
        tree["parent"] = _meter(meter.parent)
    return tree


def storages(found: Iterable[seen.StorageState]) -> Tree:
    """Return stored queues, the largest first."""
    return {"storages": [{"queueUri": one.uri, "queueKey": one.key, "partitionId": one.partition_id,
                          "numMessages": one.messages, "numBytes": one.bytes, "isPersistent": one.persistent,
                          "internalQueueId": one.internal_id}
                         for one in sorted(found, key=lambda one: -one.bytes)]}


def domain_info(domain: seen.DomainState) -> Tree:
    return {"name": domain.name, "configJson": domain.config_json, "clusterName": domain.cluster,
            "capacityMeter": _meter(domain.meter), "queueUris": [queue.uri for queue in domain.queues],
            "storageContent": storages(one for one in domain.storages if one.messages)}


def purge_report(result: commands.PurgeReport) -> Tree:
    rows: list[Tree] = [{"queue": {"queueUri": row.uri, "appId": row.app_id, "appKey": row.app_key,
                                   "numMessagesPurged": row.messages, "numBytesPurged": row.bytes}}
                        for row in sorted(result.purged, key=lambda row: -row.bytes)]
    return {"queues": rows + [{"error": {"message": message}} for message in result.errors]}


def queue_contents(result: commands.QueueContents) -> Tree:
    return {"messages": [{"guid": message.guid, "sizeBytes": message.size,
                          "arrivalTimestamp": _timestamp(message.arrived)} for message in result.messages],
            "offset": result.offset, "totalQueueMessages": result.total}


def _substream(substream: seen.SubstreamState) -> Tree:
    windows = []
    for sub in substream.subscriptions:
        window = text.window_states(sub)
        messages_ratio = text.whole_ratio(window.messages_high, sub.max_messages)
        bytes_ratio = text.whole_ratio(window.bytes_high, sub.max_bytes)
        windows.append({
            "state": window.state, "messagesState": window.messages_state, "numMessages": sub.messages,
            "messagesLowWatermarkRatio": messages_ratio, "messagesHighWatermarkRatio": messages_ratio,
            "messagesCapacity": sub.max_messages, "bytesState": window.bytes_state, "numBytes": sub.bytes,
            "bytesLowWatermarkRatio": bytes_ratio, "bytesHighWatermarkRatio": bytes_ratio,
            "bytesCapacity": sub.max_bytes})
    tree: Tree = {"subId": substream.sub_id, "appId": substream.app_id,
                  "parametersJson": text.stream_parameters(substream), "unconfirmedMonitors": windows}
    if windows:
        tree["numUnconfirmedMessages"] = substream.unconfirmed
    return tree


def _handle(handle: seen.HandleState) -> Tree:
    return {"clientDescription": f"0x{handle.ident:012x}  ~ {handle.client}",
            "parametersJson": text.handle_parameters(handle.uri, handle.q_id, handle.flags, handle.read_count,
                                                handle.write_count),
            "isClientClusterMember": False,
            "subStreams": [_substream(substream) for substream in handle.substreams]}


def _app(app: seen.AppState) -> Tree:
    consumers = [{"priority": entry.priority,
                  "queueHandle": {"clientDescription": entry.client, "parametersJson": "",
                                  "isClientClusterMember": False, "subStreams": []},
                  "count": entry.count, "expression": entry.expression} for entry in app.router]
    return {"appId": app.app_id, "numConsumers": app.consumers, "redeliveryListLength": app.redelivery,
            "roundRobinRouter": {"consumers": consumers}}


def queue_internals(queue: seen.QueueState) -> Tree:
    primary = queue.role is seen.NodeRole.PRIMARY
    state = {
        "uri": queue.uri,
        "handleParametersJson": text.handle_parameters(
            queue.uri, text.PRIMARY_QUEUE_ID if primary else queue.internal_id, *queue.uses),
        "streamParametersJson": " [ ]", "id": text.PRIMARY_QUEUE_ID if primary else queue.internal_id, "key": queue.key,
        "partitionId": queue.partition_id,
        "storage": {"numMessages": queue.messages, "numBytes": queue.bytes,
                    "virtualStorages": [{"appId": app.app_id, "appKey": app.key, "numMessages": app.messages}
                                        for app in queue.apps if app.key]},
        "capacityMeter": _meter(queue.meter), "handles": [_handle(handle) for handle in queue.handles]}
    if primary:
        consumers = [{"appId": app.app_id, "status": app.status, "isAtEndOfStorage": app.at_end, "appState": _app(app)}
                     for app in queue.apps]
        engine: Tree = {"fanout": {"mode": queue.mode, "maxConsumers": queue.max_consumers,
                                   "consumerStates": consumers}}
        return {"state": state, "queue": {"localQueue": {"queueEngine": engine}}}
    upstream = queue.upstream
    return {"state": state, "queue": {"remoteQueue": {
        "numPendingPuts": upstream.pending_puts if upstream else 0,
        "numPendingConfirms": upstream.pending_confirms if upstream else 0, "isPushExpirationTimerScheduled": False,
        "numUpstreamGeneration": upstream.generation if upstream else 0,
        "streams": [{"id": ident, "state": name, "genCount": generation}
                    for ident, name, generation in (upstream.streams if upstream else ())],
        "queueEngine": {"relay": {
            "numSubstreams": len(queue.apps),
            "subStreams": [{"appId": app.app_id, "appKey": app.key, "numMessages": app.messages}
                           for app in queue.apps],
            "appStates": [_app(app) for app in queue.apps]}}}}}


def cluster_list(clusters: Iterable[seen.ClusterSnapshot]) -> Tree:
    return {"clusters": [{"locality": "local", "name": cluster.name,
                          "nodes": [{"hostName": node.name, "nodeId": node.node_id, "dataCenter": node.data_center}
                                    for node in cluster.nodes]} for cluster in clusters]}


def _nodes(nodes: Iterable[seen.NodeState]) -> Tree:
    rows = []
    for node in nodes:
        row: Tree = {"description": node.description}
        if node.connected != "self":
            row["isAvailable"] = node.connected == "true"
        rows.append(row | {"status": node.status, "primaryForPartitionIds": list(node.primary_for)}
                    | ({"unable": node.unable} if node.unable else {})
                    | ({"refused": node.refused} if node.refused else {}))
    return {"nodes": rows}


def _elector(elector: seen.ElectorState) -> Tree:
    return {"electorState": elector.state, "leaderNode": elector.leader,
            "leaderMessageSequence": {"electorTerm": elector.term, "sequenceNumber": elector.sequence},
            "leaderStatus": elector.status}


def _partitions(partitions: Iterable[seen.PartitionSnapshot]) -> Tree:
    return {"partitions": [{"numQueuesMapped": part.queues, "numActiveQueues": part.active, "primaryNode": part.primary,
                            "primaryLeaseId": part.lease, "primaryStatus": part.status} for part in partitions]}


def _queues(cluster: seen.ClusterSnapshot) -> Tree:
    return {"storages": [{"queueUri": queue.uri, "queueKey": queue.key, "partitionId": queue.partition_id,
                          "numMessages": 0, "numBytes": 0, "isPersistent": False,
                          "internalQueueId": _internal_id(queue)} for queue in cluster.queues]}


def _internal_id(queue: seen.AssignedQueue) -> int:
    return text.PRIMARY_QUEUE_ID if queue.created else text.UNASSIGNED_QUEUE_ID


def _file(file: seen.FileState) -> Tree:
    return {"positionBytes": file.used, "sizeBytes": file.total, "outstandingBytes": file.outstanding}


def _partition(part: seen.PartitionSnapshot) -> Tree:
    active: Tree = {"dataFile": _file(part.data), "journalFile": _file(part.journal)}
    if part.qlist is not None:
        active["qlistFile"] = _file(part.qlist)
    summary: Tree = {
        "primaryNodeDescription": part.primary, "primaryLeaseId": part.lease, "sequenceNum": part.sequence,
        "isAvailable": part.available,
        "fileSets": [{"dataFileName": part.data_file, "aliasedBlobBufferCount": part.aliased}], "activeFileSet": active,
        "totalMappedBytes": sum(file["positionBytes"] for file in active.values()),
        "numOutstandingRecords": part.records, "numUnreceiptedMessages": part.unreceipted,
        "naglePacketCount": part.batch, "storageContent": storages(part.storages)}
    return {"partitionId": part.partition_id, "state": "open", "summary": summary}


def storage_summary(cluster: seen.ClusterSnapshot) -> Tree:
    return {"clusterFileStoreLocation": cluster.storage_location,
            "fileStores": [_partition(part) for part in cluster.partitions]}


def cluster_status(cluster: seen.ClusterSnapshot) -> Tree:
    return {
        "name": cluster.name, "description": f"Cluster ({cluster.name})", "selfNodeDescription": cluster.self_node,
        "isHealthy": cluster.healthy, **({"unsafeSince": cluster.unsafe_since} if cluster.unsafe_since else {}),
        "features": {"active": list(cluster.features), "secondsUntilActive": dict(cluster.pending_features),
                     "storageVersion": cluster.storage_version},
        "clusterId": cluster.cluster_id, "memberState": cluster.member_state, "awaited": cluster.awaited,
        "voters": list(cluster.voters), "planned": list(cluster.planned),
        "nodeStatuses": _nodes(cluster.nodes),
        "electorInfo": _elector(cluster.elector), "partitionsInfo": _partitions(cluster.partitions),
        "queuesInfo": _queues(cluster),
        "clusterStorageSummary": storage_summary(cluster)}


def queue_helper(cluster: seen.ClusterSnapshot) -> Tree:
    """Return the partition of each queue, by domain."""
    domains = cluster.queues_by_domain
    return {
        "clusterName": cluster.name, "locality": "local",
        "numQueues": len(cluster.queues), "numQueueKeys": len({queue.key for queue in cluster.queues}),
        "numPendingReopenQueueRequests": 0,
        "domains": [{"name": name, "numAssignedQueues": count, "loaded": True} for name, count in domains.items()],
        "queues": [{"uri": queue.uri, "numInFlightContexts": 0, "isAssigned": True,
                    "isPrimaryAvailable": True, "id": _internal_id(queue), "subIds": [],
                    "partitionId": queue.partition_id, "primaryNodeDescription": queue.primary, "key": queue.key,
                    "isCreated": queue.created, "contexts": []} for queue in cluster.queues]}


def transitions(result: commands.Transitions) -> list[Tree]:
    return [{"secondsAgo": result.now - each.at, "before": each.before, "after": each.after, "cause": each.cause}
            for each in result.transitions]


def stop_status(result: commands.StopStatus) -> Tree:
    progress = result.progress
    if progress is None:
        return {"stopping": False}
    clusters = [{"name": each.title, "secondsLeft": each.seconds_left, "partitions": list(each.partitions),
                 "leads": each.leads, "unconfirmed": each.unconfirmed, "unansweredPuts": each.unanswered}
                for each in progress.clusters]
    return {"stopping": True, "stage": progress.stage, "seconds": progress.seconds, "clients": progress.clients,
            "clusters": clusters}


def tunable(one: commands.Tunable) -> Tree:
    return {"name": one.name, "value": _value(one.value), "description": one.description}


def confirmation(result: commands.TunableConfirmation) -> Tree:
    note = {"note": result.note} if result.note else {}
    return {"name": result.name, "oldValue": _value(result.old), "newValue": _value(result.new), **note}
