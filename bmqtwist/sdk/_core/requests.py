"""Control requests to the broker: pending requests by id with their callbacks, queue requests in the form that the broker
supports, and the delivery routes of configurations: the target of each subscription id.

Used by `connection.py`, `queue_machine.py` and `queue_configuration.py`; `outbox.py` encodes the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bmqtwist.errors import PeerError
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.sdk._core.outbox import Outbox
from bmqtwist.sdk._core.queue import Queue, QueueRegistry, Routes
from bmqtwist.sdk._core.states import ignore
from bmqtwist.sdk.options import QueueOptions, Subscription
from bmqtwist.sdk.results import Result, result_of
from bmqtwist.wire import control, schema
from bmqtwist.wire.control import ControlMessage, encoding_of

_ANSWERS = {"openQueue": "openQueueResponse", "configureStream": "configureStreamResponse",
            "configureQueueStream": "configureQueueStreamResponse", "closeQueue": "closeQueueResponse",
            "disconnect": "disconnectResponse"}
_R_ID_MASK = 0x7FFFFFFF
OnAnswer = Callable[[Result, str, Any], object]  # result, message, and the broker's response or status


class Requests:
    """Sends requests and passes answers to their callbacks; opens, configures and closes queues at the broker.
    `has_configure_stream`: the broker supports subscriptions.

    A PUSH contains a subscription id of the configuration that is in force at the broker. Therefore the routes of a new
    configuration are valid from its request on, and the previous routes until its answer.
    """

    def __init__(self, outbox: Outbox, registry: QueueRegistry, routes: Routes) -> None:
        self._outbox, self.registry, self._routes = outbox, registry, routes
        self.pending: dict[int, tuple[OnAnswer, str]] = {}
        self._next_r_id = self._next_s_id = 1
        self.has_configure_stream = False

    def send(self, choice: str, value: object, on_answer: OnAnswer = ignore) -> int:
        r_id, self._next_r_id = self._next_r_id, self._next_r_id + 1 & _R_ID_MASK
        self.pending[r_id] = on_answer, _ANSWERS[choice]
        self._outbox.send(ControlMessage(r_id, choice, value))
        return r_id

    def on_control(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Pass an answer of the broker to its callback; ignore late answers and other messages."""
        try:
            message = control.decode_control(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self._outbox.report_invalid(error)
            return
        r_id, choice, value = message.r_id, message.choice, message.value
        if r_id is None or r_id not in self.pending or choice not in ("status", self.pending[r_id][1]):
            return
        on_answer, _ = self.pending.pop(r_id)
        if choice != "status":
            on_answer(Result.SUCCESS, "", value)
            return
        result = result_of(value.category)
        on_answer(Result.UNKNOWN if result is Result.SUCCESS else result, value.message, value)

    # -- queues -----------------------------------------------------------------------------------------------------

    def _handle_parameters(self, queue: Queue) -> schema.QueueHandleParameters:
        return schema.QueueHandleParameters(queue.uri, queue.q_id, queue.sub_id_info, queue.flags,
                                            int(queue.readable), int(queue.writable), 0)

    def open(self, queue: Queue, on_answer: OnAnswer) -> None:
        self.send("openQueue", schema.OpenQueue(self._handle_parameters(queue)), on_answer)

    def close(self, queue: Queue, on_answer: OnAnswer = ignore) -> None:
        """Close a queue; `is_final` is set for the last queue of a canonical URI."""
        self.registry.release_ids(queue)
        self.send("closeQueue", schema.CloseQueue(self._handle_parameters(queue), not queue.ids.users), on_answer)

    def configure(self, queue: Queue, subscriptions: tuple[Subscription, ...], on_answer: OnAnswer) -> int:
        """Send a configure request; return its id. Its routes are provisional until `commit_routes` or `revert_routes`."""
        app_id = queue.target.app_id or DEFAULT_APP_ID
        if queue.routes_new:  # this request replaces an unanswered configuration
            queue.routes = {**queue.routes, **queue.routes_new}
        queue.routes_new = routes = {}
        if self.has_configure_stream:
            found = []
            for each in subscriptions:
                s_id, self._next_s_id = self._next_s_id, self._next_s_id + 1
                routes[queue.q_id << 32 | s_id] = each
                version = schema.ExpressionVersion.E_VERSION_1 if each.expression else (
                    schema.ExpressionVersion.E_UNDEFINED)
                found.append(schema.Subscription(s_id, schema.Expression(version, each.expression), [
                    schema.ConsumerInfo(each.max_unconfirmed_messages, each.max_unconfirmed_bytes,
                                        each.consumer_priority, 1)]))
            r_id = self.send("configureStream", schema.ConfigureStream(
                queue.q_id, schema.StreamParameters(app_id, found)), on_answer)
        else:
            parameters = schema.QueueStreamParameters(queue.sub_id_info)
            if subscriptions:
                first = subscriptions[0]
                routes[queue.q_id << 32 | queue.sub_id] = first
                parameters = schema.QueueStreamParameters(
                    queue.sub_id_info, first.max_unconfirmed_messages, first.max_unconfirmed_bytes,
                    first.consumer_priority, 1)
            r_id = self.send("configureQueueStream", schema.ConfigureQueueStream(queue.q_id, parameters), on_answer)
        for key, each in routes.items():
            self._routes[key] = queue, each
        return r_id

    def is_unsupported(self, queue: Queue, options: QueueOptions) -> bool:
        wanted = options.effective()
        return queue.readable and not self.has_configure_stream and (
            len(wanted) > 1 or any(each.expression for each in wanted))

    def commit_routes(self, queue: Queue) -> None:
        """Remove the previous routes: the new configuration was accepted."""
        for key in queue.routes.keys() - queue.routes_new.keys():
            self._routes.pop(key, None)
        queue.routes, queue.routes_new = queue.routes_new, {}

    def merge_routes(self, queue: Queue) -> None:
        """Keep both sets of routes: the new configuration was not answered, so either may be in force."""
        queue.routes, queue.routes_new = {**queue.routes, **queue.routes_new}, {}

    def revert_routes(self, queue: Queue) -> None:
        """Restore the previous routes: the new configuration was refused."""
        for key in queue.routes_new:
            self._routes.pop(key, None)
        queue.routes_new = {}
        for key, each in queue.routes.items():
            self._routes[key] = queue, each

    def remove_routes(self, queue: Queue) -> None:
        for key in (*queue.routes, *queue.routes_new):
            self._routes.pop(key, None)
        queue.routes, queue.routes_new = {}, {}
