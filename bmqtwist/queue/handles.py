"""Open, configure and close of handles at a queue, and the return of a lost consumer's messages.

Every function either completes or raises Refused, with BlazingMQ's error text, and changes nothing. `link/requests.py`
calls `open_queue`, `broker/access.py` the other operations, for queues at primaries and relays. Creating a queue in the
cluster is in `member/queue_changes.py`. Limits of subscriptions are in `bmqtwist/limits.py`, those of producers and
consumers in `DomainSettings` (`domain.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bmqtwist import alarms
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.limits import MESSAGES_AT_ONCE, RESERVED_ID_MIN, SUBSCRIPTIONS_MAX
from bmqtwist.queue.expression import CompiledExpression, ExpressionError, compile_expression
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import (
    FLAG_READ,
    FLAG_WRITE,
    PRIORITY_INVALID,
    App,
    Client,
    ConsumerSpec,
    ConsumerSubscription,
    Handle,
    Queue,
    Substream,
    Unconfirmed,
)
from bmqtwist.report import shown
from bmqtwist.steps import Steps, clear_in_steps
from bmqtwist.storage.message import Message

COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Handle parameters of an open or close request, without the URI."""

    q_id: int
    sub_id: int
    app_id: str | None  # None: no subIdInfo in the request
    flags: int
    read_count: int
    write_count: int
    admin_count: int


def _invalid(message: str, code: int = 0) -> Refused:
    return Refused(Category.E_INVALID_ARGUMENT, message, code)


def check_open(request: OpenRequest) -> None:
    """Check an open request before its domain is looked up. Raise Refused if it is invalid."""
    reads, writes, flags = request.read_count, request.write_count, request.flags
    for wrong, message in (
            (max(reads, writes, request.admin_count) <= 0, "At least one of ([read|write]) Count must be >0"),
            (request.admin_count, "adminCount must be 0"),
            (min(reads, writes) < 0, "readCount and writeCount must be >= 0"),
            (bool(flags & FLAG_READ) != (reads > 0), "Read flag and readCount must both be set accordingly"),
            (bool(flags & FLAG_WRITE) != (writes > 0), "Write flag and writeCount must both be set accordingly"),
            (request.q_id >= RESERVED_ID_MIN, "qId must not be set from the reserved queue ids range"),
            (request.sub_id >= RESERVED_ID_MIN, "subId must not be set from the reserved queue ids range"),
            (request.app_id not in (None, DEFAULT_APP_ID) and writes,
             "AppId should not be specified in the URI if queue is opened in write mode")):
        if wrong:
            raise _invalid(message)


def open_queue(queue: Queue, client: Client, handle: Handle | None, request: OpenRequest) -> Handle:
    """Open `queue` for `client`, with its existing `handle` if the queue id is in use."""
    if queue.disabled:
        raise Refused(Category.E_NOT_READY, "The queue is disabled after internal errors: see the broker's log", -1)
    app_id = request.app_id if request.app_id not in (None, DEFAULT_APP_ID) else None
    if request.read_count and queue.mode == QueueMode.FANOUT and app_id is None:
        raise Refused(Category.E_UNKNOWN, "Reader of a fanout queue requires an appId to be specified.", -1)
    explicit = request.app_id is not None and (request.app_id, request.sub_id) != (DEFAULT_APP_ID, 0)
    if explicit and request.read_count and queue.mode != QueueMode.FANOUT:
        raise Refused(Category.E_UNKNOWN, "AppId should not be specified when opening a non-fanout queue", -1)
    _check_limits(queue, request)
    if handle is not None and handle.read_count + request.read_count > COUNT_MAX:
        raise Refused(Category.E_REFUSED, "Reached maximum read/write/admin counters for a queue", -1)
    name = app_id or DEFAULT_APP_ID
    substream = handle.substreams.get(request.sub_id) if handle is not None and request.read_count else None
    if substream is not None and substream.app_id != name:
        raise _invalid("Invalid handle parameters specified", -1)
    if request.read_count and substream is None and name not in queue.apps and shown(name) != name:
        raise _invalid(f"Invalid appId '{shown(name)}'")  # not printable: it would appear in logs, metrics and pages
    handle = handle or Handle(client, queue, request.q_id)
    if request.read_count:
        if substream is None:
            app = queue.app_for_reader(name)
            substream = handle.substreams[request.sub_id] = Substream(handle, app, request.sub_id, name)
            app.substreams.append(substream)
            _set_merging(handle)
            if not app.registered and not app.alarmed:
                app.alarmed = True
                queue.context.report.alarm(
                    alarms.FANOUT_UNREGISTERED_APPID,
                    f"AppId '{app.app_id}' is not authorized for queue '{queue.uri}' - please "
                    f"update the domain configuration to include the appId to enable consumption.")
        substream.read_count += request.read_count
    handle.flags |= request.flags
    handle.read_count += request.read_count
    handle.write_count += request.write_count
    queue.handles[handle] = None
    queue.idle_since = None
    return handle


def _check_limits(queue: Queue, request: OpenRequest) -> None:
    domain = queue.domain
    crowded = []
    if request.write_count and domain.max_producers and queue.writer_count() + request.write_count > domain.max_producers:
        crowded.append(f"the limit of {domain.max_producers} producer(s)")
    if request.read_count and domain.max_consumers and queue.reader_count() + request.read_count > domain.max_consumers:
        crowded.append(f"the limit of {domain.max_consumers} consumer(s)")
    if crowded:
        raise Refused(Category.E_UNKNOWN, "Client would exceed " + " and ".join(crowded), -1)


def configure(handle: Handle, app_id: str, consumers: Iterable[ConsumerSpec]) -> None:
    """Replace the subscriptions of one substream; without consumers it receives nothing."""
    substream = find_substream(handle, app_id)
    if substream is not None:
        set_subscriptions(substream, make_subscriptions(substream, consumers))


def find_substream(handle: Handle, app_id: str) -> Substream | None:
    """Return the substream of an app; None = the handle has no readers."""
    substream = next((each for each in handle.substreams.values() if each.app_id == (app_id or DEFAULT_APP_ID)), None)
    if substream is None and handle.read_count:
        raise Refused(Category.E_UNKNOWN, "No queue with specified appId")
    return substream


def make_subscriptions(substream: Substream, consumers: Iterable[ConsumerSpec]) -> list[ConsumerSubscription]:
    """Create the subscriptions of a configure request, without changing the substream."""
    handle = substream.handle
    subscriptions: list[ConsumerSubscription] = []
    for spec in consumers:
        if len(subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Refused(Category.E_REFUSED, f"Too many subscriptions (limit: {SUBSCRIPTIONS_MAX})", -1)
        if (spec.priority == PRIORITY_INVALID) != (spec.count <= 0):
            raise Refused(Category.E_UNKNOWN, "Attempting to configure stream with invalid priority.", -1)
        if spec.priority == PRIORITY_INVALID:
            continue
        subscriptions.append(ConsumerSubscription(substream, spec, _matcher(handle.queue, spec)))
    return subscriptions


def set_subscriptions(substream: Substream, subscriptions: list[ConsumerSubscription]) -> None:
    """Replace the subscriptions of a substream."""
    if subscriptions:
        substream.counted_subscriptions = subscriptions = _inherit_windows(substream, subscriptions)
    substream.subscriptions = subscriptions
    _set_merging(substream.handle)
    substream.app.invalidate_router()
    substream.handle.queue.request_delivery()


def _set_merging(handle: Handle) -> None:
    """Merge the PUSHes of several substreams: to a broker always, to another client if every substream has at most one
    subscription id, so that the order can be kept."""
    substreams = handle.substreams.values()
    merges = len(substreams) > 1 and (handle.client.is_broker or all(len(each.subscriptions) <= 1 for each in substreams))
    if merges != handle.merges:
        handle.merges = merges
        for each in substreams:
            each.app.router_outdated = True


def _matcher(queue: Queue, spec: ConsumerSpec) -> CompiledExpression | None:
    if not spec.expression_version or not spec.expression:
        return None
    try:
        return spec.matcher or compile_expression(spec.expression)
    except ExpressionError as error:
        why = error.with_traceback(None)  # frees the frames of the parser
    queue.context.report.warn(f"#BMQ_SUBSCRIPTION_FAILURE for queue '{queue.uri}', error rebuilding routing [stream "
                              f"parameters: expression: \"{shown(spec.expression)}\", rc: {why.code}, reason: "
                              f"\"{why.message}\" ]")
    raise _invalid(f"Invalid subscription expression \"{shown(spec.expression)}\": {why.message}", why.code)


def _inherit_windows(substream: Substream, asked: list[ConsumerSubscription]) -> list[ConsumerSubscription]:
    """Carry over the counts of unconfirmed messages to the new subscription of the same text, else to the first one.

    An old subscription takes over the parameters of its successor, so that its unconfirmed messages need no update; only
    when several old subscriptions have the same successor, the messages of all but one are updated.
    """
    by_text: dict[str, ConsumerSubscription] = {}
    for each in asked:
        by_text.setdefault(each.text, each)
    former: dict[ConsumerSubscription, list[ConsumerSubscription]] = {}
    for old in substream.counted_subscriptions:
        if old.messages:
            former.setdefault(by_text.get(old.text, asked[0]), []).append(old)
    became = {new: olds[0] for new, olds in former.items()}
    for new, olds in former.items():
        messages, size = sum(old.messages for old in olds), sum(old.bytes for old in olds)
        olds[0].copy_parameters(new)
        olds[0].set_unconfirmed(messages, size)
    merged = {old: olds[0] for olds in former.values() for old in olds[1:]}
    if merged:
        for guid, (message, old, pushed_at) in substream.unconfirmed.items():
            if old in merged:
                substream.unconfirmed[guid] = (message, merged[old], pushed_at)
    return [became.get(each, each) for each in asked]


def close_queue(handle: Handle, request: OpenRequest, final: bool, wall: int) -> bool:
    """Subtract counts from a handle; True = the handle is closed, because no counts remain or `final` is set."""
    if request.read_count <= 0 and request.write_count <= 0 and request.admin_count <= 0:
        raise _invalid("At least one of [read|write|admin]Count must be > 0")
    substream = handle.substreams.get(request.sub_id) if request.read_count else None
    if request.read_count and substream is None:
        if handle.read_count:
            raise Refused(Category.E_UNKNOWN, "No subStream of the queue with specified subId")
        raise Refused(Category.E_UNKNOWN, "Failed to release handle.")
    if (request.write_count > handle.write_count or request.admin_count or min(request.read_count, request.write_count) < 0
            or substream is not None and request.read_count > substream.read_count):
        raise Refused(Category.E_UNKNOWN, "Failed to release handle.")
    handle.write_count -= request.write_count
    if not handle.write_count:
        handle.flags &= ~FLAG_WRITE
    if substream is not None:
        handle.read_count -= request.read_count
        substream.read_count -= request.read_count
        if not substream.read_count:
            drop_substream(substream, crashed=False, wall=wall)
    if final or not handle.read_count and not handle.write_count:
        drop_handle(handle, crashed=False, wall=wall)
        return True
    return False


def drop_handle(handle: Handle, crashed: bool, wall: int) -> None:
    """Close a handle; `crashed`: its connection was lost, which uses one delivery attempt of each unconfirmed message."""
    queue = handle.queue
    for substream in list(handle.substreams.values()):
        drop_substream(substream, crashed, wall)
    handle.closing = True
    handle.read_count = handle.write_count = 0
    queue.handles.pop(handle, None)


def drop_substream(substream: Substream, crashed: bool, wall: int) -> None:
    """Remove a consumer and return its unconfirmed messages to the app."""
    handle, app, queue = substream.handle, substream.app, substream.handle.queue
    del handle.substreams[substream.sub_id]
    app.substreams.remove(substream)
    _set_merging(handle)
    held, substream.unconfirmed = substream.unconfirmed, {}
    substream.subscriptions, substream.counted_subscriptions = [], []
    app.invalidate_router()
    if held and not queue.broadcast:
        app.pending_returns += 1
        queue.run_in_slices(_return_messages(queue, app, held, crashed, wall), "the loss of a consumer")
    if not app.substreams:
        app.alarmed = False
        queue.drop_unused_app(app)
    queue.request_delivery()


def _return_messages(queue: Queue, app: App, held: dict[bytes, Unconfirmed], crashed: bool, wall: int) -> Steps[None]:
    """Return the messages of a lost consumer to its app, in slices; the app delivers nothing meanwhile."""
    returned: list[Message] = []
    count, first = 0, b""
    for number, (message, _, _) in enumerate(held.values(), 1):
        if queue.is_pending(app, message):
            count, first = count + 1, first or message.guid
        if not number % MESSAGES_AT_ONCE:
            yield
    if count:
        report = queue.context.report
        report.info(f"Lost a reader for queue '{queue.uri}' {app.app_id}, redelivering {count} message(s) to "
                    f"{len(app.substreams)} remaining readers starting from {first.hex().upper()}")
        if crashed:
            report.info(f"Queue '{queue.uri}' rejecting {count} messages because of a client crash.")
        for number, (message, _, _) in enumerate(held.values(), 1):
            if queue.is_pending(app, message) and (not crashed or queue.count_failed_attempt(app, message, wall)):
                returned.append(message)
            if not number % MESSAGES_AT_ONCE:
                app.add_redeliveries(returned)
                returned.clear()
                yield
        app.add_redeliveries(returned)
    app.pending_returns -= 1
    queue.request_delivery()
    yield from clear_in_steps([held])
