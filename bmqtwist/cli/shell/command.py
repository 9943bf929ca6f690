"""`bmq shell`: its command line."""

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
from bmqtwist.cli.lazygroup import called_as_tool
from bmqtwist.cli.optiongroups import option_group
from bmqtwist.cli.shell.auto import Auto, check_report, check_system
from bmqtwist.cli.shell.console import Console, FileLog, Script, Source, Terminal, make_log
from bmqtwist.cli.shell.interactive import Shell
from bmqtwist.cli.shell.settings import (
    LATENCIES,
    LOG_FORMAT,
    MODES,
    VERBOSITIES,
    Settings,
    read_list,
    read_profile,
    session_options,
    tls_context,
)
from bmqtwist.sdk.options import DEFAULT_PORT

TERMINAL_FORMAT = "%s %m\\n"
_WAIT_S = 1.0  # how late a Ctrl-C may be heard in the worst case
_OPTIONS = (
    click.option("--mode", type=click.Choice(MODES, case_sensitive=False),
                 help="cli: commands. auto: produce or consume, with figures. syschk: is there a broker?"),
    click.option("-b", "--broker", metavar="ADDRESS", envvar=["BMQ_BROKER_URI", "BMQ_BROKER"],
                 help="tcp://host:port or tls://host:port.  [env: BMQ_BROKER_URI, BMQ_PORT; default: tcp://localhost:30114]"),
    click.option("-q", "--queueuri", "--queue-uri", "queue_uri", metavar="URI", help="The queue (auto, syschk)."),
    click.option("-f", "--queueflags", "--queue-flags", "queue_flags", metavar="FLAGS", help="read,write,ack (auto)."),
    click.option("-l", "--latency", type=click.Choice(LATENCIES, case_sensitive=False),
                 help="Measure latencies by a clock: hires on one machine, epoch between machines."),
    click.option("--latency-report", metavar="FILE", help="Where to write latencies as JSON."),
    click.option("-d", "--dumpmsg", "--dump-msg", "dump_msg", is_flag=True, default=None,
                 help="Show messages and acknowledgements."),
    click.option("-c", "--confirmmsg", "--confirm-msg", "confirm_msg", is_flag=True, default=None,
                 help="Confirm messages as they come."),
    click.option("-e", "--eventsize", "--event-size", "event_size", type=int, metavar="N",
                 help="Messages of an event.  [default: 1]"),
    click.option("-m", "--msgsize", "--msg-size", "msg_size", type=int, metavar="BYTES",
                 help="Size of payloads.  [default: 1024]"),
    click.option("-r", "--postrate", "--post-rate", "post_rate", type=int, metavar="N",
                 help="Events to post each interval.  [default: 1]"),
    click.option("--eventscount", "--events-count", "events_count", metavar="N|Ns",
                 help="Events to post, or for how many seconds.  [default: 0, until a signal comes]"),
    click.option("-u", "--maxunconfirmed", "--max-unconfirmed", "max_unconfirmed", metavar="MESSAGES:BYTES",
                 help="How much may be unconfirmed.  [default: 1024:33554432]"),
    click.option("-i", "--postinterval", "--post-interval", "post_interval", type=int, metavar="MS",
                 help="The interval.  [default: 1000]"),
    click.option("-v", "--verbosity", type=click.Choice(VERBOSITIES, case_sensitive=False), help="[default: info]"),
    click.option("--logFormat", "--log-format", "log_format", metavar="FORMAT",
                 help=f"Of records.  [default: {LOG_FORMAT!r}, in a terminal {TERMINAL_FORMAT!r}]"),
    click.option("--log", type=click.Path(dir_okay=False), help="File for a line about each message and event."),
    click.option("--shutdownGrace", "--shutdown-grace", "shutdown_grace", type=int, metavar="SECONDS",
                 help="End a consumer that gets nothing for so long; wait so long before a queue is closed (auto)."),
    click.option("--messagepattern", "--message-pattern", "sequential_message_pattern", metavar="TEXT",
                 help="Payloads are this text and a number of nine digits (auto)."),
    click.option("--messageProperties", "--message-properties", "message_properties", metavar="JSON",
                 help='Properties to post: [{"name": "x", "value": "1", "type": "E_INT"}] (auto).'),
    click.option("--subscriptions", metavar="JSON", help='Subscriptions: [{"expression": "x > 0"}] (auto).'),
    click.option("--autoPubSubModulo", "--auto-pub-sub-modulo", "auto_pub_sub_modulo", type=int, metavar="N",
                 help="Number messages modulo N in a property, with a subscription for each number (auto)."),
    click.option("--timeout", "timeout_sec", type=int, metavar="SECONDS",
                 help="For requests to the broker.  [default: 300]"),
    click.option("--authnMechanism", "--authn-mechanism", "authn_mechanism", metavar="NAME",
                 help="Authenticate, for instance BASIC."),
    click.option("--authnData", "--authn-data", "authn_data", metavar="TEXT", help="With these data, as in user:password."),
    click.option("--tls-authority", metavar="FILE", help="Certificates to check the broker's against (tls://)."),
    click.option("--tls-versions", metavar="NAMES", help="[default: TLSv1.3]"),
    click.option("-s", "--storage", metavar="PATH", hidden=True),
    click.option("-t", "--threads", type=int, hidden=True),
    click.option("-D", "--memorydebug", "--memory-debug", "memory_debug", is_flag=True, default=None, hidden=True),
    click.option("--nosessioneventhandler", "--no-session-event-handler", "no_session_event_handler", is_flag=True,
                 default=None, hidden=True),
)


@click.command()
@option_group(*_OPTIONS)
@click.option("--profile", type=click.Path(exists=True, dir_okay=False),
              help="JSON file with options; those given here count more.")
@click.option("--dumpprofile", "--dump-profile", "dump_profile", is_flag=True, help="Show all options as a profile.")
@click.option("--script", type=click.Path(exists=True, dir_okay=False), help="Read commands from this file.")
@click.option("--stop-on-error", is_flag=True, help="End a script at the first command that fails.")
def shell(profile: str | None, dump_profile: bool, script: str | None, stop_on_error: bool, **given: Any) -> None:
    """Commands for queues, typed or from a script; a producer or consumer with --mode auto.

    The commands are those of the original's bmqtool; `help` shows them. A script ends with exit code 1 if one of its
    commands failed; all the others are carried out unless --stop-on-error says otherwise.
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
            code = asyncio.run(_auto(settings, log, console, file_log))
        else:
            code = _commands(settings, log, console, file_log, script, stop_on_error)
    finally:
        file_log.close()
    raise SystemExit(_code_of_output(console) or code)


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


def _code_of_output(console: Console) -> int:
    if console.failed is None:
        return 0
    return EXIT_CLOSED_PIPE if console.failed.errno == errno.EPIPE else EXIT_OUTPUT


async def _auto(settings: Settings, log: logging.Logger, console: Console, file_log: FileLog) -> int:
    return await Auto(settings, log, console, file_log).run()


# -- commands: read in this thread, carried out in the loop's -----------------------------------------------------------

def _commands(settings: Settings, log: logging.Logger, console: Console, file_log: FileLog, script: str | None,
              stop_on_error: bool) -> int:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="session", daemon=True)
    thread.start()
    try:
        shell_ = _Loop(loop).call(_made(settings, log, file_log))
        source = _source(script, shell_)
        console.typed = source.typed
        if source.attended:
            log.info("bmq shell, %s. 'help' shows the commands, Ctrl-D leaves.", settings.broker)
        try:
            return _converse(_Loop(loop), shell_, source, log, console, stop_on_error)
        finally:
            source.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _made(settings: Settings, log: logging.Logger, file_log: FileLog) -> Shell:
    return Shell(settings, log, file_log)


def _source(script: str | None, shell_: Shell) -> Source:
    if script is not None:
        return Script(open(script, "rb"))
    if sys.stdin is None:
        return Script(BytesIO())
    if sys.stdin.isatty() and sys.stdout.isatty():
        return Terminal(shell_.uris)
    return Script(sys.stdin.buffer)


class _Loop:
    """A loop in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, work: Any) -> Any:
        """Run a coroutine there and wait for it. Ctrl-C cancels it, and is raised when it has ended."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while not future.done():  # one wait without an end could lose a Ctrl-C that comes just when it begins
                wait((future,), _WAIT_S)
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()
            raise


def _converse(loop: _Loop, shell_: Shell, source: Source, log: logging.Logger, console: Console,
              stop_on_error: bool) -> int:
    """Line after line; the exit code."""
    interrupted = False
    while console.failed is None:
        try:
            line = source.read()
            if line is None or not loop.call(shell_.run(line)):
                break
        except (KeyboardInterrupt, CancelledError):
            log.error("Interrupted")
            if not source.attended:
                interrupted = True
                break
        if shell_.failures and stop_on_error and not source.attended:
            break
    loop.call(shell_.finish())
    if interrupted:
        return EXIT_INTERRUPTED
    if called_as_tool() and not stop_on_error:  # its exit code says nothing of its commands
        return EXIT_GOOD
    return EXIT_NOT_ALL if shell_.failures and not source.attended else EXIT_GOOD
