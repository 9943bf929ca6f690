"""`bmq shell`: command line, input loop and exit codes.

Started by `main.py`. It runs `interactive.py` or, with `--mode`, `auto.py`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import sys
import threading
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import click

from bmqtwist.cli.exits import EXIT_CLOSED_PIPE, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_NOT_ALL, EXIT_OUTPUT
from bmqtwist.cli.main import called_as_tool
from bmqtwist.cli.optiongroups import option_group
from bmqtwist.cli.shell.auto import AutoMode, check_report, check_system
from bmqtwist.cli.shell.command_input import CommandInput, ScriptInput, TerminalInput
from bmqtwist.cli.shell.interactive import Shell
from bmqtwist.cli.shell.log_output import EventFile, LogOutput, make_log
from bmqtwist.cli.shell.settings import (
    LOG_FORMAT,
    OPTIONS,
    TERMINAL_FORMAT,
    ShellSettings,
    read_list,
    read_profile,
    session_options,
    tls_context,
)
from bmqtwist.environment import is_service_address
from bmqtwist.sdk.options import DEFAULT_PORT

_WAIT_S = 1.0  # maximum delay of a Ctrl-C


@click.command()
@option_group(*OPTIONS)
@click.option("--profile", type=click.Path(exists=True, dir_okay=False),
              help="JSON file with options; the command line takes precedence.")
@click.option("--dumpprofile", "--dump-profile", "dump_profile", is_flag=True, help="Print all options as a JSON profile.")
@click.option("--script", type=click.Path(exists=True, dir_okay=False), help="Read commands from this file.")
@click.option("--stop-on-error", is_flag=True, help="End a script at the first command that fails.")
def shell(profile: str | None, dump_profile: bool, script: str | None, stop_on_error: bool, **given: Any) -> None:
    """Run queue commands, interactively or from a script; produce or consume with --mode auto.

    The commands are those of BlazingMQ's bmqtool; `help` lists them. A script runs to its end, unless --stop-on-error is
    given, and has exit code 1 if a command failed.
    """
    settings = _read_settings(profile, given)
    if dump_profile:
        click.echo(json.dumps(settings.profile(), indent=2))
        return
    settings.check()
    session_options(settings)
    tls_context(settings)
    if settings.latency_report:
        check_report(settings.latency_report)
    if settings.mode == "syschk":
        raise SystemExit(asyncio.run(check_system(settings)))
    output = _make_log_output(settings)
    log = make_log(output, settings.verbosity)
    event_file = EventFile(settings.log)
    try:
        if settings.mode == "auto":
            code = asyncio.run(AutoMode(settings, log, output, event_file).run())
        else:
            code = _run_with_loop_thread(settings, log, output, event_file, script, stop_on_error)
    finally:
        event_file.close()
    raise SystemExit(_output_exit_code(output) or code)


def _read_settings(profile: str | None, given: dict[str, Any]) -> ShellSettings:
    port = os.environ.get("BMQ_PORT")
    settings = ShellSettings(broker=f"tcp://localhost:{DEFAULT_PORT if not port or is_service_address(port) else port}")
    if profile is not None:
        settings = read_profile(Path(profile).read_text(encoding="utf-8", errors="replace"), settings)
    for name, member in (("message_properties", "messageProperties"), ("subscriptions", "subscriptions")):
        if given[name] is not None:
            given[name] = read_list(member, given[name])
    settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
    return replace(settings, mode=settings.mode.lower(), latency=settings.latency.lower())


def _make_log_output(settings: ShellSettings) -> LogOutput:
    if not settings.log_format:
        template = TERMINAL_FORMAT if sys.stdout.isatty() else LOG_FORMAT
    else:
        template = settings.log_format
    with suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return LogOutput(template)


def _output_exit_code(output: LogOutput) -> int:
    if output.error is None:
        return 0
    return EXIT_CLOSED_PIPE if output.error.errno == errno.EPIPE else EXIT_OUTPUT


# -- commands: read in this thread, executed in the thread of the loop --------------------------------------------------

def _run_with_loop_thread(settings: ShellSettings, log: logging.Logger, output: LogOutput, event_file: EventFile,
                          script: str | None, stop_on_error: bool) -> int:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="session", daemon=True)
    thread.start()
    try:
        shell_ = Shell(settings, log, event_file)
        source = _open_input(script, shell_)
        output.prompt_line = source.prompt_line
        if source.is_interactive:
            log.info("bmq shell, %s. 'help' shows the commands, Ctrl-D exits.", settings.broker)
        try:
            return _run_commands(loop, shell_, source, log, output, stop_on_error)
        finally:
            source.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _open_input(script: str | None, shell_: Shell) -> CommandInput:
    if script is not None:
        return ScriptInput(open(script, "rb"))
    if sys.stdin is None:
        return ScriptInput(BytesIO())
    if sys.stdin.isatty() and sys.stdout.isatty():
        return TerminalInput(shell_.uris)
    return ScriptInput(sys.stdin.buffer)


def run_in_loop(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    """Run a coroutine in the loop of another thread and wait for its result. Ctrl-C cancels the coroutine, then raises."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        while not future.done():  # a wait without timeout can miss a Ctrl-C that arrives as it begins
            wait((future,), _WAIT_S)
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        raise


def _run_commands(loop: asyncio.AbstractEventLoop, shell_: Shell, source: CommandInput, log: logging.Logger,
                  output: LogOutput, stop_on_error: bool) -> int:
    """Execute commands until the end of the input, and return the exit code."""
    interrupted = False
    while output.error is None:
        try:
            line = source.read()
            if line is None or not run_in_loop(loop, shell_.run(line)):
                break
        except (KeyboardInterrupt, CancelledError):
            log.error("Interrupted")
            if not source.is_interactive:
                interrupted = True
                break
        if shell_.failures and stop_on_error and not source.is_interactive:
            break
    run_in_loop(loop, shell_.finish())
    if interrupted:
        return EXIT_INTERRUPTED
    if called_as_tool() and not stop_on_error:  # bmqtool's exit code does not depend on its commands
        return EXIT_GOOD
    return EXIT_NOT_ALL if shell_.failures and not source.is_interactive else EXIT_GOOD
