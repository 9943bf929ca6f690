"""Spark data sources for queues and storage files (`pip install 'bmqtwist[spark]'`).

    from bmqtwist import spark as bmq
    spark = bmq.session()                                   # local[*]; or bmq.register(spark) for your own session

    events = spark.readStream.format("bmq") ...             # a queue as a stream, see source.py
    rows.write.format("bmq") ...                            # a queue as a sink, see sink.py
    spark.read.format("bmq-storage").load("data/storage")   # journals as a table, see storage.py
    bmq.messages(spark, "data/storage"), bmq.lifelines(spark, "data/storage")

docs/spark.md describes guarantees and pipelines. Spark is imported with the first attribute access.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bmqtwist.spark.local import register, session
    from bmqtwist.spark.pipelines.streams import drain
    from bmqtwist.spark.tables import confirms, deletions, lifelines, messages, queue_ops, sync_points

_HOMES = {"drain": "pipelines.streams", "register": "local", "session": "local", "confirms": "tables", "deletions": "tables",
          "lifelines": "tables", "messages": "tables", "queue_ops": "tables", "sync_points": "tables"}

__all__ = ["confirms", "deletions", "drain", "lifelines", "messages", "queue_ops", "register", "session", "sync_points"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
