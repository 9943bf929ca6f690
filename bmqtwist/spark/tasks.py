"""The processes in which Spark runs tasks, one task after the other."""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_imports() -> None:
    """At the first task: what is imported stays as long as the process. PySpark looks for garbage behind each task, and
    would look at all of it each time, which takes as long as reading 200,000 records."""
    gc.freeze()
