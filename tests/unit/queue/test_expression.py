"""Subscription expressions: accepted syntax, error texts, and evaluation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmqtwist.queue.expression import ExpressionError, compile_expression

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def matches(text, **values):
    return compile_expression(text).matches(values)


def refusal(text):
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("text", ["", " ", "()", "((true)", "true", "x > ", "x x", "&&", " && 1 > 0", "() && 1 > 0",
                                  "true && (>>)"])
def test_expressions_with_invalid_syntax_are_refused(text):
    assert refusal(text)[0] in (-100, -101)


@pytest.mark.parametrize("text, code, message", [
    ("x >", -100, "syntax error, unexpected end of expression at offset 2"),
    ("x > ", -100, "syntax error, unexpected end of expression at offset 3"),
    ("", -100, "syntax error, unexpected end of expression at offset 0"),
    ("x x", -100, "syntax error, unexpected property at offset 2"),
    ("x-1", -100, "syntax error, unexpected integer at offset 1"),
    ("x = 1", -100, "syntax error, unexpected invalid character at offset 2"),
    ("x < y < z", -100, "syntax error, unexpected < at offset 6"),
    ("x == y == z", -100, "syntax error, unexpected = at offset 7"),
    ("x == y != z", -100, "syntax error, unexpected <> at offset 7"),
    ("&& x", -100, "syntax error, unexpected AND at offset 0"),
    ("x || ||", -100, "syntax error, unexpected OR at offset 5"),
    ("exists(1)", -100, "syntax error, unexpected integer, expecting property or exists at offset 7"),
    ("exists(x y)", -100, "syntax error, unexpected property, expecting ) at offset 9"),
    ("x == 99999999999999999999", -100, "integer overflow at offset 5"),
    ("x 99999999999999999999", -100, "syntax error, unexpected overflow at offset 2"),
    ('x == "open', -100, "syntax error, unexpected invalid character at offset 5"),
    ("true && true", -101, "expression does not use any properties"),
    ("a>1&&b>1&&c>1&&d>1", -102, "too many operators (11), max allowed operators: 10"),
    ("x" * 129, -103, "expression is too long (129), max allowed length: 128"),
])
def test_the_error_of_an_invalid_expression_has_code_and_text(text, code, message):
    assert refusal(text) == (code, message)


def test_an_expression_has_at_most_ten_operators_and_property_references():
    compile_expression("a > 1 && b > 1 && c > 1 && d")
    assert refusal("a > 1 && b > 1 && c > 1 && d > 1")[0] == -102


def test_an_expression_has_at_most_128_bytes():
    compile_expression("x == \"" + "a" * 121 + "\"")
    assert refusal("x == \"" + "\u00e9" * 61 + "\"")[0] == -103


def test_deeply_nested_expressions_do_not_exhaust_the_stack():
    assert matches("(" * 63 + "x" + ")" * 63, x=True)
    assert refusal("!" * 127 + "x")[0] == -102
    assert refusal("(" * 128)[0] == -100


@pytest.mark.parametrize("text, values, expected", [
    ("x > 1", {"x": 2}, True), ("x > 1", {"x": 1}, False), ("1 < x", {"x": 2}, True),
    ("x == 9223372036854775807", {"x": INT64_MAX}, True), ("x == -9223372036854775808", {"x": INT64_MIN}, True),
    ('x > "2020-01-01" && x < "2021-01-01"', {"x": "2020-06-01"}, True),
    ('x == "a\\"b"', {"x": 'a\\"b'}, True), ('x == "a\\"b"', {"x": 'a"b'}, False),
    ("x.y_z.1 == 3", {"x.y_z.1": 3}, True),
    ("exists(x)", {"x": False}, True), ("exists(x)", {}, False), ("exists(x)", {"x": b"1"}, False),
    ("exists == 1", {"exists": 1}, True), ("exists(exists)", {"exists": 1}, True),
    ("!x", {"x": False}, True), ("~x", {"x": False}, True), ("!x == false", {"x": True}, True),
    ("-x == 3", {"x": -3}, True), ("x - 1 == 2", {"x": 3}, True), ("x + 2 * 3 == 7", {"x": 1}, True),
    ("(x + 2) * 3 == 9", {"x": 1}, True), ("x - 3 - 2 == 0", {"x": 5}, True),
    ("x / 2 == -3", {"x": -7}, True), ("x % 2 == -1", {"x": -7}, True), ("x % -2 == 1", {"x": 7}, True),
    ("x + 1 == -9223372036854775808", {"x": INT64_MAX}, True), ("-x == x", {"x": INT64_MIN}, True),
    ("a || b && c", {"a": True}, True), ("x < 3 == false", {"x": 3}, True),
])
def test_an_expression_evaluates_to_the_expected_value(text, values, expected):
    assert compile_expression(text).matches(values) is expected


@pytest.mark.parametrize("text, values", [
    ("x", {"x": 1}), ("x + 33", {"x": 1}), ("x", {"x": "true"}), ("x == 1", {"x": "1"}), ('x == "1"', {"x": 1}),
    ("x == 1", {"x": True}), ("x == y", {"x": True, "y": True}), ("x != y", {"x": True, "y": False}),
    ("x < true", {"x": False}), ("x > 1", {}), ("x > 1", {"x": b"2"}), ("!x", {"x": 0}), ("-x == 1", {"x": True}),
    ("x / 0 == 0", {"x": 1}), ("x % 0 == 0", {"x": 1}), ("x / -1 > 0", {"x": INT64_MIN}), ("x % -1 == 0", {"x": INT64_MIN}),
    ("x && y", {"x": True, "y": 1}), ("y || x", {"x": True, "y": 1}), ("x + y == 1", {"x": 1, "y": False}),
    ('x + "a" == "a"', {"x": "a"}), ("!(x > 1)", {}), ("x == null", {"x": 1}),
])
def test_an_expression_with_an_evaluation_error_is_false(text, values):
    assert compile_expression(text).matches(values) is False


@pytest.mark.spec("broker", 161)
def test_a_missing_property_makes_an_expression_false_unless_short_circuit_skips_it():
    assert matches("x >= 0 || (y >= 0)", x=1) and not matches("x >= 0 || (y >= 0)", y=1)
    assert matches("y >= 0 || (x >= 0)", y=1) and not matches("y >= 0 || (x >= 0)", x=1)
    assert not matches("x >= 0 || (y >= 0)", x=-1)
    assert not matches("x && y", x=False)
    assert matches("!(x && y)", x=False)


@pytest.mark.spec("broker", 162)
def test_iso_dates_compare_as_text():
    text = 'x > "2020-01-01" && x < "2021-01-01"'
    days = ["2019-12-31", "2020-01-01", "2020-01-02", "2020-12-31", "2021-01-01"]
    assert [day for day in days if matches(text, x=day)] == ["2020-01-02", "2020-12-31"]


@pytest.mark.spec("broker", 163)
def test_a_string_property_compared_with_a_number_is_false():
    assert [matches(f"x {sign} 1", x="1") for sign in ("==", "!=", "<", "<=", ">", ">=")] == [False] * 6


@pytest.mark.spec("broker", 175)
def test_booleans_compare_with_literals_and_not_with_each_other():
    assert matches("flag == true", flag=True) and not matches("flag == true", flag=False)
    assert not any(matches(f"a {sign} b", a=True, b=other) for sign in ("==", "!=", "<", ">") for other in (True, False))


def test_a_comparison_with_a_boolean_literal_is_the_operand_or_its_negation():
    for text, wanted in (("p == true", True), ("p == false", False), ("true == p", True), ("p != true", False),
                         ("p != false", True), ("p == (true == true)", True), ("p == (true != true)", False)):
        assert matches(text, p=True) is wanted and matches(text, p=False) is not wanted
    assert not matches("p == true", p=1)


def test_an_expression_lists_the_properties_that_it_names():
    expression = compile_expression('a > 1 && exists(b.c) || a == "a"')
    assert expression.properties == {"a", "b.c"} and expression.text == 'a > 1 && exists(b.c) || a == "a"'


# -- against a naive interpreter of the same trees ----------------------------------------------------------------

class EvaluationError(Exception):
    pass


def evaluate_naively(tree, values):
    """Evaluate a tree by a simple recursive reference implementation."""
    kind, *rest = tree
    if kind == "lit":
        return rest[0]
    if kind == "prop":
        if rest[0] not in values or isinstance(values[rest[0]], bytes):
            raise EvaluationError
        return values[rest[0]]
    if kind == "exists":
        return rest[0] in values and not isinstance(values[rest[0]], bytes)
    if kind in ("&&", "||"):
        left = evaluate_naively(rest[0], values)
        if not isinstance(left, bool):
            raise EvaluationError
        if left == (kind == "||"):
            return left
        right = evaluate_naively(rest[1], values)
        if not isinstance(right, bool):
            raise EvaluationError
        return right
    if kind in ("==", "!="):
        booleans = [part[1] for part in rest if part[0] == "lit" and isinstance(part[1], bool)]
        if booleans:
            left, right = (evaluate_naively(part, values) for part in rest)
            if not isinstance(left, bool) or not isinstance(right, bool):
                # a comparison with a literal equals its operand: only `!` checks its type
                other = left if isinstance(right, bool) else right
                if booleans[0] == (kind == "=="):
                    return other
                raise EvaluationError
            return (left == right) == (kind == "==")
    operands = [evaluate_naively(part, values) for part in rest]
    if kind == "!":
        if not isinstance(operands[0], bool):
            raise EvaluationError
        return not operands[0]
    types = {type(operand) for operand in operands}
    if kind in ("==", "!=", "<", "<=", ">", ">="):
        if types not in ({int}, {str}):
            raise EvaluationError
        a, b = operands if types == {int} else [operand.encode() for operand in operands]
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[kind]
    if types != {int}:
        raise EvaluationError
    if kind == "neg":
        result = -operands[0]
    else:
        a, b = operands
        if kind in "/%":
            if b == 0 or (a, b) == (INT64_MIN, -1):
                raise EvaluationError
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            result = quotient if kind == "/" else a - b * quotient
        else:
            result = {"+": a + b, "-": a - b, "*": a * b}[kind]
    return int.from_bytes((result & (1 << 64) - 1).to_bytes(8, "big"), "big", signed=True)


def expression_text(tree):
    kind, *rest = tree
    if kind == "lit":
        value = rest[0]
        return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    if kind == "prop":
        return rest[0]
    if kind == "exists":
        return f"exists({rest[0]})"
    if kind in ("!", "neg"):
        return f"({'-' if kind == 'neg' else '!'} {expression_text(rest[0])})"
    return f"({expression_text(rest[0])} {kind} {expression_text(rest[1])})"


NAMES = st.sampled_from("abc")
INTEGERS = st.one_of(st.integers(-3, 3), st.sampled_from([INT64_MIN, INT64_MAX]))
STRINGS = st.sampled_from(["", "a", "ab", "\u00e9", "\U0001f600", "\ufffd"])
LEAVES = st.one_of(st.tuples(st.just("lit"), st.one_of(INTEGERS, STRINGS, st.booleans())),
                   st.tuples(st.sampled_from(["prop", "prop", "exists"]), NAMES))
TREES = st.recursive(LEAVES, lambda inner: st.one_of(
    st.tuples(st.sampled_from(["!", "neg"]), inner),
    st.tuples(st.sampled_from(["||", "&&", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%"]), inner, inner)),
    max_leaves=5)
VALUES = st.dictionaries(NAMES, st.one_of(INTEGERS, STRINGS, st.booleans(), st.binary(max_size=2)), max_size=3)


@settings(max_examples=600, deadline=None)
@given(TREES, VALUES)
def test_compiled_expressions_agree_with_a_naive_interpreter(tree, values):
    try:
        expression = compile_expression(expression_text(tree))
    except ExpressionError as error:
        assert error.code in (-101, -102, -103)
        return
    try:
        expected = evaluate_naively(tree, values) is True
    except EvaluationError:
        expected = False
    assert expression.matches(values) is expected


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet='ab1-"\\ ()&|=<>!+*%~.exists\u00e9', max_size=40))
def test_any_text_either_compiles_or_is_refused(text):
    try:
        assert compile_expression(text).matches({"a": 1, "b": True}) in (True, False)
    except ExpressionError as error:
        assert error.code in (-100, -101, -102, -103)
