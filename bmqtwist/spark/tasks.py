"""Garbage collection in Spark's Python worker processes, which run one task after another. Called by the readers of
`source.py` and `storage.py` at the start of each task."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Exclude the imported modules from garbage collection, once per process. PySpark collects after each task, which would
    take as long as reading 200,000 records."""
    gc.freeze()
