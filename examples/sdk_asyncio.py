"""Post and consume with asyncio: sdk_asyncio.py [broker]. Exits 0 if all messages arrived.

The same is in `sdk_twisted.py` for Twisted and in `sdk_blocking.py` without an event loop.
"""

from __future__ import annotations

import asyncio
import sys

from bmqtwist.sdk import QueueOptions, Subscription
from bmqtwist.sdk.aio import Session

QUEUE = "bmq://bmq.test.persistent.priority/sdk-asyncio"
BROKER = "tcp://localhost:30114"
COUNT = 5


async def main() -> None:
    """Post and consume with one session; two subscriptions select the messages by a property."""
    broker = sys.argv[1] if len(sys.argv) > 1 else BROKER
    options = QueueOptions(subscriptions=(Subscription("number < 3", context="small"),
                                          Subscription("number >= 3", context="large")))
    async with Session(broker, on_event=print) as session, \
            session.open(QUEUE, read=True, write=True, options=options) as queue:
        for number in range(COUNT):
            await queue.post(f"message {number}".encode(), {"number": number})  # raises PostRefused for a negative ACK
        seen = 0
        async for message in queue:
            async with message:  # confirmed at the end of the block, unless it raises
                print(f"{message.subscription.context}: {message.payload!r} {message.properties}")
            seen += 1
            if seen == COUNT:
                break


if __name__ == "__main__":
    asyncio.run(main())
