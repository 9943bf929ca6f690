"""`bmq admin --every` during a graceful stop: it shows the progress of the stop until the broker has ended."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from kit.cli_kit import running_broker
from kit.process import free_port

from bmqtwist.sdk import simple

URI = "bmq://d.priority/q"
pytestmark = pytest.mark.process


def test_bmq_stop_shows_the_progress_until_the_end(tmp_path: Path) -> None:
    with running_broker(tmp_path) as (broker, cli), simple.Session(broker.uri) as session:
        assert session.open(URI, write=True).post(b"x").ok
        reader = session.open("bmq://d.fanout/q?id=foo", read=True)
        assert session.open("bmq://d.fanout/q", write=True).post(b"y").ok
        message = reader.get(30.0)
        assert message is not None
        shown = cli.start("admin", "--every", "0.1", "STOP", "STATUS")
        shown.expect(b"is not stopping")
        assert broker.process is not None
        broker.process.send_signal(signal.SIGTERM)
        seen = shown.expect(b"Unconfirmed messages: 1")
        assert b"waits for confirms and answers" in seen and b"Clients connected: 1" in seen
        message.confirm()
        done = shown.end()
        assert done.code == 0 and "closed the connection" in done.err
        assert broker.process.wait(30.0) == 0
    assert cli.run_in_process("admin", "--every", "1").code == 2


def test_the_console_is_available_until_the_end_of_a_graceful_stop(tmp_path: Path) -> None:
    port = free_port()
    with running_broker(tmp_path, app={"bmqtwist": {"http": {"port": port}}}) as (broker, cli):
        with simple.Session(broker.uri) as session:
            queue = session.open(URI, read=True, write=True)
            assert queue.post(b"y").ok
            message = queue.get(30.0)
            assert message is not None and broker.process is not None
            watched = cli.start("admin", "--every", "0.1", "STOP", "STATUS")
            watched.expect(b"is not stopping")
            broker.process.send_signal(signal.SIGTERM)
            watched.expect(b"waits for confirms and answers")
            with pytest.raises(HTTPError) as refused:
                urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20)
            assert refused.value.code == 503 and refused.value.read() == b"stopping\n"
            message.confirm()
        assert broker.process.wait(30.0) == 0
