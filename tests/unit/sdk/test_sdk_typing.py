"""Type annotations of the client library: mypy on the library, and on programs that use all of it.

pyright fetches itself from npm when it is first run, so it belongs to `make lint` and not here; it checks the same.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PROGRAMS = ROOT / "tests" / "typing"

WRONG = '''\
from typing import Any
from values import OWN, Order
from bmqtwist.sdk import JsonCodec, Message
from bmqtwist.sdk import aio, rpc, simple, tx

def on_bytes(message: Message) -> None: ...

async def asyncio_front(session: aio.Session, queue: aio.Queue, orders: aio.Queue[Order]) -> None:
    await queue.post("text")  # wrong
    await queue.post({"a": 1})  # wrong
    await queue.post_many(["text"])  # wrong
    await orders.post(b"bytes")  # wrong
    queue.post(b"x").ok  # wrong
    session.open("bmq://d/q", codec=OWN, on_message=on_bytes)  # wrong
    session.open("bmq://d/q", True)  # wrong
    (await orders.get()).value.nothing  # wrong
    aio.Session(connect=print)  # wrong
    aio.Session(post_wait=1.0)  # wrong
    aio.Session(post_wait_s="1 s")  # wrong
    rpc.Requester(simple.Session(), "d")  # wrong

def blocking_front(queue: simple.Queue) -> None:
    queue.get().payload  # wrong
    queue.post(7)  # wrong

def twisted_front(queue: tx.Queue, reactor: Any) -> None:
    queue.get().payload  # wrong
    tx.Session(reactor, endpoint=print)  # wrong
'''


def mypy(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run it, strict."""
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", *arguments], cwd=ROOT, text=True,
                          capture_output=True, timeout=600, check=False, env={"MYPYPATH": path, "PATH": "/usr/bin:/bin"})


def test_mypy_reports_no_error_in_the_library_and_its_programs() -> None:
    assert (ROOT / "bmqtwist" / "py.typed").is_file()
    assert "bmqtwist = py.typed" in (ROOT / "setup.cfg").read_text(encoding="utf-8")
    done = mypy("-p", "bmqtwist.sdk")
    assert done.returncode == 0, done.stdout + done.stderr
    done = mypy("tests/typing")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_reports_each_wrong_use(tmp_path: Path) -> None:
    """Proves that the check detects errors."""
    program = tmp_path / "wrong.py"
    program.write_text(WRONG, encoding="utf-8")
    done = mypy("--disable-error-code=func-returns-value", str(program), path=str(PROGRAMS))
    reported = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    wanted = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert reported == wanted, done.stdout
