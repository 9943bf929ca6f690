"""Storage: journal, data and queue-list records, file sets, partitions, replicas, recovery and the ledger file.

Read `partition.py` (writer), `state.py` (meaning of records) and `recovery.py` first; `store.py` has the interfaces,
`files.py` the real disk.
"""
