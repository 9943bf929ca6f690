"""Post and consume without an event loop: sdk_blocking.py [broker]. Exits 0 if all messages arrived.

The same is in `sdk_asyncio.py` for asyncio.
"""

from __future__ import annotations

import sys

from bmqtwist.sdk import JsonCodec
from bmqtwist.sdk.simple import Session

QUEUE = "bmq://bmq.test.persistent.priority/sdk-blocking"
BROKER = "tcp://localhost:30114"
COUNT = 5


def main() -> None:
    """Post and consume values with one session and a JSON codec."""
    with Session(sys.argv[1] if len(sys.argv) > 1 else BROKER) as session, \
            session.open(QUEUE, read=True, write=True, codec=JsonCodec()) as queue:
        queue.post_many([{"number": number} for number in range(COUNT)])
        for _ in range(COUNT):
            message = queue.get(timeout_s=10.0)
            assert message is not None, "no message arrived"
            with message:
                print(message.value)


if __name__ == "__main__":
    main()
