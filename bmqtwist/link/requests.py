"""Control requests of an application: open, configure, close, disconnect.

Requests about a queue are answered in the order of arrival for each queue id: at once as a rule, later when the answer
comes from elsewhere (`link/pending.py`). What a request changes is in force when its answer is queued, so that the answer
precedes every PUSH it allows. A disconnect waits for nothing: what is not answered yet is cancelled, and its own answer is
the last message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, InvalidUri, parse_uri
from bmqtwist.limits import PENDING_REQUESTS_MAX
from bmqtwist.link.pending import Progress, Request
from bmqtwist.link.states import State
from bmqtwist.queue.handle import Handle
from bmqtwist.queue.handles import ConsumerSpec, OpenRequest, check_open, open_queue
from bmqtwist.queue.queue import ROUTING_FLAGS, Queue
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
    from bmqtwist.link.session import Session


def handle(session: Session, message: ControlMessage) -> None:
    """Answer one control message, or see that it is answered."""
    session.context.report.info("%s: Received control message: %s", session.description, bracketed(message))
    r_id, choice, value = message.r_id or 0, message.choice, message.value
    if choice in _QUEUE_REQUESTS:
        q_id = value.q_id if isinstance(value, ConfigureStream | ConfigureQueueStream) else value.handle_parameters.q_id
        request = Request(r_id, choice, value, q_id, session.now)
        if session.pending.full:
            refuse(session, request, Refused(Category.E_REFUSED, f"Too many requests wait for an answer (limit: "
                                                                 f"{PENDING_REQUESTS_MAX})"))
        else:
            session.pending.add(request)
    elif choice == "disconnect":
        session.drop_handles(crashed=False)
        session.enter(State.LEAVING)
        session.answer(r_id, "disconnectResponse", DisconnectResponse())
    elif choice == "clusterMessage" and value.choice == "stopRequest":
        session.answer(r_id, "clusterMessage", ClusterMessage("stopResponse", StopResponse("")))
    else:
        what = f"cluster message '{value.choice}'" if choice == "clusterMessage" else \
            f"unexpected control message '{choice}'"
        session.context.report.error(f"#CLIENT_IMPROPER_BEHAVIOR {session.description}: {what}")


# -- what a session's pending requests call ----------------------------------------------------------------------------


def begin(session: Session, request: Request) -> None:
    """Ask for what a request wants."""
    if session.context.now > session.now:  # it had to wait
        session.now, session.wall = session.context.now, session.context.wall(session.context.now)
    try:
        _QUEUE_REQUESTS[request.choice][0](session, request)
    except Refused as refused:
        refuse(session, request, refused)


def timeout(session: Session, request: Request) -> float:
    """How many seconds a request may take."""
    return session.context.request_timeout(request.choice, request.domain)


def expire(session: Session, request: Request) -> None:
    """A request took too long."""
    refuse(session, request, Refused(Category.E_TIMEOUT, "The request was not answered in time"))


def refuse(session: Session, request: Request, refused: Refused) -> None:
    """Answer a request with the reason why not."""
    tag = _QUEUE_REQUESTS[request.choice][1]
    session.context.report.warn(f"{tag} {session.description}: {refused.category.name} {refused.code} {refused.message}")
    _answer(session, request, "status", Status(refused.category, refused.code, refused.message))


def _answer(session: Session, request: Request, choice: str, value: object) -> None:
    session.answer(request.r_id, choice, value)
    session.pending.over(request, session.context.now)


# -- open --------------------------------------------------------------------------------------------------------------


def _parameters(parameters: QueueHandleParameters) -> OpenRequest:
    sub = parameters.sub_id_info
    return OpenRequest(parameters.q_id, sub.sub_id if sub else 0, sub.app_id if sub else None, parameters.flags,
                       parameters.read_count, parameters.write_count, parameters.admin_count)


def _open(session: Session, request: Request) -> None:
    context = session.context
    if not context.serving:  # left for the broker that comes after: the SDK sends it again
        session.pending.over(request, context.now)
        return
    asked = request.value.handle_parameters
    parameters = _parameters(asked)
    try:
        uri = parse_uri(asked.uri)
    except InvalidUri as error:
        raise Refused(Category.E_REFUSED, str(error)) from None
    check_open(parameters)
    known = session.handles.get(request.q_id)
    if known is not None and known.queue.uri != uri.canonical:
        raise Refused(Category.E_INVALID_ARGUMENT, "queueId is already in use for a different queue", -1)
    request.domain = uri.qualified_domain
    context.find_queue(session, uri, parameters, partial(_found, session, request, parameters))


def _found(session: Session, request: Request, parameters: OpenRequest, found: Queue | Refused) -> None:
    context = session.context
    if isinstance(found, Refused):
        if request.progress is not Progress.OVER:
            refuse(session, request, found)
        return
    if request.progress is Progress.OVER or not context.serving:
        context.unused(found)
        session.pending.over(request, context.now)
        return
    try:
        opened = open_queue(found, session, session.handles.get(request.q_id), parameters)
    except Refused as refused:
        refuse(session, request, refused)
        return
    session.handles[request.q_id] = opened
    session.closed_ids.pop(request.q_id, None)
    session.just_opened.append((found.uri, request.arrived))
    _answer(session, request, "openQueueResponse", OpenQueueResponse(
        request.value, RoutingConfiguration(ROUTING_FLAGS[found.mode]), found.domain.settings.deduplication_ms))


# -- configure ---------------------------------------------------------------------------------------------------------


def _known(session: Session, request: Request, closing: str) -> Handle:
    found = session.handles.get(request.q_id)
    if found is None:
        raise Refused(Category.E_UNKNOWN, closing if request.q_id in session.closing_now else "No queue with specified Id")
    request.domain = found.queue.domain.name
    return found


def _configure_stream(session: Session, request: Request) -> None:
    parameters = request.value.stream_parameters
    _configure(session, request, parameters.app_id, [
        ConsumerSpec(subscription.s_id, subscription.expression.version, subscription.expression.text,
                     consumer.consumer_priority, consumer.consumer_priority_count, consumer.max_unconfirmed_messages,
                     consumer.max_unconfirmed_bytes)
        for subscription in parameters.subscriptions for consumer in subscription.consumers])


def _configure_queue_stream(session: Session, request: Request) -> None:
    parameters = request.value.stream_parameters
    sub = parameters.sub_id_info
    _configure(session, request, sub.app_id if sub else DEFAULT_APP_ID, [
        ConsumerSpec(sub.sub_id if sub else 0, 0, "", parameters.consumer_priority, parameters.consumer_priority_count,
                     parameters.max_unconfirmed_messages, parameters.max_unconfirmed_bytes)])


def _configure(session: Session, request: Request, app_id: str, consumers: list[ConsumerSpec]) -> None:
    opened = _known(session, request, "Unexpected configureQueue request")
    session.context.configure_queue(session, opened, app_id, consumers, partial(_configured, session, request))


def _configured(session: Session, request: Request, refused: Refused | None) -> None:
    if request.progress is Progress.OVER:
        return
    if refused is not None:
        refuse(session, request, refused)
    elif isinstance(request.value, ConfigureStream):
        _answer(session, request, "configureStreamResponse", ConfigureStreamResponse(request.value))
    else:
        _answer(session, request, "configureQueueStreamResponse", ConfigureQueueStreamResponse(request.value))


# -- close -------------------------------------------------------------------------------------------------------------


def _close(session: Session, request: Request) -> None:
    parameters = _parameters(request.value.handle_parameters)
    if parameters.read_count <= 0 and parameters.write_count <= 0 and parameters.admin_count <= 0:
        raise Refused(Category.E_INVALID_ARGUMENT, "At least one of [read|write|admin]Count must be > 0")
    opened = _known(session, request, "Duplicate closeQueue request")
    session.context.close_queue(session, opened, parameters, request.value.is_final,
                                partial(_closed, session, request, opened))


def _closed(session: Session, request: Request, handle: Handle, gone: bool | Refused) -> None:
    if gone is True and session.handles.get(request.q_id) is handle:  # even if it comes too late: the handle is gone
        del session.handles[request.q_id]
        session.close_id(request.q_id)
        session.closing_now.add(request.q_id)
        session.outbox.drop_acks(request.q_id)
        session.context.unused(handle.queue)
    if request.progress is Progress.OVER:
        return
    if isinstance(gone, Refused):
        refuse(session, request, gone)
    else:
        _answer(session, request, "closeQueueResponse", CloseQueueResponse())


_QUEUE_REQUESTS: dict[str, tuple[Callable[[Session, Request], None], str]] = {  # action, tag of a failure
    "openQueue": (_open, "#CLIENT_OPENQUEUE_FAILURE"),
    "configureStream": (_configure_stream, "#CLIENT_CONFIGUREQUEUE_FAILURE"),
    "configureQueueStream": (_configure_queue_stream, "#CLIENT_CONFIGUREQUEUE_FAILURE"),
    "closeQueue": (_close, "#CLIENT_CLOSEQUEUE_FAILURE"),
}
