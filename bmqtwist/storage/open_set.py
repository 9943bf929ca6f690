"""One open file set: JOURNAL, DATA and QLIST, each with the place where its next bytes go."""

from __future__ import annotations

from threading import Lock

from bmqtwist.storage.records import FileType
from bmqtwist.storage.store import AHEAD_BYTES, File

KINDS = FileType.JOURNAL, FileType.DATA, FileType.QLIST


def _part_of(parts: list[bytes], start: int, size: int) -> list[bytes]:
    """`size` bytes of all parts from `start` on, or as many as there are."""
    found: list[bytes] = []
    for part in parts:
        if start >= len(part):
            start -= len(part)
            continue
        piece = part[start:start + size]
        found.append(piece)
        start, size = 0, size - len(piece)
        if not size:
            break
    return found


class OpenFile:
    """An open file. `end`: where the next write begins."""

    __slots__ = ("end", "file")

    def __init__(self, file: File) -> None:
        self.file, self.end = file, file.size()


class FileSet:
    """Another thread may call `sync`. `base`: the timestamp in the names."""

    def __init__(self, base: str, files: dict[FileType, File]) -> None:
        self.base = base
        self.journal, self.data, self.qlist = (OpenFile(files[kind]) for kind in KINDS)
        self.each = self.journal, self.data, self.qlist  # in the order of KINDS
        self._guard = Lock()  # a sync in another thread must not meet a set that is being closed
        self._closed = False
        self._unsynced_qlist = True  # it changes seldom: most syncs can leave it out
        self._ahead = 0  # bytes that are written behind the end of DATA, of what `append` is given next

    def positions(self) -> tuple[int, int, int]:
        """Where the next bytes of JOURNAL, DATA, QLIST go."""
        return self.journal.end, self.data.end, self.qlist.end

    def append_ahead(self, data: list[bytes]) -> bool:
        """Write the next AHEAD_BYTES of it; False: there is more. What fails here fails again in `append`."""
        try:
            self._ahead += self.data.file.write(self.data.end + self._ahead, _part_of(data, self._ahead, AHEAD_BYTES))
        except OSError:
            return True
        return sum(map(len, data)) - self._ahead <= AHEAD_BYTES

    def append(self, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        """DATA, QLIST, JOURNAL; positions move only when all is written."""
        ahead, self._ahead = self._ahead, 0
        if ahead:
            data = _part_of(data, ahead, sum(map(len, data)))
        data_bytes = ahead + self.data.file.write(self.data.end + ahead, data) if data else ahead
        qlist_bytes = 0
        if qlist:
            self._unsynced_qlist = True
            qlist_bytes = self.qlist.file.write(self.qlist.end, qlist)
        if journal:
            self.journal.end += self.journal.file.write(self.journal.end, journal)
        self.data.end += data_bytes
        self.qlist.end += qlist_bytes

    def sync(self) -> None:
        """The journal last: what it refers to is safe by then."""
        with self._guard:
            if self._closed:
                return
            self.data.file.sync()
            if self._unsynced_qlist:
                self._unsynced_qlist = False
                self.qlist.file.sync()
            self.journal.file.sync()

    def truncate(self) -> None:
        """Cut the files to their positions."""
        with self._guard:
            for each in self.each:
                each.file.resize(each.end, False)

    def close(self) -> None:
        """Let go of the files."""
        with self._guard:
            self._closed = True
            for each in self.each:
                each.file.close()
