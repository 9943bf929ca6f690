"""Command lines: `bmq` and the drop-in `bmqbrkr`."""
