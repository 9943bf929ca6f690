"""Decoder of the traffic of one connection into units, for faults and the recorder.

A unit is one message of a data event, or one event of another kind. Queue ids and subscription ids are translated to URIs
and appIds, which the decoder reads from the open and configure requests of the connection. `connection.py` passes it the
events of both directions; `events.py` declares the recorded forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bmqtwist.errors import PeerError
from bmqtwist.ids import DEFAULT_APP_ID, InvalidUri, parse_uri
from bmqtwist.queue.queue import FLAG_READ, FLAG_WRITE
from bmqtwist.sdk.results import ACK_RESULTS, result_of
from bmqtwist.testing import events
from bmqtwist.wire import control, schema
from bmqtwist.wire import events as wire
from bmqtwist.wire.control import encoding_of
from bmqtwist.wire.fast import (
    ACK_REQUESTED,
    HEADER_WORDS_SHIFT,
    ITEM_WORDS_MASK,
    MESSAGE_PROPERTIES,
    OUT_OF_ORDER,
    EventType,
    event_header,
)
from bmqtwist.wire.frames import Span
from bmqtwist.wire.walk import walk_pushes, walk_puts


@dataclass(slots=True)
class Unit:
    """One message or event. `data`: encoded as a separate event; `queue_id`, `request_id`: for an answer."""

    kind: str
    data: bytes
    event: events.Event
    queue_id: int = 0
    request_id: int = 0


class Wiretap:
    """Decoder of both directions of one connection. The caller sets `now`, seconds as of `events.Event.time`."""

    def __init__(self, client: str) -> None:
        self.client, self.now = client, 0.0
        self.encoding = 0
        self.process = ""
        self._negotiation_seen = self._response_seen = False
        self._uris: dict[int, str] = {}
        self._apps: dict[tuple[int, int], str] = {}  # (queue id, id in a PUSH or CONFIRM)
        self._requests: dict[int, events.Request] = {}
        self._posts: dict[bytes, events.Post] = {}
        self._identity: events.Negotiation | None = None

    def units(self, buffer: bytes, begin: int, span: Span, to_broker: bool) -> list[Unit]:
        """Return the units of the event at `begin`; an unreadable event is one unit of kind "other"."""
        kind, specific, start, end = span
        whole = buffer[begin:end]
        try:
            if kind == EventType.PUT:
                found = list(self._put_units(buffer, start, end))
            elif kind == EventType.PUSH:
                found = list(self._push_units(buffer, start, end))
            elif kind == EventType.ACK:
                found = list(self._ack_units(buffer, start, end))
            elif kind == EventType.CONFIRM:
                found = list(self._confirm_units(buffer, start, end))
            elif kind == EventType.CONTROL:
                found = [self._control_unit(buffer[start:end], specific, whole, to_broker)]
            elif kind in (EventType.HEARTBEAT_REQ, EventType.HEARTBEAT_RSP):
                found = [self._other_unit("heartbeat", whole)]
            else:
                found = [self._other_unit("authentication" if kind == EventType.AUTHENTICATION else "other", whole)]
        except PeerError as error:
            return [self._other_unit("other", whole, f"unreadable: {error}")]
        if len(found) == 1:
            found[0].data = whole
        return found

    def _other_unit(self, kind: str, whole: bytes, what: str = "") -> Unit:
        return Unit(kind, whole, events.Other(time=self.now, client=self.client, what=what or kind,
                                              quiet=kind in ("heartbeat", "answer")))

    def _find_uri(self, queue_id: int) -> str:
        return self._uris.get(queue_id, f"(queue id {queue_id})")

    # -- data events ------------------------------------------------------------------------------------------------

    def _put_units(self, buffer: bytes, start: int, end: int) -> Iterator[Unit]:
        for queue_id, guid, data, flags, _, compression, schema_id, _, _, stop in walk_puts(buffer, start, end):
            wants_ack = bool(flags & ACK_REQUESTED) or not guid[0] and any(guid[1:4])  # the correlation id
            post = events.Post(
                time=self.now, client=self.client, uri=self._find_uri(queue_id), guid=guid, data=data,
                has_properties=bool(flags & MESSAGE_PROPERTIES), compression=compression, schema_id=schema_id)
            if wants_ack:
                self._posts[guid] = post
            yield Unit("post", event_header(EventType.PUT, stop - start) + buffer[start:stop], post, queue_id)
            start = stop

    def _push_units(self, buffer: bytes, start: int, end: int) -> Iterator[Unit]:
        for queue_id, guid, data, flags, compression, schema_id, options, _, stop in walk_pushes(buffer, start, end):
            ids = [int.from_bytes(options[at:at + 4], "big") for at in range(4, len(options), 4)]
            apps = [self._apps.get((queue_id, each), "") for each in ids] or [""]
            yield Unit("delivery", event_header(EventType.PUSH, stop - start) + buffer[start:stop], events.Delivery(
                time=self.now, client=self.client, uri=self._find_uri(queue_id), app=",".join(filter(None, apps)), guid=guid,
                data=data, has_properties=bool(flags & MESSAGE_PROPERTIES), compression=compression,
                schema_id=schema_id, redelivered=bool(flags & OUT_OF_ORDER)), queue_id)
            start = stop

    def _ack_units(self, buffer: bytes, start: int, end: int) -> Iterator[Unit]:
        messages, error = wire.decode_ack(buffer, start, end)
        for message, data in zip(messages, _split_items(buffer, start, end, EventType.ACK), strict=False):
            status = ACK_RESULTS[message.status]
            number = message.correlation_id  # of clients without GUIDs, whose posts contain it instead of the GUID
            post = self._posts.pop(b"\0" + number.to_bytes(3, "big") + bytes(12) if number else message.guid, None)
            if post is not None:
                post.status, post.guid = status, message.guid
            yield Unit("ack", data, events.Ack(time=self.now, client=self.client, uri=self._find_uri(message.queue_id),
                                               guid=message.guid, status=status), message.queue_id)
        if error is not None:
            raise error

    def _confirm_units(self, buffer: bytes, start: int, end: int) -> Iterator[Unit]:
        messages, error = wire.decode_confirm(buffer, start, end)
        for message, data in zip(messages, _split_items(buffer, start, end, EventType.CONFIRM), strict=False):
            app = self._apps.get((message.queue_id, message.sub_queue_id | 1 << 32), "")
            yield Unit("confirm", data, events.Confirm(time=self.now, client=self.client, app=app,
                                                       uri=self._find_uri(message.queue_id), guid=message.guid),
                       message.queue_id)
        if error is not None:
            raise error

    # -- control events ---------------------------------------------------------------------------------------------

    def _control_unit(self, body: bytes, specific: int, whole: bytes, to_broker: bool) -> Unit:
        self.encoding = encoding_of(specific)
        if to_broker and not self._negotiation_seen:
            self._negotiation_seen = True
            return self._negotiation_unit(control.decode_negotiation(body, self.encoding).value, whole)
        if not to_broker and not self._response_seen:
            self._response_seen = True
            response = control.decode_negotiation(body, self.encoding).value
            if self._identity is not None and isinstance(response, schema.BrokerResponse):
                self._identity.status, self._identity.reason = result_of(response.result.category), response.result.message
            return self._other_unit("answer", whole)
        message = control.decode_control(body, self.encoding)
        if not to_broker:
            return self._answer_unit(message, whole)
        return self._request(message, whole)

    def _negotiation_unit(self, identity: object, whole: bytes) -> Unit:
        if isinstance(identity, schema.ClientIdentity):
            self.process = f"{identity.process_name or '?'}:{identity.pid}.{identity.session_id}"
        self._identity = events.Negotiation(time=self.now, client=self.client, process=self.process)
        return Unit("negotiation", whole, self._identity)

    def _request(self, message: control.ControlMessage, whole: bytes) -> Unit:
        value, request_id = message.value, message.r_id or 0
        unit = self._other_unit(message.choice or "other", whole)
        if isinstance(value, schema.OpenQueue):
            unit = self._open(value.handle_parameters, whole)
        elif isinstance(value, schema.CloseQueue):
            q_id, sub = value.handle_parameters.q_id, value.handle_parameters.sub_id_info
            unit = Unit("close", whole, events.Close(time=self.now, client=self.client, uri=self._find_uri(q_id),
                                                     app=_app_text(sub.app_id) if sub else ""), q_id)
        elif isinstance(value, schema.ConfigureStream):
            unit = self._configure(value.q_id, value.stream_parameters.app_id, value.stream_parameters.subscriptions,
                                   whole)
        elif isinstance(value, schema.ConfigureQueueStream):
            unit = self._configure_old(value, whole)
        unit.request_id = request_id
        if isinstance(unit.event, events.Request):
            self._requests[request_id] = unit.event
        return unit

    def _open(self, parameters: schema.QueueHandleParameters, whole: bytes) -> Unit:
        try:
            uri = parse_uri(parameters.uri).canonical
        except InvalidUri:
            uri = parameters.uri
        self._uris[parameters.q_id] = uri
        sub = parameters.sub_id_info
        app = _app_text(sub.app_id) if sub else ""
        self._apps[parameters.q_id, (sub.sub_id if sub else 0) | 1 << 32] = app
        return Unit("open", whole, events.Open(
            time=self.now, client=self.client, uri=uri, app=app, read=bool(parameters.flags & FLAG_READ),
            write=bool(parameters.flags & FLAG_WRITE)), parameters.q_id)

    def _configure(self, q_id: int, app_id: str, subscriptions: list[schema.Subscription], whole: bytes) -> Unit:
        app, found = _app_text(app_id), []
        for one in subscriptions:
            self._apps[q_id, one.s_id] = app
            found += [_requested_subscription(one.expression.text, each) for each in one.consumers]
        return Unit("configure", whole, events.Configure(time=self.now, client=self.client, uri=self._find_uri(q_id),
                                                         app=app, subscriptions=tuple(found)), q_id)

    def _configure_old(self, value: schema.ConfigureQueueStream, whole: bytes) -> Unit:
        parameters = value.stream_parameters
        sub = parameters.sub_id_info
        app = _app_text(sub.app_id) if sub else ""
        self._apps[value.q_id, sub.sub_id if sub else 0] = app
        found = () if parameters.consumer_priority == schema.INVALID_PRIORITY else (_requested_subscription("", parameters),)
        return Unit("configure", whole, events.Configure(time=self.now, client=self.client, uri=self._find_uri(value.q_id),
                                                         app=app, subscriptions=found), value.q_id)

    def _answer_unit(self, message: control.ControlMessage, whole: bytes) -> Unit:
        request = self._requests.pop(message.r_id or 0, None)
        if request is not None:
            status = message.value if isinstance(message.value, schema.Status) else schema.Status()
            request.status, request.reason = result_of(status.category), status.message
        return self._other_unit("answer", whole, message.choice)


def _app_text(app_id: str) -> str:
    return "" if app_id == DEFAULT_APP_ID else app_id


def _requested_subscription(expression: str,
                            info: schema.ConsumerInfo | schema.QueueStreamParameters) -> events.RequestedSubscription:
    return events.RequestedSubscription(expression, info.max_unconfirmed_messages, info.max_unconfirmed_bytes,
                                        info.consumer_priority)


def _split_items(buffer: bytes, start: int, end: int, kind: EventType) -> Iterator[bytes]:
    """Split an ACK or CONFIRM event into events of one message each."""
    head, step = (buffer[start] >> HEADER_WORDS_SHIFT) * 4, (buffer[start] & ITEM_WORDS_MASK) * 4
    for position in range(start + head, end, step):
        yield event_header(kind, head + step) + buffer[start:start + head] + buffer[position:position + step]
