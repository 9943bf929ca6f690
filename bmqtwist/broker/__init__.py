"""One broker: sessions, domains and clusters, the work of a turn, the local producer, the graceful stop.

The main module is `broker.py`, built by `daemon/assemble.py` and driven by `reactor/performer.py`.
"""
