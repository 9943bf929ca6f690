"""`bmq cluster`: several brokers on this machine as one cluster, each a process, and what an operator does with them."""
