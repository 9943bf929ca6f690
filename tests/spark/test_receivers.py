"""Several receivers in child processes, against a broker process, without Spark.

The tested module is `bmqtwist/spark/receiver.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from bmqtwist.sdk.message import Message
from bmqtwist.sdk.simple import Session
from bmqtwist.spark.options import source_options
from bmqtwist.spark.plan import Key, keys_of
from bmqtwist.spark.receiver import ReceivedMessages, ReceiverFailed, Receivers
from bmqtwist.testing.process import BrokerProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
_SECONDS_MAX = 30.0


def made(broker: BrokerProcess, uri: str, **more: str) -> Receivers:
    return Receivers(source_options({"bmq.bootstrap.servers": broker.url, "subscribe": uri, "receivers": "2", **more}))


def taken(receivers: Receivers, enough: Callable[[list[ReceivedMessages]], bool]) -> list[ReceivedMessages]:
    found: list[ReceivedMessages] = []
    until = time.monotonic() + _SECONDS_MAX
    while not enough(found):
        assert time.monotonic() < until, found
        receivers.wait(1.0)
        receivers.raise_error()
        found += receivers.take_messages()
    return found


def post(broker: BrokerProcess, uri: str, count: int) -> None:
    with Session(broker.url) as session, session.open(uri, write=True) as queue:
        queue.post_many([(b"%d" % number, None) for number in range(count)])


def messages(found: list[ReceivedMessages]) -> list[Message[bytes]]:
    return [message for each in found for message in each.messages]


def keys(found: list[ReceivedMessages]) -> list[Key]:
    return [key for each in found for key in keys_of(each.queue, each.messages)]


def test_receivers_share_the_messages_of_a_queue_and_confirm_their_own(broker: BrokerProcess) -> None:
    """No message remains."""
    uri = "bmq://d.prio/receivers"
    receivers = made(broker, uri)
    receivers.start()
    try:
        post(broker, uri, 100)
        found = taken(receivers, lambda found: len(messages(found)) == 100)
        assert {each.receiver for each in found} == {0, 1}
        assert sorted(int(each.payload) for each in messages(found)) == list(range(100))
        receivers.confirm(keys(found))
    finally:
        receivers.stop()
    with Session(broker.url) as session, session.open(uri, read=True) as queue:
        assert queue.get(0.5) is None


def test_unconfirmed_messages_of_a_stopped_receiver_go_to_another_one(broker: BrokerProcess) -> None:
    """All receivers share the limit."""
    uri = "bmq://d.prio/receivers-window"
    post(broker, uri, 50)
    first, second = made(broker, uri, maxUnconfirmedMessages="20"), made(broker, uri)
    first.start()
    try:
        taken(first, lambda found: len(messages(found)) == 20)
        second.start()
        held = taken(second, lambda found: len(messages(found)) == 30)
        first.stop()
        held += taken(second, lambda found: len(messages(found)) == 20)
        second.confirm(keys(held))
    finally:
        first.stop()
        second.stop()
    with Session(broker.url) as session, session.open(uri, read=True) as queue:
        assert queue.get(0.5) is None


def test_a_lost_connection_is_reported_for_its_receiver_and_its_messages_are_redelivered(broker: BrokerProcess) -> None:
    uri = "bmq://d.prio/receivers-lost"
    receivers = made(broker, uri)
    receivers.start()
    try:
        post(broker, uri, 10)
        taken(receivers, lambda found: len(messages(found)) == 10)
        broker.restart()
        found = taken(receivers, lambda found: len(messages(found)) >= 10
                      and sum(not each.messages for each in found) >= 2)
        assert {each.receiver for each in found if not each.messages} == {0, 1}
    finally:
        receivers.stop()


def test_a_receiver_that_cannot_open_its_queue_reports_the_reason(broker: BrokerProcess) -> None:
    receivers = made(broker, "bmq://unknown.domain/q")
    try:
        with pytest.raises(ReceiverFailed, match="unknown.domain|UNKNOWN|REFUSED|NOT_"):
            receivers.start()
    finally:
        receivers.stop()


def test_receivers_stop_when_the_process_of_the_query_is_killed(broker: BrokerProcess) -> None:
    """Their unconfirmed messages are available at once."""
    uri = "bmq://d.prio/receivers-gone"
    code = ("import sys, time; from bmqtwist.spark.options import source_options; "
            "from bmqtwist.spark.receiver import Receivers; "
            "found = Receivers(source_options({'bmq.bootstrap.servers': sys.argv[1], 'subscribe': sys.argv[2], "
            "'receivers': '2'})); found.start(); got = 0\n"
            "while got < 5: found.wait(1.0); got += sum(len(each.messages) for each in found.take_messages())\n"
            "print('all', flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", code, broker.url, uri], stdout=subprocess.PIPE) as query:
        assert query.stdout is not None
        post(broker, uri, 5)
        assert query.stdout.readline() == b"all\n"
        query.kill()
    with Session(broker.url) as session, session.open(uri, read=True) as queue:
        assert sorted(each.payload for each in (queue.get(10.0) for _ in range(5)) if each is not None) == [
            b"%d" % number for number in range(5)]
