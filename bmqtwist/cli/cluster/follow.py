"""The end of a log file, and what is added to it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_POLL_S = 0.2


def last_lines(path: Path, count: int) -> tuple[list[bytes], IO[bytes]]:
    """Its last so many lines, and the file, read to its end. OSError."""
    file = open(path, "rb")  # noqa: SIM115 - whoever follows it closes it
    return list(deque(file, maxlen=count)), file


def added(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """What is added, for ever, also to a new file that takes the place of a full one."""
    while True:
        data = file.read()
        if data:
            yield data
            continue
        try:
            found, ours = os.stat(path), os.fstat(file.fileno())
        except FileNotFoundError:  # it is about to be replaced
            found = ours = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
            file.close()
            file = open(path, "rb")  # noqa: SIM115
        else:
            time.sleep(_POLL_S)
