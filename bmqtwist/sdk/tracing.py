"""Trace propagation through queues: the W3C `traceparent` and `tracestate` as message properties. Disabled by default.

    session = Session(broker, trace=tracing.ambient)        # each post contains the current context

    with tracing.use(tracing.start(os.urandom)):            # sets the current context
        await queue.post(b"...")

    parent = tracing.traceparent(message)                   # at the consumer; None without a context
    with tracing.use(parent and parent.child(os.urandom)):
        await other.post(b"...")                            # same trace, child of this span

`trace` of a session is a function that returns a TraceContext or None; the session core calls it for each post. `ambient`
returns the OpenTelemetry context (if it is installed and has a valid span), else the context of `use`. Texts follow the W3C
recommendation "Trace Context": malformed values are ignored, later versions are parsed as far as they are compatible.
`_core/posts.py` adds the properties with `inject`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bmqtwist.errors import LocalError, PeerError

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
SAMPLED, RANDOM_ID = 1, 2  # flags
_FLAGS_KNOWN = SAMPLED | RANDOM_ID
_STATE_MEMBERS_MAX = 32
_STATE_CHARS_MAX = 512  # of a propagated tracestate; the specification requires at least this
_MEMBER_CHARS_LONG = 128  # longer members are removed first
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_KEY = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER = re.compile(_KEY + r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Position in a trace: trace id (16 bytes), span id (8 bytes), flags, and the tracestate as text."""

    trace_id: bytes
    span_id: bytes
    flags: int = SAMPLED
    state: str = ""

    def __post_init__(self) -> None:
        if len(self.trace_id) != 16 or not any(self.trace_id):
            raise LocalError("trace_id: 16 bytes that are not all zero")
        if len(self.span_id) != 8 or not any(self.span_id):
            raise LocalError("span_id: 8 bytes that are not all zero")

    @property
    def sampled(self) -> bool:
        """True if the flag `sampled` is set."""
        return bool(self.flags & SAMPLED)

    def child(self, random: RandomBytes) -> TraceContext:
        """Return a child span; `random(n)` returns n random bytes, as os.urandom."""
        return replace(self, span_id=_make_id(random, 8))

    @property
    def traceparent(self) -> str:
        """Value of the property `traceparent`."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{self.flags & _FLAGS_KNOWN:02x}"


def _make_id(random: RandomBytes, size: int) -> bytes:
    while not any(made := random(size)):
        pass
    return made


def start(random: RandomBytes, sampled: bool = True) -> TraceContext:
    """Return the first span of a new trace."""
    return TraceContext(_make_id(random, 16), _make_id(random, 8), RANDOM_ID | (SAMPLED if sampled else 0))


def parse(parent: str, state: str = "") -> TraceContext | None:
    """Parse the properties `traceparent` and `tracestate`; None if `parent` is malformed. A malformed `state` is ignored."""
    found = _PARENT.fullmatch(parent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or more is not None and version == "00" or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(bytes.fromhex(trace_id), bytes.fromhex(span_id), int(flags, 16) & _FLAGS_KNOWN, parse_state(state))


def parse_state(text: str) -> str:
    """Return a normalized tracestate, '' if it is malformed; long members are removed above 512 characters."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = [member.partition("=")[0] for member in members]
    if len(members) > _STATE_MEMBERS_MAX or len(set(keys)) < len(keys) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    while sum(map(len, members)) + len(members) - 1 > _STATE_CHARS_MAX:
        long = [member for member in members if len(member) > _MEMBER_CHARS_LONG]
        members.remove(long[-1] if long else members[-1])
    return ",".join(members)


# -- properties -----------------------------------------------------------------------------------------------------


def inject(values: Mapping[str, object] | None, context: TraceContext | None) -> Mapping[str, object] | None:
    """Add a context to properties, unless it is None or they contain a traceparent."""
    if context is None or values and TRACEPARENT in values:
        return values
    found = {**(values or {}), TRACEPARENT: context.traceparent}
    if context.state:
        found[TRACESTATE] = context.state
    return found


class HasProperties(Protocol):
    """An object with properties, such as a message."""

    @property
    def properties(self) -> Mapping[str, object]:
        """Values of the properties by name."""
        ...


def traceparent(message: HasProperties) -> TraceContext | None:
    """Return the context of a message; None if it is missing or malformed."""
    try:
        values = message.properties
    except PeerError:
        return None
    parent, state = values.get(TRACEPARENT), values.get(TRACESTATE, "")
    return parse(parent, state if isinstance(state, str) else "") if isinstance(parent, str) else None


# -- current context --------------------------------------------------------------------------------------------------

_current: ContextVar[TraceContext | None] = ContextVar("bmqtwist_trace", default=None)


def current() -> TraceContext | None:
    """Return the context that `use` set in this task or thread."""
    return _current.get()


@contextmanager
def use(context: TraceContext | None) -> Iterator[TraceContext | None]:
    """Set the current context of this task or thread within a `with` block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def _of_span(span: Any) -> TraceContext | None:
    """Convert an OpenTelemetry span context."""
    if not span.is_valid:
        return None
    return TraceContext(span.trace_id.to_bytes(16, "big"), span.span_id.to_bytes(8, "big"),
                        int(span.trace_flags) & _FLAGS_KNOWN, parse_state(span.trace_state.to_header()))


def ambient() -> TraceContext | None:
    """Return the context of the current OpenTelemetry span, if there is one; else that of `use`."""
    try:
        from opentelemetry import trace
    except ImportError:
        return _current.get()
    return _of_span(trace.get_current_span().get_span_context()) or _current.get()
