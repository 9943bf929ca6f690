"""Assembly of a node, and its process: Twisted service, control pipe, housekeeping, checks before a start.

The main modules are `assemble.py` (wiring) and `service.py` (process). The command line is in `tap.py` and `cli/bmqbrkr.py`.
"""
