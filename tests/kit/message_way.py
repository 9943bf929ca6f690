"""Call path of a message through the broker: its functions in order.

docs/make_pictures.py prints it; tests/unit/docs/test_pictures.py sends a message and compares the calls. Only `WAY` and
`WAY_OF_THREE` are edited.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A function of the call path.

    `module`, `function`: its names, below bmqtwist; `says`: its effect; `sockets`: called only on a TCP connection.
    """

    module: str
    function: str
    says: str
    sockets: bool = False

    @property
    def code(self) -> tuple[str, str]:
        """Return file and qualified name, as in the code object of the function."""
        return f"bmqtwist/{self.module.replace('.', '/')}.py", self.function


# Headline, steps.
WAY: list[tuple[str, list[Step]]] = [
    ("A chunk of bytes arrives from the producer", [
        Step("reactor.tcp", "Connection.dataReceived", "receives what the transport has read", sockets=True),
        Step("reactor.performer", "ReactorPerformer.on_received", "requests a turn", sockets=True),
        Step("broker.sessions", "Sessions.on_received", "isolates the errors of the session"),
        Step("link.session", "Session.receive", "finds the frames, dispatches each by the table of its kind"),
        Step("wire.frames", "FrameBuffer.receive", "assembles chunks to whole events"),
        Step("link.puts", "PutReader.read", "walks the PUTs, finds the handle by queue id"),
        Step("queue.root", "RootQueue.post", "checks, deduplicates, meters"),
        Step("storage.partition", "Partition.append_message", "appends DATA and MESSAGE records to the batch"),
        Step("storage.state", "PartitionState.apply_message", "applies the record: the message waits for its apps"),
        Step("storage.partition", "Partition.hold_effect", "holds the PUT until its records are durable"),
    ]),
    ("The turn: the collected records are written", [
        Step("reactor.performer", "ReactorPerformer._iterate", "runs the turn after this reactor round", sockets=True),
        Step("broker.broker", "Broker.turn", "writes changed metadata, runs jobs"),
        Step("broker.storage_turn", "StorageTurn.run", "flushes each partition"),
        Step("storage.partition", "Partition.flush", "writes the batch: DATA, QLIST, then JOURNAL"),
        Step("storage.fileset", "FileSets.append", "makes one write per file"),
        Step("storage.gate", "Gate.begin_sync", "requests a sync (durability `group`)"),
    ]),
    ("A thread syncs; then the next turn", [
        Step("storage.partition", "Partition.sync", "calls fdatasync: DATA, QLIST, then JOURNAL"),
        Step("broker.storage_turn", "StorageTurn.on_synced", "receives the result in the event loop"),
        Step("storage.gate", "Gate.release_durable", "releases the PUTs that the sync covers, in order"),
        Step("queue.root", "RootQueue.release", "waits for the commit, if the domain is strong"),
        Step("link.client", "ClientSession.ack", "acknowledges the PUT"),
        Step("queue.root", "RootQueue.add_to_apps", "adds the message to its apps, requests delivery in this turn"),
    ]),
    ("The same turn delivers", [
        Step("queue.delivery", "deliver", "delivers for each app: redeliveries, put-aside list, new messages"),
        Step("link.client", "ClientSession.push", "encodes the message as this client supports it"),
        Step("link.outbox", "Outbox.push", "adds it to the PUSH event of this turn"),
        Step("broker.output", "Output.write", "writes for each session with output"),
        Step("link.session", "Session.take_output", "returns PUSH, then ACK, before each control answer"),
        Step("reactor.performer", "ReactorPerformer.write", "writes the output of the turn at once", sockets=True),
    ]),
    ("The consumer confirms", [
        Step("link.client", "ClientSession.on_confirms", "walks the CONFIRMs"),
        Step("queue.queue", "Queue.confirm", "returns the consumer's credit"),
        Step("queue.root", "RootQueue.finish_message", "checks whether this was the last app"),
        Step("storage.partition", "Partition.append_deletion", "appends the DELETION record to the batch"),
        Step("storage.state", "PartitionState.apply_deletion", "applies it: removes the message"),
    ]),
]
STEPS = [step for _, steps in WAY for step in steps]

# A PUT of a client at a replica of three nodes, until its ACK.
WAY_OF_THREE: list[tuple[str, list[Step]]] = [
    ("A replica: the primary of the queue is another node", [
        Step("link.client", "ClientSession.on_puts", "walks the PUTs, finds the handle by queue id"),
        Step("queue.relay", "RelayQueue.post", "holds the PUT until its ACK"),
        Step("relay.messages", "RelayUplink.put", "finds the upstream: the primary of the partition"),
        Step("link.upstream_batch", "UpstreamBatch.put", "adds it to the PUT event of this turn"),
    ]),
    ("The primary: the PUT becomes a record", [
        Step("link.peer", "PeerSession.on_frame", "passes client events to the handles of the member"),
        Step("queue.root", "RootQueue.post", "checks, deduplicates, meters"),
        Step("storage.partition", "Partition.append_message", "appends DATA and MESSAGE records"),
        Step("storage.partition", "Partition.flush", "writes the batch at the end of the turn"),
        Step("member.partition_runner", "PartitionRunner.on_written", "steps the partition's machine: new records"),
        Step("member.partition_logs", "Feeding.send_records", "sends the batch to each replica, in a STORAGE event"),
    ]),
    ("Each replica: the record is appended", [
        Step("member.dispatch", "MemberDispatch.on_peer_event", "finds the handler of this type of event"),
        Step("member.replication", "Replication.on_message", "steps the partition's machine: records of the primary"),
        Step("storage.replica", "ReplicatedPartition.append_run", "appends and applies them; the turn writes and syncs"),
    ]),
    ("The primary: its own copy is durable", [
        Step("storage.partition", "Partition.on_synced", "releases the PUTs that the sync covers"),
        Step("queue.root", "RootQueue.release", "acknowledges early: a pair of nodes is a majority of three"),
        Step("link.peer", "PeerSession.ack_early", "adds it to an ACK event that names the record"),
    ]),
    ("The replica of the client: ACK and record are here", [
        Step("member.dispatch", "MemberDispatch.on_peer_event", "finds the handler of this type of event"),
        Step("member.member_relays", "MemberRelays.on_acks", "holds the ACK until the record is durable here"),
        Step("relay.messages", "RelayIncoming.pass_acks", "finds the queue by its id at the primary"),
        Step("queue.relay", "RelayQueue.on_ack", "releases the PUT"),
        Step("link.client", "ClientSession.ack", "acknowledges the PUT"),
    ]),
]
STEPS_OF_THREE = [step for _, steps in WAY_OF_THREE for step in steps]
