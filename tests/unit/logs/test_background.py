"""Nonblocking stream for a slow reader: writers never wait, dropped lines are counted and reported."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.process import BrokerProcess

from bmqtwist.cli.adminclient import AdminClient
from bmqtwist.cli.exits import Unreachable
from bmqtwist.logs.background import BUFFERED_BYTES_MAX, BackgroundStream, nonblocking_stream

LINE = "x" * 999 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def read_all(descriptor: int, into: list[bytes]) -> None:
    while data := os.read(descriptor, 1 << 16):
        into.append(data)
        if b"the end" in data[-100:]:
            return


def test_writes_do_not_block_on_a_reader_that_stopped(pipe: tuple[int, int]) -> None:
    stream = BackgroundStream(pipe[1])
    for _ in range(2 * BUFFERED_BYTES_MAX // len(LINE)):  # does not block, although the pipe takes only 64 KiB
        stream.write(LINE)
    assert stream.dropped > 0.9 * BUFFERED_BYTES_MAX / len(LINE)
    received: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(pipe[0], received))
    reader.start()
    with stream._changed:
        assert stream._changed.wait_for(lambda: not stream._bytes, 30)
    stream.write("the end\n")
    reader.join(30)
    lines = b"".join(received).decode().splitlines(keepends=True)
    reported = [int(number) for line in lines for number in re.findall(r"^\((\d+) lines dropped: ", line)]
    assert reported and sum(reported) == stream.dropped  # several numbers if the reader reads in between
    assert lines[-1] == "the end\n" and lines.count(LINE) == len(lines) - 1 - len(reported)
    assert lines.count(LINE) + stream.dropped == 2 * BUFFERED_BYTES_MAX // len(LINE)
    stream.close()


def test_close_waits_for_an_active_reader_only(pipe: tuple[int, int]) -> None:
    stream = BackgroundStream(pipe[1])
    stream.write("last words\n")
    stream.close(30)
    assert os.read(pipe[0], 100) == b"last words\n"
    stalled = BackgroundStream(pipe[1])
    for _ in range(1000):
        stalled.write(LINE)
    stalled.close(0.01)
    stalled.write("nothing is taken any more")
    os.read(pipe[0], 1 << 20)


def test_a_closed_reader_ends_the_stream_without_an_error() -> None:
    def raise_broken_pipe(descriptor: int, data: bytes) -> int:
        raise BrokenPipeError

    stream = BackgroundStream(-1, raise_broken_pipe)
    stream.write(LINE)
    stream.close(30)
    assert not stream.dropped


def test_only_pipes_get_a_background_stream(pipe: tuple[int, int], tmp_path: Path) -> None:
    with open(pipe[1], "w", closefd=False) as stalls, open(tmp_path / "err", "w") as file:
        memory = io.StringIO()
        assert isinstance(nonblocking_stream(stalls), BackgroundStream)
        assert nonblocking_stream(file) is file and nonblocking_stream(memory) is memory


def test_a_process_that_was_started_with_a_closed_descriptor_has_a_stream_that_discards() -> None:
    with nonblocking_stream(None) as stream:  # type: ignore[union-attr]
        stream.write(LINE)
        stream.flush()


def admin_client_of(port: int) -> AdminClient:
    """Return an admin session with the broker when it serves clients."""
    end = time.monotonic() + 60
    while True:
        try:
            client = AdminClient("127.0.0.1", port, 10)
            client.negotiate()
            return client
        except Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize("command, ended", [
    (["from bmqtwist.tap import bmqbrkr; bmqbrkr()"], 0),
    (["from twisted.scripts.twistd import run; run()", "-n", "--pidfile=", "bmq", "--config"], -signal.SIGTERM)],
    ids=["bmqbrkr", "twistd"])
def test_a_broker_with_unread_output_serves_clients_and_stops(tmp_path: Path, command: list[str], ended: int) -> None:
    """twistd also logs to standard output; it ends by the signal that it received."""
    broker = BrokerProcess(tmp_path)
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writing, True)
        process = subprocess.Popen([sys.executable, "-c", *command, str(broker.config.etc)], cwd=tmp_path, stdout=writing,
                                   stderr=writing)
        try:
            client = admin_client_of(broker.port)
            assert "HELP" in client.run("HELP")
            client.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == ended
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(reading)
        os.close(writing)
        broker.cleanup()
