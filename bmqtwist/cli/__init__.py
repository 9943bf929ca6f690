"""Command lines: `bmq` and the drop-in `bmqbrkr`.

`main.py` is the command `bmq` with the table of its commands; `bmqbrkr.py` has the options of `bmqbrkr`, which `tap.py`
starts. The admin commands themselves are in `admin/`, the client library in `sdk/`.
"""
