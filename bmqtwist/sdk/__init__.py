"""Client library: one session core without I/O, and fronts that move bytes and run callbacks.

| front | for |
|---|---|
| `sdk.aio` | asyncio: `async with Session(...)`, `async for message in queue` |
| `sdk.tx` | Twisted: the same calls, with Deferreds |
| `sdk.simple` | blocking calls without reactor and threads: tools, Spark workers |
| `sdk.blazingmq` | programs for the official library: only the import changes |

Start with the transition table in `_core/session.py`. Invariant: each accepted post has exactly one outcome.
"""

from bmqtwist.errors import BmqError, LocalError, PeerError
from bmqtwist.ids import InvalidUri
from bmqtwist.sdk.codecs import BytesCodec, Codec, JsonCodec, MsgspecCodec, PydanticCodec
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, Credential, QueueOptions, SessionOptions, Subscription, parse_brokers
from bmqtwist.sdk.results import Ack, EventKind, PostRefused, PostsFailed, Result, SdkError, SessionEvent
from bmqtwist.wire.properties import PropertyType

__all__ = [
    "Ack", "Address", "BmqError", "BytesCodec", "Codec", "Credential", "EventKind", "HealthMonitor", "InvalidUri",
    "JsonCodec", "LocalError", "Message", "MsgspecCodec", "PeerError", "PostRefused", "PostsFailed", "PropertyType",
    "PydanticCodec", "QueueOptions", "Result", "SdkError", "SessionEvent", "SessionOptions", "Subscription",
    "parse_brokers",
]
