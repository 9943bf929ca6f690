"""Post the lines of standard input with acknowledgements: producer.py [queue uri] [broker]."""

from __future__ import annotations

import sys
import threading

import blazingmq

QUEUE = "bmq://bmq.test.persistent.priority/demo"
BROKER = "tcp://localhost:30114"


def main() -> None:
    """Post each line and wait for all acknowledgements."""
    uri, broker = (sys.argv[1:] + [QUEUE, BROKER][len(sys.argv) - 1:])[:2]
    session = blazingmq.Session(blazingmq.session_events.log_session_event, broker=broker)
    session.open_queue(uri, write=True)
    outstanding = threading.Semaphore(0)
    posted = 0

    def on_ack(ack: blazingmq.Ack) -> None:
        if ack.status is not blazingmq.AckStatus.SUCCESS:
            print(f"not accepted: {ack!r}", file=sys.stderr)
        outstanding.release()

    for line in sys.stdin:
        session.post(uri, line.rstrip("\n").encode() or b" ", properties={"length": len(line)}, on_ack=on_ack)
        posted += 1
    for _ in range(posted):
        outstanding.acquire()
    print(f"{posted} message(s) acknowledged")
    session.stop()


if __name__ == "__main__":
    main()
