"""Alarm catalogue: the declaration of every alarm that the broker raises.

    ALARM [QUEUE_STUCK] Queue 'bmq://d/q' appears to be stuck ...
    ALARM [FILE_IO] sync-failed: Partition [0] cannot be synced ...

An alarm has a stable id in kebab case and a category, which several alarms may share. Lines in the log and on the alarm
channel contain the category in brackets, then the id. Lines of BlazingMQ's own alarms are unchanged and do not contain the
id; neither do lines whose category is the id in capitals.

`Report.alarm` takes a declaration. `docs/make_alarms.py` writes docs/alarms.md from the catalogue; the list of alarms in the
console shows the declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

Severity = Literal["ALARM", "PANIC"]


@dataclass(frozen=True, slots=True)
class AlarmKind:
    """Declaration of one alarm. `severity`: ALARM requires an action of an operator, PANIC an immediate one;
    `has_original_line`: the line is that of BlazingMQ, without the id; `clears`: condition under which the broker clears the
    alarm, empty = only an operator clears it; `is_notice`: needs no action, so that it is in the log and the events only."""

    id: str
    category: str
    meaning: str
    effect: str
    remedy: str
    severity: Severity = "ALARM"
    has_original_line: bool = False
    clears: str = ""
    is_notice: bool = False

    def head(self) -> str:
        """Return the text of the line before the text of the alarm, severity excluded: `[FILE_IO] sync-failed: `."""
        if self.has_original_line or self.id == self.category.lower().replace("_", "-"):
            return f"[{self.category}] "
        return f"[{self.category}] {self.id}: "

    def tree(self) -> dict[str, str]:
        """Return the declaration as JSON."""
        return {"id": self.id, "category": self.category, "severity": self.severity, "meaning": self.meaning,
                "effect": self.effect, "remedy": self.remedy, "clears": self.clears}


CATALOGUE: Final[dict[str, AlarmKind]] = {}


def _declare(id: str, category: str, meaning: str, effect: str, remedy: str, **options: Any) -> AlarmKind:
    """Add an alarm to the catalogue. `options`: the remaining fields of AlarmKind."""
    assert id not in CATALOGUE
    kind = CATALOGUE[id] = AlarmKind(id, category, meaning, effect, remedy, **options)
    return kind


def operator_alarm(category: str, is_panic: bool) -> AlarmKind:
    """Return the kind of an alarm that an operator raises, with the operator's category and severity."""
    severity: Severity = "PANIC" if is_panic else "ALARM"
    return AlarmKind(OPERATOR.id, category, OPERATOR.meaning, OPERATOR.effect, OPERATOR.remedy, severity)


# -- queues and domains --------------------------------------------------------------------------------------------------

CAPACITY_STATE_HIGH_WATERMARK = _declare(
    "capacity-state-high-watermark", "CAPACITY_STATE_HIGH_WATERMARK",
    "A queue or domain reached the configured share of its quota of messages or bytes.",
    "None yet. At the quota PUTs are refused.",
    "Check the consumers of the queue. Raise `queueLimits` or `domainLimits`, then `DOMAINS RECONFIGURE`.",
    has_original_line=True, clears="the usage is below the watermark")
CAPACITY_STATE_FULL = _declare(
    "capacity-state-full", "CAPACITY_STATE_FULL",
    "A queue or domain reached its quota of messages or bytes.",
    "PUTs are refused with ACK status 1 (messages) or 2 (bytes).",
    "Check the consumers of the queue, or purge it. Raise `queueLimits` or `domainLimits`, then `DOMAINS RECONFIGURE`.",
    has_original_line=True, clears="the usage is below the quota")
QUEUE_STUCK = _declare(
    "queue-stuck", "QUEUE_STUCK",
    "The oldest undelivered message of a queue or app is older than `maxIdleTime`.",
    "Its messages stay in the queue and count against the quota.",
    "Consumers are missing, have reached their limits of unconfirmed messages, or their expressions do not match: the alarm "
    "lists them.",
    has_original_line=True, clears="no undelivered message is older than `maxIdleTime`")
POISON_PILL = _declare(
    "poison-pill", "POISON_PILL",
    "A message used up `maxDeliveryAttempts`: its consumers disconnected without a CONFIRM.",
    "The message is removed for the app. At most one alarm in 15 s.",
    "Read the dump that the alarm names before it is deleted, and correct the consumer.",
    has_original_line=True)
FANOUT_UNREGISTERED_APPID = _declare(
    "fanout-unregistered-appid", "FANOUT_UNREGISTERED_APPID",
    "A consumer opened an app that the domain does not list.",
    "The consumer receives nothing.",
    "Add the app to `appIDs`, then `DOMAINS RECONFIGURE`.",
    has_original_line=True, clears="the app is registered, or has no consumer")
DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK = _declare(
    "domain-queue-limit-high-watermark", "DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK",
    "A domain has 80 % of `maxQueues`. The leader of the cluster raises it by its own configuration.",
    "None yet. At `maxQueues` new queues are refused.",
    "Raise `maxQueues`, or close unused queues, which are deleted when they are empty.",
    has_original_line=True, clears="the domain has fewer than 80 % of `maxQueues`")
DOMAIN_QUEUE_LIMIT_FULL = _declare(
    "domain-queue-limit-full", "DOMAIN_QUEUE_LIMIT_FULL",
    "A client tried to create a queue in a domain that has `maxQueues`.",
    "The open is refused. Existing queues can be opened.",
    "Raise `maxQueues`, or close unused queues, which are deleted when they are empty.",
    severity="PANIC", has_original_line=True, clears="the domain has fewer than `maxQueues`")
QUEUE_LIST_SHARE = _declare(
    "queue-list-share", "DOMAIN",
    "A client tried to create a queue in a domain that uses more than four times the free bytes of a partition's QLIST.",
    "The open is refused. Existing queues can be opened; domains with fewer queues can create more.",
    "Check which client creates them. Set `maxQueues` of the domain, close unused queues, or raise `maxQlistFileSize`. At "
    "most one alarm per domain and minute.",
    clears="no such open was refused for 5 minutes")
BROADCAST_DOMAIN_STRONG = _declare(
    "broadcast-domain-strong", "DOMAIN",
    "The configuration of a broadcast domain requires strong consistency.",
    "The domain is loaded with eventual consistency.",
    "Write `\"consistency\": {\"eventual\": {}}` into the file of the domain.",
    has_original_line=True)
DOMAIN_NOT_LOADED = _declare(
    "domain-not-loaded", "DOMAIN",
    "The file of a domain with stored queues is invalid or missing, or its mode or storage was changed.",
    "Opens of its queues are refused. Stored messages stay.",
    "Correct the file, then `DOMAINS RECONFIGURE`. To change a mode, `DOMAINS REMOVE` with `FINALIZE` first.")
CLIENT_INVALID_PUSH = _declare(
    "client-invalid-push", "CLIENT_INVALID_PUSH",
    "The properties of a message cannot be converted for an old SDK.",
    "The message is not delivered to this consumer.",
    "Check the producer of the message, or update the consumer's SDK.",
    has_original_line=True)
QUEUE_DISABLED = _declare(
    "queue-disabled", "INTERNAL_ERROR",
    "Operations of a queue raised unexpected exceptions: 5 within 60 s, or one in an operation on all its messages.",
    "The queue is disabled until a restart. Its messages stay.",
    "Report it with the log. Restart the node to enable the queue.")

# -- storage -------------------------------------------------------------------------------------------------------------

PARTITION_AVAILABLESPACE_SOFTLIMIT = _declare(
    "partition-availablespace-softlimit", "PARTITION_AVAILABLESPACE_SOFTLIMIT",
    "Live records fill more than 60 % of a file of a partition. At most one alarm in 15 minutes.",
    "None yet. A full partition refuses PUTs.",
    "Consume or purge: the alarm lists the largest queues. Raise the file sizes.",
    has_original_line=True, clears="live records fill less than 60 % of each file")
PARTITION_READONLY = _declare(
    "partition-readonly", "PARTITION_READONLY",
    "A file of a partition is full, and a rollover would not free 20 % of it.",
    "PUTs to the queues of the partition are refused.",
    "Purge a whole queue (`DOMAINS DOMAIN d QUEUE q PURGE *`), or stop the node, raise the file sizes and start it.",
    severity="PANIC", has_original_line=True, clears="a rollover would free 20 % of each file")
WRITE_FAILED = _declare(
    "write-failed", "FILE_IO",
    "A write to the files of a partition failed.",
    "PUTs wait for another primary, or are refused if no connected member can write. The write is repeated until it "
    "succeeds.",
    "Free space on the disk of `location`, or correct the permissions.",
    clears="the partition accepts records")
SYNC_FAILED = _declare(
    "sync-failed", "FILE_IO",
    "An fdatasync of the files of a partition failed: written records may not be on the disk.",
    "The partition is closed to producers until a restart.",
    "Check the disk, then restart the node.",
    clears="the partition accepts records")
PREALLOCATION_FAILED = _declare(
    "preallocation-failed", "FILE_IO",
    "A file could not be preallocated to its configured size.",
    "The partition works. Later writes fail if the disk is full.",
    "Free space on the disk of `location`, or reduce the file sizes.",
    clears="the partition accepts records")
FILE_SET_NOT_REMOVED = _declare(
    "file-set-not-removed", "FILE_IO",
    "The files of an abandoned rollover could not be removed.",
    "They occupy space on the disk.",
    "Check the permissions of `location`. The next start archives the files.",
    clears="the partition accepts records")
FILE_SET_NOT_TRUNCATED = _declare(
    "file-set-not-truncated", "FILE_IO",
    "The old file set of a rollover could not be truncated to its content.",
    "The archived files are larger than necessary.",
    "Check the disk.",
    clears="the partition accepts records")
RECORDS_NOT_WRITTEN = _declare(
    "records-not-written", "FILE_IO",
    "At a stop, CONFIRMs and deletions could not be written to the files of a partition.",
    "Their messages are delivered again after the start.",
    "Free space on the disk before the start.",
    clears="the partition accepts records")
STORAGE_NOT_CLOSED = _declare(
    "storage-not-closed", "FILE_IO",
    "At a stop, the storage files could not be closed.",
    "The next start recovers the files as after a crash.",
    "Check the disk before the start.",
    severity="PANIC")
ROLLOVER_FAILED = _declare(
    "rollover-failed", "ROLLOVER",
    "A new file set could not be created or written.",
    "The partition continues with the old file set, and repeats the rollover.",
    "Check space and permissions of `location`.")
ROLLOVER_BLOCKING = _declare(
    "rollover-blocking", "ROLLOVER",
    "A file was full before a rollover had copied the live records in slices.",
    "The rest was copied at once, while the broker did nothing else.",
    "Raise the file sizes.")
FILE_SET_NOT_ARCHIVED = _declare(
    "file-set-not-archived", "ROLLOVER",
    "An old file set could not be moved to the archive.",
    "It stays in `location` and occupies space. The next start archives it.",
    "Check space and permissions of `archiveLocation`.")
ARCHIVE_NOT_CLEANED = _declare(
    "archive-not-cleaned", "ROLLOVER",
    "Archived file sets beyond `maxArchivedFileSets` could not be deleted.",
    "They occupy space.",
    "Check the permissions of `archiveLocation`.")
PAYLOAD_DAMAGED = _declare(
    "payload-damaged", "STORAGE",
    "The stored data of a message differ from the data that were written. At most one alarm per partition in 60 s; the next "
    "one has the number of the others.",
    "The message is delivered once it is repaired: with a copy of another member, or with the data in memory.",
    "Check the disk. `bmq storage verify` at the stopped node lists all damage.",
    clears="no repair is in progress in the partition")
PAYLOAD_NOT_REPAIRED = _declare(
    "payload-not-repaired", "STORAGE",
    "An intact copy of a damaged message could not be written to the disk. At most one alarm per partition in 60 s.",
    "The message is delivered from memory, if the payload cache has room. The repair is repeated every 30 s.",
    "Replace the disk: stop the node, and start it with an empty `location`.",
    clears="no repair is in progress in the partition")
PAYLOAD_LOST = _declare(
    "payload-lost", "STORAGE",
    "The stored data of a message are damaged, and no member has an intact copy. At most one alarm per partition in 60 s.",
    "The message is rejected for all apps, as a poison message.",
    "Post the message again: the alarm names queue and GUID. Check the disk.",
    severity="PANIC")
RECOVERY_DAMAGE = _declare(
    "recovery-damage", "RECOVERY",
    "The start found damaged records in the files of a partition.",
    "The alarm names the records, and whether they are skipped or cut off. The old files are archived as `damaged.*`.",
    "See After damage in docs/operations.md.")
FILE_TOO_SHORT = _declare(
    "file-too-short", "RECOVERY",
    "The start found a file that is shorter than its header, or than a sync point of the journal says.",
    "Messages without data are not delivered. The old files are archived as `damaged.*`.",
    "See After damage in docs/operations.md.")
UNFINISHED_WRITE = _declare(
    "unfinished-write", "RECOVERY",
    "The start found bytes after the last record: the end of the process or of the machine interrupted a write.",
    "The bytes are cut off. They contain no message that was acknowledged with durability `group` or `always`.",
    "None after a crash or a loss of power. Otherwise check the disk.")
REPLICA_DAMAGED = _declare(
    "replica-damaged", "RECOVERY",
    "The start of a member found damage in the files of a partition.",
    "The damaged records are ignored and fetched from other members.",
    "Check the disk. See After damage in docs/operations.md.")
JOURNAL_MISSING = _declare(
    "journal-missing", "RECOVERY",
    "The JOURNAL of a file set is missing or empty, so its DATA cannot be read.",
    "The messages of the file set are not available. The set is archived as `damaged.*`.",
    "Restore the JOURNAL from a backup: see After damage in docs/operations.md.")
FILE_MISSING = _declare(
    "file-missing", "RECOVERY",
    "A file of a file set is missing or empty.",
    "An empty file replaces it. Records that refer to it are skipped.",
    "Restore the file from a backup: see After damage in docs/operations.md.")
ROLLOVER_UNFINISHED = _declare(
    "rollover-unfinished", "RECOVERY",
    "The node ended during a rollover, so that two file sets exist.",
    "The file set that the alarm names is used, the other one is archived.",
    "None.")
QUEUE_ADOPTED = _declare(
    "queue-adopted", "RECOVERY",
    "A partition contains messages of a queue that the metadata does not contain.",
    "The queue is registered again with its messages.",
    "Check why the metadata ledger lacks the queue, for example after it was restored from a backup.")
QUEUE_DELETION_COMPLETED = _declare(
    "queue-deletion-completed", "RECOVERY",
    "A partition contains a queue without messages that the metadata does not contain.",
    "The interrupted deletion of the queue is completed.",
    "None.")

# -- clusters ------------------------------------------------------------------------------------------------------------

SECOND_LEADER = _declare(
    "second-leader", "CLUSTER",
    "Another node claims to be the leader in the same term.",
    "This node remains leader and sends its heartbeat.",
    "A node voted twice in a term: check that no node runs with a copy or a backup of the files of a node.")
NEWER_TERM_CEDED = _declare(
    "newer-term-ceded", "CLUSTER",
    "A node ceded the leadership of a newer term than the one in which this node is the leader.",
    "This node remains leader.",
    "Check the network between the nodes.")
TERM_OUT_OF_RANGE = _declare(
    "term-out-of-range", "CLUSTER",
    "A node sent an election message with a term above the maximum.",
    "The message is ignored.",
    "Check the version and the file `bmqtwist_vote` of the node.")
STORAGE_LOST = _declare(
    "storage-lost", "CLUSTER",
    "Files of this node's storage directory are missing or damaged: the alarm names them.",
    "The node is `RECOVERING`: it copies the data of the other members, does not lead, and its votes and acknowledgements "
    "do not count until it has all data.",
    "Check the disk of `location`. Without a majority of members with intact storage, see docs/operations.md.")
VOTE_NOT_WRITTEN = _declare(
    "vote-not-written", "CLUSTER",
    "The vote of this node could not be written.",
    "The node does not vote in this term.",
    "Check space and permissions of `location`.")
TRANSFER_REFUSED = _declare(
    "transfer-refused", "CLUSTER",
    "The leadership was to be transferred to a node that does not follow this node.",
    "This node remains leader.",
    "Check the target node and its connection.")
TRANSFER_FAILED = _declare(
    "transfer-failed", "CLUSTER",
    "The node to which the leadership was transferred did not become the leader in time: it lacks metadata, or does not "
    "respond.",
    "This node remains leader.",
    "Check the target node.")
ELECTED_WITH_STALE_TERM = _declare(
    "elected-with-stale-term", "CLUSTER",
    "This node was elected for a term that is older than its metadata ledger.",
    "The node does not lead. The next election uses a newer term.",
    "If it repeats, check that `bmqtwist_vote` and the ledger in `location` belong together.")
LEDGER_DAMAGED = _declare(
    "ledger-damaged", "CLUSTER",
    "The metadata ledger of this node has damaged records or an incomplete end.",
    "The records from there on are ignored. A member receives them from the leader.",
    "After a crash an incomplete end is normal. Otherwise check the disk of `location`.")
LEDGER_NOT_WRITTEN = _declare(
    "ledger-not-written", "CLUSTER",
    "The metadata ledger cannot be written.",
    "The change is refused. A member that is the leader ceases to lead; in a cluster of one node, queues cannot be created "
    "or deleted until a write succeeds.",
    "Check space and permissions of `location`.")
NODE_CANNOT_WRITE = _declare(
    "node-cannot-write", "CLUSTER",
    "This node cannot write its files: its disk is full, read-only or fails. The alarm is repeated every minute, with the "
    "number of failed writes.",
    "Leadership and partitions move to members that can write. The node takes none again until it can write.",
    "Free space on the disk of `location`, or correct its permissions or its mount: see A disk is full in "
    "docs/operations.md.",
    clears="the node can write")
LEDGER_RECORD_SKIPPED = _declare(
    "ledger-record-skipped", "CLUSTER",
    "A record of the metadata ledger does not fit to the state before it.",
    "The record is skipped.",
    "Compare the ledgers of the nodes with `bmq storage compare`, and report it.")
LEDGER_RECORD_OUT_OF_ORDER = _declare(
    "ledger-record-out-of-order", "CLUSTER",
    "A node sent records of the metadata ledger that do not follow each other.",
    "The records are ignored.",
    "Check the version of the node.")
PARTITIONS_NOT_CONFIGURED = _declare(
    "partitions-not-configured", "CLUSTER",
    "Queues are assigned to partitions that `numPartitions` does not include.",
    "These queues cannot be used.",
    "Restore the former `numPartitions` at all nodes.")
SECOND_PRIMARY = _declare(
    "second-primary", "CLUSTER",
    "Another node claims to be the primary of a partition under the same lease.",
    "Its request is ignored.",
    "Check that no node runs with a copy or a backup of the files of a node.")
PARTITION_LOG_FAILED = _declare(
    "partition-log-failed", "CLUSTER",
    "Records of a partition could not be stored at this node, or its files could not be read.",
    "The replica or primary repeats the operation, or another node becomes the primary.",
    "Check the disk of `location`.")
COMMITTED_RECORDS_DIFFER = _declare(
    "committed-records-differ", "CLUSTER",
    "A primary requested to remove a committed record from this replica.",
    "Nothing is removed. The replica does not catch up with this primary.",
    "An acknowledged record differs between nodes: see After damage in docs/operations.md.")
IMAGE_REFUSED = _declare(
    "image-refused", "CLUSTER",
    "A primary sent an image of a partition that lacks a committed record of this replica.",
    "The image is not stored.",
    "An acknowledged record differs between nodes: see After damage in docs/operations.md.")
REPLICATION_READ_FAILED = _declare(
    "replication-read-failed", "CLUSTER",
    "A primary cannot read records that a replica lacks.",
    "The replica receives an image of all live records instead.",
    "Check the disk of the primary.")
PRIMARY_NOT_ACTIVE = _declare(
    "primary-not-active", "CLUSTER",
    "A node has been the primary of a partition for `maxTimeMaster` and is not active.",
    "The leader appoints another primary.",
    "Check the node: its log, its disk and its connections to a majority of the members.",
    clears="the partition has an active primary")
IDENTITY_NOT_WRITTEN = _declare(
    "identity-not-written", "CLUSTER",
    "The file `bmqtwist_identity` could not be written after the node was registered in the member list.",
    "The node works; the write is repeated.",
    "Check space and permissions of `location`.")
PROMISE_NOT_WRITTEN = _declare(
    "promise-not-written", "CLUSTER",
    "A promise of this node to a new primary could not be written.",
    "The node does not support the primary until the write, which is repeated, succeeds.",
    "Check space and permissions of `location`.")
QUEUE_NOT_IN_METADATA = _declare(
    "queue-not-in-metadata", "CLUSTER",
    "A partition contains messages of a queue that the metadata does not contain.",
    "The messages stay in the files and are not delivered.",
    "Check why the metadata ledger lacks the queue, for example after it was restored from a backup.")
UNSAFE_NODE_ALONE = _declare(
    "unsafe-node-alone", "CLUSTER",
    "This node runs alone after `bmq cluster unsafe-force`.",
    "Records stored only at other members are lost, and nothing is replicated.",
    "Restore the cluster as described in docs/operations.md.")
DUPLICATE_NODE_ID = _declare(
    "duplicate-node-id", "CLUSTER_CONFIGURATION",
    "For more than 30 s a broker tried to connect as a node that is connected and active. One alarm for each node.",
    "The second broker is refused.",
    "Give each node its own id in `clusters.json`, and its own working directory.")
NODE_CONFIGURATION_DIFFERS = _declare(
    "node-configuration-differs", "CLUSTER_CONFIGURATION",
    "A node has a different definition of the cluster: `numPartitions` or the nodes. One alarm for each node.",
    "The node is refused.",
    "Give all nodes the same definition in `clusters.json`.")
OWN_CONFIGURATION_DIFFERS = _declare(
    "own-configuration-differs", "CLUSTER_CONFIGURATION",
    "`nodes` in clusters.json of this node differ from the members of the cluster; the alarm names each difference.",
    "The node is `MISCONFIGURED`: it serves nothing until all nodes of its list are connected and have the same list.",
    "Correct `clusters.json`, or change the members as in docs/operations.md.")
NODE_VERSION_DIFFERS = _declare(
    "node-version-differs", "CLUSTER_VERSIONS",
    "Two nodes have no common version of the protocol or of the storage, or one lacks a feature that the cluster uses. Both "
    "raise it.",
    "The nodes do not connect to each other.",
    "The text names both releases. Run releases that follow each other in one cluster, and the newer one after its features "
    "became active ([upgrade and rollback](operations.md#upgrade-and-rollback)).",
    clears="the nodes are connected")
FEATURES_NOT_USABLE = _declare(
    "features-not-usable", "CLUSTER_VERSIONS",
    "The metadata activate a feature that this release does not support, or the storage version cannot be written.",
    "This node does not use the feature. If it does not support it, the other nodes refuse this node.",
    "Start the release that the other nodes run, or make the storage directory writable.")
CLUSTER_ID_DIFFERS = _declare(
    "cluster-id-differs", "CLUSTER_CONFIGURATION",
    "A node has the storage of another cluster: two nodes started apart from each other, or one ran alone after "
    "`bmq cluster unsafe-force`. The alarm has both cluster ids; an unknown cluster is that of a ledger without an id that "
    "no member list knows, as an earlier release writes it. One alarm for each node and text.",
    "The node is refused. The files of both stay as they are.",
    "Keep the history of one of the two clusters; start the nodes of the other one with empty directories.")
CLUSTER_ACTIVE_NODE_UNKNOWN = _declare(
    "cluster-active-node-unknown", "CLUSTER_ACTIVE_NODE_UNKNOWN",
    "A proxy is connected to no node of its cluster that it can use.",
    "Its clients stay connected and wait.",
    "Check the nodes of the cluster and the network.",
    has_original_line=True, clears="the proxy uses a node")
QUEUE_REOPEN_FAILURE = _declare(
    "queue-reopen-failure", "QUEUE_REOPEN_FAILURE",
    "An upstream broker refused `reopenMaxAttempts` times to open a queue again.",
    "The broker continues to try. Clients of the queue wait.",
    "The alarm has the reason: check the domain of the queue at the nodes.",
    has_original_line=True)

# -- the process ---------------------------------------------------------------------------------------------------------

INTERNAL_ERROR = _declare(
    "internal-error", "INTERNAL_ERROR",
    "An unexpected exception in the broker, with its traceback.",
    "Only the operation that raised it fails.",
    "Report it with the log.")
SESSION_FAILED = _declare(
    "session-failed", "INTERNAL_ERROR",
    "The processing of a connection raised an unexpected exception, with its traceback.",
    "The connection is closed. SDKs connect again.",
    "Report it with the log.")
QUEUE_FAILED = _declare(
    "queue-failed", "INTERNAL_ERROR",
    "An operation of a queue raised an unexpected exception, with its traceback.",
    "The operation fails. After 5 failures within 60 s the queue is disabled.",
    "Report it with the log.")
PARTITION_FAILED = _declare(
    "partition-failed", "INTERNAL_ERROR",
    "An operation on the files of a partition raised an unexpected exception, with its traceback.",
    "The partition is closed to producers until a restart.",
    "Report it with the log. Restart the node.")
DISPATCHER = _declare(
    "dispatcher", "DISPATCHER",
    "The event loop was busy for longer than `alarmTimeoutMs`.",
    "Clients and other nodes waited for this time.",
    "The machine is overloaded, or its disk blocks with durability `always`.",
    clears="no repetition for 5 minutes")
PLUGIN_MISSING = _declare(
    "plugin-missing", "PLUGIN_MISSING",
    "No plug-in is enabled.",
    "None.",
    "None, if this is intended. The console lists it among the events, not among the alarms.",
    has_original_line=True, is_notice=True)
FILE_NOT_WRITTEN = _declare(
    "file-not-written", "LOG_FILE",
    "A file of the log, the statistics or the console (audit log, logouts, history) cannot be written or rotated. One alarm "
    "for each file.",
    "If the rotation failed, the present file continues. Else lines are missing, which the log counts; 500 entries of the "
    "audit log are kept.",
    "The text has the reason: free space or inodes, or correct the permissions. The broker tries again every second.",
    clears="the file is written")
CREDENTIALS_MISSING = _declare(
    "credentials-missing", "CREDENTIALS_MISSING",
    "An authenticator is configured without users.",
    "No client can authenticate by it.",
    "Add users to the configuration of the authenticator.",
    has_original_line=True)
OPERATOR = _declare(
    "operator", "OPERATOR",
    "An operator raised this alarm in the console, with the category and severity of the operator's choice.",
    "None.",
    "The text has the reason. Clear the alarm when it is resolved.")
