"""`--json`, `--json line` and `--json pretty`: an option whose value may be left out."""

from __future__ import annotations

import click

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
