"""State machines as tables, for every machine of the product.

    TABLE = table(State, Event, {
        State.IDLE: {Event.START: to(Machine._start, State.RUNNING), Event.STOP: to(Machine._ignore)},
        ...
    })

A cell has the action, a function reference, and every state that may follow; without one the machine stays in its state.
An event is a member of an enumeration or the class of an input. `table` refuses a table with a missing cell: a new state or
event needs a decision for every cell. A machine dispatches with `TABLE[state][event].action(self, ...)`, records the
transition in its `TransitionLog`, and calls `check`, which compares the new state with the cell in tests and in the
simulator (`STRICT`). `docs/make_pictures.py` draws the diagrams of docs/architecture.md from the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

TRANSITIONS_MAX = 100  # in the history of each machine; older ones are dropped
SHOWN_MAX = 20  # transitions shown with an alarm
STRICT = False  # True: `check` raises; set by tests and the simulator

S = TypeVar("S", bound=Enum)
S_co = TypeVar("S_co", bound=Enum, covariant=True)
E = TypeVar("E")  # a member of an enumeration, or the class of an input


class IllegalTransition(Exception):
    """A transition to a state that the table does not name."""


class Cell(Generic[S_co]):
    """The decision for one event in one state. `after`: the states that may follow; empty = the machine stays in its state.
    Not a dataclass: mypyc cannot compile a generic one with slots."""

    def __init__(self, action: Callable[..., Any], after: frozenset[S_co]) -> None:
        self.action, self.after = action, after


def to(action: Callable[..., Any], *after: S) -> Cell[S]:
    """Return the cell with this action and the states that may follow."""
    return Cell(action, frozenset(after))


def table(states: Iterable[S], events: Iterable[E],
          cells: Mapping[S, Mapping[E, Cell[S]]]) -> dict[S, dict[E, Cell[S]]]:
    """Return the table, total over (state, event); ValueError names the missing cells."""
    missing = [f"{state.name} x {event_name(event)}" for state in states for event in events
               if event not in cells.get(state, {})]
    if missing:
        raise ValueError(f"cells missing: {', '.join(missing)}")
    return {state: dict(row) for state, row in cells.items()}


def event_name(event: object) -> str:
    """Return the name of an event: of a member of an enumeration, or of the class of an input."""
    return event.name if isinstance(event, Enum) else event.__name__ if isinstance(event, type) else str(event)


def check(cells: Mapping[S, Mapping[E, Cell[S]]], before: S, event: E, after: S) -> None:
    """Compare a transition with its cell; raises IllegalTransition when STRICT."""
    if STRICT and after is not before and after not in cells[before][event].after:
        raise IllegalTransition(f"{before.name} --{event_name(event)}--> {after.name}")


@dataclass(frozen=True, slots=True)
class Transition:
    """One event of a machine, at `at` (seconds, monotonic): the states before and after it, and its cause."""

    at: float
    before: str
    after: str
    cause: str
    event: str = ""

    @property
    def change(self) -> str:
        """`before -> after`; one state if both are equal."""
        return self.before if self.before == self.after else f"{self.before} -> {self.after}"


def transition_lines(transitions: Iterable[Transition], now: float) -> str:
    """Return one line of text for each transition."""
    return "\n".join(f"{now - each.at:12.3f} s ago  {each.change:<22}  {each.cause}" for each in transitions)


class TransitionLog:
    """The transition history of one machine: the last TRANSITIONS_MAX, oldest first."""

    def __init__(self) -> None:
        self._transitions: deque[Transition] = deque(maxlen=TRANSITIONS_MAX)

    def record(self, at: float, before: str, after: str, cause: str, event: str = "") -> None:
        self._transitions.append(Transition(at, before, after, cause, event))

    def lines(self, now: float, count: int = TRANSITIONS_MAX) -> str:
        return transition_lines(self.transitions[-count:], now)

    def cause_of(self, after: str) -> str:
        """Return the cause of the last transition to this state; empty = none in the history."""
        return next((each.cause for each in reversed(self._transitions) if each.after == after), "")

    @property
    def transitions(self) -> tuple[Transition, ...]:
        return tuple(self._transitions)
