"""What is kept: journal, data and queue-list records, the cluster state ledger's file, partitions, recovery."""
