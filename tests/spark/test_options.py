"""Options of sources and sinks: values, and errors that name the option.

The tested module is `bmqtwist/spark/options.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from bmqtwist.spark.options import OptionError, sink_options, source_options, storage_options
from bmqtwist.storage.records import RecordType

TYPES = {each.name: each for each in RecordType}
SOURCE = {"bmq.bootstrap.servers": "tcp://localhost:30114", "subscribe": "bmq://d/q"}


def test_options_are_recognized_in_lower_case_as_spark_passes_them() -> None:
    found = source_options({"bmq.bootstrap.servers": "tcp://a:1,tls://b:2", "subscribe": "bmq://d/q?id=x, bmq://d/r",
                            "maxoffsetspertrigger": "5", "availablenow.idlems": "250", "failondataloss": "FALSE",
                            "maxunconfirmedbytes": "2k", "maxtriggerdelay": "2m", "path": "/ignored"})
    assert [str(each) for each in found.broker.brokers] == ["tcp://a:1", "tls://b:2"]
    assert found.canonical_queues == (("bmq://d/q", "x"), ("bmq://d/r", ""))
    assert (found.batch_messages_max, found.unconfirmed_messages_max) == (5, 10)
    assert (found.drain_idle_s, found.fail_on_data_loss, found.unconfirmed_bytes_max) == (0.25, False, 2048)
    assert found.delay_max_s == 120.0


def test_the_option_app_id_applies_to_all_queues() -> None:
    assert source_options({**SOURCE, "appId": "x"}).queues == ("bmq://d/q?id=x",)


@pytest.mark.parametrize(("changes", "text"), [
    ({"maxofsetspertrigger": "5"}, "maxOffsetsPerTrigger"),
    ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
    ({"maxOffsetsPerTrigger": "5", "maxMessagesPerTrigger": "5"}, "are the same option"),
    ({"subscribe": ""}, "subscribe is missing"),
    ({"subscribe": "bmq://d/q,bmq://d/q"}, "once"),
    ({"subscribe": "bmq://d/q?id=x", "appId": "y"}, "name an app"),
    ({"startingOffsets": "earliest"}, "oldest unconfirmed message"),
    ({"failOnDataLoss": "maybe"}, "true or false"),
    ({"maxTriggerDelay": "soon"}, "500ms"),
    ({"maxUnconfirmedBytes": "0"}, "number of bytes"),
    ({"bmq.bootstrap.servers": "localhost"}, "tcp://host:port"),
    ({"bmq.user": "me"}, "bmq.password.file"),
    ({"bmq.timeout": "0"}, "greater than 0"),
    ({"minOffsetsPerTrigger": "100", "maxUnconfirmedMessages": "10"}, "never reached"),
])
def test_the_error_about_an_invalid_source_option_names_the_option(changes: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        source_options({**SOURCE, **changes})


def test_the_sink_has_one_target_queue_and_refuses_source_options() -> None:
    given = {"bmq.bootstrap.servers": "tcp://a:1", "queue": "bmq://d/q", "delivery.timeout.ms": "1500"}
    found = sink_options(given)
    assert (found.queue, found.delivery_timeout_s) == ("bmq://d/q", 1.5)
    with pytest.raises(OptionError, match="no option 'subscribe'"):
        sink_options({**given, "subscribe": "bmq://d/q"})


def test_the_storage_reader_parses_its_filters() -> None:
    found = storage_options({"path": "/a,/b", "recordtypes": "message,Confirm", "since": "2026-11-21T05:00:00",
                             "until": "1795237200", "guid": "40" * 16, "partitionids": "0,3"}, TYPES)
    assert (found.paths, found.record_types) == (("/a", "/b"), ("MESSAGE", "CONFIRM"))
    assert (found.since, found.until) == (1795237200, 1795237200)
    assert (found.guids, found.partition_ids) == ((b"\x40" * 16,), (0, 3))


@pytest.mark.parametrize(("changes", "text"), [
    ({"path": ""}, "no files"), ({"recordTypes": "MESSAGES"}, "should be one of"), ({"guid": "12"}, "32 hex"),
    ({"mode": "LENIENT"}, "PERMISSIVE"), ({"since": "yesterday"}, "since"),
])
def test_the_error_about_an_invalid_storage_option_names_the_option(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        storage_options({"path": "/a", **changes}, TYPES)
