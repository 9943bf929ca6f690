"""Packers and unpackers of the hot paths: equal to the declarations for all field values, interpreted and compiled.

`test_the_compiled_functions_give_the_same_results` compiles `bmqtwist/wire/fast.py` and
`bmqtwist/storage/records.py`, and runs this file on them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.storage import layout as stored
from bmqtwist.storage import records
from bmqtwist.storage.message import Message
from bmqtwist.wire import fast, layout

ROOT = Path(__file__).resolve().parents[2]
COMPILED_MODULES = ("wire/fast.py", "storage/records.py")


def unsigned(bits: int) -> st.SearchStrategy[int]:
    """Any number of `bits` bits, the limits often."""
    return st.integers(0, 2 ** bits - 1) | st.sampled_from((0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2 ** bits - 1))


def raw(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


@given(unsigned(4), st.integers(0, 2 ** 31 - 9), unsigned(8))
def test_event_headers_are_packed_as_declared(kind: int, body: int, specific: int) -> None:
    data = fast.event_header(kind, body, specific)
    assert data == layout.EVENT_HEADER.build(fragment=0, length=body + 8, version=1, type=kind, header_words=2,
                                             type_specific=specific)
    assert fast.event_header_at(b"xyz" + data, 3) == (body + 8, 1 << 6 | kind, 2, specific)


@given(raw(8))
def test_any_event_header_is_unpacked_as_declared(data: bytes) -> None:
    assert (*fast.event_header_at(data, 0), data[7]) == layout.EVENT_HEADER.struct.unpack(data)


@given(raw(36), st.integers(0, 3))
def test_any_put_header_is_unpacked_as_declared(data: bytes, at: int) -> None:
    *fields, _ = layout.PUT_HEADER.struct.unpack(data)
    assert fast.put_header_at(b"x" * at + data, at) == tuple(fields)


@given(unsigned(4), unsigned(28), unsigned(24), unsigned(3), unsigned(32), raw(16), unsigned(16), unsigned(32))
def test_push_headers_for_one_subscription_are_packed_as_declared(flags: int, words: int, options: int, compression: int,
                                                                  queue_id: int, guid: bytes, schema: int,
                                                                  sub_id: int) -> None:
    data = fast.push_header_to_one(flags << 28 | words, options << 8 | compression << 5 | 8, queue_id, guid, schema, sub_id)
    assert data == layout.PUSH_HEADER.build(
        flags=flags, words=words, options_words=options, compression=compression, header_words=8, queue_id=queue_id,
        guid=guid, schema_id=schema) + fast.sub_queue_ids([sub_id])


@given(unsigned(4), unsigned(24), raw(16), unsigned(32))
def test_ack_messages_are_packed_as_declared(status: int, correlation_id: int, guid: bytes, queue_id: int) -> None:
    assert fast.ack_message(status, correlation_id, guid, queue_id) == layout.ACK_MESSAGE.build(
        status=status, correlation_id=correlation_id, guid=guid, queue_id=queue_id)


@given(raw(24), st.integers(0, 3))
def test_any_confirm_message_is_unpacked_as_declared(data: bytes, at: int) -> None:
    assert fast.confirm_message_at(b"x" * at + data, at) == layout.CONFIRM_MESSAGE.struct.unpack(data)


HEAD = st.tuples(st.sampled_from((records.MESSAGE_HEAD, records.CONFIRM_HEAD, records.DELETION_HEAD)), unsigned(12),
                 unsigned(48)).map(lambda parts: parts[0] | parts[1] << records.FLAGS_SHIFT | parts[2])
BEGINNING = HEAD, unsigned(32), st.integers(0, 2 ** 62)


def message_of(guid: bytes, refs: int = 0, compression: int = 0, crc: int = 0) -> Message:
    message = Message(guid, None, compression=compression, crc=crc)
    message.ref_count = refs
    return message


@given(unsigned(48), *BEGINNING[1:], unsigned(20), unsigned(8), raw(5), unsigned(32), raw(16), unsigned(32))
def test_message_records_are_packed_as_declared(sequence: int, lease: int, wall: int, refs: int, compression: int,
                                                key: bytes, place: int, guid: bytes, crc: int) -> None:
    head = records.MESSAGE_HEAD | (refs & records.FLAGS_MASK) << records.FLAGS_SHIFT | sequence
    message = message_of(guid, refs, compression, crc)
    assert records.pack_message_record(sequence, lease, wall, key, place, message) == records.MESSAGE.pack(
        head, lease, wall, refs >> records.REF_COUNT_LOW_BITS, compression, key, place, guid, crc, records.MAGIC)


@given(*BEGINNING, raw(5), raw(5), raw(16))
def test_confirm_records_are_packed_as_declared(head: int, lease: int, wall: int, key: bytes, app: bytes,
                                                guid: bytes) -> None:
    assert records.pack_confirm_record(head, lease, wall, key, app, guid) == records.CONFIRM.pack(
        head, lease, wall, key, app, guid, records.MAGIC)


@given(*BEGINNING, raw(5), raw(16))
def test_deletion_records_are_packed_as_declared(head: int, lease: int, wall: int, key: bytes, guid: bytes) -> None:
    assert records.pack_deletion_record(head, lease, wall, key, guid) == records.DELETION.pack(
        head, lease, wall, key, guid, records.MAGIC)


@given(unsigned(32), unsigned(32), unsigned(16))
def test_data_headers_are_packed_as_declared(first: int, second: int, schema: int) -> None:
    assert records.pack_data_header(first, second, schema) == stored.DATA_HEADER.struct.pack(first, second, schema, 0)


@pytest.mark.parametrize("guid", [b"", b"short", bytes(15), bytes(17)])
def test_a_guid_of_another_length_does_not_change_the_packed_size(guid: bytes) -> None:
    """`struct` truncates or pads it."""
    assert len(fast.ack_message(0, 0, guid, 1)) == 24
    assert len(fast.push_header_to_one(0, 0, 1, guid, 0, 1)) == 40
    assert len(records.pack_message_record(0, 1, 1, bytes(5), 0, message_of(guid))) == 60
    assert len(records.pack_confirm_record(records.CONFIRM_HEAD, 1, 1, bytes(5), bytes(5), guid)) == 60
    assert len(records.pack_deletion_record(records.DELETION_HEAD, 1, 1, bytes(5), guid)) == 60


@pytest.mark.parametrize("read, size", [(fast.event_header_at, 8), (fast.put_header_at, 36), (fast.confirm_message_at, 24)])
def test_unpacking_beyond_the_end_raises(read: object, size: int) -> None:
    with pytest.raises(Exception):  # noqa: B017 - different types if interpreted and compiled
        read(bytes(size - 1), 0)  # type: ignore[operator]


@pytest.mark.timeout(280)
def test_the_compiled_functions_give_the_same_results(tmp_path: Path) -> None:
    import setuptools  # noqa: F401 - without it nothing is compiled

    shutil.copytree(ROOT / "bmqtwist", tmp_path / "bmqtwist", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    modules = [f"bmqtwist/{name}" for name in COMPILED_MODULES]
    (tmp_path / "setup.py").write_text(
        "from mypyc.build import mypycify\nfrom setuptools import setup\n"
        f"setup(name='two', packages=[], ext_modules=mypycify({['--ignore-missing-imports', *modules]!r}, opt_level='0'))\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    built = subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tmp_path, env=environment,
                           capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    ran = subprocess.run([sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path),
                          "-c", os.devnull, "-k", f"not {test_the_compiled_functions_give_the_same_results.__name__}",
                          str(Path(__file__).resolve())], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and "1 deselected" in ran.stdout, ran.stdout[-3000:] + ran.stderr[-1000:]
