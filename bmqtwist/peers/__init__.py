"""Connections between brokers: the links of a cluster, the proxies downstream, and the identity shown during negotiation.

The main module is `links.py` for members; `downstreams.py` has connected proxies. One session is in `link/peer.py`.
"""
