"""Cluster state machines: elections, the replicated metadata log, partition replication, links and upstreams. Pure."""
