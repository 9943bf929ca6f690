"""Hostile input: whatever bytes come, the answer is an event, an error of the declared kind, or nothing.

`corpus.py` gives the seeds (recorded streams, files a broker has written), `mutation.py` the mutations, every one from
a seeded generator. What is fed: `codecs.py` the decoders, `sessions.py` sessions of a whole broker in memory,
`storage_tails.py` recovery, `configurations.py` the reading of configuration directories. Each counts what it did and
raises `Finding` with what is needed to repeat it. `coverage_guided.py` runs the same decoders and sessions under a
coverage-guided fuzzer. The test modules here are the smoke-size runs; `python -m tests.soak` runs them at full size.
"""
