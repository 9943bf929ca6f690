"""Adapters between the session core and the fronts: clocks, sockets, threads and promises.

`base.py` has the calls of sessions and queues that all fronts share; `event_loop.py` runs them for `aio.py` and `tx.py`,
`threaded.py` runs a core for `blazingmq/`, the kombu transport and Spark.
"""
