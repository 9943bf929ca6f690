"""Relays: queues whose primary is another node, with their upstream nodes and requests; proxies.

The main module is `relays.py`; `proxy.py` is a proxy's cluster. The queue object is in `queue/relay.py`, the relays of a
member in `member/member_relays.py`.
"""
