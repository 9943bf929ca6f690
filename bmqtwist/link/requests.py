"""Control requests of an application: open, configure, close, disconnect.

Each request is answered at once, in the order of arrival; what it changes is in force when the answer is queued, so
that the answer precedes every PUSH it allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, InvalidUri, parse_uri
from bmqtwist.link.states import State
from bmqtwist.queue.handle import Handle
from bmqtwist.queue.handles import ConsumerSpec, OpenRequest, check_open, close_queue, configure, open_queue
from bmqtwist.queue.queue import ROUTING_FLAGS
from bmqtwist.wire.cluster_schema import ClusterMessage, StopResponse
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.schema import (
    CloseQueue,
    CloseQueueResponse,
    ConfigureQueueStream,
    ConfigureQueueStreamResponse,
    ConfigureStream,
    ConfigureStreamResponse,
    Disconnect,
    DisconnectResponse,
    OpenQueue,
    OpenQueueResponse,
    QueueHandleParameters,
    RoutingConfiguration,
    Status,
)
from bmqtwist.wire.text import bracketed

if TYPE_CHECKING:
    from bmqtwist.link.session import Session


def handle(session: Session, message: ControlMessage) -> None:
    """Answer one control message."""
    session.context.report.info("%s: Received control message: %s", session.description, bracketed(message))
    action = _ACTIONS.get(message.choice)
    if action is None:
        session.context.report.error(f"#CLIENT_IMPROPER_BEHAVIOR {session.description}: unexpected control message "
                                  f"'{message.choice}'")
        return
    try:
        action(session, message.r_id or 0, message.value)
    except Refused as refused:
        tag = _FAILURE_TAGS.get(message.choice, "#CLIENT_IMPROPER_BEHAVIOR")
        session.context.report.warn(f"{tag} {session.description}: {refused.category.name} {refused.code} {refused.message}")
        session.answer(message.r_id or 0, "status", Status(refused.category, refused.code, refused.message))


def _request(parameters: QueueHandleParameters) -> OpenRequest:
    sub = parameters.sub_id_info
    return OpenRequest(parameters.q_id, sub.sub_id if sub else 0, sub.app_id if sub else None, parameters.flags,
                       parameters.read_count, parameters.write_count, parameters.admin_count)


def _open(session: Session, r_id: int, value: OpenQueue) -> None:
    context = session.context
    if not context.serving:
        return  # left for the broker that comes after: the SDK sends it again
    parameters = value.handle_parameters
    request = _request(parameters)
    try:
        uri = parse_uri(parameters.uri)
    except InvalidUri as error:
        raise Refused(Category.E_REFUSED, str(error)) from None
    check_open(request)
    known = session.handles.get(request.q_id)
    if known is not None and known.queue.uri != uri.canonical:
        raise Refused(Category.E_INVALID_ARGUMENT, "queueId is already in use for a different queue", -1)
    queue = context.find_queue(session, uri, request)
    opened = open_queue(queue, session, known, request)
    session.handles[request.q_id] = opened
    session.closed_ids.pop(request.q_id, None)
    context.opened(session, queue)
    session.just_opened.append(queue.uri)
    session.answer(r_id, "openQueueResponse", OpenQueueResponse(
        value, RoutingConfiguration(ROUTING_FLAGS[queue.mode]), queue.domain.settings.deduplication_ms))


def _known(session: Session, q_id: int, closing: str) -> Handle:
    found = session.handles.get(q_id)
    if found is None:
        raise Refused(Category.E_UNKNOWN, closing if q_id in session.closing_now else "No queue with specified Id")
    return found


def _configure_stream(session: Session, r_id: int, value: ConfigureStream) -> None:
    parameters = value.stream_parameters
    opened = _known(session, value.q_id, "Unexpected configureQueue request")
    configure(opened, parameters.app_id, [
        ConsumerSpec(subscription.s_id, subscription.expression.version, subscription.expression.text,
                     consumer.consumer_priority, consumer.consumer_priority_count, consumer.max_unconfirmed_messages,
                     consumer.max_unconfirmed_bytes)
        for subscription in parameters.subscriptions for consumer in subscription.consumers])
    session.answer(r_id, "configureStreamResponse", ConfigureStreamResponse(value))


def _configure_queue_stream(session: Session, r_id: int, value: ConfigureQueueStream) -> None:
    parameters = value.stream_parameters
    opened = _known(session, value.q_id, "Unexpected configureQueue request")
    sub = parameters.sub_id_info
    configure(opened, sub.app_id if sub else DEFAULT_APP_ID, [
        ConsumerSpec(sub.sub_id if sub else 0, 0, "", parameters.consumer_priority, parameters.consumer_priority_count,
                     parameters.max_unconfirmed_messages, parameters.max_unconfirmed_bytes)])
    session.answer(r_id, "configureQueueStreamResponse", ConfigureQueueStreamResponse(value))


def _close(session: Session, r_id: int, value: CloseQueue) -> None:
    request = _request(value.handle_parameters)
    if request.read_count <= 0 and request.write_count <= 0 and request.admin_count <= 0:
        raise Refused(Category.E_INVALID_ARGUMENT, "At least one of [read|write|admin]Count must be > 0")
    opened = _known(session, request.q_id, "Duplicate closeQueue request")
    if close_queue(opened, request, value.is_final, session.wall):
        del session.handles[request.q_id]
        session.close_id(request.q_id)
        session.closing_now.add(request.q_id)
        session.outbox.drop_acks(request.q_id)
        session.context.closed(session, opened.queue)
    session.answer(r_id, "closeQueueResponse", CloseQueueResponse())


def _disconnect(session: Session, r_id: int, value: Disconnect) -> None:
    session.drop_handles(crashed=False)
    session.enter(State.LEAVING)
    session.answer(r_id, "disconnectResponse", DisconnectResponse())


def _cluster(session: Session, r_id: int, value: ClusterMessage) -> None:
    if value.choice == "stopRequest":
        session.answer(r_id, "clusterMessage", ClusterMessage("stopResponse", StopResponse("")))
        return
    session.context.report.error(f"#CLIENT_IMPROPER_BEHAVIOR {session.description}: cluster message '{value.choice}'")


_ACTIONS: dict[str, Callable[..., None]] = {
    "openQueue": _open,
    "configureStream": _configure_stream,
    "configureQueueStream": _configure_queue_stream,
    "closeQueue": _close,
    "disconnect": _disconnect,
    "clusterMessage": _cluster,
}
_FAILURE_TAGS = {
    "openQueue": "#CLIENT_OPENQUEUE_FAILURE",
    "configureStream": "#CLIENT_CONFIGUREQUEUE_FAILURE",
    "configureQueueStream": "#CLIENT_CONFIGUREQUEUE_FAILURE",
    "closeQueue": "#CLIENT_CLOSEQUEUE_FAILURE",
}
