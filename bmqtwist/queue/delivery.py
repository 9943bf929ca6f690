"""Delivery from a queue, app by app: redelivered messages first, then put-aside messages, then new messages.

A turn delivers at most TURN_MESSAGES_MAX messages of a queue and evaluates at most TURN_EVALUATIONS_MAX expressions for an
app; delivery continues in the next turn, in the same order.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from bmqtwist.limits import TURN_EVALUATIONS_MAX, TURN_MESSAGES_MAX
from bmqtwist.queue.queue import PUT_ASIDE, STOP, App, Queue, Subscription, Substream
from bmqtwist.storage.message import Message


def deliver(queue: Queue, now: float, held: int = 0) -> None:
    """Deliver messages to consumers with room, except for apps in the bit mask `held`."""
    queue.touched = False
    for app in queue.active:
        if app.unrouted:
            app.routes()
        if app.returning or held & app.bit:
            continue
        if not app.router.groups:
            if not app.stopped_at:
                app.trim()
                if app.fresh:
                    _stop(queue, app, app.fresh[0], now)
            continue
        if app.redelivery and not _redeliver(queue, app, now):
            continue
        if app.recheck_put_aside or app.recheck_waiting:
            app.collect_rechecks()
        if app.again and not _recheck(queue, app, now):
            continue
        if app.fresh:
            _deliver_fresh(queue, app, now)


def broadcast(queue: Queue, app: App, message: Message) -> int:
    """Deliver a message to all consumers without storing it. Return the number of subscriptions, at least 1."""
    if app.condition is not None and not app.condition.matches(queue.values(message)):
        return 1
    for subscription in app.routes().eligible(queue.values(message) if message.has_properties else {}):
        handle = subscription.substream.handle
        if handle.client.window.lagging:  # broadcast has no limit of unconfirmed messages
            if queue.lines.admits(message.arrived):
                queue.context.report.warn(f"#CLIENT_SEND_FAILURE {handle.client.description}: does not read, a message of "
                                          f"queue '{queue.uri}' is not delivered to it")
            continue
        try:
            handle.client.push(handle, subscription.s_id, message, False)
        except Exception as error:
            queue.context.client_failed(handle.client, error)
            continue
        subscription.given += 1
        queue.stats.pushed(message.size, 0.0)
    return max(1, len(app.router.subscriptions))


def _share(app: App) -> int:
    """Return the number of messages of an app that a turn may evaluate."""
    return max(1, TURN_EVALUATIONS_MAX // len(app.router.groups))


def _deliver_fresh(queue: Queue, app: App, now: float) -> None:
    """Deliver new messages; fast path for one group without an expression."""
    fresh, bit, router = app.fresh, app.bit, app.router
    group = router.only
    alone = group.members[0] if group is not None and len(group.members) == 1 else None
    share = _share(app) if group is None else max(1, TURN_MESSAGES_MAX // len(queue.active))
    for _ in range(min(len(fresh), share)):
        message = fresh[0]
        if not message.pending & bit:
            fresh.popleft()
            continue
        if alone is not None:
            subscription = alone if not alone.full and alone.window.open else None
        elif group is not None:
            subscription = group.next_with_room()
        else:
            chosen = router.choose(queue.values(message))
            if chosen is PUT_ASIDE:
                fresh.popleft()
                _put_aside(queue, app, message)
                continue
            subscription = chosen if isinstance(chosen, Subscription) else None
        if subscription is None:
            _stop(queue, app, message, now)
            return
        fresh.popleft()
        _send(queue, app, subscription, message, False, now)
    app.stopped_at = b""
    if fresh:
        queue.context.touch_next(queue)


def _put_aside(queue: Queue, app: App, message: Message) -> None:
    values = queue.values(message)
    if any(group.matcher is None or group.matcher.matches(values) for group in app.router.groups):
        app.waiting[message.guid] = message
    else:
        app.add_put_aside(message)


def _recheck(queue: Queue, app: App, now: float) -> bool:
    """Route put-aside messages again, in order, until all consumers are full. False: the rest and all new messages wait for
    the next turn."""
    again, bit = app.again, app.bit
    for _ in range(min(len(again), _share(app))):
        message = again.popleft()
        if not message.pending & bit:
            continue
        chosen = app.router.choose(queue.values(message))
        if isinstance(chosen, Subscription):
            _send(queue, app, chosen, message, True, now)
        elif chosen is STOP and not app.router.has_room():
            app.waiting[message.guid] = message
            app.waiting.update((rest.guid, rest) for rest in again if rest.pending & bit)
            again.clear()
            return True
        else:
            _put_aside(queue, app, message)
    if again:
        queue.context.touch_next(queue)
    return not again


def _redeliver(queue: Queue, app: App, now: float) -> bool:
    """Redeliver returned messages, oldest first. False: one of them must wait, and all later messages with it."""
    for _ in range(_share(app)):
        message = app.redelivery.first()
        if message is None:
            return True
        guid = message.guid
        if not message.pending & app.bit:
            del app.redelivery[guid]
            continue
        delay = _delay(queue, app, message)
        resting = _resting(app, now, delay) if delay else frozenset()
        chosen = app.router.choose(queue.values(message), resting)
        if isinstance(chosen, Subscription):
            del app.redelivery[guid]
            if delay or message.attempts is not None:
                chosen.substream.redelivered = (guid, now)
            _send(queue, app, chosen, message, True, now)
        elif resting:
            queue.context.deliver_at(min(substream.redelivered[1] for substream in resting) + delay,  # type: ignore[index]
                                 queue)
            return False
        elif chosen is STOP:
            _stop(queue, app, message, now)
            return False
        else:
            del app.redelivery[guid]
            _put_aside(queue, app, message)
    if app.redelivery:
        queue.context.touch_next(queue)
    return not app.redelivery


def _delay(queue: Queue, app: App, message: Message) -> float:
    """Return the minimum distance of a possibly poisonous message to the consumer's last redelivery, seconds."""
    throttle = queue.domain.throttle
    left = None if message.attempts is None or app.ordinal not in message.attempts else message.attempts[app.ordinal]
    if left is None or not throttle.high_threshold or left > throttle.high_threshold:
        return 0.0
    return throttle.low_interval_s if left > throttle.low_threshold else throttle.high_interval_s


def _resting(app: App, now: float, delay: float) -> frozenset[Substream]:
    return frozenset(substream for substream in app.substreams
                     if substream.redelivered is not None and now < substream.redelivered[1] + delay)


def _send(queue: Queue, app: App, subscription: Subscription, message: Message, late: bool, now: float) -> None:
    size = message.size
    substream = subscription.substream
    substream.unconfirmed[message.guid] = (message, subscription, now)
    subscription.given += 1
    messages = subscription.messages = subscription.messages + 1
    held = subscription.bytes = subscription.bytes + size
    if messages >= subscription.max_messages or held >= subscription.max_bytes:
        subscription.full = True
        if subscription.max_messages != 1 and queue.lines.admits(now):
            queue.context.report.info(
                f"Queue '{queue.uri}' with handle of client {substream.handle.client.description}, appId = "
                f"'{app.app_id}' has too many outstanding data [Messages: {messages} (limit: "
                f"{subscription.max_messages}), Bytes: {held} (limit: {subscription.max_bytes})]. I'm taking a break!")
    if not late:
        app.lease, app.sequence = message.lease, message.sequence
    waited = now - message.arrived
    stats = app.stats
    stats.pushed(size, waited)
    if stats is not queue.stats:
        queue.stats.pushed(size, waited)
    handle = substream.handle
    try:
        handle.client.push(handle, subscription.s_id, message, late)
    except Exception as error:
        queue.context.client_failed(handle.client, error)


def _stop(queue: Queue, app: App, message: Message, now: float) -> None:
    if app.stopped_at != message.guid:
        app.stopped_at = message.guid
        if not queue.stop_lines.admits(now):
            return
        queue.context.report.info(f"Queue '{queue.uri}', appId = '{app.app_id}' does not have any subscription capacity; "
                                 f"early exits delivery at {message.guid.hex().upper()}")
