"""Spool: batches that remain after a crash at each step.

The tested module is `bmqtwist/spark/spool.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bmqtwist.spark.plan import OffsetError, Segment
from bmqtwist.spark.spool import KEY_BYTES, Spool


def segment(start: int, end: int) -> Segment:
    return Segment(start, end, [number.to_bytes(KEY_BYTES, "big") for number in range(start, end)])


def test_written_batches_are_read_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.set_epoch("e")
    spool.write(segment(0, 2), b"first")
    spool.write(segment(2, 3), b"second")
    spool.close()
    again = Spool(str(tmp_path))
    assert again.epoch == "e"
    assert [(each.start, each.end, each.keys) for each in again.segments()] == [
        (0, 2, segment(0, 2).keys), (2, 3, segment(2, 3).keys)]
    assert [again.read(each) for each in again.segments()] == [b"first", b"second"]
    again.close()


def test_a_committed_batch_keeps_its_keys_until_it_is_removed(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.write(segment(0, 2), b"first")
    spool.remove_content(segment(0, 2))
    assert spool.read(segment(0, 2)) is None and not spool.has_content(segment(0, 2))
    assert [each.keys for each in spool.segments()] == [segment(0, 2).keys]
    spool.remove(segment(0, 2))
    assert spool.segments() == []
    spool.close()


def test_a_batch_without_keys_is_deleted(tmp_path: Path) -> None:
    """A crash between content and keys."""
    spool = Spool(str(tmp_path))
    spool.write(segment(0, 2), b"first")
    (tmp_path / f"{0:020}-{2:020}.guids").unlink()
    (tmp_path / "x.guids.tmp").write_bytes(b"half")
    assert spool.segments() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]
    spool.close()


def test_a_truncated_file_of_keys_is_an_error(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.write(segment(0, 2), b"first")
    path = tmp_path / f"{0:020}-{2:020}.guids"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OffsetError, match="damaged"):
        spool.segments()
    spool.close()


def test_a_second_query_cannot_open_a_spool_in_use(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    with pytest.raises(OffsetError, match="another query"):
        Spool(str(tmp_path), wait_s=0.0)
    spool.close()
    Spool(str(tmp_path), wait_s=0.0).close()
