"""The performer on Twisted: connections, worker threads, clock, and the rounds of the reactor.

The main module is `performer.py`; it implements `loop/performer.py` and calls `broker/broker.py` for each turn.
"""
