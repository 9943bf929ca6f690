"""A program for the official library, on ours."""

from __future__ import annotations

from typing import assert_type

import bmqtwist.sdk.blazingmq as blazingmq
from bmqtwist.sdk.blazingmq import session_events
from bmqtwist.sdk.blazingmq.exceptions import BrokerTimeoutError

URI = "bmq://domain/queue"


def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
    """Confirm a message."""
    assert_type(message.data, bytes)
    assert_type(message.properties, blazingmq.PropertyValueDict)
    handle.confirm()


def on_ack(ack: blazingmq.Ack) -> None:
    """Check the members of an acknowledgement."""
    assert_type(ack.status, blazingmq.AckStatus)
    assert_type(ack.guid, bytes | None)


def main() -> None:
    """Use all calls of a session."""
    monitor = blazingmq.BasicHealthMonitor()
    options = blazingmq.SessionOptions(blazingmq.CompressionAlgorithmType.ZLIB, blazingmq.Timeouts(1.0), monitor)
    with blazingmq.Session.with_options(session_events.log_session_event, on_message, session_options=options) as session:
        session.open_queue(URI, read=True, write=True, options=blazingmq.QueueOptions(max_unconfirmed_messages=1))
        try:
            session.post(URI, b"x", {"a": 1}, {"a": blazingmq.PropertyType.SHORT}, on_ack=on_ack)
        except BrokerTimeoutError as error:
            assert_type(error, BrokerTimeoutError)
        session.configure_queue(URI, blazingmq.QueueOptions(consumer_priority=1))
        assert_type(session.get_queue_options(URI), blazingmq.QueueOptions)
        session.close_queue(URI, timeout=1.0)
    session = blazingmq.Session(session_events.log_session_event, on_message=on_message, broker="tcp://a", timeout=3.0)
    session.stop()
