"""Look at a configuration directory with all its domains and say what is wrong with it."""

from __future__ import annotations

import sys
from typing import TextIO

from bmqtwist.node.load import check
from bmqtwist.node.startup import NO_OVERRIDES, Overrides

EXIT_GOOD, EXIT_BAD = 0, 2


def run_check(directory: str, overrides: Overrides = NO_OVERRIDES, strict: bool = False,
              out: TextIO | None = None) -> int:
    """Print every problem and warning, then one sentence; the exit code. With `strict` warnings are problems."""
    out = out or sys.stdout
    problems, warnings = check(directory, overrides, strict=strict)
    for finding in problems:
        print(f"error: {finding}", file=out)
    for finding in warnings:
        print(f"warning: {finding}", file=out)
    print("The configuration cannot be used." if problems else "The configuration is good.", file=out)
    return EXIT_BAD if problems else EXIT_GOOD
