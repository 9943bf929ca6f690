"""Fenced blocks of the documentation, and how those in Python are run as they stand.

| fence | what the tests do with it |
|---|---|
| `python` | run it against a broker: a program of its own, or, with `await` at the top, the inside of one with `session` |
| `python` and another word (`python pika`) | compile it: somebody else's library, shown for comparison |
| `text` right after a `python` block | its exact output |
| `json` after a line that ends in "`domains/<name>.json`:" | a domain of the broker |
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
RUN = ("README.md", "docs/celery.md", "docs/guide.md", "docs/migration.md")  # pages whose examples are run
_FENCE = re.compile(r"^(`{3,})(.*)$")
_DOMAIN = re.compile(r"`(?:\w+/)*domains/([\w.-]+)\.json`:$")


@dataclass
class Block:
    """One fenced block: `info` is what follows the backticks, `line` the number of its first line, `before` the last
    line of text above it."""

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
        """The domain whose file this is, or nothing."""
        found = _DOMAIN.search(self.before) if self.info == "json" else None
        return found[1] if found else ""

    @property
    def wants_session(self) -> bool:
        """Is it the inside of a coroutine with a `session`, and no program of its own?"""
        code = self._code("x")
        return bool(code.co_flags & inspect.CO_COROUTINE) or "session" in code.co_names and "Session(" not in self.text

    def _code(self, name: str) -> Any:
        return compile(self.text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)

    async def inside(self, broker: str, **session_options: Any) -> str:
        """Run it with a `session`; what it prints."""
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
        """`inside`, with a loop of its own and a limit."""
        return asyncio.run(asyncio.wait_for(self.inside(broker), seconds))


def blocks(path: Path) -> list[Block]:
    """The blocks of a Markdown file; a `text` block right after one in Python is its output."""
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
    raise ValueError("a fence is not closed")
