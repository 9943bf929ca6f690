"""Post and consume with Twisted: sdk_twisted.py [broker]. Exits 0 if all messages arrived.

The same is in `sdk_asyncio.py` for asyncio.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.task import react

from bmqtwist.sdk.tx import Session

QUEUE = "bmq://bmq.test.persistent.priority/sdk-twisted"
BROKER = "tcp://localhost:30114"
COUNT = 5


async def main(reactor: Any) -> None:
    """Post without waiting, flush, then consume, in one session."""
    session = Session(reactor, sys.argv[1] if len(sys.argv) > 1 else BROKER, on_event=print)
    await session.start()
    queue = await session.open(QUEUE, read=True, write=True)
    for number in range(COUNT):
        queue.post_nowait(f"message {number}".encode())
    await queue.flush()
    for _ in range(COUNT):
        with await queue.get() as message:
            print(message.payload)
    await queue.close()
    await session.stop()


if __name__ == "__main__":
    react(main)
