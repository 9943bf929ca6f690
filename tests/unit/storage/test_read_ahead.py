"""Read-ahead of DATA: it returns the bytes of the file for reads in any order."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from bmqtwist.storage.exchange import READ_AHEAD_BYTES, ReadAhead


def test_read_ahead_returns_the_bytes_of_the_file_with_few_reads() -> None:
    random = Random(1)
    data, reads = random.randbytes(4 * READ_AHEAD_BYTES + 100), list[int]()

    def read_data(offset: int, size: int) -> bytes:
        reads.append(offset)
        return data[offset:offset + size]
    files: Any = SimpleNamespace(read_data=read_data)
    ahead = ReadAhead(files, len(data))
    for offset in range(0, len(data), 1000):
        assert ahead.read_data(offset, 1000) == data[offset:offset + 1000]
    assert len(reads) <= 6, "sequential reads are large"
    for _ in range(500):
        offset, size = random.randrange(len(data) + 10), random.choice((12, 1000, 2 * READ_AHEAD_BYTES))
        assert ahead.read_data(offset, size) == data[offset:offset + size], (offset, size)


def test_read_ahead_ends_at_the_written_length() -> None:
    """Reading unwritten preallocated blocks takes long: megabytes of zeros, 37 ms in a turn of the primary."""
    written, reads = READ_AHEAD_BYTES + 5000, list[tuple[int, int]]()

    def read_data(offset: int, size: int) -> bytes:
        reads.append((offset, offset + size))
        return bytes(size)
    ahead = ReadAhead(SimpleNamespace(read_data=read_data), written)  # type: ignore[arg-type]
    for offset in range(0, written - 1000, 1000):
        assert ahead.read_data(offset, 1000) == bytes(1000)
    assert reads[0] == (0, READ_AHEAD_BYTES) and all(end <= written for _, end in reads)
    assert ahead.read_data(written, 300) == bytes(300) and reads[-1] == (written, written + 300), "a requested range is read"
