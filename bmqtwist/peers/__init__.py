"""Connections between brokers: the links of a cluster, the proxies downstream, and the identity shown during negotiation."""
