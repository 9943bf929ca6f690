"""Programs for the official SDK, run with the compatible interface of this SDK, and extensions of that interface."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from kit.process import ProcessWorld, free_port

from bmqtwist.sdk import blazingmq
from bmqtwist.sdk.blazingmq import session_events as events
from bmqtwist.sdk.blazingmq.exceptions import BrokerTimeoutError

ROOT = Path(__file__).resolve().parent.parent.parent
URI = "bmq://d/q"
DEADLINE = 120.0
SUBSTITUTE = ("import sys, runpy, bmqtwist.sdk.blazingmq as ours; sys.modules['blazingmq'] = ours; "
              "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')")

pytestmark = pytest.mark.process


def test_the_demo_of_the_official_library_runs_with_the_import_changed(node: ProcessWorld) -> None:
    node.domain("bmq.test.persistent.priority")
    node.domain("bmq.test.persistent.fanout", "fanout", apps=("foo", "bar", "baz"))
    node.domain("bmq.test.mem.broadcast", "broadcast", in_memory=True)
    done = subprocess.run([sys.executable, "-c", SUBSTITUTE, str(ROOT / "examples" / "demo.py"), node.broker.uri],
                          capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("posted and acknowledged") == 3


def test_callbacks_may_open_post_confirm_close_and_stop(node: ProcessWorld) -> None:
    """In the official SDK each of these calls blocks for ever."""
    finished: Queue[str] = Queue()
    session: Any = None

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        handle.confirm()
        session.open_queue("bmq://d/other", write=True)
        session.post("bmq://d/other", message.data, on_ack=on_ack)

    def on_ack(ack: blazingmq.Ack) -> None:
        session.close_queue("bmq://d/other")
        session.configure_queue(URI, blazingmq.QueueOptions(max_unconfirmed_messages=3))
        session.stop()
        finished.put(ack.status.name)

    session = blazingmq.Session(lambda event: None, on_message=on_message, broker=node.broker.uri)
    session.open_queue(URI, read=True, write=True)
    session.post(URI, b"x")
    assert finished.get(timeout=DEADLINE) == "SUCCESS"
    assert node.stored("bmq://d/other") == 1 and node.stored(URI) == 0
    with pytest.raises(blazingmq.Error):
        session.post(URI, b"y")


def test_a_kill_of_the_broker_loses_no_message_of_posting_threads(node: ProcessWorld) -> None:
    received: list[events.SessionEvent] = []
    acks: Queue[blazingmq.Ack] = Queue()
    with blazingmq.Session(received.append, broker=node.broker.uri) as session:
        session.open_queue(URI, write=True)

        def post(name: bytes) -> None:
            for number in range(300):
                session.post(URI, b"%s %d" % (name, number), {"n": number}, on_ack=acks.put)
        threads = [threading.Thread(target=post, args=(name,), daemon=True) for name in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        node.crash()
        node.broker.launch()
        for thread in threads:
            thread.join(DEADLINE)
        got = [acks.get(timeout=DEADLINE) for _ in range(900)]
        assert {ack.status for ack in got} == {blazingmq.AckStatus.SUCCESS}
        assert len({ack.guid for ack in got}) == 900
    assert [type(event) for event in received] == [
        events.Connected, events.ConnectionLost, events.Reconnected, events.QueueReopened, events.StateRestored,
        events.Disconnected]
    assert node.stored(URI) == 900


FORGETFUL = """
import atexit, sys
from bmqtwist.sdk import blazingmq
atexit.register(print, "first")
session = blazingmq.Session(print, broker=sys.argv[1])
session.open_queue(sys.argv[3], write=True)
for number in range(int(sys.argv[2])):
    session.post(sys.argv[3], b"%d" % number)
atexit.register(print, "last", flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "del session", "raise KeyboardInterrupt", "sys.exit(3)"])
@pytest.mark.parametrize("count", [1, 5000])
def test_a_program_that_ends_without_stop_delivers_its_posts(shared_node: ProcessWorld, count: int, end: str) -> None:
    uri = f"bmq://d/{count}-{sum(end.encode())}"
    done = subprocess.run([sys.executable, "-c", FORGETFUL.format(end=end), shared_node.broker.uri, str(count), uri],
                          capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert shared_node.stored(uri) == count
    assert "stop() not invoked before destruction of Session" in done.stderr
    if end:
        assert sorted(done.stdout.splitlines()) == sorted(["<Connected>", "last", "<Disconnected>", "first"])
    else:
        assert done.stdout.splitlines() == ["<Connected>", "last", "<Disconnected>", "first"]


def test_the_facade_raises_the_errors_of_the_official_library(node: ProcessWorld) -> None:
    with pytest.raises(BrokerTimeoutError):
        blazingmq.Session(lambda event: None, broker=f"tcp://127.0.0.1:{free_port()}",
                          timeout=blazingmq.Timeouts(connect_timeout=0.5))
    with pytest.raises(ValueError, match="greater than"):
        blazingmq.Session(lambda event: None, broker=node.broker.uri, timeout=-1.0)
    with blazingmq.Session(lambda event: None, broker=node.broker.uri) as session:
        for call in (lambda: session.open_queue("bmq://nowhere/q", write=True),
                     lambda: session.open_queue(URI, read=True),
                     lambda: session.open_queue("nonsense", write=True),
                     lambda: session.post(URI, b"not open"),
                     lambda: session.close_queue(URI)):
            with pytest.raises(blazingmq.Error):
                call()
        session.open_queue(URI, write=True)
        with pytest.raises(blazingmq.Error):
            session.post(URI, b"x", property_type_overrides={"unknown": blazingmq.PropertyType.INT32})
        assert session.get_queue_options(URI) == blazingmq.QueueOptions(1000, 33554432, 0, False)
