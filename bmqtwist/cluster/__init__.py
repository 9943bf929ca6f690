"""Who leads and who owns what: the metadata ledger of a cluster (a single node is a cluster of one). Pure."""
