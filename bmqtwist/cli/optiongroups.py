"""Groups of click options: options shared by commands, options combined into one argument, and `--json` with an optional
value (`line` or `pretty`).

Used by the commands, such as `consume.py`; the connection options are in `connection.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
Group = Callable[[Command], Command]


def option_group(*options: Group) -> Group:
    def apply(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command
    return apply


def grouped_options(name: str, make: Callable[..., Any], *options: Group) -> Group:
    """Add options to a command, and pass `make(**values)` of their values to it as the argument `name`."""
    def apply(command: Command) -> Command:
        names: list[str] = []

        @functools.wraps(command)
        def wrapped(*args: Any, **values: Any) -> Any:
            grouped = {each: values.pop(each) for each in names}
            return command(*args, **{name: make(**grouped)}, **values)
        known = len(getattr(command, "__click_params__", ()))
        found = option_group(*options)(wrapped)
        names += [str(each.name) for each in found.__click_params__[known:]]  # type: ignore[attr-defined]
        return found
    return apply


STYLES = ("line", "pretty")


class JsonCommand(click.Command):
    """A command for which `--json` without a style means `--json line`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default style."""
        end = args.index("--") if "--" in args else len(args)
        complete = list(args)
        for index, arg in enumerate(args[:end]):
            if arg == "--json" and (index + 1 == len(args) or args[index + 1] not in STYLES):
                complete[index] = "--json=line"
        return super().parse_args(ctx, complete)
