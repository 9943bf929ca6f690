"""Test support: a client of the wire protocol, a broker in memory under a virtual clock, a broker in a process.

`client.py` implements the client's side of the protocol over a link: a socket (`process.py`) or a session of a broker in
this process (`memory.py`). `world.py` is the interface of scenarios, the same for both.
"""
