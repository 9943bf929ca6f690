"""Counters of a session, and its log lines."""

from __future__ import annotations

import logging
from typing import cast

import pytest
from kit import data_events as events
from kit.sdk_kit import FANOUT, URI, Bench

from bmqtwist.errors import Category
from bmqtwist.sdk import EventKind, Result, SdkError, SessionOptions, parse_brokers
from bmqtwist.sdk._adapters.base import BaseSession
from bmqtwist.sdk._adapters.log import LOG
from bmqtwist.sdk._core.outbox import WriteLog
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk.counters import Counters
from bmqtwist.wire.fast import sub_queue_ids


def balanced_counters(bench: Bench) -> Counters:
    """Return the counters after checking the balance of posts."""
    found = bench.core.counters()
    assert found.posts == found.acked + found.nacked + found.sent_without_ack + found.unacked_now
    assert found.nacked == sum(found.nacked_by_status.values())
    return found


def test_the_counters_of_a_new_session_are_zero() -> None:
    found = balanced_counters(Bench())
    assert (found.state, found.posts, found.attempts, found.bytes_in, dict(found.events)) == ("idle", 0, 0, 0, {})


def test_posts_are_counted_by_their_outcome() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    for payload in (b"a", b"b", b"c", b"d"):
        bench.post(queue, payload)
    bench.core.post(queue, b"no ack", bench.now, post=Post(ack=False))
    assert balanced_counters(bench).unacked_now == 5
    bench.turn()
    bench.ack(*bench.puts()[:2])
    bench.ack(bench.puts()[2], status=1)
    bench.ack(bench.puts()[2], status=0)  # a second ACK is not counted
    found = balanced_counters(bench)
    assert (found.posts, found.acked, found.nacked, found.sent_without_ack, found.unacked_now) == (5, 2, 1, 1, 1)
    assert found.nacked_by_status == {Result.LIMIT_MESSAGES: 1}
    assert found.unacked_bytes_now == bench.core._posts.unacked_bytes > 0
    bench.core.close(queue, "close", bench.now)
    bench.turn()
    found = balanced_counters(bench)
    assert found.nacked_by_status == {Result.LIMIT_MESSAGES: 1, Result.UNKNOWN: 1} and not found.unacked_bytes_now


def test_only_posts_sent_before_are_counted_as_retransmitted() -> None:
    bench = Bench(SessionOptions(batch_delay_s=1.0), acks_at_once=False).start()
    queue = bench.open()
    bench.post(queue, b"sent")
    bench.turn(flush=True)
    bench.post(queue, b"in the batch")
    bench.cut_connection(up=False)
    bench.post(queue, b"while down")
    bench.silent.add("openQueue")
    bench.restore_broker()
    bench.cut_connection()  # before any retransmission
    assert balanced_counters(bench).retransmitted == 0
    bench.silent.clear()
    bench.restore_broker()
    found = balanced_counters(bench)
    assert (found.retransmitted, found.losses, found.reconnects, found.unacked_now) == (1, 2, 2, 3)
    bench.cut_connection()
    bench.restore_broker()
    assert balanced_counters(bench).retransmitted == 4


def test_deliveries_confirms_and_the_inbox_are_counted() -> None:
    bench = Bench().start()
    bench.open(read=True)
    bench.push(b"a", guid=b"a" * 16)
    bench.send_from_broker(events.encode_push([events.PushMessage(0, bytes([n]) * 16, b"m", 4 if n == 2 else 0,
                                                     options=sub_queue_ids([1]))
                                  for n in (1, 2, 3)]))
    bench.push(b"unknown", s_id=9)
    for message in bench.messages[:3]:
        message.confirm()
    bench.core.on_consumed(3)
    bench.turn()
    found = balanced_counters(bench)
    assert (found.messages, found.redelivered, found.inbox_now, found.confirms, found.dropped) == (4, 1, 1, 3, 1)


def test_bytes_of_the_channel_are_counted_in_both_directions() -> None:
    bench = Bench().start()
    before = balanced_counters(bench)
    heartbeat = bytes.fromhex("000000084b020000")
    bench.core.on_data(heartbeat[:3], bench.now)
    bench.core.on_data(heartbeat[3:], bench.now)
    sent = sum(map(len, bench.core.take_output()))
    found = balanced_counters(bench)
    assert (found.bytes_in - before.bytes_in, found.bytes_out - before.bytes_out) == (8, sent) and sent == 8


def test_attempts_queues_and_events_are_counted() -> None:
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://a:1,tcp://b:1"))).start()
    bench.open()
    bench.open(FANOUT, read=True)
    found = balanced_counters(bench)
    assert (found.queues_now, found.attempts, found.state) == (2, 1, "ready")
    bench.cut_connection()
    assert balanced_counters(bench).queues_now == 2
    bench.restore_broker()
    found = balanced_counters(bench)
    assert found.attempts == 2 and found.events == {
        EventKind.CONNECTED: 1, EventKind.CONNECTION_LOST: 1, EventKind.RECONNECTED: 1,
        EventKind.QUEUE_REOPEN_RESULT: 2, EventKind.STATE_RESTORED: 1}


def test_a_snapshot_does_not_change_afterwards() -> None:
    bench = Bench().start()
    found = bench.core.counters()
    bench.cut_connection()
    assert found.events == {EventKind.CONNECTED: 1} and found.state == "ready"


def log_texts(bench: Bench, level: int = logging.DEBUG) -> list[str]:
    """Return log texts at a level or above."""
    return [note.text for note in bench.notes if note.level >= level]


def test_connects_and_losses_of_connections_are_logged_as_information() -> None:
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://a:1")), acks_at_once=False).start()
    bench.post(bench.open(), b"x")
    bench.cut_connection(up=False)
    bench.advance(0.5)
    bench.restore_broker()
    bench.core.stop("stop", bench.now, drain=False)
    bench.turn()
    assert {note.level for note in bench.notes} == {logging.INFO, logging.WARNING}
    assert log_texts(bench)[:2] == ["connected to tcp://a:1",
                                    "connection to tcp://a:1 lost: connection reset; 1 queues and 1 posts are kept"]
    assert log_texts(bench)[2].startswith("no session with tcp://a:1: connection refused; the next attempt in ")
    assert log_texts(bench)[-4:] == ["reconnected to tcp://a:1", "all queues are reopened, 1 posts are sent",
                                     f"a post to {URI} failed: UNKNOWN (further ones with this status are only counted)",
                                     "the session with tcp://a:1 has ended"]


def test_refusals_are_logged_as_warnings_and_many_refused_posts_as_one() -> None:
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://a:1")), acks_at_once=False).start()
    queue = bench.open()
    for _ in range(10):
        bench.core.post(queue, b"x", bench.now)
        bench.turn()
    bench.ack(*bench.puts(), status=2)
    bench.refuse["openQueue"] = Category.E_REFUSED
    bench.open(FANOUT)
    bench.cut_connection()
    bench.restore_broker()
    assert log_texts(bench, logging.WARNING) == [
        f"a post to {URI} failed: LIMIT_BYTES (further ones with this status are only counted)",
        f"{FANOUT} was not opened: REFUSED openQueue refused",
        f"{URI} was not reopened and is closed: REFUSED openQueue refused"]


def test_a_failed_start_is_logged_with_its_reason() -> None:
    bench = Bench(SessionOptions(brokers=parse_brokers("tcp://a:1")))
    bench.refuse["clientIdentity"] = Category.E_REFUSED
    bench.start()
    assert log_texts(bench, logging.WARNING) == ["tcp://a:1 refused the session: REFUSED refused",
                                                 "the session did not start: tcp://a:1: refused"]


def test_the_log_is_silent_until_it_is_configured(caplog: pytest.LogCaptureFixture,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in LOG.handlers)
    with caplog.at_level(logging.INFO, logger="bmqtwist.sdk"):
        BaseSession._perform(cast(BaseSession, None), WriteLog(logging.INFO, "100 % up"))
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("bmqtwist.sdk", "INFO", "100 % up")]
    assert not capsys.readouterr().err


def test_posts_refused_by_validation_are_not_counted() -> None:
    bench = Bench().start()
    queue = bench.open()
    with pytest.raises(SdkError):
        bench.post(queue, b"")
    assert balanced_counters(bench).posts == 0


def test_posts_not_yet_written_are_not_counted_as_retransmitted() -> None:
    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    bench.post(queue, b"sent")
    bench.post(queue, b"cut", turn=False)
    bench.core.close(bench.open("bmq://bmq.test.mem.priority/other"), None, bench.now)  # sends the batch first
    bench.post(queue, b"in the batch", turn=False)
    before = bench.core.counters().retransmitted
    bench.connected = False
    bench.core.on_connection_lost(bench.attempt, "reset", bench.now)
    bench.restore_broker()
    assert bench.core.counters().retransmitted - before == 2 and len(bench.payloads()) == 5

    bench = Bench(acks_at_once=False).start()
    queue = bench.open()
    bench.post(queue, b"cut", turn=False)
    bench.core.open("bmq://bmq.test.mem.priority/other", None, bench.now, write=True)
    bench.core.on_connection_lost(bench.attempt, "reset", bench.now)
    bench.turn()
    bench.restore_broker()
    assert bench.payloads() == [b"cut"] and not bench.core.counters().retransmitted
