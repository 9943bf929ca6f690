"""Budget of values in a schema message: decoding stops with an error before a message of many small values takes long."""

from __future__ import annotations

import json

import pytest

from bmqtwist.errors import PeerError
from bmqtwist.limits import CONTROL_BYTES_MAX, CONTROL_VALUES_MAX, NEGOTIATION_VALUES_MAX, SUBSCRIPTIONS_MAX
from bmqtwist.wire import ber, control, schema
from bmqtwist.wire.control import ControlMessage, Encoding, NegotiationMessage
from bmqtwist.wire.text import bracketed

SIZE = CONTROL_BYTES_MAX - 256


def configure(subscriptions: list[schema.Subscription]) -> ControlMessage:
    return ControlMessage(1, "configureStream", schema.ConfigureStream(1, schema.StreamParameters("app", subscriptions)))


def with_elements(element: bytes) -> bytes:
    """A configureStream with the largest number of elements for its size."""
    whole, one = ber.encode(configure([schema.Subscription(77)])), ber.encode(schema.Subscription(77))
    at = whole.index(one)
    return whole[:at] + element * (SIZE // len(element)) + whole[at + len(one):]


def with_fields(field: bytes, before: bytes = b"", behind: bytes = b"") -> bytes:
    return b"\x30\x80\x80\x01\x01" + before + field * (SIZE // len(field)) + behind + b"\0\0"


HOSTILE = {
    "elements of definite length": with_elements(b"\x30\0"),
    "elements of indefinite length": with_elements(b"\x30\x80\0\0"),
    "elements in elements": with_elements(b"\x30\x80\xa2\x80" + b"\x30\0" * 50 + b"\0\0\0\0"),
    "unknown elements": with_elements(b"\x85\0"),
    "unknown fields": with_fields(b"\x89\0"),
    "nested unknown fields": with_fields(b"\xb0\x80" * 20 + b"\0\0" * 20),
    "one field again and again": with_fields(b"\x80\x01\x03"),
    "choices": with_fields(b"\xa1\x80\xaa\0\0\0"),
    "selections of one choice": with_fields(b"\xaa\0", b"\xa1\x80", b"\0\0"),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_ber_message_with_too_many_values_is_refused(body: bytes) -> None:
    with pytest.raises(PeerError, match="too many values"):
        control.decode_control(body, Encoding.BER, CONTROL_VALUES_MAX)
    control.decode_control(body, Encoding.BER)  # the message is valid otherwise


@pytest.mark.parametrize("subscription", [{}, {"consumers": [{}] * 50}])
def test_a_json_message_with_too_many_values_is_refused(subscription: dict[str, object]) -> None:
    count = SIZE // len(json.dumps(subscription, separators=(",", ":")))
    body = json.dumps({"rId": 1, "configureStream": {"qId": 1, "streamParameters": {
        "appId": "a", "subscriptions": [subscription] * count}}}).encode()
    with pytest.raises(PeerError, match="too many values"):
        control.decode_control(body, Encoding.JSON, CONTROL_VALUES_MAX)
    control.decode_control(body, Encoding.JSON)


@pytest.mark.parametrize("encoding", Encoding)
def test_a_configure_with_the_maximum_number_of_subscriptions_is_decoded(encoding: Encoding) -> None:
    expression = schema.Expression(schema.ExpressionVersion.E_VERSION_1, "x == 1")
    message = configure([schema.Subscription(number, expression, [schema.ConsumerInfo(1000, 1 << 20, 1, 1)])
                         for number in range(SUBSCRIPTIONS_MAX)])
    assert control.decode_control(control.encode_body(message, encoding), encoding, CONTROL_VALUES_MAX) == message
    assert len(bracketed(message)) < 8192 and bracketed(message).count("expression = ") == 16


def test_a_negotiation_message_may_have_only_a_few_values() -> None:
    identity = schema.ClientIdentity(process_name="p" * 1000, features="f" * 1000)
    body = ber.encode(NegotiationMessage("clientIdentity", identity))
    assert control.decode_negotiation(body, Encoding.BER, NEGOTIATION_VALUES_MAX // 4).value == identity
    with pytest.raises(PeerError, match="too many values"):
        control.decode_negotiation(b"\x30\x80\xa0\x80" + b"\x9e\0" * 1000 + b"\0\0\0\0", Encoding.BER,
                                   NEGOTIATION_VALUES_MAX)
