"""Queues: routing, delivery, quotas and lifecycle, at primaries and relays. Free of I/O.

Read `queue.py` first, then `root.py` (primary) and `relay.py` (other nodes). `link/` calls them for clients; `storage/` has
the stored messages.
"""
