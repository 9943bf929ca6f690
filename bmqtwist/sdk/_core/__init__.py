"""Session core without sockets, clocks, threads or random numbers: calls and bytes in, effects and bytes out. `session.py`
constructs its parts."""
