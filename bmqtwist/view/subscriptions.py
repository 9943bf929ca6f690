"""Test of a subscription expression: its validity, the stored messages that match it, and the consumers that would receive
them. Delivers nothing and leaves the round-robin order of the consumers unchanged.

Called by `admin/operations.py` and `console/documents_api.py`; expressions are compiled in `queue/expression.py`,
deliveries choose consumers with `queue/queue.py: Router`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from bmqtwist.queue.expression import CompiledExpression, ExpressionError, compile_expression
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import PUT_ASIDE, STOP, ConsumerSubscription, Group, Router
from bmqtwist.steps import Steps
from bmqtwist.storage.message import Message
from bmqtwist.view.queue_facts import hexadecimal
from bmqtwist.view.stored_queue import UNREADABLE, LocatedQueue, locate, properties_of
from bmqtwist.view.typed_properties import from_tree, plain_text
from bmqtwist.wire.properties import Properties

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.queue import App

LAST_MAX = 500  # stored messages that are evaluated
AT_ONCE = 16  # messages per step, about 1 ms
_WORD = re.compile(r"[\w.]+|&&|\|\||[=!<>]=|.", re.DOTALL)

Tree = dict[str, Any]
Values = Mapping[str, object]


def error_tree(text: str, error: ExpressionError) -> Tree:
    """Return the error of an expression as JSON; `offset` and `length` are in characters."""
    offset = min(len(text.encode("utf-8", "surrogateescape")[:error.offset].decode("utf-8", "ignore")), len(text))
    found = _WORD.match(text, offset)
    return {"message": error.message, "code": error.code, "offset": offset, "length": len(found[0]) if found else 0}


def preview_choice(router: Router, values: Values) -> ConsumerSubscription | str:
    """Return the result of `Router.choose` without advancing its round-robin order."""
    matched: int | None = None
    room = False
    for group in router.groups:
        if matched is not None and group.priority < matched:
            break
        if group.matcher is None or group.matcher.matches(values):
            chosen = _next_with_room(group)
            if chosen is not None:
                return chosen
            matched = group.priority
        elif not room:
            room = group.has_room()
    return PUT_ASIDE if room else STOP


def _next_with_room(group: Group) -> ConsumerSubscription | None:
    return next((member for member in group.members if not member.full and member.window.open), None)


def evaluate_in_steps(broker: Broker, uri: str, expression: str, properties: Mapping[str, Any] | None = None,
                      last: int = 50) -> Steps[Tree]:
    """Evaluate an expression on the last stored messages of a queue, or on `properties` (see `typed_properties`). Without an
    expression the result has the routing alone. LocalError: the queue is not stored here, or a property is invalid."""
    located = locate(broker, uri)
    tree: Tree = {"uri": located.uri, "role": "primary" if located.root is not None else "replica", "valid": True,
                  "error": None, "properties": [], "results": [], "matched": 0, "examined": 0}
    compiled: CompiledExpression | None = None
    if expression:
        try:
            compiled = compile_expression(expression)
        except ExpressionError as error:
            return tree | {"valid": False, "error": error_tree(expression, error)}
        tree["properties"] = sorted(compiled.properties)
    if properties is not None:
        tree["results"].append(_result(located, compiled, None, from_tree(properties)))
    else:
        waiting = list(islice(located.messages.newest_first(), min(max(1, last), LAST_MAX)))
        for number, message in enumerate(waiting, 1):
            try:
                found: Properties | None = properties_of(located, message)
            except UNREADABLE:
                found = None
            tree["results"].append(_result(located, compiled, message, found))
            if message.payload is None or not number % AT_ONCE:
                yield
    tree["examined"] = len(tree["results"])
    tree["matched"] = sum(result["matches"] for result in tree["results"])
    return tree


def _result(located: LocatedQueue, compiled: CompiledExpression | None, message: Message | None,
            found: Properties | None) -> Tree:
    result: Tree = {"guid": hexadecimal(message.guid) if message is not None else None, "matches": False, "reason": "",
                    "routing": []}
    if found is None:
        return result | {"reason": "its properties cannot be read"}
    values = {name: value for name, (_, value) in found.items()}
    if compiled is None:
        result["matches"] = True
    else:
        result["matches"] = compiled.matches(values)
        result["reason"] = "" if result["matches"] else _why_not(compiled, values)
    if located.root is not None:
        result["routing"] = [_routed(app, located.root.mode, message, values) for app in located.root.active]
    return result


def _why_not(compiled: CompiledExpression, values: Values) -> str:
    missing = sorted(compiled.properties - values.keys())
    if missing:
        return f"the message has no property {', '.join(missing)}"
    unreadable = sorted(name for name in compiled.properties if type(values[name]) not in (int, str, bool))
    if unreadable:
        return f"binary properties cannot be compared: {', '.join(unreadable)}"
    return "it is false, or compares values of different types"


def _routed(app: App, mode: QueueMode, message: Message | None, values: Values) -> Tree:
    """Return how the app would route a message with these properties now."""
    row: Tree = {"appId": app.app_id, "outcome": "none", "to": None, "expression": None, "priority": None}
    if message is not None and not message.pending & app.bit:
        return row | {"outcome": "finished"}
    if app.condition is not None and not app.condition.matches(values):
        return row | {"outcome": "unwanted", "expression": app.condition.text}
    router = app.current_router()
    if mode == QueueMode.BROADCAST:
        chosen = router.eligible_subscriptions(values)
        return row | {"outcome": "consumer" if chosen else "none", "to": [_client(each) for each in chosen] or None}
    if not router.groups:
        return row
    found = preview_choice(router, values)
    if not isinstance(found, ConsumerSubscription):
        return row | {"outcome": found}
    return row | {"outcome": "consumer", "to": _client(found), "expression": found.text, "priority": found.priority}


def _client(subscription: ConsumerSubscription) -> str:
    return plain_text(subscription.substream.handle.client.description)
