"""`bmq shell`: command line, input loop and exit codes."""

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
from bmqtwist.cli.shell.auto import Auto, check_report, check_system
from bmqtwist.cli.shell.console import Console, FileLog, Script, Source, Terminal, make_log
from bmqtwist.cli.shell.interactive import Shell
from bmqtwist.cli.shell.settings import (
    LOG_FORMAT,
    OPTIONS,
    TERMINAL_FORMAT,
    Settings,
    read_list,
    read_profile,
    session_options,
    tls_context,
)
from bmqtwist.sdk.options import DEFAULT_PORT

_WAIT_S = 1.0  # maximum delay of a Ctrl-C


@click.command()
@option_group(*OPTIONS)
@click.option("--profile", type=click.Path(exists=True, dir_okay=False),
              help="JSON file with options; the command line takes precedence.")
@click.option("--dumpprofile", "--dump-profile", "dump_profile", is_flag=True, help="Print all options as a profile.")
@click.option("--script", type=click.Path(exists=True, dir_okay=False), help="Read commands from this file.")
@click.option("--stop-on-error", is_flag=True, help="End a script at the first command that fails.")
def shell(profile: str | None, dump_profile: bool, script: str | None, stop_on_error: bool, **given: Any) -> None:
    """Run queue commands, interactively or from a script; produce or consume with --mode auto.

    The commands are those of BlazingMQ's bmqtool; `help` lists them. A script runs to its end, unless --stop-on-error is
    given, and has exit code 1 if a command failed.
    """
    settings = _settings(profile, given)
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
    console = _console(settings)
    log = make_log(console, settings.verbosity)
    file_log = FileLog(settings.log)
    try:
        if settings.mode == "auto":
            code = asyncio.run(Auto(settings, log, console, file_log).run())
        else:
            code = _commands(settings, log, console, file_log, script, stop_on_error)
    finally:
        file_log.close()
    raise SystemExit(_output_exit_code(console) or code)


def _settings(profile: str | None, given: dict[str, Any]) -> Settings:
    port = os.environ.get("BMQ_PORT")
    settings = Settings(broker=f"tcp://localhost:{port or DEFAULT_PORT}")
    if profile is not None:
        settings = read_profile(Path(profile).read_text(encoding="utf-8", errors="replace"), settings)
    for name, member in (("message_properties", "messageProperties"), ("subscriptions", "subscriptions")):
        if given[name] is not None:
            given[name] = read_list(member, given[name])
    settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
    return replace(settings, mode=settings.mode.lower(), latency=settings.latency.lower())


def _console(settings: Settings) -> Console:
    if not settings.log_format:
        template = TERMINAL_FORMAT if sys.stdout.isatty() else LOG_FORMAT
    else:
        template = settings.log_format
    with suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return Console(template)


def _output_exit_code(console: Console) -> int:
    if console.failed is None:
        return 0
    return EXIT_CLOSED_PIPE if console.failed.errno == errno.EPIPE else EXIT_OUTPUT


# -- commands: read in this thread, executed in the thread of the loop --------------------------------------------------

def _commands(settings: Settings, log: logging.Logger, console: Console, file_log: FileLog, script: str | None,
              stop_on_error: bool) -> int:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="session", daemon=True)
    thread.start()
    try:
        shell_ = Shell(settings, log, file_log)
        source = _source(script, shell_)
        console.typed = source.typed
        if source.attended:
            log.info("bmq shell, %s. 'help' shows the commands, Ctrl-D leaves.", settings.broker)
        try:
            return _converse(loop, shell_, source, log, console, stop_on_error)
        finally:
            source.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _source(script: str | None, shell_: Shell) -> Source:
    if script is not None:
        return Script(open(script, "rb"))
    if sys.stdin is None:
        return Script(BytesIO())
    if sys.stdin.isatty() and sys.stdout.isatty():
        return Terminal(shell_.uris)
    return Script(sys.stdin.buffer)


def call(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
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


def _converse(loop: asyncio.AbstractEventLoop, shell_: Shell, source: Source, log: logging.Logger, console: Console,
              stop_on_error: bool) -> int:
    """Execute commands until the end of the input, and return the exit code."""
    interrupted = False
    while console.failed is None:
        try:
            line = source.read()
            if line is None or not call(loop, shell_.run(line)):
                break
        except (KeyboardInterrupt, CancelledError):
            log.error("Interrupted")
            if not source.attended:
                interrupted = True
                break
        if shell_.failures and stop_on_error and not source.attended:
            break
    call(loop, shell_.finish())
    if interrupted:
        return EXIT_INTERRUPTED
    if called_as_tool() and not stop_on_error:  # bmqtool's exit code does not depend on its commands
        return EXIT_GOOD
    return EXIT_NOT_ALL if shell_.failures and not source.attended else EXIT_GOOD
