"""What a partition writes in one turn, as it goes to its files and to whoever replicates it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Batch:
    """The records of one turn in order, as they went to the files: `first` is the position of the first of them.

    journal: records of 60 bytes. data: the parts of the DATA records of its MESSAGEs, one behind the other; qlist: the
    QLIST records of its CREATIONs and ADDITIONs.
    """

    first: int
    journal: list[bytes]
    data: list[bytes]
    qlist: list[bytes]

    def __init__(self, first: int, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        self.first, self.journal, self.data, self.qlist = first, journal, data, qlist


def joined(batches: list[Batch], records_max: int) -> list[Batch]:
    """The same records in fewer batches: those without messages join what follows, as long as a batch has no more than
    `records_max` records."""
    whole: list[Batch] = []
    for batch in batches:
        before = whole[-1] if whole else None
        if before is not None and not before.data and len(before.journal) + len(batch.journal) <= records_max:
            whole[-1] = Batch(before.first, before.journal + batch.journal, batch.data, before.qlist + batch.qlist)
        else:
            whole.append(batch)
    return whole
