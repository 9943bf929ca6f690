"""What a partition writes in one turn, as it goes to its files and to whoever replicates it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one turn in order, as they went to the files: `first` is the position of the first of them.

    journal: records of 60 bytes. data: the parts of the DATA records of its MESSAGEs, one behind the other; qlist: the
    QLIST records of its CREATIONs and ADDITIONs.
    """

    first: int
    journal: list[bytes]
    data: list[bytes]
    qlist: list[bytes]
