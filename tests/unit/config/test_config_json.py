"""JSON with positions: the same values as the standard reader, and the place of everything."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.config.jsontext import JSON_DEPTH_MAX, JsonError, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=20)


@given(VALUES, st.sampled_from([None, 0, 3]), st.booleans())
def test_every_value_reads_as_the_standard_reader_reads_it(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    if "\\ud" not in text:
        assert parse(text).plain() == json.loads(text)


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn\\u \n\x01é', max_size=40))
def test_any_text_is_a_value_or_an_error_and_agrees_with_the_standard_reader(text):
    try:
        mine = parse(text).plain()
    except JsonError as error:
        assert error.line >= 1 and error.column >= 1
        with pytest.raises(ValueError):
            json.loads(text, parse_constant=lambda word: 1 / 0 if word else None)
            _refused_by_us_only(text)
    else:
        assert json.loads(text) == mine


def _refused_by_us_only(text):
    """Half surrogates and infinite numbers: the standard reader lets them through."""
    loaded = json.loads(text)
    json.dumps(loaded, allow_nan=False, ensure_ascii=False).encode()


def test_values_know_their_line_and_column():
    root = parse('{\n  "a": [1,\n    {"b": true}]\n}')
    inner = root.value["a"].value[1]
    assert (root.line, root.column) == (1, 1)
    assert (inner.line, inner.column) == (3, 5)
    assert (inner.value["b"].line, inner.value["b"].column) == (3, 11)


@pytest.mark.parametrize("text, line, column, words", [
    ("", 1, 1, "unexpected end of file"),
    ('{"a": 1,}', 1, 9, "expected the name of a member"),
    ("[1 2]", 1, 4, "expected ',' or ']'"),
    ('{"a" 1}', 1, 6, "expected ':'"),
    ('{"definition": {', 1, 17, "unexpected end of file"),
    ('{\n"a": nul}', 2, 6, "unexpected character 'n'"),
    ('"abc', 1, 1, "string without an end"),
    ('"a\nb"', 1, 3, "control character"),
    (r'"\x41"', 1, 2, "bad escape"),
    (r'"\ud800"', 1, 2, "half of a surrogate pair"),
    ("{} {}", 1, 4, "after the end of the document"),
    ("1e999", 1, 1, "too large"),
    ("1" * 500, 1, 1, "too many digits"),
    ("// no comments\n{}", 1, 1, "unexpected character"),
])
def test_what_is_no_json_is_refused_where_it_stops_being_json(text, line, column, words):
    with pytest.raises(JsonError, match=".") as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert words in caught.value.reason


def test_nesting_is_bounded():
    assert parse("[" * JSON_DEPTH_MAX + "]" * JSON_DEPTH_MAX)
    with pytest.raises(JsonError, match="nested deeper"):
        parse("[" * 100_000)


def test_a_member_that_appears_twice_is_remembered_and_the_last_value_counts():
    root = parse('{"a": 1, "b": 2, "a": 3}')
    assert root.plain() == {"a": 3, "b": 2}
    assert root.repeated == ["a"]


def test_surrogate_pairs_escapes_and_a_byte_order_mark_are_read():
    assert parse('\ufeff"\\ud83d\\ude00\\n\\/"').value == "\U0001f600\n/"
