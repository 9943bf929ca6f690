"""Declarations of binary layouts: struct, offsets and parser are derived from the fields."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bmqtwist.storage import layout as storage_layout
from bmqtwist.wire import layout
from bmqtwist.wire.declare import Layout, magic, null, number, raw, signed, skip


def declared(flags: int = 4, guid: int = 16) -> Layout:
    """A header with one part of each kind."""
    return Layout(number(flags=flags, words=32 - flags), skip(3), number(_reserved=3, small=5), raw(guid=guid),
                  null(key=5), signed(node=32), magic(end=b"*rEc"))


def test_the_struct_has_a_value_for_each_number_and_raw_field() -> None:
    each = declared()
    assert (each.struct.format, each.size, each.words) == (">I3xB16s5xiI", 37, 9)
    assert each.struct.unpack(each.struct.pack(1 << 28 | 7, 9, bytes(16), -2, each.constant("end"))) == (
        1 << 28 | 7, 9, bytes(16), -2, 0x2A724563)


def test_struct_offsets_and_masks_change_with_the_declaration() -> None:
    before, after = declared(), declared(flags=6, guid=12)
    assert (after.struct.format, after.size) == (">I3xB12s5xiI", before.size - 4)
    assert (before.shift("flags"), after.shift("flags")) == (28, 26)
    assert (before.mask("words"), after.mask("words")) == ((1 << 28) - 1, (1 << 26) - 1)
    assert (before.offset("node"), after.offset("node")) == (29, 25)
    assert (before.word(flags=3), after.word(flags=3)) == (3 << 28, 3 << 26)
    fields = {"flags": 3, "words": 5, "small": 2, "node": -1}
    old, new = before.build(guid=bytes(16), **fields), after.build(guid=bytes(12), **fields)
    assert old != new and len(new) == after.size
    assert {name: after.parse(new)[name] for name in fields} == fields


@pytest.mark.parametrize(("header", "others"), [
    (layout.PUT_HEADER, {"queue_id": 3, "guid": bytes(16), "crc": 4, "schema_id": 5}),
    (layout.ACK_MESSAGE, {"guid": bytes(16), "queue_id": 3}),
    (storage_layout.MESSAGE_RECORD, {"queue_key": b"queue", "guid": bytes(16), "data_dwords": 9})])
def test_a_field_moved_in_a_declaration_moves_in_the_struct(header: Layout, others: dict[str, object]) -> None:
    first, *rest = header.parts
    turned = Layout(number(**dict(reversed(first.fields))), *rest)
    name, bits = first.fields[-1]
    assert turned.shift(name) == first.size * 8 - bits != header.shift(name)
    values = {field: 1 for part in header.parts for field, _ in part.fields
              if part.is_number and not field.startswith("_") and not part.constant} | others
    built = turned.build(**values)
    assert built != header.build(**values)
    assert turned.struct.unpack(built)[0] >> turned.shift(name) & turned.mask(name) == 1


def test_the_parser_reads_all_fields_and_builds_fixed_ones() -> None:
    each = declared()
    built = each.build(flags=1, words=7, small=9, guid=b"g" * 16, node=-2)
    assert built.hex() == "10000007" "000000" "09" + "67" * 16 + "0000000000" "fffffffe" "2a724563"
    found = each.parse(built[:24] + b"empty" + built[29:])
    assert (found.flags, found.words, found.small, found.key, found.node, found.end) == (1, 7, 9, b"empty", -2, b"*rEc")


def test_the_struct_between_two_fields_excludes_both() -> None:
    assert declared().between("flags", "end").format == ">3xB16s5xi"


@pytest.mark.parametrize("wrong", [
    lambda: number(flags=4, words=27), lambda: number(), lambda: signed(low=16, high=16), lambda: magic(end=b"abc"),
    lambda: Layout(number(words=32), raw(words=4)), lambda: declared().word(flags=16),
    lambda: declared().word(flags=1, small=1), lambda: declared().word(words=-1)])
def test_an_invalid_declaration_is_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        wrong()


def test_the_client_library_does_not_import_construct() -> None:
    """construct takes a fifth of the import time of the library."""
    code = "import sys, bmqtwist.sdk, bmqtwist.sdk.blazingmq; sys.exit('construct' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
