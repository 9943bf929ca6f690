"""Authentication, authorization, passwords and TLS of the broker.

`authenticators.py` assembles it from the configuration; the exchange of a connection is in `link/authentication.py`.
"""
