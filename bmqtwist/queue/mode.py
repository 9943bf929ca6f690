"""The routing modes of a domain, and what clients are told of them."""

from __future__ import annotations

from enum import IntFlag, StrEnum


class QueueMode(StrEnum):
    """How the messages of a queue go to its consumers; the value is the name in a domain's file."""

    PRIORITY = "priority"  # each to one consumer of those with the highest priority
    FANOUT = "fanout"  # each to one consumer of every app
    BROADCAST = "broadcast"  # each to every consumer there is; nothing is kept


class RoutingFlag(IntFlag):
    """Bits of routingConfiguration.flags in an openQueue response."""

    AT_MOST_ONCE = 1
    DELIVER_CONSUMER_PRIORITY = 2
    DELIVER_ALL = 4
    HAS_MULTIPLE_SUB_STREAMS = 8
    UNREGISTERED_APP = 1 << 32  # ours: the domain does not name the app; told to clients that have ROUTING_FEATURE only


ROUTING_FEATURE = ("ROUTING", "UNREGISTERED_APP")  # group and member of a client's features
_BY_PRIORITY = RoutingFlag.DELIVER_CONSUMER_PRIORITY
ROUTING_FLAGS = {
    QueueMode.PRIORITY: int(_BY_PRIORITY),
    QueueMode.FANOUT: int(_BY_PRIORITY | RoutingFlag.HAS_MULTIPLE_SUB_STREAMS),
    QueueMode.BROADCAST: int(_BY_PRIORITY | RoutingFlag.AT_MOST_ONCE | RoutingFlag.DELIVER_ALL)}


def mode_of(flags: int) -> QueueMode:
    """The mode of a queue that is described so."""
    if flags & RoutingFlag.DELIVER_ALL:
        return QueueMode.BROADCAST
    return QueueMode.FANOUT if flags & RoutingFlag.HAS_MULTIPLE_SUB_STREAMS else QueueMode.PRIORITY
