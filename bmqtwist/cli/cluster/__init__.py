"""`bmq cluster`: several brokers on this machine as one cluster, each a process, and what an operator does with them.

`command.py` has the commands, `local.py` the directory of the cluster. Clusters for tests are in
`testing/cluster_process.py`.
"""
