"""One session without a socket, clock, thread or random numbers: calls and bytes go in, effects and bytes come out.
`session.py` makes its parts."""
