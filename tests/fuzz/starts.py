"""Mutated configuration files, arguments and environments of `bmqbrkr`: it starts up to its listening sockets, or ends with
an exit code and a sentence.

Each case runs the command in a child process of its own: configuration, directories, log, storage, threads, ports, console,
signal handlers; instead of the event loop it stops at once. A case that would create files outside of the temporary
directory ends before it does. Run by `test_fuzz.py` and by `tests/soak/command.py` (`starts`). It tests
`bmqtwist/cli/bmqbrkr.py` and `bmqtwist/daemon/service.py`; `configurations.py` mutates the files.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from twisted.internet.epollreactor import EPollReactor

import bmqtwist.console.service  # noqa: F401 - otherwise each child imports it
from bmqtwist.cli import bmqbrkr
from bmqtwist.config.broker import Configuration
from bmqtwist.config.compose import ENVIRONMENT
from bmqtwist.tap import make_broker
from fuzz.configurations import Configurations
from fuzz.findings import Finding

OUTSIDE, CRASHED = 77, 70
CASE_CPU_S_MAX, CASE_S_MAX = 30, 600  # of a start with 1000 partitions on a busy machine
GOOD = {0: "started", bmqbrkr.EXIT_USAGE: "usage", bmqbrkr.EXIT_CONFIG: "refused", bmqbrkr.EXIT_START: "failed",
        OUTSIDE: "outside"}
_OPTIONS = ("-i", "-h", "-t", "-d", "-p", "--instanceId", "--hostName", "--port", "-v", "--version", "--help", "-x", "--",
            "")
_TEXTS = ("0", "1", "-1", "65536", "30114", "\u0663", "nan", "1e3", "localhost", "::", "::1", "0.0.0.0", "192.0.2.1", "a..b",
          "x" * 300, "\udcff", "\u00e4", "", " ", "none", "group", "always", "tcp://10.0.0.1:30114", "%T", "etc", "folder",
          "missing", "\n", "{}")


class Starts:
    """Runs one mutated start at a time; `close` removes the directory."""

    def __init__(self, seed: int) -> None:
        self._configurations = Configurations(seed)
        self.random, self.mutator = self._configurations.random, self._configurations.mutator
        self.root = self._configurations.etc.parent
        self.counts: dict[str, int] = {"cases": 0, **dict.fromkeys(GOOD.values(), 0)}

    def close(self) -> None:
        """Remove the directory."""
        self._configurations.close()

    def run(self, count: int) -> dict[str, int]:
        """Run `count` starts; count them by their end."""
        for _ in range(count):
            random = self.random
            arguments = [] if random.random() < 0.6 else self._arguments()
            arguments.insert(random.randrange(len(arguments) + 1), "etc" if random.random() < 0.97 else self._text())
            environment = {name: self._text().replace("\0", "") for name in ENVIRONMENT if random.random() < 0.08}
            if random.random() < 0.6:
                with self._configurations.changed() as (name, data):
                    self._check(arguments, environment, name, data)
            else:
                self._check(arguments, environment, "", b"")
            self.counts["cases"] += 1
        return self.counts

    def _arguments(self) -> list[str]:
        found: list[str] = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            found.append(self.random.choice(_OPTIONS))
            if self.random.random() < 0.8:
                found.append(self._text())
        return found

    def _text(self) -> str:
        data = self.random.choice(_TEXTS).encode("utf-8", "surrogateescape")
        if self.random.random() < 0.3:
            data = self.mutator.mutate(data)[:2000]
        return data.decode("utf-8", "surrogateescape").replace("\0", "").lstrip("/")

    def _check(self, arguments: list[str], environment: Mapping[str, str], name: str, data: bytes) -> None:
        output = self.root / "output"
        pid = os.fork()
        if pid == 0:
            _run_child(self.root, output, arguments, environment)
        end = time.monotonic() + CASE_S_MAX
        done, status = os.waitpid(pid, os.WNOHANG)
        while not done:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
            done, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        text = output.read_bytes().decode("utf-8", "replace")
        where = f"bmqbrkr {arguments!a} with {environment!a} and {name or 'the valid files'}"
        if code not in GOOD:
            raise Finding(f"exit code {code}: {text[-3000:]}", where, data)
        if "Traceback" in text or "INTERNAL_ERROR" in text:
            raise Finding(f"a traceback: {text[-3000:]}", where, data)
        if code in (bmqbrkr.EXIT_USAGE, bmqbrkr.EXIT_CONFIG, bmqbrkr.EXIT_START) and "PANIC" not in text:
            raise Finding(f"exit code {code} without a reason: {text[-3000:]}", where, data)
        self.counts[GOOD[code]] += 1


def _run_child(root: Path, output: Path, arguments: list[str], environment: Mapping[str, str]) -> None:
    """Run the command in this child process and end the process."""
    code = CRASHED
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CASE_CPU_S_MAX, CASE_CPU_S_MAX))
        os.chdir(root)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115  as that of the interpreter
        for name in ENVIRONMENT:
            os.environ.pop(name, None)
        os.environ.update(environment)
        code = _run_command(str(root), arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - reported as a finding
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _run_command(root: str, arguments: list[str]) -> int:
    reactor: Any = EPollReactor()  # that of the parent shares its descriptors
    reactor.run = lambda: None
    real = bmqbrkr.create_missing

    def create_inside(configuration: Configuration) -> list[str]:
        for path in _paths(configuration):
            if not f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(root)}/"):
                os._exit(OUTSIDE)
        return real(configuration)
    with mock.patch.object(bmqbrkr, "create_missing", create_inside):
        return bmqbrkr.main(arguments, reactor, make_broker)


def _paths(configuration: Configuration) -> list[str]:
    """Return the paths that a start may create."""
    found = [configuration.broker.task_config.log_controller.file_name, configuration.app.stats.printer.file,
             configuration.extension.control_directory]
    for cluster in configuration.clusters.my_clusters:
        found += [cluster.partition_config.location, cluster.partition_config.archive_location]
    return [path for path in found if path]
