"""Interface of the official Python library. Programs written for that library change one line:

    import bmqtwist.sdk.blazingmq as blazingmq

Differences: callbacks may call any method without a deadlock, `stop` waits up to 5 s for acknowledgements, and a
confirmation without a connection raises Error instead of being sent later. The session is in `session.py`, options and
messages are in `values.py`.
"""

from bmqtwist import __version__
from bmqtwist.sdk.blazingmq import exceptions, session_events
from bmqtwist.sdk.blazingmq.exceptions import Error
from bmqtwist.sdk.blazingmq.session import Session
from bmqtwist.sdk.blazingmq.values import (
    Ack,
    AckStatus,
    BasicHealthMonitor,
    CompressionAlgorithmType,
    Message,
    MessageHandle,
    PropertyTypeDict,
    PropertyValueDict,
    QueueOptions,
    SessionOptions,
    Timeouts,
)
from bmqtwist.wire.properties import PropertyType

__all__ = [
    "Ack", "AckStatus", "BasicHealthMonitor", "CompressionAlgorithmType", "Error", "Message", "MessageHandle",
    "PropertyType", "PropertyTypeDict", "PropertyValueDict", "QueueOptions", "Session", "SessionOptions", "Timeouts",
    "__version__", "exceptions", "session_events",
]
