"""Choosing a consumer: subscriptions grouped by expression, highest priority first, round robin inside a group.

Rules (per app of a queue):
- subscriptions with the same expression text form a group, of which only the highest priority consumes;
- a message is examined group by group, highest priority first; in the first group that matches, the next
  subscription with room gets it; when all of that group are full, other matching groups of the *same* priority are
  tried, lower ones never (no spill-over);
- ASIDE: nothing matched, or the matching groups are full while another examined group has room: go on with the next;
- STOP: every examined group is full, or there is none: the app waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from bmqtwist.queue.window import DeliveryWindow

if TYPE_CHECKING:
    from bmqtwist.queue.handle import Substream

PRIORITY_INVALID = -(2**31)


class Matcher(Protocol):
    """What routing needs of a compiled expression."""

    text: str

    def matches(self, values: Mapping[str, object]) -> bool: ...


class Subscription:
    """One way a consumer asked to be given messages, with its window of unconfirmed ones."""

    __slots__ = ("substream", "s_id", "matcher", "text", "version", "priority", "count", "max_messages", "max_bytes",
                 "low_messages", "low_bytes", "messages", "bytes", "given", "full", "turns", "window")

    def __init__(self, substream: Substream, s_id: int, matcher: Matcher | None, priority: int, count: int,
                 max_messages: int, max_bytes: int, window: DeliveryWindow) -> None:
        self.window = window  # of the client
        self.substream, self.s_id, self.matcher = substream, s_id, matcher
        self.text = "" if matcher is None else matcher.text
        self.priority, self.count = priority, max(1, count)
        self._set_limits(max_messages, max_bytes)
        self.messages = self.bytes = self.turns = 0
        self.given = 0  # messages since it was configured, confirmed ones included
        self.full = max_messages <= 0 or max_bytes <= 0

    def _set_limits(self, max_messages: int, max_bytes: int) -> None:
        """A full consumer goes on when a fifth is free. A broker below us at once: it does so for each of its consumers, and
        what one of them holds may be more than four fifths of all."""
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.low_messages, self.low_bytes = max_messages - 1, max_bytes - 1
        if not self.substream.handle.client.is_broker:
            self.low_messages = min(-(-max_messages * 4 // 5), self.low_messages)  # ceil(0.8 M), yet below full
            self.low_bytes = min(-(-max_bytes * 4 // 5), self.low_bytes)

    def become(self, new: Subscription) -> None:
        """From now on be what was asked for with another one; what is unconfirmed goes on counting against this one."""
        self.s_id, self.matcher, self.text, self.priority, self.count = (new.s_id, new.matcher, new.text, new.priority,
                                                                         new.count)
        self._set_limits(new.max_messages, new.max_bytes)
        self.turns = self.given = 0

    def carry_over(self, messages: int, size: int) -> None:
        """Start with what the substream already holds unconfirmed (a reconfigure takes nothing back)."""
        self.messages, self.bytes = messages, size
        self.full = messages >= self.max_messages or size >= self.max_bytes


class Group:
    """The highest-priority subscriptions of one expression text."""

    __slots__ = ("matcher", "text", "priority", "members")

    def __init__(self, first: Subscription) -> None:
        self.matcher, self.text, self.priority = first.matcher, first.text, first.priority
        self.members: deque[Subscription] = deque((first,))

    def has_room(self) -> bool:
        """Whether any member could take a message now."""
        return any(not member.full and member.window.open for member in self.members)

    def next_with_room(self, excluded: frozenset[Substream] | None = None) -> Subscription | None:
        """The member whose turn it is, skipping full (and excluded) ones; None when nobody has room."""
        members = self.members
        for _ in range(len(members)):
            head = members[0]
            if not head.full and head.window.open and (excluded is None or head.substream not in excluded):
                head.turns += 1
                if head.turns >= head.count:
                    head.turns = 0
                    members.rotate(-1)
                return head
            head.turns = 0
            members.rotate(-1)
        return None


ASIDE = "aside"
STOP = "stop"


class Router:
    """The groups of one app, rebuilt whenever a consumer of it opens, configures or closes. `at_members`: there are
    consumers, and all of them are at other nodes that have the records of the queue, too."""

    __slots__ = ("groups", "only", "subscriptions", "at_members")

    def __init__(self, subscriptions: Iterable[Subscription] = ()) -> None:
        self.subscriptions = list(subscriptions)
        self.at_members = bool(self.subscriptions) and all(
            subscription.substream.handle.client.is_member for subscription in self.subscriptions)
        groups: dict[str, Group] = {}
        for subscription in self.subscriptions:
            group = groups.get(subscription.text)
            if group is None or subscription.priority > group.priority:
                groups[subscription.text] = Group(subscription)
            elif subscription.priority == group.priority:
                group.members.append(subscription)
        self.groups = sorted(groups.values(), key=lambda group: (-group.priority, group.text))
        first = self.groups[0] if self.groups else None
        self.only = first if len(self.groups) == 1 and first is not None and first.matcher is None else None

    def choose(self, values: Mapping[str, object], excluded: frozenset[Substream] | None = None) -> Subscription | str:
        """The subscription that gets a message with these property values, or ASIDE, or STOP.

        `excluded` substreams are treated as full (a redelivery that must wait for them).
        """
        matched: int | None = None
        room = False
        for group in self.groups:
            if matched is not None and group.priority < matched:
                break
            if group.matcher is None or group.matcher.matches(values):
                chosen = group.next_with_room(excluded)
                if chosen is not None:
                    return chosen
                matched = group.priority
            elif not room:
                room = group.has_room()
        return ASIDE if room else STOP

    def has_room(self) -> bool:
        """Whether any group could take a message now."""
        return any(group.has_room() for group in self.groups)

    def eligible(self, values: Mapping[str, object]) -> list[Subscription]:
        """Broadcast: of every handle the first subscription that matches; a limit of 0 takes a consumer out."""
        found: dict[object, Subscription] = {}
        for group in self.groups:
            if group.matcher is None or group.matcher.matches(values):
                for member in group.members:
                    if member.max_messages > 0 and member.max_bytes > 0:
                        found.setdefault(member.substream.handle, member)
        return list(found.values())
