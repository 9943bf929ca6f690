"""Delivery from a queue, app by app: redelivered messages first, then put-aside messages, then new messages. Apps that merge
PUSHes, because a client consumes from several of them, receive new messages together: each message goes to all of them whose
next message it is, so that one PUSH to the client names them all.

One turn delivers at most TURN_MESSAGES_MAX / (number of apps) new messages to apps without subscription expressions. With
expressions, and for redeliveries and rechecks of put-aside messages, it examines at most TURN_EVALUATIONS_MAX / (number of
groups) messages, because each one may evaluate every expression. Delivery continues in the next turn, in the same order.

Called by `RootQueue.deliver` and `RelayQueue.deliver`, when `broker/deliveries.py` runs the deliveries of a turn. The
choice of a consumer is `Router.choose` in `queue.py`. Limits are in `bmqtwist/limits.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from bmqtwist.limits import TURN_EVALUATIONS_MAX, TURN_MESSAGES_MAX
from bmqtwist.queue.queue import PUT_ASIDE, STOP, App, ConsumerSubscription, Queue, Substream
from bmqtwist.storage.message import Message


def deliver(queue: Queue, now: float, held_apps: int = 0) -> None:
    """Deliver messages to consumers with room, except for apps in the bit mask `held_apps`."""
    queue.delivery_requested = False
    merging = list[App]()
    for app in queue.active:
        if app.router_outdated:
            app.current_router()
        if app.pending_returns or held_apps & app.bit:
            continue
        if not app.router.groups:
            if not app.stopped_at:
                app.trim()
                if app.new_messages:
                    _log_stop(queue, app, app.new_messages[0], now)
            continue
        if app.redelivery and not _redeliver(queue, app, now):
            continue
        if app.recheck_put_aside or app.recheck_waiting:
            app.collect_rechecks()
        if app.rechecks and not _recheck(queue, app, now):
            continue
        if app.new_messages:
            if app.router.merges:
                merging.append(app)
            else:
                _deliver_new(queue, app, now)
    if merging:
        _deliver_new_to_all(queue, merging, now)


def broadcast(queue: Queue, app: App, message: Message) -> int:
    """Deliver a message to all consumers without storing it. Return the number of subscriptions, at least 1."""
    if app.condition is not None and not app.condition.matches(queue.values(message)):
        return 1
    for subscription in app.current_router().eligible_subscriptions(queue.values(message) if message.has_properties else {}):
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
        subscription.delivered += 1
        queue.stats.count_push(message.size, 0.0)
    return max(1, len(app.router.subscriptions))


def _evaluated_messages_max(app: App) -> int:
    """Return the number of messages of an app that one turn may match against its expressions."""
    return max(1, TURN_EVALUATIONS_MAX // len(app.router.groups))


def _new_messages_max(queue: Queue, app: App) -> int:
    """Return the number of new messages that one turn may deliver to an app."""
    if app.router.only_group is None:
        return _evaluated_messages_max(app)
    return max(1, TURN_MESSAGES_MAX // len(queue.active))


def _deliver_new(queue: Queue, app: App, now: float) -> None:
    """Deliver new messages to one app."""
    new_messages = app.new_messages
    for _ in range(min(len(new_messages), _new_messages_max(queue, app))):
        if not _deliver_first(queue, app, now):
            return
    app.stopped_at = b""
    if new_messages:
        queue.context.request_delivery_next_turn(queue)


def _deliver_new_to_all(queue: Queue, apps: list[App], now: float) -> None:
    """Deliver new messages in order of arrival, each to all apps that have it next; an app that must wait falls behind."""
    for _ in range(min([_new_messages_max(queue, app) for app in apps])):
        order = min([app.new_messages[0].order for app in apps])
        going = list[App]()
        for app in apps:
            if app.new_messages[0].order != order or _deliver_first(queue, app, now):
                if app.new_messages:
                    going.append(app)
                else:
                    app.stopped_at = b""
        apps = going
        if not apps:
            return
    for app in apps:
        app.stopped_at = b""
    queue.context.request_delivery_next_turn(queue)


def _deliver_first(queue: Queue, app: App, now: float) -> bool:
    """Deliver the first new message of an app, if a subscription matches; False if it must wait."""
    message = app.new_messages[0]
    if not message.pending & app.bit:
        app.new_messages.popleft()
        return True
    group = app.router.only_group
    if group is not None:
        members = group.members
        if len(members) == 1:
            alone = members[0]
            subscription = alone if not alone.full and alone.window.open else None
        else:
            subscription = group.next_with_room()
    else:
        chosen = app.router.choose(queue.values(message))
        if chosen is PUT_ASIDE:
            app.new_messages.popleft()
            _put_aside(queue, app, message)
            return True
        subscription = chosen if isinstance(chosen, ConsumerSubscription) else None
    if subscription is None:
        _log_stop(queue, app, message, now)
        return False
    app.new_messages.popleft()
    _push(queue, app, subscription, message, False, now)
    return True


def _put_aside(queue: Queue, app: App, message: Message) -> None:
    values = queue.values(message)
    if any(group.matcher is None or group.matcher.matches(values) for group in app.router.groups):
        app.waiting[message.guid] = message
    else:
        app.add_put_aside(message)


def _recheck(queue: Queue, app: App, now: float) -> bool:
    """Route put-aside messages again, in order, until all consumers are full. False: the rest and all new messages wait for
    the next turn."""
    rechecks, bit = app.rechecks, app.bit
    for _ in range(min(len(rechecks), _evaluated_messages_max(app))):
        message = rechecks.popleft()
        if not message.pending & bit:
            continue
        chosen = app.router.choose(queue.values(message))
        if isinstance(chosen, ConsumerSubscription):
            _push(queue, app, chosen, message, True, now)
        elif chosen is STOP and not app.router.has_room():
            app.waiting[message.guid] = message
            app.waiting.update((rest.guid, rest) for rest in rechecks if rest.pending & bit)
            rechecks.clear()
            return True
        else:
            _put_aside(queue, app, message)
    if rechecks:
        queue.context.request_delivery_next_turn(queue)
    return not rechecks


def _redeliver(queue: Queue, app: App, now: float) -> bool:
    """Redeliver returned messages, oldest first. False: one of them must wait, and all later messages with it."""
    for _ in range(_evaluated_messages_max(app)):
        message = app.redelivery.first()
        if message is None:
            return True
        guid = message.guid
        if not message.pending & app.bit:
            del app.redelivery[guid]
            continue
        delay = _redelivery_delay(queue, app, message)
        throttled = _throttled_substreams(app, now, delay) if delay else frozenset()
        chosen = app.router.choose(queue.values(message), throttled)
        if isinstance(chosen, ConsumerSubscription):
            del app.redelivery[guid]
            if delay or message.attempts is not None:
                chosen.substream.redelivered = (guid, now)
            _push(queue, app, chosen, message, True, now)
        elif throttled:
            queue.context.deliver_at(min(substream.redelivered[1] for substream in throttled) + delay,  # type: ignore[index]
                                 queue)
            return False
        elif chosen is STOP:
            _log_stop(queue, app, message, now)
            return False
        else:
            del app.redelivery[guid]
            _put_aside(queue, app, message)
    if app.redelivery:
        queue.context.request_delivery_next_turn(queue)
    return not app.redelivery


def _redelivery_delay(queue: Queue, app: App, message: Message) -> float:
    """Return the minimum distance of a possibly poisonous message to the consumer's last redelivery, seconds."""
    throttle = queue.domain.throttle
    left = None if message.attempts is None or app.ordinal not in message.attempts else message.attempts[app.ordinal]
    if left is None or not throttle.high_threshold or left > throttle.high_threshold:
        return 0.0
    return throttle.low_interval_s if left > throttle.low_threshold else throttle.high_interval_s


def _throttled_substreams(app: App, now: float, delay: float) -> frozenset[Substream]:
    return frozenset(substream for substream in app.substreams
                     if substream.redelivered is not None and now < substream.redelivered[1] + delay)


def _push(queue: Queue, app: App, subscription: ConsumerSubscription, message: Message, late: bool, now: float) -> None:
    size = message.size
    substream = subscription.substream
    substream.unconfirmed[message.guid] = (message, subscription, now)
    subscription.delivered += 1
    messages = subscription.messages = subscription.messages + 1
    total = subscription.bytes = subscription.bytes + size
    if messages >= subscription.max_messages or total >= subscription.max_bytes:
        subscription.full = True
        if subscription.max_messages != 1 and queue.lines.admits(now):
            queue.context.report.info(
                f"Queue '{queue.uri}' with handle of client {substream.handle.client.description}, appId = "
                f"'{app.app_id}' has too many outstanding data [Messages: {messages} (limit: "
                f"{subscription.max_messages}), Bytes: {total} (limit: {subscription.max_bytes})]. I'm taking a break!")
    if not late:
        app.lease, app.sequence = message.lease, message.sequence
    waited = now - message.arrived
    stats = app.stats
    stats.count_push(size, waited)
    if stats is not queue.stats:
        queue.stats.count_push(size, waited)
    handle = substream.handle
    try:
        handle.client.push(handle, subscription.s_id, message, late)
    except Exception as error:
        queue.context.client_failed(handle.client, error)


def _log_stop(queue: Queue, app: App, message: Message, now: float) -> None:
    if app.stopped_at != message.guid:
        app.stopped_at = message.guid
        if not queue.stop_lines.admits(now):
            return
        queue.context.report.info(f"Queue '{queue.uri}', appId = '{app.app_id}' does not have any subscription capacity; "
                                 f"early exits delivery at {message.guid.hex().upper()}")
