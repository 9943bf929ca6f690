"""One member of a cluster: leadership, metadata, partitions and their replication, activation of queues.

The main module is `cluster.py: Cluster`. The state machines that this package runs are in the package `cluster/`.
"""
