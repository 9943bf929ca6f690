"""Observation of a broker as plain immutable data: state, events, alarms, statistics, metrics.

`snapshots.py` makes the state, `metrics.py` the metrics, `alarms.py` the alarms. Readers are the admin commands
(`admin/operations.py`), the console and `daemon/service.py`.
"""
