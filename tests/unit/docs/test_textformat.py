"""Text formats of numbers, byte counts and hexdumps."""

import pytest

from bmqtwist.textformat import grouped, hexdump, pretty_bytes


@pytest.mark.parametrize("count, text", [
    (0, "0  B"), (123, "123  B"), (1023, "1023  B"), (1024, "1.00 KB"), (1572864, "1.50 MB"), (2120, "2.07 KB"),
    (33554432, "32.00 MB"), (10485760000, "9.77 GB"), (20971520000, "19.53 GB"), (1 << 41, "2.00 TB"),
    (1 << 63, "8.00 EB"), (-2048, "-2.00 KB")])
def test_byte_counts_are_printed_in_the_largest_unit_that_fits(count, text):
    assert pretty_bytes(count) == text


def test_numbers_are_printed_with_comma_groups():
    assert grouped(1234) == "1,234" and grouped(20000000) == "20,000,000" and grouped(7) == "7"


def test_a_hexdump_line_has_16_bytes_in_hexadecimal_and_ascii():
    assert hexdump(bytes.fromhex("1B000004000118000001 00016B760202")) == (
        "     0:   1B000004 00011800 00010001 6B760202     |............kv..|\n")


def test_a_short_hexdump_line_is_padded_with_blanks():
    assert hexdump(b"0123456789abcdef" + b"\x00z~\x7f\xff") == (
        "     0:   30313233 34353637 38396162 63646566     |0123456789abcdef|\n"
        "    16:   007A7E7F FF" + " " * 29 + "|.z~..           |\n")
    assert hexdump(b"") == ""
