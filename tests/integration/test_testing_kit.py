"""The public test kit: the pytest plugin in other suites, the examples of its documentation, and brokers in processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.markdown import blocks

from bmqtwist.sdk import Ack, simple
from bmqtwist.testing import BrokerProcess, NotInTime
from bmqtwist.testing.plugin import parse_domain

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = ROOT / "docs" / "testing.md"
URI = "bmq://bmq.test.persistent.priority/q"
SECONDS_MAX = 180.0

Suite = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """Run pytest on files in a temporary directory."""
    def run(*arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            path = tmp_path / (name.replace("__", "."))
            path.write_text(text, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PYTEST", "COV", "CI"))}  # on CI pytest repeats failures in its summary
        return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, "."], cwd=tmp_path,
                              env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    return run


def test_the_example_suite_passes(suite: Suite, tmp_path: Path) -> None:
    for path in (ROOT / "examples" / "testing").glob("*.py"):
        shutil.copy(path, tmp_path)
    done = suite("-q", "-W", "error::pytest.PytestWarning")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_suite_passes_in_several_workers(suite: Suite, tmp_path: Path) -> None:
    for path in (ROOT / "examples" / "testing").glob("*.py"):
        shutil.copy(path, tmp_path)
    done = suite("-q", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr


GUIDE_BLOCKS = [block for block in blocks(GUIDE) if block.info in ("python", "python conftest", "ini")]


def test_the_examples_of_the_guide_are_a_suite_that_passes(suite: Suite) -> None:
    settings = "".join(each.text for each in GUIDE_BLOCKS if each.info == "ini")
    extra = "".join(each.text for each in GUIDE_BLOCKS if each.info == "python conftest")
    examples = {f"test_line_{block.line}__py": block.text for block in GUIDE_BLOCKS if block.info == "python"}
    assert examples and all("def test_" in text for text in examples.values()), "every example is a test"
    done = suite("-q", pytest__ini=settings, conftest__py=extra, **examples)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_failed_test_shows_the_transcript_of_its_broker(suite: Suite) -> None:
    done = suite(test_fails__py=f"""
def test_of_the_application(bmq_broker):
    bmq_broker.put({URI!r}, b"hello")
    assert False

def test_of_the_kit(bmq_broker):
    bmq_broker.put({URI!r}, b"hello")
    bmq_broker.assert_empty({URI!r})

def test_that_passes(bmq_broker):
    bmq_broker.put({URI!r}, b"hello")
""")
    assert done.returncode == 1
    assert done.stdout.count("bmq_broker: transcript") == 1, done.stdout
    assert done.stdout.count("put       " + URI) == 2, done.stdout
    assert "contains 1 message(s)" in done.stdout and "2 failed, 1 passed" in done.stdout


def test_a_transcript_can_be_shortened_or_disabled(suite: Suite) -> None:
    text = f"""
def test_fails(bmq_broker):
    for number in range(9):
        bmq_broker.put({URI!r}, b"%d" % number)
    assert False
"""
    ini = "[pytest]\nbmq_transcript_lines = {}\n"
    done = suite(test_fails__py=text, pytest__ini=ini.format(2))
    assert "... 8 earlier" in done.stdout and done.stdout.count("put       ") == 2, done.stdout
    assert "transcript ---" not in suite(pytest__ini=ini.format(0)).stdout


def test_markers_and_the_ini_file_define_domains(suite: Suite) -> None:
    done = suite("-q", "--strict-markers", test_domains__py="""
import pytest

@pytest.mark.bmq_domain("marked", mode="fanout", app_ids=["a"])
def test_marker(bmq_broker):
    bmq_broker.put("bmq://marked/q", b"x")
    bmq_broker.put("bmq://everywhere/q", b"x")
    bmq_broker.advance(10)
    bmq_broker.assert_empty("bmq://everywhere/q")
    assert bmq_broker.messages("bmq://marked/q")[0].apps == ("a",)

def test_each_test_gets_a_separate_broker(bmq_broker):
    bmq_broker.assert_empty("bmq://everywhere/q")
    with pytest.raises(Exception, match="marked"):
        bmq_broker.put("bmq://marked/q", b"x")
""", pytest__ini="[pytest]\nbmq_domains =\n    everywhere ttl=5 max_messages=10\n")
    assert done.returncode == 0, done.stdout


def test_lines_of_the_ini_file_are_checked() -> None:
    assert parse_domain("a mode=fanout app_ids=x,y max_messages=3 in_memory=true consistency=strong") == (
        "a", {"mode": "fanout", "app_ids": ("x", "y"), "max_messages": 3, "in_memory": True, "consistency": "strong"})
    for wrong in ("a ttl=soon", "a nonsense", "a in_memory=maybe", "a app_ids="):
        with pytest.raises(pytest.UsageError, match="bmq_domains"):
            parse_domain(wrong)


def test_an_address_selects_a_broker_in_memory_a_process_or_an_external_broker(suite: Suite, tmp_path: Path) -> None:
    text = f"""
from bmqtwist.sdk.simple import Session

def test_url(bmq_url):
    with Session(bmq_url) as session:
        queue = session.open({URI!r}, read=True, write=True)
        assert queue.post(b"x").ok
        with queue.get(10) as message:
            assert message.payload == b"x"
"""
    for where in ("memory", "process"):
        done = suite("-q", f"--bmq-url={where}", test_url__py=text)
        assert done.returncode == 0, done.stdout
    with BrokerProcess(tmp_path / "broker") as process:
        done = suite("-q", pytest__ini=f"[pytest]\nbmq_url = {process.url}\n")
    assert done.returncode == 0, done.stdout
    done = suite("-q", "--bmq-url=nonsense")
    assert done.returncode == 1 and "use memory, process, or tcp://host:port" in done.stdout


def test_a_process_can_serve_a_whole_module(suite: Suite) -> None:
    done = suite("-q", test_scope__py="""
seen = []

def test_first(bmq_process):
    seen.append(bmq_process.process.pid)
    bmq_process.domain("d", mode="fanout", app_ids=["a"])

def test_second(bmq_process):
    assert seen == [bmq_process.process.pid]
    assert "d" in bmq_process.admin("DOMAINS DOMAIN d INFOS")
""", pytest__ini="[pytest]\nbmq_process_scope = module\n")
    assert done.returncode == 0, done.stdout


def test_the_plugin_is_not_imported_by_tests_that_do_not_use_it(suite: Suite) -> None:
    done = suite("-q", test_nothing__py="""
import sys

def test_nothing():
    assert not [name for name in sys.modules if name.startswith(("bmqtwist.broker", "bmqtwist.wire", "twisted"))]
""")
    assert done.returncode == 0, done.stdout


def test_a_broker_in_memory_follows_the_time_of_a_real_reactor(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
from twisted.internet.task import deferLater, react
from bmqtwist.testing import Broker

async def main(reactor):
    broker = Broker()
    session = broker.tx_session(reactor, name="app", backoff_first_s=0.1)
    await session.start()
    queue = await session.open({URI!r}, read=True, write=True)
    broker.faults.delay(0.2, "post", times=1)
    assert (await queue.post(b"late")).ok
    broker.disconnect()
    assert (await queue.post(b"again")).ok
    assert {{(await queue.get()).payload for _ in range(3)}} == {{b"late", b"again"}}
    await session.stop()
    assert broker.clock.real and broker.recorder.posts()[0].fault_effect == "delayed 0.2 s"
    print("good")

react(main)
""", encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.stdout == "good\n", done.stdout + done.stderr


# -- a broker in a process ------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_killed_broker_process_restarts_with_its_messages_and_its_port(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as process:
        url = process.url
        process.domain("orders", max_delivery_attempts=3)
        with simple.Session(url) as session:
            queue = session.open("bmq://orders/q", write=True)
            assert queue.post(b"first").ok
            process.kill()
            assert not process.running
            process.start()
            assert queue.post(b"second").ok
            process.restart()
            assert queue.post(b"third").ok
        with simple.Session(url) as session:
            queue = session.open("bmq://orders/q", read=True)
            assert [message.payload for message in (queue.get(30), queue.get(30), queue.get(30)) if message] == [
                b"first", b"second", b"third"]
        assert process.url == url and process.stop() == 0
        assert sum("started successfully" in line for line in process.log()) == 3
        with pytest.raises(NotInTime, match="the process ended"):
            process.expect("never said", deadline=5)


@pytest.mark.process
def test_a_paused_process_is_silent_until_it_is_resumed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as process, simple.Session(process.url) as session:
        queue = session.open(URI, write=True)
        acks: list[Ack] = []
        process.pause()
        try:
            queue.post_nowait(b"x", on_ack=acks.append)
            session.step()
            session.step(0.3)
            assert acks == []
        finally:
            process.resume()
        queue.flush()
        assert acks[0].ok


def test_a_process_that_was_not_started_cannot_be_stopped(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path)
    with pytest.raises(AssertionError, match="not started"):
        process.stop()
    process.close()


def test_a_broker_process_whose_output_is_held_open_by_a_child_can_be_stopped(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To close a pipe during a read in a thread would block until the child closes its end."""
    monkeypatch.setattr("bmqtwist.testing.process.STOP_SECONDS_MAX", 0.5)
    program = tmp_path / "bmqbrkr"
    program.write_text("#!/bin/sh\nsleep 300 &\necho $!\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    process = BrokerProcess(tmp_path / "broker")
    process.launch()
    try:
        holder = int(process.expect("", deadline=60.0))
        try:
            closing = threading.Thread(target=process.close, daemon=True)
            closing.start()
            closing.join(60.0)
            assert not closing.is_alive()
        finally:
            os.kill(holder, signal.SIGKILL)
    finally:
        process.close()
