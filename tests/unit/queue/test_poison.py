"""Poison messages: dump and alarm."""

import zlib
from types import SimpleNamespace

import pytest

from bmqtwist.queue import describe
from bmqtwist.queue.describe import dump_text, message_dump, poison_alarm, readable_properties
from bmqtwist.wire.properties import PropertyType, encode

GUID = bytes.fromhex("40000000000000000000000000000001")
PROPERTIES = {"k": (PropertyType.STRING, "v")}
DUMP = """Message Properties:

[ k (STRING) = "v" ]


Message Properties hexdump:

     0:   1B000004 00011800 00010001 6B760202     |............kv..|


Message Payload:

     0:   706F6973 6F6E                           |poison          |
"""


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_the_dump_is_decompressed_and_equal_for_both_styles_of_properties(v2, compress):
    area, payload = encode(PROPERTIES, v2), b"poison"
    if not compress:
        data = area + payload
    else:
        data = area + zlib.compress(payload) if v2 else zlib.compress(area + payload)
    assert message_dump(data, True, int(compress), int(v2)) == DUMP


def test_the_dump_of_a_message_without_properties_has_its_application_data():
    expected = "Application Data:\n\n     0:   706F6973 6F6E                           |poison          |\n"
    assert message_dump(b"poison", False, 0, 0) == expected
    assert message_dump(zlib.compress(b"poison"), False, 1, 0) == expected


@pytest.mark.parametrize("data, has_properties, compression", [
    (b"\x1b\xff\xff", True, 0), (b"no zlib", False, 1), (b"", True, 0), (b"poison", False, 7)])
def test_a_malformed_message_is_dumped_as_raw_bytes(data, has_properties, compression):
    assert message_dump(data, has_properties, compression, 0) == dump_text({}, b"", data)


def test_properties_of_all_types_are_printed_in_order_of_their_names():
    values = {"z": (PropertyType.BOOL, True), "c": (PropertyType.CHAR, 0x7F), "n": (PropertyType.CHAR, -1),
              "s": (PropertyType.SHORT, -32767), "i": (PropertyType.INT32, 10), "l": (PropertyType.INT64, 1 << 40),
              "a": (PropertyType.STRING, "foo bar"), "b": (PropertyType.BINARY, b"bb")}
    assert readable_properties(values) == (
        '[ a (STRING) = "foo bar" b (BINARY) = "     0:   6262' + " " * 36 + '|bb              |\n" c (CHAR) = 7f '
        "i (INT32) = 10 l (INT64) = 1099511627776 n (CHAR) = ffffffff s (SHORT) = -32767 z (BOOL) = true ]")
    assert readable_properties({}) == "[ ]"


def test_the_dump_of_a_large_payload_is_truncated():
    text = dump_text({}, b"", bytes(describe.DUMP_BYTES_MAX + 1500))
    assert text.endswith("|................|\n(1,500 more bytes)\n") and len(text) < 5 * describe.DUMP_BYTES_MAX


def test_the_poison_alarm_names_queue_message_app_attempts_and_file():
    queue = SimpleNamespace(uri="bmq://d/q", payload=lambda message: b"poison", domain=SimpleNamespace(max_attempts=2))
    message = SimpleNamespace(guid=GUID, has_properties=False, compression=0, schema_id=0)
    assert poison_alarm(queue, SimpleNamespace(app_id="foo"), message, lambda text: "/tmp/AbCdEf12") == (
        "A poison pill message was detected and purged from the queue bmq://d/q [GUID: "
        "40000000000000000000000000000001, appId: foo, subQueueId: 0]. Message was transmitted a total of 2 times to "
        "consumer(s). Message was dumped in file at location [/tmp/AbCdEf12] on this machine. Please copy file before "
        "it gets deleted.")


def raise_disk_full(text):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("keep", [raise_disk_full, lambda text: ""])
def test_the_poison_alarm_says_that_the_dump_file_could_not_be_created(keep):
    queue = SimpleNamespace(uri="bmq://d/q", payload=lambda message: b"poison", domain=SimpleNamespace(max_attempts=1))
    message = SimpleNamespace(guid=GUID, has_properties=False, compression=0, schema_id=0)
    text = poison_alarm(queue, SimpleNamespace(app_id="__default"), message, keep)
    assert text.endswith("failed because file could not be created.") and "a total of 1 times" in text


def test_the_poison_alarm_stores_the_dump():
    kept = []
    queue = SimpleNamespace(uri="bmq://d/q", payload=lambda message: encode(PROPERTIES, True) + b"poison",
                            domain=SimpleNamespace(max_attempts=1))
    message = SimpleNamespace(guid=GUID, has_properties=True, compression=0, schema_id=1)
    text = poison_alarm(queue, SimpleNamespace(app_id="__default"), message, lambda dump: kept.append(dump) or "/tmp/x")
    assert kept == [DUMP] and "location [/tmp/x]" in text
