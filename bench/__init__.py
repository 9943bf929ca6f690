"""Benchmarks of the broker process with real clients, next to RabbitMQ on the same machine.

    run.py       throughput and latency of load cells, bmqtwist and RabbitMQ
    compare.py   two versions of the broker, alternating
    sdk.py       the client library and the official SDK
    recovery.py, rollover.py, catch_up.py, take_over.py   restarts, file rollovers and failovers with many messages
    many_queues.py, idle_queues.py   costs of queues
    console.py, proxy.py, spark.py   the web console, a proxy, Spark
    hotpath.py   CPU time of the message path in one process, for profilers

docs/performance.md has the results. The broker imports nothing from here.
"""
