"""The command `bmqbrkr`, with the options, output and exit codes of BlazingMQ's.

    bmqbrkr [-i instanceId] [-h hostName] [-t hostTags] [-d hostDataCenter] [-p port] [-v] CONFIGDIR

Exit codes: 0 after a stop, 1 for an invalid command line, 2 for an invalid configuration, 6 for a failed start. Called by
`tap.py`, the entry point; the service of the broker is in `daemon/service.py`. `bmq broker` (`broker.py`) starts the same
program with a sample configuration.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from twisted.logger import globalLogBeginner

from bmqtwist import __version__
from bmqtwist.config.compose import Overrides
from bmqtwist.config.load import BROKER_FILE, Loaded, load
from bmqtwist.config.text import pretty_json
from bmqtwist.daemon.directories import create_missing
from bmqtwist.errors import LocalError
from bmqtwist.logs.background import Stream, close, nonblocking_stream
from bmqtwist.logs.observer import Logs
from bmqtwist.peers.handshake import Identity
from bmqtwist.report import Report

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

EXIT_USAGE, EXIT_CONFIG, EXIT_START = 1, 2, 6
PID_FILE = "bmqbrkr.pid"  # in the control directory


MakeBroker = Callable[[Any, Loaded, Report, str], "BrokerService"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"PANIC [STARTUP] (-1): {message}\n{self.format_usage()}", file=sys.stderr, end="")
        raise SystemExit(EXIT_USAGE)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser("bmqbrkr", description="A BlazingMQ-compatible message broker.", add_help=False,
                     allow_abbrev=False)
    parser.add_argument("-i", "--instanceId", help="name of this broker, instead of brokerInstanceName")
    parser.add_argument("-h", "--hostName", help="host name of this broker, instead of hostName")
    parser.add_argument("-t", "--hostTags", help="tags of the host, instead of hostTags")
    parser.add_argument("-d", "--hostDataCenter", help="data center of the host, instead of hostDataCenter")
    parser.add_argument("-p", "--port", type=_parse_port, help="port to listen at")
    parser.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    parser.add_argument("--help", action="help", help="print this and exit")
    parser.add_argument("config", metavar="CONFIGDIR", nargs="?", help="directory with bmqbrkrcfg.json")
    return parser


def main(argv: Sequence[str], reactor: Any, make_broker: MakeBroker) -> int:
    """Run a broker until a signal stops it, and return the exit code."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.version:
        print(f"BlazingMQ broker version: bmqtwist {__version__}")
        return 0
    if not options.config:
        parser.error("CONFIGDIR is missing")
    overrides = Overrides(instance_id=options.instanceId, host_name=options.hostName, host_tags=options.hostTags,
                          host_data_center=options.hostDataCenter, port=options.port)
    console, alarms = nonblocking_stream(sys.stdout), nonblocking_stream(sys.stderr)
    try:
        code, why = _run(options.config, overrides, reactor, make_broker, console, alarms)
    finally:
        close(console)
        close(alarms)
    if why:
        print(why, file=sys.stderr)
    return code


def _run(directory: str, overrides: Overrides, reactor: Any, make_broker: MakeBroker, console: Stream,
         alarms: Stream) -> tuple[int, str]:
    """Start, run and stop a broker; return the exit code and the error text."""
    pid = os.getpid()
    path = f"{directory}/{BROKER_FILE}"
    _print(console, f"STARTING bmqbrkr [pid: {pid}]")
    _print(console, f"Reading broker configuration from {path}")
    try:
        loaded = load(directory, overrides)
    except LocalError as error:
        return EXIT_CONFIG, f"PANIC [STARTUP] (-1): Failed to read the config [file: {path}]\n{error}"
    _print(console, pretty_json(loaded.configuration.broker))
    try:
        made = create_missing(loaded.configuration)
        logs = Logs(loaded.configuration.broker.task_config.log_controller, console, alarms)
        globalLogBeginner.beginLoggingTo([logs.observer], discardBuffer=True,  # type: ignore[list-item]
                                         redirectStandardIO=False)
        for line in made:
            logs.report.info("%s", line)
        service = make_broker(reactor, loaded, logs.report, os.getcwd())
        _print(console, format_banner(service.identity, loaded.configuration.app.broker_instance_name))
        install_signal_handlers(reactor, logs, service)
        pid_file = os.path.join(loaded.configuration.extension.control_directory, PID_FILE)
        service.on_opened = partial(_write_pid, pid_file, pid, logs.report)
        service.startService()
    except LocalError as error:
        return EXIT_START, start_panic(error)
    reactor.callWhenRunning(_print, console, f"STARTED bmqbrkr [pid: {pid}]")
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run()
    _remove_pid(pid_file, pid)
    _print(console, f"STOPPED bmqbrkr [pid: {pid}]")
    logs.close()
    return 0, ""


def start_panic(error: Exception) -> str:
    """Format the error of a failed start for standard error."""
    return f"PANIC [STARTUP] (1): Failed to start application [rc: -1, error: {error}]"


def format_banner(identity: Identity, instance: str) -> str:
    return (f"\n  Instance......: {instance}\n  Version.......: bmqtwist {__version__}\n"
            f"  Host..........: {identity.host_name}\n  BrokerId......: {identity.client_id.hex().upper()}\n")


def install_signal_handlers(reactor: Any, logs: Logs, service: BrokerService) -> None:
    """Install signal handlers. The first SIGINT or SIGTERM stops the broker gracefully, further ones are logged; after the
    stop all are ignored, so that none kills the interpreter during its exit. SIGHUP reopens logs and certificates. Other
    signals that would end the process are ignored and logged."""
    report, stopping = logs.report, False

    def stop(name: str) -> None:
        nonlocal stopping
        if stopping:
            report.warn("%s: the broker is already stopping", name)
            return
        stopping = True
        report.info("%s: stopping", name)
        reactor.stop()

    def reload(name: str) -> None:
        try:
            logs.reopen()
        except OSError as error:
            report.error("%s: the log cannot be reopened: %s", name, error)
        report.info("%s: logs reopened, certificates reloaded; the configuration is unchanged", name)
        service.reload()

    def ignore_signal(name: str) -> None:
        report.warn("%s: ignored; SIGTERM stops the broker, SIGHUP reopens its logs", name)

    others = {signal.SIGHUP: reload,
              **dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM), ignore_signal)}
    actions = {signal.SIGINT: stop, signal.SIGTERM: stop, **others}

    def on_signal(number: int, frame: object) -> None:
        reactor.callFromThread(actions[signal.Signals(number)], signal.Signals(number).name)

    def install(numbers: Iterable[int]) -> None:
        for number in numbers:
            signal.signal(number, on_signal)

    def ignore_all() -> None:
        for number in actions:
            signal.signal(number, signal.SIG_IGN)

    install(others)
    reactor.callWhenRunning(install, actions)
    reactor.addSystemEventTrigger("after", "shutdown", ignore_all)


def _parse_port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def _print(console: Stream, text: str) -> None:
    try:
        console.write(f"{text}\n")
        console.flush()
    except OSError:
        pass  # standard output is closed; the log contains the relevant lines


def _write_pid(path: str, pid: int, report: Report) -> None:
    """Write the pid file under a temporary name and rename it, so that readers never see a partial file."""
    other = _other_broker_pid(path)
    if other:
        report.warn("'%s' belongs to another running broker (pid %d) and is not changed. Start this broker in its own "
                    "directory.", path, other)
        return
    try:
        temporary = f"{path}.new"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{pid}\n")
        os.replace(temporary, path)
    except OSError as error:
        report.warn("'%s' cannot be written: %s", path, error)


def _other_broker_pid(path: str) -> int:
    """Return the pid of the other running broker that the pid file names; 0 = none."""
    try:
        with open(path, encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return pid if b"bmqbrkr" in line.read() and pid != os.getpid() else 0
    except (OSError, ValueError):
        return 0


def _remove_pid(path: str, pid: int) -> None:
    try:
        with open(path, encoding="ascii") as file:
            if file.read().strip() != str(pid):
                return
        os.unlink(path)
    except OSError:
        pass  # missing or unreadable
