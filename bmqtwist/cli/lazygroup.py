"""A command group that imports a command when it is run: `bmq --help` and completion load none of them.

`bmq` called by the name of the original's tool behaves as that tool. Every end of a command passes `invoke`: an error a
user can cause is one sentence on standard error and an exit code.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_INTERRUPTED, EXIT_OUTPUT, EXIT_USAGE, exit_code
from bmqtwist.errors import BmqError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """`lazy`: name -> (`module:attribute`, one line of help). `as_tool`: the command that is run, with all arguments,
    when the program was called by the name of the original's tool."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], as_tool: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.lazy, self.as_tool = dict(lazy), as_tool

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.lazy, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; imported now."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; called by the name of the tool, the arguments are those of its command."""
        if self.as_tool and is_tool(ctx.info_name) and args[:1] != [self.as_tool]:
            args = [self.as_tool, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with the nearest name in the complaint."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and name not in self.list_commands(ctx):
            close = get_close_matches(name, self.list_commands(ctx), 1)
            raise click.UsageError(f"No such command '{name}'." + (f" Did you mean '{close[0]}'?" if close else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the lines that are known without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name][1]) for name in self.list_commands(ctx) if name in self.lazy])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands without importing them, then options."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=self.lazy[name][1]) for name in self.list_commands(ctx)
                 if name in self.lazy and name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what a user can cause ends in a sentence, never in a traceback."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except BmqError as error:
            _say(str(error))
            code = exit_code(error)
        except (KeyboardInterrupt, click.Abort):
            code = EXIT_INTERRUPTED
        except OSError as error:
            code = _io_error(error)
        sys.exit(code)


def _say(text: str) -> None:
    try:
        click.echo(f"bmq: {text}", err=True)
    except OSError:
        pass  # nobody reads standard error: the exit code has to do


def _io_error(error: OSError) -> int:
    """A closed pipe, an output that cannot be written, or a file that cannot be read."""
    if error.filename is not None:
        _say(f"{error.filename}: {error.strerror or error}")
        return EXIT_USAGE
    _forget_output()
    if error.errno == errno.EPIPE:
        return EXIT_CLOSED_PIPE
    _say(f"the output cannot be written: {error.strerror or error}")
    return EXIT_OUTPUT


def _forget_output() -> None:
    """What is still buffered goes nowhere: the interpreter flushes standard output once more when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass  # no real file behind it


TOOL = "bmqtool"


def called_as_tool() -> bool:
    """Whether this process was started as `bmqtool` or `bmqtool.tsk`, for instance by a link of that name to `bmq`."""
    return bool(sys.argv) and is_tool(sys.argv[0])


def is_tool(program: str | None) -> bool:
    """Whether that is the tool's name, with or without a path and an ending.

    >>> is_tool("/opt/bin/bmqtool.tsk"), is_tool("bmq")
    (True, False)
    """
    return os.path.basename(program or "").partition(".")[0] == TOOL
