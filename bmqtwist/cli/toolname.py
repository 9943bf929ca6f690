"""The name a program was called by: `bmq` called by the name of the original's tool behaves as that tool."""

from __future__ import annotations

import os
import sys

TOOL = "bmqtool"


def called_as_tool() -> bool:
    """Whether this process was started as `bmqtool` or `bmqtool.tsk`, for instance by a link of that name to `bmq`."""
    return bool(sys.argv) and is_tool(sys.argv[0])


def is_tool(program: str | None) -> bool:
    """Whether that is the tool's name, with or without a path and an ending.

    >>> is_tool("/opt/bin/bmqtool.tsk"), is_tool("bmq")
    (True, False)
    """
    return os.path.basename(program or "").partition(".")[0] == TOOL
