"""The command `bmq`: a table of lazily imported commands; `bmq --help` and completion import none of them.

Started under the name `bmqtool`, `bmq` behaves as BlazingMQ's bmqtool. `LazyGroup.invoke` converts errors caused by users
to one sentence on standard error and an exit code. This module is the entry point of `bmq` (setup.cfg); `bmqbrkr` starts in
`tap.py`.
"""

from __future__ import annotations

import errno
import io
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

TOOL, AS_TOOL = "bmqtool", "shell"  # name of BlazingMQ's tool, and the command that runs under this name
COMMANDS = {
    "admin": ("bmqtwist.cli.admin:admin", "Run admin commands in a broker."),
    "bench": ("bmqtwist.cli.bench:bench", "Measure throughput and latency through a queue."),
    "broker": ("bmqtwist.cli.broker:broker", "Run a broker, with its data and a sample configuration in one directory."),
    "check": ("bmqtwist.cli.check:check", "Check a configuration and print its problems."),
    "cluster": ("bmqtwist.cli.cluster.command:cluster", "Run several brokers on this machine as one cluster."),
    "completion": ("bmqtwist.cli.completion:completion", "Print the completion script of a shell."),
    "config": ("bmqtwist.cli.configcmd:config", "Show the effective configuration, or compare two."),
    "consume": ("bmqtwist.cli.consume:consume", "Print and confirm the messages of a queue."),
    "password": ("bmqtwist.cli.password:password", "Make the hash of a password for a configuration."),
    "pipeline": ("bmqtwist.cli.pipeline:pipeline", "Analyse queues and storage files on Spark."),
    "produce": ("bmqtwist.cli.produce:produce", "Post messages to a queue."),
    "shell": ("bmqtwist.cli.shell.command:shell", "Run the commands of bmqtool, interactively or from a script."),
    "storage": ("bmqtwist.cli.storage:storage", "Inspect storage files: search, check and compare them."),
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
        """Under the name of the tool, prepend its command."""
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
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the matching commands, without importing them, and options."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors caused by the user are printed without a traceback. Characters that the encoding of
        standard output lacks are printed as escapes."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except BmqError as error:
            _print_error(str(error))
            code = exit_code(error)
        except (KeyboardInterrupt, click.Abort):
            code = EXIT_INTERRUPTED
        except OSError as error:
            code = _io_error(error)
        sys.exit(code)


def _print_error(text: str) -> None:
    try:
        click.echo(f"bmq: {text}", err=True)
    except OSError:
        pass  # standard error is closed; the exit code remains


def _io_error(error: OSError) -> int:
    """Print the error of a file or of the output, and return its exit code; a closed pipe is not printed."""
    if error.filename is not None:
        _print_error(f"{error.filename}: {error.strerror or error}")
        return EXIT_USAGE
    _discard_output()
    if error.errno == errno.EPIPE:
        return EXIT_CLOSED_PIPE
    _print_error(f"the output cannot be written: {error.strerror or error}")
    return EXIT_OUTPUT


def _discard_output() -> None:
    """Redirect standard output to /dev/null: the interpreter flushes its buffer at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass  # standard output has no file descriptor


def called_as_tool() -> bool:
    """Return whether this process was started as `bmqtool` or `bmqtool.tsk`, for instance through a link to `bmq`."""
    return bool(sys.argv) and is_tool(sys.argv[0])


def is_tool(program: str | None) -> bool:
    """Return whether this is the name of the tool, with or without a path and a suffix.

    >>> is_tool("/opt/bin/bmqtool.tsk"), is_tool("bmq")
    (True, False)
    """
    return os.path.basename(program or "").partition(".")[0] == TOOL


@click.group(cls=LazyGroup, epilog=_EPILOG,
             context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-v", "--version", message="bmqtwist %(version)s")
def main() -> None:
    """A BlazingMQ-compatible message broker: its tools."""
