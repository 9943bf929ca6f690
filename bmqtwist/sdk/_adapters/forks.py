"""Ends of sessions in child processes that `os.fork` creates.

A child shares the sockets of its parent, has no I/O thread, and may have copied a session in the middle of a change. After
the fork each registered session closes its descriptors without sending anything, so that the broker detects the end of the
parent, and replaces its core: each use raises SdkError NOT_CONNECTED, with the remedy. The parent's session is unaffected.

Called by `pump.py`, `simple.py`, `event_loop.py`, `threaded.py` and `kombu/link.py`.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn, Protocol

from bmqtwist.sdk._core.states import State
from bmqtwist.sdk.results import Result, SdkError

FORKED = "the session belongs to the parent process: open one in each process, after the fork"


class ForkedCore:
    """Core of a session in a child process: a stopped one, whose calls raise SdkError."""

    state = State.STOPPED
    address = "(of the parent process)"

    def __getattr__(self, name: str) -> NoReturn:
        raise SdkError(Result.NOT_CONNECTED, FORKED)


class Forkable(Protocol):
    """An object that must not be used in a child process."""

    def on_forked(self, core: Any) -> None:
        """Close all descriptors without sending, in the child process; use `core` instead of the session core."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register(session: Forkable) -> None:
    """Call `on_forked` in each child process, until the session is garbage-collected."""
    _registered.add(session)


def detach_descriptor(descriptor: int) -> None:
    """Replace a descriptor by one of the null device. It stays valid for its owner, and an event loop that is shared with
    the parent does not change."""
    if descriptor >= 0:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, descriptor)
        os.close(null)


def _on_forked() -> None:
    core = ForkedCore()
    for session in list(_registered):
        session.on_forked(core)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_on_forked)
