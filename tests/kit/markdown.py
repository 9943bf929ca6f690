"""Fenced blocks of the documentation, and the execution of the Python blocks by the tests.

| fence | use in the tests |
|---|---|
| `python` | run against a broker: as a program, or, with `await` at the top level, in a coroutine with a `session` |
| `python` and another word (`python pika`) | compiled only: code of another library, for comparison |
| `text` directly after a `python` block | exact output of that block |
| `json` after a line that ends in "`domains/<name>.json`:" | file of a domain of the broker |

Used by `unit/docs/test_docs.py`, `integration/test_our_sdk_examples.py` and `spark/test_tutorial.py`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmqtwist.sdk import aio

BROKER = "tcp://localhost:30114"
RUN = ("README.md", "docs/celery.md", "docs/guide.md", "docs/migration.md")  # pages with examples that the tests run
_FENCE = re.compile(r"^(`{3,})(.*)$")
_DOMAIN = re.compile(r"`(?:\w+/)*domains/([\w.-]+)\.json`:$")


@dataclass
class Block:
    """A fenced block.

    `info`: the text after the backticks; `line`: number of its first line; `before`: the last line of text above it;
    `output`: the expected output.
    """

    path: Path
    line: int
    info: str
    text: str
    before: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"

    @property
    def domain(self) -> str:
        """Return the name of the domain whose file this is; "" for other blocks."""
        found = _DOMAIN.search(self.before) if self.info == "json" else None
        return found[1] if found else ""

    @property
    def wants_session(self) -> bool:
        """Return whether the block needs a `session`, instead of being a program."""
        code = self._code("x")
        return bool(code.co_flags & inspect.CO_COROUTINE) or "session" in code.co_names and "Session(" not in self.text

    def _code(self, name: str) -> Any:
        return compile(self.text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)

    async def inside(self, broker: str, **session_options: Any) -> str:
        """Run the block with a `session`; return its output."""
        shown = "\n" * (self.line - 1) + self.text
        code = compile(shown, str(self.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            async with aio.Session(broker, **session_options) as session:
                running = eval(code, {"session": session, "__name__": "example"})
                if inspect.iscoroutine(running):
                    await running
        return printed.getvalue()

    def run_inside(self, broker: str, seconds: float) -> str:
        """Run `inside` in a new event loop, for at most `seconds`."""
        return asyncio.run(asyncio.wait_for(self.inside(broker), seconds))


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a Markdown file; a `text` block directly after a Python block is its output."""
    found: list[Block] = []
    lines = iter(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    before = ""
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            before = line.strip() or before
            continue
        text = "".join(each + "\n" for each in _until(lines, fence[1]))
        block = Block(path, number + 1, fence[2].strip(), text, before)
        if block.info == "text" and before == "```" and found[-1].info == "python":
            found[-1].output = text
        found.append(block)
        before = fence[1]
    return found


def _until(lines: Iterator[tuple[int, str]], fence: str) -> Iterator[str]:
    for _, line in lines:
        if line == fence:
            return
        yield line
    raise ValueError("a fenced block is not closed")
