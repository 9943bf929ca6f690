"""One member of a cluster: leadership, metadata, partitions and their replication, activation of queues."""
