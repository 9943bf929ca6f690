"""Storage: journal, data and queue-list records, file sets, partitions, replicas, recovery and the ledger file."""
