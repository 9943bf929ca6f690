"""bmqtwist: a BlazingMQ-compatible message broker on Twisted.

To follow a message from its arrival to its delivery, read in this order: `wire/layout.py` (binary formats),
`link/session.py` (one connection), `queue/queue.py` (queues), `storage/partition.py` (durability), `broker/broker.py` (the
turn of the event loop), `tap.py` (composition). docs/architecture.md describes all packages.
"""

__version__ = "0.1.0"
