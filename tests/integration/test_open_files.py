"""A broker process with a low limit of open files: storage continues, and new connections are refused until others end."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.process import BrokerProcess

from bench.rawclient import READ, WRITE, RawClient, acks, pushes
from bmqtwist.wire.fast import EventType

FILES_MAX = 400
PARTITIONS = 45  # with three files each, so that connections reach the reserve for storage
STRANGERS = 200
PATIENCE_S = 30.0
SLOW_S = 1.0  # an acknowledgement that takes longer was held up


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker process with at most FILES_MAX open files."""
    made = BrokerProcess(tmp_path, cluster={"partition": {
        "numPartitions": PARTITIONS, "maxJournalFileSize": 1 << 20, "maxDataFileSize": 1 << 20,
        "maxQlistFileSize": 1 << 16}})
    made.domain("d")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, before[1]))
    try:
        made.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    yield made
    made.cleanup()


def post(client: RawClient) -> float:
    """Post one message and wait for its ACK; return the time in s."""
    data, (guid,) = client.put_event(0, [b"x" * 100])
    begun = time.monotonic()
    client.send(data)
    while time.monotonic() - begun < PATIENCE_S:
        for buffer, (kind, _, start, stop) in client.events(PATIENCE_S):
            if kind == EventType.ACK and (0, guid) in list(acks(buffer, start, stop)):
                return time.monotonic() - begun
    raise AssertionError("no ACK")


def test_storage_works_at_the_limit_of_open_files_and_connections_are_accepted_again_later(broker: BrokerProcess) -> None:
    client = RawClient(broker.port, "good", PATIENCE_S)
    client.open("bmq://d/q", 0, WRITE)
    reader = RawClient(broker.port, "reader", PATIENCE_S)
    reader.open("bmq://d/q", 0, READ)
    reader.consume(0, 1)
    post(client)
    with contextlib.ExitStack() as stack:
        for _ in range(STRANGERS):
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S))
        broker.expect("open files: fewer than 128 of 400 are left")
        for _ in range(200):
            post(client)
        assert len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir())) < FILES_MAX - 100  # type: ignore[union-attr]
    end = time.monotonic() + PATIENCE_S
    while True:  # closed connections are detected, then one is accepted
        try:
            late = RawClient(broker.port, "late", SLOW_S)
            break
        except (OSError, TimeoutError, RuntimeError) as error:
            if time.monotonic() > end:
                raise AssertionError("no connection is accepted") from error
    late.open("bmq://d/q", 0, WRITE)
    post(late)
    answer = broker.admin("CLUSTERS CLUSTER c3 STORAGE PARTITION ALL ROLLOVER")
    assert "ERROR" not in answer.upper(), answer
    post(late)
    received, end = 0, time.monotonic() + PATIENCE_S
    while received < 203 and time.monotonic() < end:
        for buffer, (kind, _, start, stop) in reader.events(1.0):
            received += len(list(pushes(buffer, start, stop))) if kind == EventType.PUSH else 0
    assert received == 203
    assert not [line for line in broker.records if "INTERNAL_ERROR" in line or "Traceback" in line or "PANIC" in line]
