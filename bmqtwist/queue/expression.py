"""Subscription expressions: compilation of their text to a predicate over message properties.

    orElse     := andAlso ('||' andAlso)*              every level is left associative; the two levels of comparison
    andAlso    := equality ('&&' equality)*            take one operator at most: `x < y < z` is refused
    equality   := relation [('==' | '!=') relation]
    relation   := sum [('<' | '<=' | '>' | '>=') sum]
    sum        := product (('+' | '-') product)*
    product    := unary (('*' | '/' | '%') unary)*
    unary      := ('!' | '~' | '-') unary | primary
    primary    := integer | string | 'true' | 'false' | name | 'exists' '(' name ')' | '(' orElse ')'

Values have four types without conversions: int (64 bits, overflow wraps around), str, bool, and bytes, which is unreadable.
An evaluation error (property missing or of another type, division by zero) makes the whole expression false for the
message; `&&` and `||` evaluate their right side only if necessary.

An expression is compiled to nested closures. `compile_expression` limits its length, operators and properties
(`bmqtwist/limits.py`). Error texts are those of BlazingMQ: offsets count bytes, and the end of the text has the offset
of the last token, blanks included.

`link/requests.py` and `handles.py` compile the expressions of consumers, `domain.py` those of the domain's subscriptions;
`Router` in `queue.py` evaluates them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

from bmqtwist.errors import LocalError
from bmqtwist.limits import EXPRESSION_CHARS_MAX, EXPRESSION_OPERATORS_MAX, EXPRESSION_PROPERTIES_MAX

Value = Union[int, str, bool, bytes]  # noqa: UP007
Values = Mapping[str, object]  # property values by name; types other than int, str and bool are unreadable
Evaluate = Callable[[Values], object]

SYNTAX = -100
NO_PROPERTIES = -101
TOO_COMPLEX = -102
TOO_LONG = -103

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


class ExpressionError(LocalError):
    """Invalid expression: `code` is one of the four above, `offset` counts bytes."""

    def __init__(self, code: int, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.code, self.message, self.offset = code, message, offset


class CompiledExpression:
    """A compiled expression. `properties`: the names that it uses."""

    __slots__ = ("text", "properties", "_evaluate")

    def __init__(self, text: str, properties: frozenset[str], evaluate: Evaluate) -> None:
        self.text, self.properties, self._evaluate = text, properties, evaluate

    def matches(self, values: Values) -> bool:
        """True if the expression is true for these property values; an evaluation error is False."""
        try:
            return self._evaluate(values) is True
        except _EvaluationError:
            return False

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def compile_expression(text: str) -> CompiledExpression:
    """Compile an expression. Raise ExpressionError if it is invalid or exceeds a limit."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(TOO_LONG, f"expression is too long ({len(data)}), max allowed length: "
                                        f"{EXPRESSION_CHARS_MAX}")
    parser = _Parser(data)
    tree = parser.parse()
    if parser.operators > EXPRESSION_OPERATORS_MAX:
        raise ExpressionError(TOO_COMPLEX, f"too many operators ({parser.operators}), max allowed operators: "
                                           f"{EXPRESSION_OPERATORS_MAX}")
    if not parser.references:
        raise ExpressionError(NO_PROPERTIES, "expression does not use any properties")
    if parser.references > EXPRESSION_PROPERTIES_MAX:
        raise ExpressionError(TOO_COMPLEX, f"expression uses too many properties ({parser.references}), "
                                           f"max allowed properties: {EXPRESSION_PROPERTIES_MAX}")
    return CompiledExpression(text, frozenset(parser.names), _compile(tree))


# -- tokens -------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    rb'(?P<integer>-?[0-9]+)|(?P<property>[a-zA-Z][a-zA-Z0-9_.]*)|(?P<string>"(?:[^\\"]|\\.)*")'
    rb"|(?P<operator>\|\||&&|==|!=|<=|>=|[<>+*/%!~()-])|(?P<blank>[ \t\n])|(?P<invalid>[\s\S])")
_NAMES_IN_ERRORS = {"==": "=", "!=": "<>", "||": "OR", "&&": "AND", "~": "!"}  # operators in error texts
_WORDS = ("true", "false", "exists")
_END = "end of expression"


class _Token(NamedTuple):
    kind: str  # an operator or word itself, or integer, overflow, string, property, invalid character, end
    value: int | str
    offset: int


def _tokens(data: bytes) -> list[_Token]:
    """Return all tokens; the last one is the end."""
    found: list[_Token] = []
    offset = 0
    for match in _TOKEN.finditer(data):
        kind, offset = match.lastgroup or "", match.start()
        word = match.group().decode("utf-8", "surrogateescape")
        value: int | str = word
        if kind == "blank":
            continue
        if kind == "integer":
            value = int(word)
            kind = kind if _INT_MIN <= value <= _INT_MAX else "overflow"
        elif kind == "operator" or word in _WORDS:
            kind = word
        elif kind == "string":
            value = word[1:-1]
        elif kind == "invalid":
            kind = "invalid character"
        found.append(_Token(kind, value, offset))
    found.append(_Token(_END, "", offset))
    return found


# -- syntax tree: tuples (operator, operand...); leaves are ("literal", value), ("property", name), ("exists", name) ---

_Tree = tuple[Any, ...]

_SIGNS = (("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_LEVEL = {sign: level for level, signs in enumerate(_SIGNS) for sign in signs}
_SINGLE = (2, 3)  # levels that take one operator only


class _Parser:
    """Recursive descent parser that counts operators and references for the limits."""

    def __init__(self, data: bytes) -> None:
        self._tokens = _tokens(data)
        self._next = 0
        self.operators = 0
        self.references = 0
        self.names: set[str] = set()

    def parse(self) -> _Tree:
        tree = self._binary(0)
        self._expect(_END)
        return tree

    def _binary(self, lowest: int) -> _Tree:
        """Parse operators of level `lowest` and higher by precedence climbing: one recursion per parenthesis."""
        tree = self._unary()
        highest = len(_SIGNS)
        while lowest <= (level := _LEVEL.get(self._tokens[self._next].kind, -1)) <= highest:
            sign = self._next_token().kind
            tree = _fold(sign, tree, self._binary(level + 1))
            self.operators += 1
            highest = level - 1 if level in _SINGLE else level
        return tree

    def _unary(self) -> _Tree:
        kind = self._tokens[self._next].kind
        if kind not in ("!", "~", "-"):
            return self._primary()
        self._next_token()
        tree = self._unary()
        self.operators += 1
        return ("negative" if kind == "-" else "!", tree)

    def _primary(self) -> _Tree:
        token = self._next_token()
        if token.kind in ("integer", "string"):
            return ("literal", token.value)
        if token.kind in ("true", "false"):
            return ("literal", token.kind == "true")
        if token.kind == "property":
            return self._reference("property", token)
        if token.kind == "exists":
            if self._tokens[self._next].kind != "(":
                return self._reference("property", token)
            self._next_token()
            name = self._next_token()
            if name.kind not in ("property", "exists"):
                raise _unexpected(name, ", expecting property or exists")
            tree = self._reference("exists", name)
            self._expect(")", ", expecting )")
            return tree
        if token.kind == "(":
            tree = self._binary(0)
            self._expect(")")
            return tree
        if token.kind == "overflow":
            raise ExpressionError(SYNTAX, f"integer overflow at offset {token.offset}", token.offset)
        raise _unexpected(token)

    def _reference(self, kind: str, token: _Token) -> _Tree:
        self.operators += 1
        self.references += 1
        self.names.add(str(token.value))
        return (kind, token.value)

    def _next_token(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _expect(self, kind: str, hint: str = "") -> None:
        token = self._next_token()
        if token.kind != kind:
            raise _unexpected(token, hint)


def _unexpected(token: _Token, hint: str = "") -> ExpressionError:
    spoken = _NAMES_IN_ERRORS.get(token.kind, token.kind)
    return ExpressionError(SYNTAX, f"syntax error, unexpected {spoken}{hint} at offset {token.offset}", token.offset)


def _fold(sign: str, left: _Tree, right: _Tree) -> _Tree:
    """Build a node; a comparison with `true` or `false`, the only one allowed for booleans, is folded away."""
    if sign in ("==", "!="):
        for literal, other in ((left, right), (right, left)):
            if literal[0] == "literal" and isinstance(literal[1], bool):
                if other[0] == "literal" and isinstance(other[1], bool):
                    return ("literal", (literal[1] == other[1]) == (sign == "=="))
                return other if literal[1] == (sign == "==") else ("!", other)
    return (sign, left, right)


# -- closures -----------------------------------------------------------------------------------------------------

class _EvaluationError(Exception):
    """The expression has no value for this message."""


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _compile(tree: _Tree) -> Evaluate:
    kind = tree[0]
    if kind == "literal":
        value = tree[1]
        return lambda values: value
    if kind == "property":
        return _compile_property(tree[1])
    if kind == "exists":
        name = tree[1]
        return lambda values: type(values.get(name)) in (int, str, bool)
    if kind == "!":
        return _compile_unary(bool, operator.not_, _compile(tree[1]))
    if kind == "negative":
        return _compile_unary(int, lambda value: _wrap(-value), _compile(tree[1]))
    if kind in _COMPARE:
        left, right = tree[1], tree[2]
        if left[0] == "property" and right[0] == "literal":
            return _compile_property_comparison(_COMPARE[kind], left[1], right[1])
        return _compile_comparison(_COMPARE[kind], _compile(left), _compile(right))
    if kind in ("&&", "||"):
        return _compile_logic(kind == "||", _compile(tree[1]), _compile(tree[2]))
    return _compile_arithmetic(_ARITHMETIC[kind], _compile(tree[1]), _compile(tree[2]))


def _compile_property(name: str) -> Evaluate:
    def evaluate(values: Values) -> object:
        value = values.get(name)
        if type(value) in (int, str, bool):
            return value
        raise _EvaluationError
    return evaluate


def _compile_property_comparison(compare: Callable[[Any, Any], bool], name: str, literal: Value) -> Evaluate:
    """Fast path for `property < literal`, without inner calls."""
    wanted: type = _EvaluationError if type(literal) is bool else type(literal)  # booleans have no order: never a value

    def evaluate(values: Values) -> bool:
        value = values.get(name)
        if type(value) is wanted:
            return compare(value, literal)
        raise _EvaluationError
    return evaluate


def _compile_comparison(compare: Callable[[Any, Any], bool], left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(values: Values) -> bool:
        a, b = left(values), right(values)
        kind = type(a)
        if kind is type(b) and kind is not bool:
            return compare(a, b)
        raise _EvaluationError
    return evaluate


def _compile_unary(wanted: type, calculate: Callable[[Any], object], operand: Evaluate) -> Evaluate:
    def evaluate(values: Values) -> object:
        value = operand(values)
        if type(value) is wanted:
            return calculate(value)
        raise _EvaluationError
    return evaluate


def _compile_logic(decisive: bool, left: Evaluate, right: Evaluate) -> Evaluate:
    """Compile `||` (`decisive` True) or `&&` (False); a left side with the decisive value is the result."""
    def evaluate(values: Values) -> bool:
        value = left(values)
        if value is decisive:
            return decisive
        if type(value) is bool:
            value = right(values)
            if type(value) is bool:
                return value
        raise _EvaluationError
    return evaluate


def _compile_arithmetic(calculate: Callable[[int, int], int], left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(values: Values) -> int:
        a, b = left(values), right(values)
        if type(a) is int and type(b) is int:
            result = calculate(a, b)
            return result if _INT_MIN <= result <= _INT_MAX else _wrap(result)
        raise _EvaluationError
    return evaluate


def _wrap(value: int) -> int:
    """Wrap around to 64 bits, two's complement."""
    return (value - _INT_MIN & (1 << 64) - 1) + _INT_MIN


def _divide(a: int, b: int) -> int:
    """Divide towards zero, as in C; division by 0 and overflow fail."""
    if not b or (b == -1 and a == _INT_MIN):
        raise _EvaluationError
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _modulus(a: int, b: int) -> int:
    """Return the remainder of `_divide`, with the sign of `a`."""
    return a - b * _divide(a, b)


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide, "%": _modulus}
