"""Options that several commands share, or that mean one thing together (a group becomes one argument of its command), and
`--json`, `--json line` and `--json pretty`: an option whose value may be left out."""

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


def gathered(name: str, make: Callable[..., Any], *options: Group) -> Group:
    """All these options; the command gets what `make` makes of their values as its argument `name`."""
    def apply(command: Command) -> Command:
        taken: list[str] = []

        @functools.wraps(command)
        def wrapped(*args: Any, **values: Any) -> Any:
            given = {each: values.pop(each) for each in taken}
            return command(*args, **{name: make(**given)}, **values)
        known = len(getattr(command, "__click_params__", ()))
        found = option_group(*options)(wrapped)
        taken += [str(each.name) for each in found.__click_params__[known:]]  # type: ignore[attr-defined]
        return found
    return apply


STYLES = ("line", "pretty")


class JsonCommand(click.Command):
    """A command for which `--json` alone means `--json line`, whatever stands behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say the style where it is left out."""
        end = args.index("--") if "--" in args else len(args)
        told = list(args)
        for index, arg in enumerate(args[:end]):
            if arg == "--json" and (index + 1 == len(args) or args[index + 1] not in STYLES):
                told[index] = "--json=line"
        return super().parse_args(ctx, told)
