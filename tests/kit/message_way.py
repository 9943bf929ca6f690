"""The way of a message through the broker: which functions it passes, in this order.

docs/make_pictures.py writes it down; tests/unit/docs/test_pictures.py sends a message and looks whether that is its way.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One function. module and function: below bmqtwist. says: what happens there. sockets: only on a real connection."""

    module: str
    function: str
    says: str
    sockets: bool = False

    @property
    def code(self) -> tuple[str, str]:
        """File and qualified name, as a code object has them."""
        return f"bmqtwist/{self.module.replace('.', '/')}.py", self.function


# Headline, steps.
WAY: list[tuple[str, list[Step]]] = [
    ("A chunk of bytes comes from the producer", [
        Step("reactor.tcp", "Connection.dataReceived", "receives what the transport has read", sockets=True),
        Step("reactor.performer", "ReactorPerformer.received", "notes that a turn is due", sockets=True),
        Step("broker.sessions", "Sessions.received", "isolates the errors of the session"),
        Step("link.session", "Session.receive", "finds the frames, looks each up in the table of its kind"),
        Step("wire.frames", "FrameBuffer.receive", "cuts chunks into whole events"),
        Step("link.puts", "PutReader.take", "walks the PUTs, finds the handle by queue id"),
        Step("queue.root", "RootQueue.post", "checks, deduplicates, meters"),
        Step("storage.partition", "Partition.append_message", "makes DATA and MESSAGE records; nothing is written yet"),
        Step("storage.state", "PartitionState.message", "applies the record: the message waits for its apps"),
        Step("storage.partition", "Partition.hold", "holds the PUT back until its records are safe"),
    ]),
    ("The turn: what was collected is written", [
        Step("reactor.performer", "ReactorPerformer._iterate", "runs the turn after this reactor round", sockets=True),
        Step("broker.broker", "Broker.turn", "lets the metadata be written, if they changed"),
        Step("broker.storage_turn", "StorageTurn.run", "goes over the partitions"),
        Step("storage.partition", "Partition.flush", "writes the batch: DATA, QLIST, then JOURNAL"),
        Step("storage.fileset", "FileSets.append", "makes one write per file"),
        Step("storage.gate", "Gate.begin_sync", "says whether a sync is to begin (durability `group`)"),
    ]),
    ("Another thread syncs; then the next turn", [
        Step("storage.partition", "Partition.sync", "calls fdatasync: DATA, QLIST, then JOURNAL"),
        Step("broker.storage_turn", "StorageTurn.synced", "is back on the reactor's thread"),
        Step("storage.gate", "Gate.release_durable", "lets out what the sync has covered, in order"),
        Step("queue.root", "RootQueue.release", "waits for the cluster, if the domain is strong"),
        Step("link.client", "ClientSession.ack", "acknowledges the PUT"),
        Step("queue.root", "RootQueue.ready", "hands the message to its apps, asks for delivery in this turn"),
    ]),
    ("The same turn delivers", [
        Step("queue.delivery", "deliver", "goes over the apps: redelivery, put aside, new"),
        Step("link.client", "ClientSession.push", "turns the message into what this client understands"),
        Step("link.outbox", "Outbox.push", "adds it to the PUSH event of this turn"),
        Step("broker.output", "Output.write", "goes over the sessions that have output"),
        Step("link.session", "Session.take", "hands out PUSH, then ACK, before each control answer"),
        Step("reactor.performer", "ReactorPerformer.write", "makes one write for the whole turn", sockets=True),
    ]),
    ("The consumer confirms", [
        Step("link.client", "ClientSession.on_confirms", "walks the CONFIRMs"),
        Step("queue.queue", "Queue.confirm", "gives the consumer its credit back"),
        Step("queue.root", "RootQueue.finish", "finds out whether this was the last app"),
        Step("storage.partition", "Partition.append_deletion", "makes the DELETION record; the next turn writes it"),
        Step("storage.state", "PartitionState.deletion", "applies it: the message is gone"),
    ]),
]
STEPS = [step for _, steps in WAY for step in steps]

# A PUT of a client at a replica of three nodes, until its ACK.
WAY_OF_THREE: list[tuple[str, list[Step]]] = [
    ("A replica: the queue is led elsewhere", [
        Step("link.client", "ClientSession.on_puts", "walks the PUTs, finds the handle by queue id"),
        Step("queue.relay", "RelayQueue.post", "keeps the PUT until its ACK"),
        Step("relay.messages", "RelayUplink.put", "finds the upstream: the primary of the partition"),
        Step("link.upbound", "Upbound.put", "adds it to the PUT event of this turn"),
    ]),
    ("The primary: the PUT becomes a record", [
        Step("link.peer", "PeerSession.on_frame", "gives what clients send to the handles of the member"),
        Step("queue.root", "RootQueue.post", "checks, deduplicates, meters"),
        Step("storage.partition", "Partition.append_message", "makes DATA and MESSAGE records"),
        Step("storage.partition", "Partition.flush", "writes the batch at the end of the turn"),
        Step("member.partition_runner", "PartitionRunner.on_written", "steps the partition's machine: its log has moved"),
        Step("member.partition_logs", "Feeding.send_records", "sends the batch to each replica, in a STORAGE event"),
    ]),
    ("Each replica: the record is appended", [
        Step("member.dispatch", "MemberDispatch.peer_said", "finds the part for this type of event"),
        Step("member.replication", "Replication.received", "steps the partition's machine: records of the primary"),
        Step("storage.replica", "ReplicatedPartition.append_run", "appends and applies them; the turn writes and syncs"),
    ]),
    ("The primary: its own copy is durable", [
        Step("storage.partition", "Partition.synced", "lets out what the sync has covered"),
        Step("queue.root", "RootQueue.release", "acknowledges early: a pair of nodes is a majority of three"),
        Step("link.peer", "PeerSession.ack_early", "adds it to an ACK event that names the record"),
    ]),
    ("The replica of the client: ACK and record are here", [
        Step("member.dispatch", "MemberDispatch.peer_said", "finds the part for this type of event"),
        Step("member.member_relays", "MemberRelays.acks", "holds the ACK back until the record is durable here"),
        Step("relay.messages", "RelayIncoming.acked", "finds the queue by its id at the primary"),
        Step("queue.relay", "RelayQueue.acked", "lets the PUT go"),
        Step("link.client", "ClientSession.ack", "acknowledges the PUT"),
    ]),
]
STEPS_OF_THREE = [step for _, steps in WAY_OF_THREE for step in steps]
