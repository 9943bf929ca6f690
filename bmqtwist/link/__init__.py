"""Connections: sessions and their kinds, requests, authentication, output. Free of I/O.

The main module is `session.py`; `negotiation.py`, `client.py`, `admin.py` and `peer.py` are the kinds of a session. Sockets
are in `reactor/`, the table of open sessions is in `broker/sessions.py`.
"""
