"""Conversion between relay and primary of a queue, when this node becomes its primary or stops being its primary.

    to_root     posts the relay's pending PUTs; consumers keep their unconfirmed messages
    to_relay    keeps uncommitted PUTs for the next primary; consumers keep their unconfirmed messages

Handles move between the queue objects with their ids and windows; clients do not notice. Called by `member/cluster.py`
(`to_root`) and `member/retirement.py` (`to_relay`), which choose the time. The handover of a partition is in
`member/handovers.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from bmqtwist.errors import AckStatus
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import App, Handle, Put, Queue, Substream
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.queue.root import RootQueue
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable


def to_root(relay: RelayQueue, root: RootQueue, now: float, wall: int) -> None:
    """Move all clients of a relay to a root, which is restored and has no clients yet."""
    def stored(app: App, message: Message) -> Message | None:
        found = root.messages.get(message.guid)
        return found if found is not None and found.pending & app.bit else None
    _move_handles(relay, list(relay.handles), root, stored)
    root.stats = relay.stats
    for app in root.active:
        if root.mode != QueueMode.FANOUT:
            app.stats = root.stats
        _remove_unconfirmed(app.new_messages, {guid: message for substream in app.substreams
                                               for guid, (message, _, _) in substream.unconfirmed.items()})
        while app.new_messages and app.is_late(app.new_messages[0]):
            app.redelivery.add(app.new_messages.popleft())
    for app_id, guids in relay.held_confirms.items():
        _confirm(root, root.apps.get(app_id), guids, wall)
    for put in _take_posts(relay):
        refused = root.post(put, now, wall)
        if refused:
            root.answer(put, refused)
    relay.disabled = True
    root.request_delivery()


def _remove_unconfirmed(new_messages: deque[Message], unconfirmed: dict[bytes, Message]) -> None:
    """Remove messages that consumers have received from `new_messages` of an app; they are near its head."""
    newest = max((message.order for message in unconfirmed.values()), default=-1)
    passed = list[Message]()
    while new_messages and new_messages[0].order <= newest:
        message = new_messages.popleft()
        if message.guid not in unconfirmed:
            passed.append(message)
    new_messages.extendleft(reversed(passed))


def _confirm(root: RootQueue, app: App | None, guids: Iterable[bytes], wall: int) -> None:
    """Process the CONFIRMs that the relay has kept."""
    for guid in guids:
        message = root.messages.get(guid)
        if app is not None and message is not None and message.pending & app.bit:
            root.finish_message(app, message, wall)
            app.drop_removed([message])


def to_relay(root: RootQueue, relay: RelayQueue, handles: Iterable[Handle], waiting: Iterable[Put]) -> None:
    """Move handles from a root to a relay. `waiting`: unacknowledged PUTs in order, prepared by `copy_payload`."""
    _move_handles(root, list(handles), relay, lambda app, message: _add_unconfirmed(relay, app, _copy(message)))
    for put in waiting:
        if put.handle is not None and not put.handle.closing and put.handle.queue is relay:
            _keep_for_primary(relay, put)


def copy_payload(root: RootQueue, put: Put) -> bool:
    """Copy a PUT's message from the log, which may be truncated. False: it is unreadable, and the PUT receives a NACK."""
    try:
        put.message = _copy(put.message, root.payload(put.message))
    except (PartitionUnavailable, OSError):
        root.answer(put, AckStatus.UNKNOWN)
        return False
    return True


def _take_posts(relay: RelayQueue) -> list[Put]:
    """Remove and return the relay's pending PUTs, in order."""
    found: list[Put] = []
    for guid in list(relay.pending):
        repeated = relay.repeated.get(guid, ())
        put = relay.take_pending(guid)
        found += (put, *repeated) if put is not None else ()
    return found


def _keep_for_primary(relay: RelayQueue, put: Put) -> None:
    """Keep a PUT that this node had accepted as primary for the next primary."""
    put.queue, put.stored = relay, False
    if put.message.guid in relay.pending:
        relay.repeated.setdefault(put.message.guid, []).append(put)
    else:
        relay.keep_pending(put)


def _add_unconfirmed(relay: RelayQueue, app: App, message: Message) -> Message:
    """Add a message that a consumer received from this node as primary."""
    message = relay.messages.setdefault(message.guid, message)
    message.pending |= app.bit
    relay.set_order(message)
    return message


def _copy(message: Message, payload: bytes | None = None) -> Message:
    """Copy a message, because records may change the original."""
    copy = Message(message.guid, message.payload if payload is None else payload, message.options, message.has_properties,
                   message.compression, message.schema_id, message.crc, message.arrived, message.wall)
    copy.size, copy.lease, copy.sequence = message.size, message.lease, message.sequence
    return copy


def _move_handles(old: Queue, handles: list[Handle], new: Queue, same: Callable[[App, Message], Message | None]) -> None:
    """Move handles to another queue. `same(app, message)` returns its object for an unconfirmed message; None = removed."""
    moved: dict[App, None] = {}
    for handle in handles:
        del old.handles[handle]
        handle.queue, handle.pushed_order = new, -1
        new.handles[handle] = None
        for substream in handle.substreams.values():
            substream.app.substreams.remove(substream)
            app = new.app_for_reader(substream.app_id)
            app.inherit_delivered_psn(substream.app)
            substream.app = app
            app.substreams.append(substream)
            moved[app] = None
            _replace_unconfirmed(substream, same)
    for app in moved:
        app.invalidate_router()
    new.idle_since = None if new.handles else new.idle_since
    new.end_confirm_delays()


def _replace_unconfirmed(substream: Substream, same: Callable[[App, Message], Message | None]) -> None:
    """Replace a consumer's unconfirmed messages by the new queue's objects."""
    held, substream.unconfirmed = substream.unconfirmed, {}
    totals = {subscription: [0, 0] for subscription in substream.subscriptions}
    for guid, (message, subscription, pushed_at) in held.items():
        found = same(substream.app, message)
        if found is not None:
            substream.unconfirmed[guid] = found, subscription, pushed_at
            total = totals.setdefault(subscription, [0, 0])
            total[0] += 1
            total[1] += found.size
    for subscription, (messages, size) in totals.items():
        subscription.set_unconfirmed(messages, size)

