"""Measurements of the real broker process under real clients, beside RabbitMQ on the same machine.

`python -m bench.run` is the load harness, `bench.recovery` and `bench.idle_queues` measure what their names say,
`bench.hotpath` feeds prebuilt frames to an in-process broker for profilers. docs/performance.md holds the results.
Nothing here is imported by the broker.
"""
