"""The event loop without its reactor: scheduler, timers, error isolation, and the interface of its performer.

The main module is `loop.py`. The order of work in a turn is in `broker/broker.py`, the reactor in `reactor/performer.py`.
"""
