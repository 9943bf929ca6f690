"""The command `bmq`: a table of its commands. Each lives in a module of its own, which is imported when it is run."""

from __future__ import annotations

import click

from bmqtwist import __version__
from bmqtwist.cli.exits import EXIT_CODES
from bmqtwist.cli.lazygroup import LazyGroup

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


@click.group(cls=LazyGroup, lazy=COMMANDS, as_tool="shell", epilog=_EPILOG,
             context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-v", "--version", message="bmqtwist %(version)s")
def main() -> None:
    """A BlazingMQ-compatible message broker: its tools."""
