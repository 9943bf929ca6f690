"""The command `bmq`: a table of its commands. Each is imported when it is run; `bmq --help` and completion import none.

`bmq` called by the name of the original's tool behaves as that tool. Every end of a command passes `invoke`: an error that a
user can cause is one sentence on standard error and an exit code.
"""

from __future__ import annotations

import errno
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from bmqtwist import __version__
from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_CODES, EXIT_INTERRUPTED, EXIT_OUTPUT, EXIT_USAGE, exit_code
from bmqtwist.errors import BmqError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

TOOL, AS_TOOL = "bmqtool", "shell"  # the name of the original's tool; the command that is run under it
COMMANDS = {
    "admin": ("bmqtwist.cli.admin:admin", "Run admin commands in a broker."),
    "bench": ("bmqtwist.cli.bench:bench", "Measure throughput and latency through a queue."),
    "broker": ("bmqtwist.cli.broker:broker", "Run a broker, with its data and a sample configuration in one directory."),
    "check": ("bmqtwist.cli.check:check", "Look at a configuration and say what is wrong with it."),
    "cluster": ("bmqtwist.cli.cluster.command:cluster", "Run several brokers on this machine as one cluster."),
    "completion": ("bmqtwist.cli.completion:completion", "Print the completion script of a shell."),
    "config": ("bmqtwist.cli.configcmd:config", "Show the effective configuration, or compare two."),
    "consume": ("bmqtwist.cli.consume:consume", "Print the messages of a queue, and confirm them."),
    "password": ("bmqtwist.cli.password:password", "Make the hash of a password for a configuration."),
    "pipeline": ("bmqtwist.cli.pipeline:pipeline", "Analyse queues and storage files on Spark."),
    "produce": ("bmqtwist.cli.produce:produce", "Post messages to a queue."),
    "shell": ("bmqtwist.cli.shell.command:shell", "The commands of bmqtool: type them, or run a script."),
    "storage": ("bmqtwist.cli.storage:storage", "Look at storage files: search, check and compare them."),
    "tail": ("bmqtwist.cli.tail:tail", "Follow a queue without consuming."),
}
_EPILOG = "\b\nExit codes:\n" + "\n".join(
    f"  {code:<4} {click.wrap_text(text, 72, '', ' ' * 7).strip()}" for code, text in EXIT_CODES.items())




class LazyGroup(click.Group):
    """The group of COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; called by the name of the tool, the arguments are those of its command."""
        if is_tool(ctx.info_name) and args[:1] != [AS_TOOL]:
            args = [AS_TOOL, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and name not in COMMANDS:
            close = get_close_matches(name, COMMANDS, 1)
            raise click.UsageError(f"No such command '{name}'." + (f" Did you mean '{close[0]}'?" if close else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the lines that are known without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands without importing them, then options."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
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


def called_as_tool() -> bool:
    """Whether this process was started as `bmqtool` or `bmqtool.tsk`, for instance by a link of that name to `bmq`."""
    return bool(sys.argv) and is_tool(sys.argv[0])


def is_tool(program: str | None) -> bool:
    """Whether that is the tool's name, with or without a path and an ending.

    >>> is_tool("/opt/bin/bmqtool.tsk"), is_tool("bmq")
    (True, False)
    """
    return os.path.basename(program or "").partition(".")[0] == TOOL


@click.group(cls=LazyGroup, epilog=_EPILOG,
             context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-v", "--version", message="bmqtwist %(version)s")
def main() -> None:
    """A BlazingMQ-compatible message broker: its tools."""
