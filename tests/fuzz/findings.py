"""What a fuzz run found, and how to see it again."""

from __future__ import annotations

from collections.abc import Sequence


class Finding(AssertionError):
    """The program did something that hostile input must not make it do."""

    def __init__(self, what: str, where: str, *inputs: bytes) -> None:
        shown: Sequence[str] = [f"bytes.fromhex('{data.hex()}')" for data in inputs[-5:]]
        super().__init__(f"{where}: {what}\n  last inputs, oldest first:\n  " + "\n  ".join(shown))
        self.what, self.where, self.inputs = what, where, inputs
