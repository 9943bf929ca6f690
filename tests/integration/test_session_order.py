"""Random client actions: the broker sends no event that ends the process of an official client (wire.md 12.1)."""

from __future__ import annotations

from random import Random

import pytest
from kit import codec
from kit.client import Client, Queue
from kit.guard import Guard
from kit.world import World

URIS = ("bmq://d/a", "bmq://d/b", "bmq://f/q", "bmq://m/q", "bmq://b/q")
STEPS = 400


class Actor:
    """A client that performs random actions without a wait for answers, checked by a guard."""

    def __init__(self, world: World, random: Random, name: str) -> None:
        self.world, self.random = world, random
        self.client: Client = world.client(name)
        self.guard = Guard(self.client)
        self.queues: list[Queue] = []
        self.next_q_id = 0

    def step(self) -> None:
        """Perform a random possible action."""
        actions = [self.open, self.read]
        if self.queues:
            actions += [self.put, self.put, self.put, self.configure, self.configure, self.confirm, self.confirm,
                        self.close]
        self.random.choice(actions)()

    def ask(self, queue: Queue, choice: dict[str, object]) -> None:
        """Send a request and report it to the guard."""
        self.guard.on_request(self.client.send_request(choice), choice, queue.sub_id)

    def open(self) -> None:
        """Open a queue for reading and writing; of a fanout queue one to three apps, and another handle for writing."""
        uri = self.random.choice(URIS)
        apps = self.random.sample(["foo", "bar", "baz"], self.random.randint(1, 3)) if "//f/" in uri else [None]
        q_id, self.next_q_id = self.next_q_id, self.next_q_id + 1
        for sub_id, app in enumerate(apps, 1 if apps[0] else 0):
            parameters = self.client.handle_parameters(uri, q_id, read=1, write=0 if app else 1, app_id=app,
                                                       sub_id=sub_id)
            queue = Queue(self.client, uri, q_id, app, sub_id, parameters, {})
            self.ask(queue, {"openQueue": {"handleParameters": parameters}})
            self.queues.append(queue)
            if self.random.random() < 0.8:
                self.configure(queue)

    def configure(self, queue: Queue | None = None) -> None:
        """Configure random limits, priorities, expressions, or a suspension."""
        queue = queue or self.random.choice(self.queues)
        options = self.random.choice([{}, {"m": 1}, {"m": 2}, {"priority": 1}, {"x": "x > 5"}, {"subscriptions": []},
                                      {"subscriptions": [{"x": "x > 5"}, {"x": "x <= 5", "m": 2}]}])
        parameters = queue.stream_parameters(**options)  # type: ignore[arg-type]
        self.ask(queue, {"configureStream": {"qId": queue.q_id, "streamParameters": parameters}})

    def put(self) -> None:
        """Send some PUTs in one event, some of them invalid."""
        queue = self.random.choice(self.queues)
        messages = []
        for _ in range(self.random.randint(1, 4)):
            guid, ack = self.client.new_guid(), self.random.random() < 0.7
            messages.append(codec.put_message(queue.q_id, guid, b"m", ack=ack,
                                              properties={"x": self.random.randint(0, 10)}))
            self.guard.on_put(guid, ack)
            if self.random.random() < 0.1 and "//b/" not in queue.uri:  # broadcast queues have no unconfirmed messages
                messages.append(messages[-1])  # the same once more
        self.client.send(codec.put_frame(messages))

    def confirm(self) -> None:
        """Confirm a received message, possibly again or of a closed queue."""
        pushes = [e.push for e in self.client.events[-50:] if e.kind == "push"]
        if pushes:
            push = self.random.choice(pushes)
            subs = [q.sub_id for q in self.queues if q.q_id == push.q_id] or [0]
            self.client.send(codec.confirm_frame([(push.q_id, push.guid, self.random.choice(subs))]))

    def close(self) -> None:
        """Close a substream, with or without a configure before; the last one finally. PUTs may follow at once."""
        queue = self.random.choice(self.queues)
        self.queues.remove(queue)
        if self.random.random() < 0.7:
            self.ask(queue, {"configureStream": {"qId": queue.q_id,
                                                 "streamParameters": queue.stream_parameters(subscriptions=[])}})
        final = not any(other.q_id == queue.q_id for other in self.queues)
        self.ask(queue, {"closeQueue": queue.close_parameters(final=final)})
        if self.random.random() < 0.3:
            self.client.send(codec.put_frame([codec.put_message(queue.q_id, self.client.new_guid(), b"late")]))

    def read(self) -> None:
        """Run the broker, read all events, and check them."""
        self.client.pump(0.05)
        self.guard.check_new_events()


@pytest.mark.spec("wire", 7)
def test_random_client_actions_receive_no_event_that_ends_an_official_client(world: World, fresh_seed: int) -> None:
    """Several clients open, configure, post, confirm, close, disconnect and crash in any order."""
    world.domain("d", maxDeliveryAttempts=3, queue_messages=30)
    world.domain("f", "fanout")
    world.domain("m", in_memory=True)
    world.domain("b", "broadcast", in_memory=True)
    random = Random(fresh_seed)
    actors = [Actor(world, random, f"actor{number}") for number in range(4)]
    for step in range(STEPS):
        actor = random.choice(actors)
        actor.step()
        if random.random() < 0.01:
            actors.remove(actor)
            actor.client.kill() if random.random() < 0.5 else actor.client.send_request({"disconnect": {}})
            actors.append(Actor(world, random, f"actor{step}x"))
        if random.random() < 0.05:
            world.advance(random.random())
    for actor in actors:
        actor.client.barrier()
        actor.guard.check_new_events()
        assert not actor.client.link.closed
    assert any(e.kind == "push" for actor in actors for e in actor.client.events)
