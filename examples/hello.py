"""First example of the README: posts one message and consumes it.

The same with more calls is in `sdk_asyncio.py`.
"""

import asyncio

from bmqtwist.sdk.aio import Session


async def main():
    async with (Session("tcp://localhost:30114") as session,
                session.open("bmq://bmq.test.persistent.priority/hello", read=True, write=True) as queue):
        print(await queue.post(b"hello", {"number": 1}))        # the broker's acknowledgement
        async with await queue.get() as message:                # confirmed at the end of the block
            print(message.payload, message.properties)


asyncio.run(main())
