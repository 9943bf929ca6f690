"""From located JSON to frozen dataclasses, by the declarations in those dataclasses.

A configuration class declares each member once: annotation (type and range), default, unit and what it does
(`member`). From that one declaration come the decoder below, its complaints, its did-you-mean and the tables of
docs/configuration.md. Two things are told apart: a *problem* (refuse the file) and a *notice* (warn once).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from json import JSONDecodeError
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
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


@dataclass(frozen=True, slots=True)
class Range:
    """The integers a member may hold, both ends included, and the name of that type for the tables."""

    name: str
    low: int
    high: int


Int32: TypeAlias = Annotated[int, Range("int", -(1 << 31), (1 << 31) - 1)]
Natural: TypeAlias = Annotated[int, Range("int >= 0", 0, (1 << 31) - 1)]
Positive: TypeAlias = Annotated[int, Range("int >= 1", 1, (1 << 31) - 1)]
UInt32: TypeAlias = Annotated[int, Range("uint32", 0, (1 << 32) - 1)]
Int64: TypeAlias = Annotated[int, Range("int64", -(1 << 63), (1 << 63) - 1)]
Natural64: TypeAlias = Annotated[int, Range("int64 >= 0", 0, (1 << 63) - 1)]
UInt64: TypeAlias = Annotated[int, Range("uint64", 0, (1 << 64) - 1)]
CASELESS = "caseless"  # in the annotation of words: upper and lower case are the same, upper is what is kept
PORT_MAX = 65535
Port: TypeAlias = Annotated[int, Range("port", 0, PORT_MAX)]


def member(text: str, default: Any = dataclasses.MISSING, *, unit: str = "", name: str = "", ignored: str = "",
           secret: bool = False) -> Any:
    """Declare one member.

    `text`: what it does. `default`: absent = mandatory; a dataclass type = an instance of its defaults. `unit`: of the
    value. `name`: the JSON name where it is not the attribute in camel case. `ignored`: why it has no effect here.
    `secret`: never to be printed.
    """
    metadata = {"text": text, "unit": unit, "name": name, "ignored": ignored, "secret": secret}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One member as the decoder and the tables see it."""

    attribute: str
    kind: Any
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
    def enumerated(self) -> bool:
        return bool(words_of(self.kind))


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section:
    """An object of a configuration file: a frozen dataclass whose members are declared with `member`. `choice`: exactly one
    of them is present. `strict`: unknown members, of what it holds as well, are refused rather than ignored."""

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
        told = {**field.metadata, "name": field.metadata["name"] or camel_case(field.name)}
        found.append(Declaration(field.name, kind, nullable, many, default, **told))
    return tuple(found)


def camel_case(attribute: str) -> str:
    """`max_data_file_size` -> `maxDataFileSize`."""
    return re.sub("_([a-z0-9])", lambda match: match.group(1).upper(), attribute)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say about a file: `file:line: path: text`; line 0 = about the file as a whole."""

    file: str
    line: int
    path: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.text}" if self.path else f"{place}: {self.text}"


class ConfigError(LocalError):
    """The configuration is refused; `findings` has every reason, one line each in the message."""

    def __init__(self, findings: list[Finding] | tuple[Finding, ...]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


def decode_text(cls: type[T], text: str, file: str, notices: list[Finding],
                lines: dict[tuple[str, str], int] | None = None) -> T:
    """The instance of `cls` that the JSON `text` describes; `notices` gets what is unknown or ignored, `lines` the
    line of every member by (file, path).

    Raises ConfigError with every problem of the text.
    """
    try:
        root = parse(text)
    except JSONDecodeError as error:
        raise ConfigError([Finding(file, error.lineno, "", f"not JSON: {error.msg}: column {error.colno}")]) from error
    decoder = _Decoder(file, notices, {} if lines is None else lines)
    value = decoder.object(cls, root, "", quiet=False)
    if decoder.problems:
        raise ConfigError(decoder.problems)
    return value  # type: ignore[no-any-return]


class _Decoder:
    """Collects problems instead of stopping at the first; a value with a problem decodes to None."""

    __slots__ = ("file", "notices", "problems", "lines", "strict")

    def __init__(self, file: str, notices: list[Finding], lines: dict[tuple[str, str], int]) -> None:
        self.file, self.notices, self.lines = file, notices, lines
        self.problems: list[Finding] = []
        self.strict = False  # within a class that refuses unknown members

    def problem(self, at: Located, path: str, text: str) -> None:
        self.problems.append(Finding(self.file, at.line, path, text))

    def notice(self, at: Located, path: str, text: str) -> None:
        self.notices.append(Finding(self.file, at.line, path, text))

    def object(self, cls: type[Section], at: Located, path: str, quiet: bool) -> Any:
        """An instance of `cls`, or None after a problem; `quiet`: below an ignored member, notices are noise."""
        if not isinstance(at.value, Members):
            self.problem(at, path, f"found {at.describe()}, expected an object")
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
                self.problem(found, join(path, name), unknown_member(name, names).replace(", ignored", ""))
            elif not quiet:
                self.notice(found, join(path, name), unknown_member(name, names))
        for name in at.value.repeated:
            self.notice(at.value[name], join(path, name), "appears more than once; the last one counts")
        for declared in known:
            child = at.value.get(declared.name)
            where = join(path, declared.name)
            if child is None or child.value is None and (declared.nullable or not declared.mandatory):
                if declared.mandatory:
                    self.problem(at, where, f"is missing, expected {describe_kind(declared)}")
                continue
            if declared.ignored and not quiet:
                self.notice(child, where, f"has no effect here: {declared.ignored}")
            self.lines[self.file, where] = child.line
            arguments[declared.attribute] = self.value(declared, child, where, quiet or bool(declared.ignored))
        self.strict = outer
        if cls.IS_CHOICE and len(arguments) != 1:
            options = ", ".join(f'"{name}"' for name in names)
            present = ", ".join(f'"{declared.name}"' for declared in known if declared.attribute in arguments)
            self.problem(at, path, f"found {present or 'none of them'}, expected exactly one of {options}")
        return None if len(self.problems) != before else cls(**arguments)

    def value(self, declared: Declaration, at: Located, path: str, quiet: bool) -> Any:
        if not declared.many:
            return self.single(declared.kind, at, path, quiet)
        if not isinstance(at.value, list):
            self.problem(at, path, f"found {at.describe()}, expected {describe_kind(declared)}")
            return None
        for i, child in enumerate(at.value):
            self.lines[self.file, f"{path}[{i}]"] = child.line
        return tuple(self.single(declared.kind, child, f"{path}[{i}]", quiet) for i, child in enumerate(at.value))

    def single(self, kind: Any, at: Located, path: str, quiet: bool) -> Any:
        if dataclasses.is_dataclass(kind):
            return self.object(kind, at, path, quiet)  # type: ignore[arg-type]
        value = at.value
        if kind is bool:
            fits = isinstance(value, bool)
        elif kind is str:
            fits = isinstance(value, str) and "\0" not in value  # which no path can hold
        elif kind is float:
            fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
        elif words_of(kind):
            if isinstance(value, str) and CASELESS in get_args(kind):
                value = value.upper()
            fits = value in words_of(kind)
        else:
            limits = range_of(kind)
            fits = isinstance(value, int) and not isinstance(value, bool) and limits.low <= value <= limits.high
        if not fits:
            self.problem(at, path, f"found {at.describe()}, expected {describe_scalar(kind)}{hint(kind, value)}")
            return None
        return float(value) if kind is float else value  # type: ignore[arg-type]


def hint(kind: Any, value: object) -> str:
    """`; did you mean "x"?` for a misspelt enumerator, else nothing."""
    if kind is str and isinstance(value, str):
        return " without NUL characters"
    return _nearest(value, words_of(kind)) if isinstance(value, str) else ""


def unknown_member(name: str, names: Collection[str]) -> str:
    return f"unknown member, ignored{_nearest(name, names)}"


def _nearest(name: str, names: Collection[str]) -> str:
    close = [known for known in names if known.lower() == name.lower()]
    close = close or (get_close_matches(name, names, 1) if len(name) <= NAME_CHARS_MAX else [])
    return f'; did you mean "{close[0]}"?' if close else ""


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def words_of(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_args(kind) if get_origin(kind) is Literal else ()


def range_of(kind: Any) -> Range:
    return next(extra for extra in get_args(kind)[1:] if isinstance(extra, Range))


def describe_scalar(kind: Any) -> str:
    """What a single value must be, in words."""
    if dataclasses.is_dataclass(kind):
        return "an object"
    if kind in (bool, str, float):
        return {bool: "true or false", str: "a string", float: "a number"}[kind]
    if words_of(kind):
        return "one of " + ", ".join(f'"{word}"' for word in words_of(kind))
    limits = range_of(kind)
    if limits.name == "int":
        return "an integer"
    return f"an integer from {limits.low} to {limits.high}"


def describe_kind(declared: Declaration) -> str:
    if declared.many:
        return "an array of " + {str: "strings"}.get(declared.kind, "objects")
    return describe_scalar(declared.kind)
