"""Post and consume with the official SDK, in all three modes: demo.py [broker]. Exits 0 if all messages arrived."""

from __future__ import annotations

import queue
import sys

import blazingmq

BROKER = "tcp://localhost:30114"
COUNT = 5
SECONDS_MAX = 10.0


def main() -> None:
    """Post to a priority, a fanout and a broadcast queue with one session, and consume with another."""
    broker = sys.argv[1] if len(sys.argv) > 1 else BROKER
    arrived: queue.Queue[tuple[blazingmq.Message, blazingmq.MessageHandle]] = queue.Queue()
    acks: queue.Queue[blazingmq.Ack] = queue.Queue()
    timeouts = blazingmq.Timeouts(connect_timeout=SECONDS_MAX)
    producer = blazingmq.Session(lambda event: None, broker=broker, timeout=timeouts)
    consumer = blazingmq.Session(lambda event: None, on_message=lambda m, h: arrived.put((m, h)), broker=broker,
                                 timeout=timeouts)
    print(f"Two sessions at {broker}")
    for name, apps in (("bmq.test.persistent.priority", [""]), ("bmq.test.persistent.fanout", ["foo", "bar", "baz"]),
                       ("bmq.test.mem.broadcast", [""])):
        uri = f"bmq://{name}/demo"
        readers = [f"{uri}?id={app}" if app else uri for app in apps]
        producer.open_queue(uri, write=True)
        for reader in readers:
            consumer.open_queue(reader, read=True)
        for number in range(COUNT):
            producer.post(uri, f"message {number}".encode(), properties={"number": number}, on_ack=acks.put)
        statuses = {acks.get(timeout=SECONDS_MAX).status for _ in range(COUNT)}
        assert statuses == {blazingmq.AckStatus.SUCCESS}, statuses
        for _ in range(COUNT * len(readers)):
            message, handle = arrived.get(timeout=SECONDS_MAX)
            handle.confirm()
            print(f"  {message.queue_uri}  {message.data.decode()}  {message.properties}")
        for reader in readers:
            consumer.close_queue(reader)
        producer.close_queue(uri)
        print(f"{uri}: {COUNT} posted and acknowledged, {COUNT * len(readers)} delivered and confirmed")
    consumer.stop()
    producer.stop()


if __name__ == "__main__":
    main()
