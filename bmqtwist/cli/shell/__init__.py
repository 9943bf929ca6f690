"""`bmq shell`: the commands of the original's bmqtool, and its automatic producer and consumer.

`command.py` is the entry; `interactive.py` executes commands, `auto.py` is the automatic mode.
"""
