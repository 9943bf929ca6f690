"""JSON decoder with positions: the values are those of the standard library, each with its line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.config.jsontext import JSON_DEPTH_MAX, Located, parse


def plain(found: Located) -> object:
    """Return the value without positions, as the standard library decodes it."""
    if isinstance(found.value, dict):
        return {name: plain(child) for name, child in found.value.items()}
    return [plain(child) for child in found.value] if isinstance(found.value, list) else found.value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=20)


@given(VALUES, st.sampled_from([None, 0, 3]), st.booleans())
def test_every_value_is_decoded_like_by_the_standard_library(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    if "\\ud" not in text:
        assert plain(parse(text)) == json.loads(text)


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn\\u \n\x01é', max_size=40))
def test_any_text_is_decoded_or_refused_like_by_the_standard_library(text):
    try:
        decoded = plain(parse(text))
    except json.JSONDecodeError as error:
        assert error.lineno >= 1 and error.colno >= 1
        with pytest.raises(ValueError):
            json.loads(text, parse_constant=lambda word: 1 / 0 if word else None)
            _refused_here_only(text)
    else:
        assert json.loads(text) == decoded


def _refused_here_only(text):
    """True for half surrogates and infinite numbers, which the standard library accepts."""
    loaded = json.loads(text)
    json.dumps(loaded, allow_nan=False, ensure_ascii=False).encode()


def test_decoded_values_have_their_line_number():
    root = parse('{\n  "a": [1,\n    {"b": true}]\n}')
    inner = root.value["a"].value[1]
    assert (root.line, inner.line, inner.value["b"].line) == (1, 3, 3)


@pytest.mark.parametrize("text, line, column, words", [
    ("", 1, 1, "Expecting value"),
    ('{"a": 1, b}', 1, 10, "Expecting property name"),
    ("[1 2]", 1, 4, "Expecting ',' delimiter"),
    ('{"a" 1}', 1, 6, "Expecting ':' delimiter"),
    ('{"definition": {', 1, 17, "Expecting property name"),
    ('{\n"a": nul}', 2, 6, "Expecting value"),
    ('"abc', 1, 1, "Unterminated string"),
    ('"a\nb"', 1, 3, "Invalid control character"),
    (r'"\x41"', 1, 2, "Invalid \\escape"),
    (r'"\ud800"', 1, 1, "Half of a surrogate pair"),
    (r'{"\ud800": 1}', 1, 1, "Half of a surrogate pair"),
    ("{} {}", 1, 4, "Extra data"),
    ("1e999", 1, 1, "too large"),
    ("NaN", 1, 1, "too large"),
    ("1" * 500, 1, 1, "too many digits"),
    ("\u0661", 1, 1, "Expecting value"),
    ("// no comments\n{}", 1, 1, "Expecting value"),
])
def test_malformed_json_is_refused_with_line_and_column_of_the_error(text, line, column, words):
    with pytest.raises(json.JSONDecodeError) as caught:
        parse(text)
    assert (caught.value.lineno, caught.value.colno) == (line, column)
    assert words in caught.value.msg


def test_nesting_depth_is_limited():
    assert parse("[" * JSON_DEPTH_MAX + "]" * JSON_DEPTH_MAX)
    with pytest.raises(json.JSONDecodeError, match="Nested deeper"):
        parse("[" * 100_000)


def test_a_repeated_member_has_its_last_value_and_is_listed():
    root = parse('{"a": 1, "b": 2, "a": 3}')
    assert plain(root) == {"a": 3, "b": 2}
    assert root.value.repeated == ["a"]


def test_surrogate_pairs_escapes_and_a_byte_order_mark_are_decoded():
    assert parse('\ufeff"\\ud83d\\ude00\\n\\/"').value == "\U0001f600\n/"
