"""Queues whose primary is at another node: their upstream, their requests, and proxies."""
