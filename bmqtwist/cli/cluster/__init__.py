"""`bmq cluster`: several brokers on this machine as one cluster, each a process, and what an operator does with them.

    ports.py      ports that are free
    processes.py  which process is the broker of a directory, and signals for it
    health.py     what each broker says of itself, and whether that is well
    local.py      the cluster of a directory: its files, its record, starts and stops
    follow.py     the end of a log, and what is added to it
    command.py    the command lines
"""
