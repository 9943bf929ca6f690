"""Spark jobs over queues and storage files, started by `bmq pipeline NAME ...`.

`cli/pipeline.py` calls them: `report.py`, `streams.py` and `replay.py`; their tables are in `spark/tables.py`.
"""
