"""Queue modes, and their flags in open responses.

`config/engine_settings.py` takes the mode from the domain, `relay/proxy.py` from an open response. The rules of each
mode are in `delivery.py` and `root.py`. A new mode is also a choice of `Mode` in `config/domain.py`.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum


class QueueMode(StrEnum):
    """Distribution of messages to consumers; the value is the name in the domain configuration."""

    PRIORITY = "priority"  # each message to one of the consumers with the highest priority
    FANOUT = "fanout"  # each message to one consumer of every app
    BROADCAST = "broadcast"  # each message to all connected consumers; not stored


class RoutingFlag(IntFlag):
    """Bits of routingConfiguration.flags in an openQueue response."""

    AT_MOST_ONCE = 1
    DELIVER_CONSUMER_PRIORITY = 2
    DELIVER_ALL = 4
    HAS_MULTIPLE_SUB_STREAMS = 8
    UNREGISTERED_APP = 1 << 32  # extension for clients with ROUTING_FEATURE: the app is not registered in the domain


ROUTING_FEATURE = ("ROUTING", "UNREGISTERED_APP")  # group and member of a client's features
_BY_PRIORITY = RoutingFlag.DELIVER_CONSUMER_PRIORITY
ROUTING_FLAGS = {
    QueueMode.PRIORITY: int(_BY_PRIORITY),
    QueueMode.FANOUT: int(_BY_PRIORITY | RoutingFlag.HAS_MULTIPLE_SUB_STREAMS),
    QueueMode.BROADCAST: int(_BY_PRIORITY | RoutingFlag.AT_MOST_ONCE | RoutingFlag.DELIVER_ALL)}


def mode_of(flags: int) -> QueueMode:
    """Return the queue mode for routing flags."""
    if flags & RoutingFlag.DELIVER_ALL:
        return QueueMode.BROADCAST
    return QueueMode.FANOUT if flags & RoutingFlag.HAS_MULTIPLE_SUB_STREAMS else QueueMode.PRIORITY
