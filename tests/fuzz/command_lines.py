"""Mutated command lines, environments and inputs of `bmq`: no traceback, and no credential in the output.

Each case runs a command in this process, in a temporary directory without a broker. It starts no further program. Options,
arguments and environment variables are taken from the declarations of the commands. Run by `test_fuzz.py` and by
`tests/soak/command.py` (`commands`). It tests `bmqtwist/cli/`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import click
from click.testing import CliRunner
from kit.config import ConfigDirectory

from bmqtwist.cli.main import COMMANDS, main
from fuzz.findings import Finding
from fuzz.mutation import Mutator

_ADDRESSES = ("BMQ_BROKER", "BMQ_BROKER_URI", "BMQ_HOST")
SECRET = "S3cr3t0fAUser"
CASE_S_MAX = 5  # then the case is interrupted, as by Ctrl-C
_BROKERS = ("tcp://127.0.0.1:1", "tcp://[::1]:1", "tls://127.0.0.1:1", f"tcp://user:{SECRET}@127.0.0.1:1",
            f"tls://{SECRET}@127.0.0.1", f"tcp://127.0.0.1:{SECRET}@host:1", "tcp://mq..example:1", "tcp://.:1", "tcp://[::1",
            f"tcp://{'a' * 64}.example:1", f"tcp://{'a' * 300}", "tcp://m\u00fc\udce4:1", "tcp://a\u00e4\u00df:1", "tcp://:",
            "tcp://a b:1", "tcp://a%b:1", "tcp://fe80::1%lo:1", "127.0.0.1:1", "tcp://127.0.0.1:1,,", "tcp://127.0.0.1:\u00b2")
_NUMBERS = ("0", "1", "-1", "0.02", "nan", "inf", "-inf", "1e308", "1e-320", "99999999999999999999", "\u0663",
            "1_0", "0x10", " 1")
_FILES = ("latin1", "empty", "text", "json", "folder", "missing", "null", "fifo.missing/x", "", "\udcff", "-", "etc",
          "long" * 80)
_WORDS = ("bmq://d/q", "bmq://bmq.test.persistent.priority/q", "bmq://d/q?id=a", "bmq:", "x", "", "\udcff\udc80", "\ud800",
          "\0", "\u00e4", "{}", "[1]", '{"a": 1e999}', "a=b", "=", "%", "%s", "{", "x > 1", "x >", "1-2", "*",
          "--", "-", "E_OK")
_VALID_WORDS = ("bmq://d/q", "bmq://d/q?id=a", "a", "text", "folder", "a=1", "x > 1", "HELP", '{"a": 1}', "[]",
                "j_1.bmq_journal")
_LINES = (b"start\n", b"open uri=\"bmq://d/q\" flags=\"read\"\n", b"post uri=\"bmq://d/q\" payload=[\"x\"]\n", b"help\n",
          b"HELP\n", b"configure\n", b"\xff\xfe\n", b"{\n", b"\0\n", b"load file=\"missing\"\n", b"stop\n", b"",
          b"x" * 70_000)


class CommandLines:
    """Runs one mutated command line at a time; `close` removes the directory."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.mutator = Mutator(self.random)
        self._folder = tempfile.TemporaryDirectory(prefix="bmq-fuzz-commands-")
        root = Path(self._folder.name)
        ConfigDirectory(root, 30114)
        for name, data in (("latin1", f"p\xe4ss{SECRET}\n".encode("latin-1")), ("empty", b""), ("text", b"a\nb\n"),
                           ("json", b'{"uri": 1}'), ("j_1.bmq_journal", b"BMQa" + bytes(200))):
            (root / name).write_bytes(data)
        (root / "folder").mkdir()
        (root / "null").symlink_to(os.devnull)
        self.commands = list(_leaves(main, ()))
        self.variables = sorted({name for _, command in self.commands for each in command.params
                                 for name in _variables(each)} | {"BMQ_PASSWORD"})
        self.counts = {"cases": 0, "interrupted": 0}

    def close(self) -> None:
        """Remove the directory."""
        self._folder.cleanup()

    def run(self, count: int) -> dict[str, int]:
        """Run `count` command lines; count them by exit code."""
        with ExitStack() as stack:
            stack.enter_context(_working_directory(self._folder.name))
            for target in ("os.execve", "subprocess.Popen"):
                stack.enter_context(mock.patch(target, _start_nothing))
            stack.enter_context(mock.patch("socket.getaddrinfo", _resolve))
            for _ in range(count):
                path, command = self.random.choice(self.commands)
                arguments = [*path, *self._arguments(command)]
                environment = {name: self._text(_BROKERS if name in _ADDRESSES else (SECRET,) if name == "BMQ_PASSWORD"
                                                 else _NUMBERS + _WORDS)
                               for name in self.variables if self.random.random() < 0.05}
                self._check(arguments, environment, self._input())
                self.counts["cases"] += 1
        return self.counts

    def _arguments(self, command: click.Command) -> list[str]:
        random, found = self.random, []
        for each in command.params:
            if isinstance(each, click.Option):
                if random.random() < 0.12:
                    found += [random.choice(each.opts), *(() if each.is_flag else (self._value(each),))]
            elif random.random() < 0.9:
                found += [self._value(each) for _ in range(random.choice((1, 1, 1, 2)) if each.nargs < 0 else each.nargs)]
        if any("--timeout" in each.opts for each in command.params) and "--timeout" not in found:
            found[:0] = ["--timeout", "0.05"]
        if random.random() < 0.05:
            found.insert(random.randrange(len(found) + 1), self._text(_WORDS))
        return found

    def _value(self, parameter: click.Parameter) -> str:
        kind, random = parameter.type, self.random
        pool: tuple[str, ...] = _WORDS
        if random.random() < 0.6:
            return _valid_value(parameter, random)
        if parameter.name in ("broker", "host"):
            pool = _BROKERS
        elif isinstance(kind, click.Choice):
            pool = tuple(map(str, kind.choices))
        elif isinstance(kind, click.Path | click.File):
            pool = _FILES
        elif isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
            pool = _NUMBERS
        return self._text(pool if random.random() < 0.9 else _WORDS + _NUMBERS + _FILES)

    def _text(self, pool: tuple[str, ...]) -> str:
        """Return a text as the interpreter decodes it from the command line; a third of them are mutated."""
        data = self.random.choice(pool).encode("utf-8", "surrogatepass")
        if self.random.random() < 0.25:
            data = self.mutator.mutate(data)[:2000]
        text = data.decode("utf-8", "surrogateescape")
        return text.replace("\0", "").lstrip("/")

    def _input(self) -> bytes:
        data = b"".join(self.random.choice(_LINES) for _ in range(self.random.randrange(4)))
        return self.mutator.mutate(data) if data and self.random.random() < 0.5 else data

    def _check(self, arguments: list[str], environment: dict[str, str], data: bytes) -> None:
        where = f"bmq {arguments!a} with {environment!a}"
        variables = {name: environment.get(name) for name in self.variables}
        signal.signal(signal.SIGALRM, _interrupt)
        signal.alarm(CASE_S_MAX)
        try:
            result = CliRunner().invoke(main, arguments, input=data, env=variables)
        except KeyboardInterrupt:
            self.counts["interrupted"] += 1
            return
        finally:
            signal.alarm(0)
            asyncio.set_event_loop(None)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            text = "".join(traceback.format_exception(result.exception))
            raise Finding(f"{type(result.exception).__name__}: {result.exception}\n{text}", where, data)
        if "Traceback" in result.output:
            raise Finding(f"a traceback: {result.output}", where, data)
        if SECRET in result.output:
            raise Finding(f"a credential in the output: {result.output}", where, data)
        self.counts[f"exit {result.exit_code}"] = self.counts.get(f"exit {result.exit_code}", 0) + 1


def _valid_value(parameter: click.Parameter, random: Random) -> str:
    kind, pool = parameter.type, _VALID_WORDS
    if parameter.name == "broker":
        pool = ("tcp://127.0.0.1:1",)
    elif parameter.name == "host":
        pool = ("127.0.0.1",)
    elif isinstance(kind, click.Choice):
        pool = tuple(map(str, kind.choices))
    elif isinstance(kind, click.Path):
        pool = ("text", "json", "j_1.bmq_journal", "folder") if kind.file_okay else ("folder", "etc")
    elif isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        pool = ("1", "2", "7")
    return random.choice(pool)


def _leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return the path and the command of each command that is no group."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in COMMANDS if command is main else command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _leaves(found, (*path, name))
    else:
        yield path, command


def _variables(parameter: click.Parameter) -> list[str]:
    found = parameter.envvar
    return [] if found is None else [found] if isinstance(found, str) else list(found)


def _resolve(host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
    """Resolve numeric addresses; every valid name is unknown."""
    try:
        return _getaddrinfo(host, port, *arguments, **{**more, "flags": socket.AI_NUMERICHOST})
    except socket.gaierror:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None


_getaddrinfo = socket.getaddrinfo


def _start_nothing(*arguments: Any, **more: Any) -> Any:
    raise SystemExit(0)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _working_directory(path: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)
