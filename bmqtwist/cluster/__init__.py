"""Cluster state machines: elections, the replicated metadata log, partition replication, links and upstreams. Pure.

Read `elector.py`, `metadata_log.py` and `partition_machine.py` first, each after its `*_events.py`. The package `member/`
performs their outputs.
"""
