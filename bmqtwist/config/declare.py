"""Declaration of configuration classes, and the decoder from located JSON to them.

A configuration class declares each member once: annotation (type and range), default, unit and effect (`member`). The
declaration determines decoding, error texts, suggestions for misspelled names, and the tables of docs/configuration.md. A
*problem* refuses the file, a *notice* is a warning. `broker.py`, `clusters.py` and `domain.py` declare with it; `load.py`
and `provider.py` call `decode_text`. `jsontext.py` parses the JSON.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from json import JSONDecodeError
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from bmqtwist.config.jsontext import Located, Members, parse
from bmqtwist.errors import LocalError

T = TypeVar("T", bound="Section")

NAME_CHARS_MAX = 100  # longer names and words are not compared with the known ones


class Scalar(NamedTuple):
    """Type of a single value. `name`: in the tables; `expected`: in error texts; `words`: the allowed words of an
    enumeration."""

    name: str
    expected: str
    fits: Callable[[Any], bool]
    words: tuple[str, ...] = ()


def _integer(name: str, low: int, high: int) -> Scalar:
    return Scalar(name, "an integer" if name == "int" else f"an integer from {low} to {high}",
                  lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high)


Int32: TypeAlias = Annotated[int, _integer("int", -(1 << 31), (1 << 31) - 1)]
Natural: TypeAlias = Annotated[int, _integer("int >= 0", 0, (1 << 31) - 1)]
Positive: TypeAlias = Annotated[int, _integer("int >= 1", 1, (1 << 31) - 1)]
PartitionCount: TypeAlias = Annotated[int, _integer("int >= 1", 1, 1000)]
UInt32: TypeAlias = Annotated[int, _integer("uint32", 0, (1 << 32) - 1)]
Int64: TypeAlias = Annotated[int, _integer("int64", -(1 << 63), (1 << 63) - 1)]
Natural64: TypeAlias = Annotated[int, _integer("int64 >= 0", 0, (1 << 63) - 1)]
UInt64: TypeAlias = Annotated[int, _integer("uint64", 0, (1 << 64) - 1)]
PORT_MAX = 65535
Port: TypeAlias = Annotated[int, _integer("port", 0, PORT_MAX)]
CASELESS = "caseless"  # annotation of an enumeration: decoded case-insensitively, stored in upper case
_SCALARS = {
    bool: Scalar("bool", "true or false", lambda value: isinstance(value, bool)),
    str: Scalar("string", "a string", lambda value: isinstance(value, str) and "\0" not in value),  # NUL: invalid in paths
    float: Scalar("number", "a number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
                  and abs(value) < 1e300)}


def member(text: str, default: Any = dataclasses.MISSING, *, unit: str = "", name: str = "", ignored: str = "",
           secret: bool = False) -> Any:
    """Declare one member.

    `text`: its effect. `default`: absent = mandatory; a dataclass type = an instance with its defaults. `unit`: of the
    value. `name`: the JSON name, by default the attribute in camel case. `ignored`: the reason why it has no effect in
    this broker. `secret`: masked in all output.
    """
    metadata = {"text": text, "unit": unit, "name": name, "ignored": ignored, "secret": secret}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declared member."""

    attribute: str
    kind: type[Section] | Scalar
    convert: Callable[[Any], Any]  # applied to the value in the file, of any type, before the check
    nullable: bool
    many: bool
    default: Any
    text: str
    unit: str
    name: str
    ignored: str
    secret: bool

    @property
    def mandatory(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def expected(self) -> str:
        single = self.kind.expected if isinstance(self.kind, Scalar) else "an object"
        return single if not self.many else "an array of strings" if self.kind is _SCALARS[str] else "an array of objects"


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section:
    """Base of configuration objects: frozen dataclasses with members declared by `member`. `choice`: exactly one member is
    present. `strict`: unknown members, also of inner objects, are refused instead of ignored."""

    IS_CHOICE: ClassVar[bool]
    IS_STRICT: ClassVar[bool]
    DECLARED: ClassVar[tuple[Declaration, ...]]  # in order

    def __init_subclass__(cls, choice: bool = False, strict: bool = False) -> None:
        cls.IS_CHOICE, cls.IS_STRICT = choice, strict
        dataclass(frozen=True, kw_only=True)(cls)
        cls.DECLARED = _declarations(cls)


def _declarations(cls: type) -> tuple[Declaration, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        kind, nullable, many = hints[field.name], False, False
        if get_origin(kind) in (Union, UnionType):
            nullable, kind = True, next(arg for arg in get_args(kind) if arg is not type(None))
        if get_origin(kind) is tuple:
            many, kind = True, get_args(kind)[0]
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        metadata = {**field.metadata, "name": field.metadata["name"] or camel_case(field.name)}
        found.append(Declaration(field.name, _kind(kind), _converter(kind), nullable, many, default, **metadata))
    return tuple(found)


def _kind(annotation: Any) -> type[Section] | Scalar:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    scalar = next((extra for extra in get_args(annotation) if isinstance(extra, Scalar)), None)
    words = get_args(get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation)
    if scalar is None and words:
        return Scalar(", ".join(f"`{word}`" for word in words), "one of " + ", ".join(f'"{word}"' for word in words),
                      words.__contains__, words)
    return scalar or annotation


def _converter(annotation: Any) -> Callable[[Any], Any]:
    if CASELESS in get_args(annotation):
        return _upper
    if annotation is float:
        return _real
    return _integral if int in get_args(annotation) else lambda value: value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _real(value: Any) -> Any:
    return float(value) if _SCALARS[float].fits(value) else value


def _integral(value: Any) -> Any:
    """Convert `1e6` and `10000.0`, as converters from YAML and other tools write them, to integers."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e300 else value


def camel_case(attribute: str) -> str:
    """Convert `max_data_file_size` to `maxDataFileSize`."""
    return re.sub("_([a-z0-9])", lambda match: match.group(1).upper(), attribute)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or notice of a file, `file:line: path: text`; line 0 = of the whole file."""

    file: str
    line: int
    path: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.text}" if self.path else f"{place}: {self.text}"


class ConfigError(LocalError):
    """The configuration is refused; `findings`: all reasons, one line each in the message."""

    def __init__(self, findings: list[Finding] | tuple[Finding, ...]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


def decode_text(cls: type[T], text: str, file: str, notices: list[Finding],
                lines: dict[tuple[str, str], int] | None = None) -> T:
    """Decode JSON to an instance of `cls`. Unknown and ignored members are added to `notices`, the line of each member to
    `lines` by (file, path).

    Raises ConfigError with all problems of the text.
    """
    try:
        root = parse(text)
    except JSONDecodeError as error:
        raise ConfigError([Finding(file, error.lineno, "", f"not JSON: {error.msg}: column {error.colno}")]) from error
    decoder = _Decoder(file, notices, {} if lines is None else lines)
    value = decoder.decode_object(cls, root, "", silent=False)
    if decoder.problems:
        raise ConfigError(decoder.problems)
    return value  # type: ignore[no-any-return]


class _Decoder:
    """Decoder that collects all problems; a value with a problem decodes to None."""

    __slots__ = ("file", "notices", "problems", "lines", "strict")

    def __init__(self, file: str, notices: list[Finding], lines: dict[tuple[str, str], int]) -> None:
        self.file, self.notices, self.lines = file, notices, lines
        self.problems: list[Finding] = []
        self.strict = False  # True within a strict class

    def add_problem(self, at: Located, path: str, text: str) -> None:
        self.problems.append(Finding(self.file, at.line, path, text))

    def add_notice(self, at: Located, path: str, text: str) -> None:
        self.notices.append(Finding(self.file, at.line, path, text))

    def decode_object(self, cls: type[Section], at: Located, path: str, silent: bool) -> Any:
        """Decode an instance of `cls`, None after a problem; `silent`: below an ignored member, without notices."""
        if not isinstance(at.value, Members):
            self.add_problem(at, path, f"found {at.describe()}, expected an object")
            return None
        known = cls.DECLARED
        strictly, outer = self.strict or cls.IS_STRICT, self.strict
        self.strict = strictly
        names = {declared.name: declared for declared in known}
        before, arguments = len(self.problems), {}
        for name, found in at.value.items():
            if name in names:
                continue
            if strictly:
                self.add_problem(found, join_path(path, name), unknown_member(name, names).replace(", ignored", ""))
            elif not silent:
                self.add_notice(found, join_path(path, name), unknown_member(name, names))
        for name in at.value.repeated:
            self.add_notice(at.value[name], join_path(path, name), "appears more than once; the last one is used")
        for declared in known:
            child = at.value.get(declared.name)
            where = join_path(path, declared.name)
            if child is None or child.value is None and (declared.nullable or not declared.mandatory):
                if declared.mandatory:
                    self.add_problem(at, where, f"is missing, expected {declared.expected}")
                continue
            if declared.ignored and not silent:
                self.add_notice(child, where, f"has no effect here: {declared.ignored}")
            self.lines[self.file, where] = child.line
            arguments[declared.attribute] = self.decode_value(declared, child, where, silent or bool(declared.ignored))
        self.strict = outer
        if cls.IS_CHOICE and len(arguments) != 1:
            options = ", ".join(f'"{name}"' for name in names)
            present = ", ".join(f'"{declared.name}"' for declared in known if declared.attribute in arguments)
            self.add_problem(at, path, f"found {present or 'none of them'}, expected exactly one of {options}")
        return None if len(self.problems) != before else cls(**arguments)

    def decode_value(self, declared: Declaration, at: Located, path: str, silent: bool) -> Any:
        if not declared.many:
            return self.decode_single(declared, at, path, silent)
        if not isinstance(at.value, list):
            self.add_problem(at, path, f"found {at.describe()}, expected {declared.expected}")
            return None
        for i, child in enumerate(at.value):
            self.lines[self.file, f"{path}[{i}]"] = child.line
        return tuple(self.decode_single(declared, child, f"{path}[{i}]", silent) for i, child in enumerate(at.value))

    def decode_single(self, declared: Declaration, at: Located, path: str, silent: bool) -> Any:
        kind = declared.kind
        if not isinstance(kind, Scalar):
            return self.decode_object(kind, at, path, silent)
        value = declared.convert(at.value)
        if not kind.fits(value):
            self.add_problem(at, path, f"found {at.describe()}, expected {kind.expected}{suggest_word(kind, value)}")
            return None
        return value


def suggest_word(kind: Scalar, value: object) -> str:
    """Return `; did you mean "x"?` for a misspelled word, else ""."""
    if not isinstance(value, str):
        return ""
    return " without NUL characters" if kind is _SCALARS[str] else _nearest(value, kind.words)


def unknown_member(name: str, names: Collection[str]) -> str:
    return f"unknown member, ignored{_nearest(name, names)}"


def _nearest(name: str, names: Collection[str]) -> str:
    close = [known for known in names if known.lower() == name.lower()]
    close = close or (get_close_matches(name, names, 1) if len(name) <= NAME_CHARS_MAX else [])
    return f'; did you mean "{close[0]}"?' if close else ""


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
