"""Fuzz tests: for any input the result is an event, an error of the declared kind, or no output.

`corpus.py` gives the seeds (recorded streams, files of a broker), `mutation.py` the mutations, all from a seeded
generator. Targets: `codecs.py` the decoders, `sessions.py` sessions of a complete broker in memory, `storage_tails.py`
recovery, `configurations.py` the validation of configuration directories. Each returns counts and raises `Finding` with
the inputs that reproduce it. `coverage_guided.py` runs the same decoders and sessions under a
coverage-guided fuzzer. The test modules here are the smoke-size runs; `python -m tests.soak` runs them at full size.
"""
