"""Mutated conversations with a complete broker in memory: no exception, no leaked session or handle, and a valid client
is served during all of them.

A conversation is a recorded stream of a client; some of its events are mutated, omitted, sent twice or replaced by events of
other conversations, and the stream is divided into random chunks. The output of the broker must be complete, well-formed
events. After each conversation the connection is dropped, and its session and handles must be removed. Run by `test_fuzz.py`
and by `tests/soak/command.py` (`frames`).
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from random import Random

from kit import data_events as events
from kit.client import Queue
from kit.config import app_subscription
from kit.memory import MemoryLink, MemoryWorld

from bmqtwist.link.session import Session
from bmqtwist.wire import control
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import FrameBuffer
from fuzz import corpus
from fuzz.findings import Finding
from fuzz.mutation import Mutator

WORLD_FRAMES = 20_000  # frames until the broker is replaced by a new one
PROBE_CONVERSATIONS = 25  # conversations between two checks of the valid client
_LIMITS = {"queue_messages": 50, "queue_bytes": 1 << 20, "domain_messages": 500, "domain_bytes": 8 << 20}
_PRIORITY = ("t.prio", "bmq.test.mem.priority", "t.maxq", "t.maxc", "t.mda", "t.dedup", "t.q3", "t.b10", "t.ttl", "t.mem",
             "t.sc",
             "t.mda1", "t.mda3")


_HARSH = re.compile(rb"DISABLE|REMOVE|SHUTDOWN|RECONFIGURE|SET")


class Sessions:
    """A broker, a valid client, and mutated conversations."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.mutator = Mutator(self.random, corpus.events())
        self.by_type = corpus.by_type()
        # an administrator may disable a partition or remove the domain of the valid client
        self.conversations = [tuple(event for event in conversation if not _HARSH.search(event))
                              for conversation in corpus.conversations()]
        self.counts = {"conversations": 0, "frames": 0, "mutated": 0, "answers": 0, "closed by the broker": 0, "probes": 0,
                       "worlds": 0}
        self._folder = tempfile.TemporaryDirectory(prefix="bmq-fuzz-world-")
        self._sent: list[bytes] = []
        self._until = 0
        self._new_world()

    def close(self) -> None:
        """Remove the directories of the brokers."""
        self._folder.cleanup()

    def _new_world(self) -> None:
        self.counts["worlds"] += 1
        world = self.world = MemoryWorld(Path(self._folder.name) / str(self.counts["worlds"]), start=False,
                                         app={"bmqtwist": {"durability": "none", "event_bytes_max": 1 << 20}})
        for name in _PRIORITY:
            extra = {"t.maxq": {"maxQueues": 2}, "t.maxc": {"maxConsumers": 1, "maxProducers": 1},
                     "t.ttl": {"messageTtl": 1},
                     "t.mda": {"maxDeliveryAttempts": 2}, "t.mda1": {"maxDeliveryAttempts": 1},
                     "t.mda3": {"maxDeliveryAttempts": 3}, "t.mem": {"in_memory": True}, "t.sc": {"strong": True}}
            world.domain(name, **_LIMITS, **extra.get(name, {}))
        for name in ("t.fan", "bmq.test.mem.fanout", "t.fanadd"):
            subscriptions = [app_subscription("baz", "x > 0")] if name == "t.fan" else None
            world.domain(name, "fanout", subscriptions=subscriptions, **_LIMITS)
        world.domain("t.bc", "broadcast", in_memory=True, **_LIMITS)
        world.domain("valid", **_LIMITS)
        world.start()
        self._producer: Queue = world.producer("bmq://valid/q")
        self._consumer: Queue = world.consumer("bmq://valid/q")
        self._own: set[Session] = set(world.broker.sessions.open)
        self._until = self.counts["frames"] + WORLD_FRAMES

    def run(self, frames: int) -> dict[str, int]:
        """Run conversations until `frames` events were mutated in total."""
        while self.counts["mutated"] < frames:
            try:
                self._run_conversation()
                if self.counts["conversations"] % PROBE_CONVERSATIONS == 0:
                    self._check_valid_client()
                    if self.counts["frames"] > self._until:
                        self._new_world()
            except Finding:
                raise
            except Exception as error:
                raise Finding(f"{type(error).__name__}: {error}", "session", *self._sent) from error
        return self.counts

    def _make_events(self) -> list[bytes]:
        random = self.random
        plan = list(random.choice(self.conversations))
        if random.random() < 0.3:
            plan += random.choice(self.conversations)[1:]
        share = random.choice((0.1, 0.5, 1.0))
        found = []
        for index, event in enumerate(plan):
            chance = random.random()
            if index == 0 and chance < 0.85:  # most negotiations must succeed, so that later events are processed
                found.append(event)
                continue
            if chance < 0.03:
                continue
            if chance < 0.10:
                event = random.choice(self.by_type[random.choice(list(self.by_type))])
            if random.random() < share:
                event = self.mutator.event(event)
                self.counts["mutated"] += 1
            found.append(event)
            if chance > 0.97:
                found.append(event)
        return found

    def _run_conversation(self) -> None:
        random, world = self.random, self.world
        link = world.link()
        received = FrameBuffer(1 << 26)
        plan = self._sent = self._make_events()
        self.counts["frames"] += len(plan)
        self.counts["conversations"] += 1
        negotiated = False
        chunks = self._chunks(plan)
        for chunk in chunks:
            link.send(chunk)
            if random.random() < 0.4:
                negotiated = self._check_output(received, link.receive(0), negotiated)
            if random.random() < 0.01:
                world.advance(random.choice((0.1, 1.0, 5.0)))
            if link.session is None:
                break
        self._check_output(received, link.receive(0), negotiated)
        if link.session is None:
            self.counts["closed by the broker"] += 1
        self._disconnect(link)

    def _chunks(self, plan: list[bytes]) -> list[bytes]:
        way = self.random.randrange(4)
        if way == 0:
            return [b"".join(plan)]
        if way < 3:
            return plan
        stream = b"".join(plan)
        chunks = []
        while stream:
            size = self.random.choice((1, 3, 8, 9, 40, 100, 1000))
            chunks.append(stream[:size])
            stream = stream[size:]
        return chunks

    def _check_output(self, received: FrameBuffer, data: bytes, negotiated: bool) -> bool:
        """Decode the output of the broker; return whether the negotiation is complete."""
        if not data:
            return negotiated
        buffer, spans = received.receive(data)
        for kind, specific, start, end in spans:
            self.counts["answers"] += 1
            error = None
            if kind == EventType.CONTROL:
                decode = control.decode_control if negotiated else control.decode_negotiation
                if not decode(buffer[start:end], specific >> 5).choice:
                    raise AssertionError("a response without content")
                negotiated = True
            elif kind == EventType.PUSH:
                _, error = events.decode_push(buffer, start, end)
            elif kind == EventType.ACK:
                _, error = events.decode_ack(buffer, start, end)
            elif kind not in (EventType.HEARTBEAT_REQ, EventType.HEARTBEAT_RSP, EventType.AUTHENTICATION):
                raise AssertionError(f"an event of type {kind} to a client")
            if error is not None:
                raise error
        if received.incomplete_bytes:
            raise AssertionError("an incomplete event")
        return negotiated

    def _disconnect(self, link: MemoryLink) -> None:
        """Drop the connection; its session and handles must be removed."""
        world = self.world
        link.drop()
        left = set(world.broker.sessions.open) - self._own
        if left:
            raise AssertionError(f"{len(left)} leaked session(s)")
        for cluster in world.broker.clusters.values():
            for queue in cluster.queues.values():
                leaked = [handle for handle in queue.handles if handle.client.session not in self._own]
                if leaked:
                    raise AssertionError(f"{len(leaked)} leaked handle(s) of {queue.uri}")
                for app in queue.apps.values():
                    if any(substream.handle.client.session not in self._own for substream in app.substreams):
                        raise AssertionError(f"leaked substream of {queue.uri}, app {app.app_id}")

    def _check_valid_client(self) -> None:
        """The valid client posts a message, receives and confirms it."""
        self.counts["probes"] += 1
        payload = self.counts["probes"].to_bytes(4, "big")
        self._producer.post(payload)
        got = self.world.pushes(self._consumer)
        if [push.payload for push in got] != [payload]:
            raise AssertionError(f"the valid client received {got} instead of its message")
        self._consumer.confirm(*got)
        self.world.report.lines.clear()


def main(frames: int, seed: int) -> dict[str, int]:
    """Run conversations with `frames` mutated events; return the counts."""
    sessions = Sessions(seed)
    try:
        return sessions.run(frames)
    finally:
        sessions.close()


if __name__ == "__main__":
    print(json.dumps(main(50_000, 1)))
