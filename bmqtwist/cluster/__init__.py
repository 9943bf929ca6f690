"""Who owns what in a cluster, and the replicated log that makes each change of it durable before it counts. Pure."""
