"""bmqtwist: a BlazingMQ-compatible message broker on Twisted.

Read these in order to see where a frame enters, where it is made durable, and where it leaves:
`wire/layout.py` (what bytes mean), `link/session.py` (one connection), `queue/queue.py` (what a queue decides),
`storage/partition.py` (when it is safe), `broker/broker.py` (the turn), `tap.py` (how it is built).
"""

__version__ = "0.1.0"
