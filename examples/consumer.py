"""Print and confirm messages until Ctrl-C: consumer.py [queue uri] [broker].

A consumer of a fanout queue names its application: bmq://bmq.test.persistent.fanout/demo?id=foo
"""

from __future__ import annotations

import sys
import time

import blazingmq

QUEUE = "bmq://bmq.test.persistent.priority/demo"
BROKER = "tcp://localhost:30114"


def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
    """Process the message, then confirm it; the broker redelivers unconfirmed messages."""
    print(f"{message.guid.hex()}: {message.data!r} {message.properties}", flush=True)
    handle.confirm()


def main() -> None:
    """Open the queue and wait for messages."""
    uri, broker = (sys.argv[1:] + [QUEUE, BROKER][len(sys.argv) - 1:])[:2]
    session = blazingmq.Session(blazingmq.session_events.log_session_event, on_message=on_message, broker=broker)
    try:
        session.open_queue(uri, read=True, options=blazingmq.QueueOptions(max_unconfirmed_messages=100))
        while True:
            time.sleep(1)  # an unlimited wait can miss a Ctrl-C that arrives as it begins
    except KeyboardInterrupt:
        print("Stopping; unconfirmed messages go to other consumers")
    finally:
        session.stop()


if __name__ == "__main__":
    main()
