"""Finding of a fuzz run, with the inputs that reproduce it.

Raised by the targets (`codecs.py`, `sessions.py`, `storage_tails.py`, `configurations.py`); `tests/soak/command.py` prints
it.
"""

from __future__ import annotations

from collections.abc import Sequence


class Finding(AssertionError):
    """Unexpected behaviour for an input."""

    def __init__(self, what: str, where: str, *inputs: bytes) -> None:
        shown: Sequence[str] = [f"bytes.fromhex('{data.hex()}')" for data in inputs[-5:]]
        super().__init__(f"{where}: {what}\n  last inputs, oldest first:\n  " + "\n  ".join(shown))
        self.what, self.where, self.inputs = what, where, inputs
