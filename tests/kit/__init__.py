"""Test support: a client of the wire protocol, a broker in memory under a virtual clock, a broker in a process.

`client.py` speaks the protocol over a link; a link is either a socket (`process.py`) or a session of a broker core in
this very process (`memory.py`). `world.py` is what a scenario sees: the same calls in both cases.
"""
