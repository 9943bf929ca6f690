"""Relays: queues whose primary is another node, with their upstream nodes and requests; proxies."""
