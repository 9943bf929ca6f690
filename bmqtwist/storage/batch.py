"""The records of one turn: as they are collected behind the end of the files, and as they go to other nodes."""

from __future__ import annotations

from dataclasses import dataclass

from bmqtwist.storage.message import Message


class Tail:
    """The end of a partition's files: where the next records go, and those that are not written yet.

    journal, data, qlist: the bytes to be written. *_end: bytes in use, these included. journal_limit, data_limit: up to
    where records are appended without a further check; below 0 every append is checked. large: they are written over several
    turns. dropped: messages whose payload leaves memory once it is written, since there are more than `cache_max` bytes.
    """

    __slots__ = ("journal", "data", "qlist", "journal_end", "data_end", "qlist_end", "data_written", "journal_limit",
                 "data_limit", "large", "dropped", "cache_max")

    def __init__(self, data_limit: int, cache_max: int) -> None:
        self.journal, self.data, self.qlist = list[bytes](), list[bytes](), list[bytes]()
        self.journal_end = self.data_end = self.qlist_end = self.data_written = 0
        self.journal_limit, self.data_limit, self.cache_max = -1, data_limit, cache_max
        self.large = False
        self.dropped = list[Message]()

    @property
    def unwritten_bytes(self) -> int:
        """Of messages."""
        return self.data_end - self.data_written

    def positions(self) -> tuple[int, int, int]:
        """Bytes of JOURNAL, DATA, QLIST in use."""
        return self.journal_end, self.data_end, self.qlist_end

    def clear(self) -> None:
        """All is written, or given up."""
        self.journal, self.data, self.qlist = [], [], []
        self.data_written = self.data_end


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
