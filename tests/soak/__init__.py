"""Soak tests: long runs with broker processes and random faults, each checked against invariants.

`python -m tests.soak` runs them, prints their counts as JSON lines and fails on any violation. The full-size fuzz campaigns
of `tests/fuzz` run from here, too.
"""
