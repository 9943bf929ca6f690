"""The client library. One pure session core; several fronts that only move bytes and wake whoever waits.

| front | for |
|---|---|
| `sdk.aio` | asyncio: `async with Session(...)`, `async for message in queue` |
| `sdk.tx` | Twisted: the same calls, Deferreds |
| `sdk.simple` | no reactor, no threads: tools, Spark workers |
| `sdk.blazingmq` | programs written for the official library: change the import and nothing else |

Start at `_core/session.py`: its table says what is done with which input in which state. The one invariant: every post has
exactly one outcome, whatever connections and brokers do.
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
