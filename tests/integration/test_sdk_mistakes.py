"""Programs with common errors: each post either arrives, or the program gets an error."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kit.process import ProcessWorld

URI = "bmq://d/q"
DEADLINE = 120.0

pytestmark = pytest.mark.process


def run_program(node: ProcessWorld, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the address of the broker as its argument."""
    return subprocess.run([sys.executable, "-c", program, node.broker.uri], capture_output=True, text=True,
                          timeout=DEADLINE, check=False)


SIMPLE = """
import sys
from bmqtwist.sdk.simple import Session
session = Session(sys.argv[1])
queue = session.open("bmq://d/q", write=True)
for number in range(100):
    queue.post_nowait(b"%d" % number)
"""


@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt", "del queue, session", "session = queue = None"])
def test_a_blocking_session_that_is_left_running_delivers_and_warns(node: ProcessWorld, end: str) -> None:
    done = run_program(node, SIMPLE + end)
    assert node.stored(URI) == 100
    assert "was not stopped: use it with `with`, or call `stop`" in done.stderr


def test_a_blocking_session_is_stopped_by_the_parent_and_not_by_a_forked_child(node: ProcessWorld) -> None:
    done = run_program(node, SIMPLE + "import os\nif os.fork() == 0:\n    sys.exit()\nos.wait()\nqueue.post(b'after')")
    assert node.stored(URI) == 101 and done.stderr.count("was not stopped") == 1


LOOP = {
    "aio": """
import asyncio, sys
from bmqtwist.sdk.aio import Session
async def main():
    session = Session(sys.argv[1])
    {body}
asyncio.run(main())
""",
    "tx": """
import sys
from twisted.internet import task
from bmqtwist.sdk.tx import Session
async def main(reactor):
    session = Session(reactor, sys.argv[1])
    {body}
task.react(lambda reactor: __import__("twisted").internet.defer.ensureDeferred(main(reactor)))
""",
    "simple": """
import sys
from bmqtwist.sdk.simple import Session
session = Session(sys.argv[1])
{body}
"""}


def program(kind: str, body: str) -> str:
    """Return the program for one kind of session; without `await` and `async` for the blocking one."""
    indent = "\n" if kind == "simple" else "\n    "
    if kind == "simple":
        body = body.replace("await session.start()\n", "").replace("await ", "").replace("async ", "")
    return LOOP[kind].format(body=indent.join(body.splitlines()))


IGNORED = """await session.start()
queue = await session.open("bmq://small/q", write=True)
for number in range(20):
    await queue.post(b"x")
"""
UNHEARD = """await session.start()
queue = await session.open("bmq://small/q", write=True)
for number in range(20):
    queue.post_nowait(b"x")
await session.stop()
"""
EARLY = """await session.start()
queue = await session.open("bmq://small/q", write=True)
for number in range(20):
    queue.post_nowait(b"x")
await queue.close()
await session.stop()
"""
NOT_STOPPED = """await session.start()
queue = await session.open("bmq://small/q", write=True)
for number in range(20):
    queue.post_nowait(b"x")
"""


MISTAKES = {  # program -> error that it gets
    "ignores": (IGNORED, "PostRefused: LIMIT_MESSAGES"), "never-flushes": (UNHEARD, "PostsFailed: "),
    "closes-early": (EARLY, "PostsFailed: "), "does-not-stop": (NOT_STOPPED, "was not stopped")}


@pytest.mark.parametrize("kind", LOOP)
def test_every_lost_post_is_reported_to_the_program(node: ProcessWorld, kind: str) -> None:
    """Programs post twenty messages to a queue that accepts eleven, one more than its limit."""
    node.domain("small", queue_messages=10)
    for name, (body, words) in MISTAKES.items():
        done = run_program(node, program(kind, body.replace("small/q", f"small/{name}")))
        assert words in done.stderr, (name, done.stderr)
        assert node.stored(f"bmq://small/{name}") <= 11, name


FORKED = """await session.start()
queue = await session.open("bmq://d/forked", write=True)
await queue.post(b"before")
if os.fork() == 0:
    in_child(lambda: queue.post_nowait(b"child"))
await queue.post(b"after")
await session.stop()
"""
OFFICIAL = """
import sys
from bmqtwist.sdk import blazingmq
session = blazingmq.Session(lambda event: None, lambda message, handle: None, sys.argv[1])
session.open_queue("bmq://d/forked", write=True)
session.post("bmq://d/forked", b"before", on_ack=lambda ack: None)
if os.fork() == 0:
    in_child(lambda: session.post("bmq://d/forked", b"child"),
             lambda: session.open_queue("bmq://d/other", read=True, timeout=60.0))
session.post("bmq://d/forked", b"after", on_ack=lambda ack: None)
session.stop()
"""
CHILD = """
import os, socket, sys, urllib.parse
def in_child(*calls):
    for call in calls:
        try:
            call()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    for fd in os.listdir("/proc/self/fd"):
        try:
            if socket.socket(fileno=os.dup(int(fd))).getpeername()[1:2] == (urllib.parse.urlsplit(sys.argv[1]).port,):
                print("the child is still connected", file=sys.stderr)
        except OSError:
            pass
    sys.stderr.flush()
    os._exit(0)
"""


@pytest.mark.parametrize("kind", [*LOOP, "official"])
def test_a_session_ends_in_a_forked_child_with_a_clear_error_and_continues_in_the_parent(
        node: ProcessWorld, kind: str) -> None:
    text = OFFICIAL if kind == "official" else program(kind, FORKED)
    done = run_program(node, CHILD + text)
    assert done.returncode == 0, done.stderr
    assert node.stored("bmq://d/forked") == 2
    remedy = "the session belongs to the parent process: open one in each process, after the fork"
    assert done.stderr.count(remedy) == (2 if kind == "official" else 1), done.stderr
    assert "still connected" not in done.stderr
