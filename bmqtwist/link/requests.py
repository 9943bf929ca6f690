"""Control requests of an application: open, configure, close, disconnect.

Requests about a queue are answered in the order of arrival for each queue id: at once as a rule, later when the answer
comes from elsewhere (`link/pending.py`). What a request changes is in force when its answer is queued, so that the answer
precedes every PUSH it allows. A disconnect waits for nothing: what is not answered yet is cancelled, and its own answer is
the last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, InvalidUri, parse_uri
from bmqtwist.limits import EARLY_PUT_BYTES_MAX, PENDING_REQUESTS_MAX, SUBSCRIPTIONS_MAX
from bmqtwist.link.pending import EARLY_PUT, Progress, Request
from bmqtwist.link.states import State
from bmqtwist.queue.expression import ExpressionError, compile_expression
from bmqtwist.queue.handles import OpenRequest, check_open, open_queue
from bmqtwist.queue.mode import ROUTING_FLAGS, RoutingFlag
from bmqtwist.queue.queue import ConsumerSpec, Handle, Matcher, Queue
from bmqtwist.wire.cluster_schema import ClusterMessage, StopResponse
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.schema import (
    CloseQueueResponse,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    DisconnectResponse,
    OpenQueueResponse,
    QueueHandleParameters,
    RoutingConfiguration,
    Status,
)
from bmqtwist.wire.text import bracketed

if TYPE_CHECKING:
    from bmqtwist.link.client import ClientSession


_COMPILED_AT_ONCE = 64  # expressions, about 50 us each


def handle_slowly(client: ClientSession, message: ControlMessage) -> Iterator[None]:
    """Answer a long control message; what takes long is done before, in slices."""
    matchers: dict[str, Matcher] = {}
    if isinstance(message.value, ConfigureStream):
        for number, subscription in enumerate(message.value.stream_parameters.subscriptions[:SUBSCRIPTIONS_MAX]):
            text = subscription.expression.text
            if subscription.expression.version and text and text not in matchers:
                try:
                    matchers[text] = compile_expression(text)
                except ExpressionError:  # told when the request is dealt with
                    break
            if number % _COMPILED_AT_ONCE == 0:
                yield
    handle(client, message, matchers)


def handle(client: ClientSession, message: ControlMessage, matchers: Mapping[str, Matcher] | None = None) -> None:
    """Answer one control message, or see that it is answered. `matchers`: expressions in it that are compiled already."""
    client.context.report.info("%s: Received control message: %s", client.description, bracketed(message))
    r_id, choice, value = message.r_id or 0, message.choice, message.value
    if choice in _QUEUE_REQUESTS:
        q_id = value.q_id if isinstance(value, ConfigureStream | ConfigureQueueStream) else value.handle_parameters.q_id
        request = Request(r_id, choice, value, q_id, client.session.now)
        request.matchers = matchers or {}
        if client.pending.full:
            refuse(client, request, Refused(Category.E_REFUSED, f"Too many requests wait for an answer (limit: "
                                                                 f"{PENDING_REQUESTS_MAX})"))
        else:
            client.pending.add(request)
    elif choice == "disconnect":
        client.drop_handles(crashed=False)
        client.session.enter(State.LEAVING)
        client.session.answer(r_id, "disconnectResponse", DisconnectResponse())
    elif choice == "clusterMessage" and value.choice == "stopRequest":
        client.stop_deliveries()
        client.session.answer(r_id, "clusterMessage", ClusterMessage("stopResponse", StopResponse(value.value.cluster_name)))
    else:
        what = f"cluster message '{value.choice}'" if choice == "clusterMessage" else \
            f"unexpected control message '{choice}'"
        client.context.report.error(f"#CLIENT_IMPROPER_BEHAVIOR {client.description}: {what}")


def is_of_a_client(message: ControlMessage) -> bool:
    """Whether a control message of another broker is one of its clients' requests, or speaks of all of them."""
    return message.choice in _QUEUE_REQUESTS or message.choice == "disconnect" or (
        message.choice == "clusterMessage" and message.value.choice == "stopRequest")


# -- what a session's pending requests call ----------------------------------------------------------------------------


def begin(client: ClientSession, request: Request) -> None:
    """Ask for what a request wants."""
    if client.context.now > client.session.now:  # it had to wait
        client.session.now, client.session.wall = client.context.now, client.context.wall(client.context.now)
    try:
        _QUEUE_REQUESTS[request.choice][0](client, request)
    except Refused as refused:
        refuse(client, request, refused)


def timeout(client: ClientSession, request: Request) -> float:
    """How many seconds a request may take."""
    return client.context.request_timeout(request.choice, request.domain)


def expire(client: ClientSession, request: Request) -> None:
    """A request took too long."""
    refuse(client, request, Refused(Category.E_TIMEOUT, "The request was not answered in time"))


def refuse(client: ClientSession, request: Request, refused: Refused) -> None:
    """Answer a request with the reason why not."""
    if request.choice == EARLY_PUT:  # its open took too long: it finds no queue now
        _put(client, request)
        return
    tag = _QUEUE_REQUESTS[request.choice][1]
    client.context.report.warn(f"{tag} {client.description}: {refused.category.name} {refused.code} {refused.message}")
    _answer(client, request, "status", Status(refused.category, refused.code, refused.message))


def _answer(client: ClientSession, request: Request, choice: str, value: object) -> None:
    client.session.answer(request.r_id, choice, value)
    client.pending.over(request, client.context.now)


def put_early(client: ClientSession, q_id: int, message: bytes) -> bool:
    """Keep a PUT message until the open of its queue id is answered; False = there is no room for it."""
    client.early_put_bytes += len(message)
    if client.pending.full or client.early_put_bytes > EARLY_PUT_BYTES_MAX:
        return False
    client.pending.add(Request(0, EARLY_PUT, message, q_id, client.session.now))
    return True


def _put(client: ClientSession, request: Request) -> None:
    client.early_put_bytes -= len(request.value)
    client.post_late(request.value, lambda: client.pending.over(request, client.context.now))


# -- open --------------------------------------------------------------------------------------------------------------


def _parameters(parameters: QueueHandleParameters) -> OpenRequest:
    sub = parameters.sub_id_info
    return OpenRequest(parameters.q_id, sub.sub_id if sub else 0, sub.app_id if sub else None, parameters.flags,
                       parameters.read_count, parameters.write_count, parameters.admin_count)


def _open(client: ClientSession, request: Request) -> None:
    context = client.context
    if not context.serving:  # left for the broker that comes after: the SDK sends it again
        client.pending.over(request, context.now)
        return
    asked = request.value.handle_parameters
    parameters = _parameters(asked)
    try:
        uri = parse_uri(asked.uri)
    except InvalidUri as error:
        raise Refused(Category.E_REFUSED, str(error)) from None
    check_open(parameters)
    known = client.handles.get(request.q_id)
    if known is not None and known.queue.uri != uri.canonical:
        raise Refused(Category.E_INVALID_ARGUMENT, "queueId is already in use for a different queue", -1)
    request.domain = uri.qualified_domain
    context.find_queue(client.session, uri, parameters, partial(_found, client, request, parameters))


def _found(client: ClientSession, request: Request, parameters: OpenRequest, found: Queue | Refused) -> None:
    context = client.context
    if isinstance(found, Refused):
        if request.progress is not Progress.OVER:
            refuse(client, request, found)
        return
    if request.progress is Progress.OVER or not context.serving:
        context.unused(found)
        client.pending.over(request, context.now)
        return
    try:
        opened = open_queue(found, client, client.handles.get(request.q_id), parameters)
    except Refused as refused:
        refuse(client, request, refused)
        return
    client.handles[request.q_id] = opened
    client.closed_ids.pop(request.q_id, None)
    client.just_opened.append((found.uri, request.arrived))
    flags = ROUTING_FLAGS[found.mode]
    app = found.apps.get(parameters.app_id or "")
    if client.told_of_apps and app is not None and not app.registered:
        flags |= RoutingFlag.UNREGISTERED_APP
    _answer(client, request, "openQueueResponse", OpenQueueResponse(
        request.value, RoutingConfiguration(flags), found.domain.settings.deduplication_ms))


# -- configure ---------------------------------------------------------------------------------------------------------


def _known(client: ClientSession, request: Request, closing: str) -> Handle:
    found = client.handles.get(request.q_id)
    if found is None:
        raise Refused(Category.E_UNKNOWN, closing if request.q_id in client.closing_now else "No queue with specified Id")
    request.domain = found.queue.domain.name
    return found


def _configure_stream(client: ClientSession, request: Request) -> None:
    parameters = request.value.stream_parameters
    _configure(client, request, parameters.app_id, [
        ConsumerSpec(subscription.s_id, subscription.expression.version, subscription.expression.text,
                     consumer.consumer_priority, consumer.consumer_priority_count, consumer.max_unconfirmed_messages,
                     consumer.max_unconfirmed_bytes, request.matchers.get(subscription.expression.text))
        for subscription in parameters.subscriptions for consumer in subscription.consumers])


def _configure_queue_stream(client: ClientSession, request: Request) -> None:
    parameters = request.value.stream_parameters
    sub = parameters.sub_id_info
    _configure(client, request, sub.app_id if sub else DEFAULT_APP_ID, [
        ConsumerSpec(sub.sub_id if sub else 0, 0, "", parameters.consumer_priority, parameters.consumer_priority_count,
                     parameters.max_unconfirmed_messages, parameters.max_unconfirmed_bytes)])


def _configure(client: ClientSession, request: Request, app_id: str, consumers: list[ConsumerSpec]) -> None:
    opened = _known(client, request, "Unexpected configureQueue request")
    client.context.configure_queue(client.session, opened, app_id, consumers, partial(_configured, client, request))


def _configured(client: ClientSession, request: Request, refused: Refused | None) -> None:
    if request.progress is Progress.OVER:
        return
    if refused is not None:
        refuse(client, request, refused)
    elif isinstance(request.value, ConfigureStream):
        _answer(client, request, "configureStreamResponse", ConfigureStreamResponse(request.value))
    else:
        _answer(client, request, "configureQueueStreamResponse", ConfigureQueueStreamResponse(request.value))


# -- close -------------------------------------------------------------------------------------------------------------


def _close(client: ClientSession, request: Request) -> None:
    parameters = _parameters(request.value.handle_parameters)
    if parameters.read_count <= 0 and parameters.write_count <= 0 and parameters.admin_count <= 0:
        raise Refused(Category.E_INVALID_ARGUMENT, "At least one of [read|write|admin]Count must be > 0")
    opened = _known(client, request, "Duplicate closeQueue request")
    client.context.close_queue(client.session, opened, parameters, request.value.is_final,
                                partial(_closed, client, request, opened))


def _closed(client: ClientSession, request: Request, handle: Handle, gone: bool | Refused) -> None:
    if gone is True and client.handles.get(request.q_id) is handle:  # even if it comes too late: the handle is gone
        del client.handles[request.q_id]
        client.close_id(request.q_id)
        client.closing_now.add(request.q_id)
        client.outbox.drop_acks(request.q_id)
        client.context.unused(handle.queue)
    if request.progress is Progress.OVER:
        return
    if isinstance(gone, Refused):
        refuse(client, request, gone)
    else:
        _answer(client, request, "closeQueueResponse", CloseQueueResponse())


_QUEUE_REQUESTS: dict[str, tuple[Callable[[ClientSession, Request], None], str]] = {  # action, tag of a failure
    EARLY_PUT: (_put, ""),
    "openQueue": (_open, "#CLIENT_OPENQUEUE_FAILURE"),
    "configureStream": (_configure_stream, "#CLIENT_CONFIGUREQUEUE_FAILURE"),
    "configureQueueStream": (_configure_queue_stream, "#CLIENT_CONFIGUREQUEUE_FAILURE"),
    "closeQueue": (_close, "#CLIENT_CLOSEQUEUE_FAILURE"),
}
