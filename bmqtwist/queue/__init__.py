"""Queues: routing, delivery, quotas and lifecycle, at primaries and relays. Free of I/O."""
