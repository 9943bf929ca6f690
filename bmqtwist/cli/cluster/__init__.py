"""`bmq cluster`: several brokers on this machine as one cluster, each a process, and what an operator does with them.

    processes.py  which process is the broker of a directory, signals for it, and ports that are free
    health.py     what each broker says of itself, and whether that is well
    local.py      the cluster of a directory: its files, its record, starts and stops
    command.py    the command lines; the end of a log, and what is added to it
"""
