"""Long runs against the real thing: `python -m tests.soak` prints its numbers and fails on any finding.

`kill9.py` kills the broker at random moments under load and compares what it had acknowledged with what is delivered
afterwards; the full-size fuzz campaigns of `tests/fuzz` run from here too.
"""
