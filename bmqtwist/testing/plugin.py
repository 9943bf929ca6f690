"""pytest plugin: fixtures `bmq_broker`, `bmq_process`, `bmq_url`, marker `bmq_domain`, transcripts of failed tests.

pytest loads it when bmqtwist is installed. It imports the broker when a test uses a fixture. The brokers are in `broker.py`
and `process.py`, transcripts in `recorder.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from bmqtwist.testing import Broker, BrokerProcess

_TRANSCRIPT_LINES = 60
_SCOPES = ("function", "class", "module", "package", "session")
Scope = Literal["session", "package", "module", "class", "function"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options and ini values."""
    group = parser.getgroup("bmqtwist")
    group.addoption("--bmq-url", metavar="WHERE", default=None, help="broker of the fixture bmq_url: memory (default), "
                    "process, or the address of a running broker, tcp://host:port")
    parser.addini("bmq_url", "broker of the fixture bmq_url, as --bmq-url", default="memory")
    parser.addini("bmq_domains", "domains of all brokers of the tests: NAME [mode=...] [app_ids=a,b] [max_messages=...] "
                  "[max_bytes=...] [max_delivery_attempts=...] [ttl=SECONDS]", type="linelist", default=[])
    parser.addini("bmq_process_scope", f"scope of the fixture bmq_process: {', '.join(_SCOPES)}", default="function")
    parser.addini("bmq_transcript_lines", "lines of the recorder in the report of a failed test; 0 = none",
                  default=str(_TRANSCRIPT_LINES))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "bmq_domain(name, mode='priority', **options): a domain of the test's broker; "
                            "options as of bmqtwist.testing.Broker.domain")


_INTEGERS = ("max_messages", "max_bytes", "max_delivery_attempts", "ttl")


def parse_domain(line: str) -> tuple[str, dict[str, Any]]:
    """Parse a line of the ini value `bmq_domains` into name and options. Raises pytest.UsageError if it is invalid."""
    name, *words = line.split()
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key in _INTEGERS and value.isdecimal():
            options[key] = int(value)
        elif key == "app_ids" and value:
            options[key] = tuple(value.split(","))
        elif key in ("mode", "consistency") and value:
            options[key] = value
        elif key == "in_memory" and value in ("true", "false"):
            options[key] = value == "true"
        else:
            raise pytest.UsageError(f"bmq_domains: {line!r}: {word!r} is not an option with a valid value")
    return name, options


def _add_domains(request: pytest.FixtureRequest, add: Callable[..., object]) -> None:
    for line in request.config.getini("bmq_domains"):
        name, options = parse_domain(line)
        add(name, **options)
    for mark in request.node.iter_markers("bmq_domain"):
        add(*mark.args, **mark.kwargs)


@pytest.fixture
def bmq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """An in-process broker, new for each test; see `bmqtwist.testing.Broker`."""
    from bmqtwist.testing import Broker
    broker = Broker()
    try:
        _add_domains(request, broker.domain)
        yield broker
    finally:
        broker.close()


def _process_scope(fixture_name: str, config: pytest.Config) -> Scope:
    scope = config.getini("bmq_process_scope")
    if scope not in _SCOPES:
        raise pytest.UsageError(f"bmq_process_scope: {scope!r} is not one of {', '.join(_SCOPES)}")
    return cast(Scope, scope)


@pytest.fixture(scope=_process_scope)
def bmq_process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A started broker process; see `bmqtwist.testing.BrokerProcess`."""
    from bmqtwist.testing import BrokerProcess
    process = BrokerProcess(tmp_path_factory.mktemp("bmq_process"))
    try:
        _add_domains(request, process.domain)
        process.start()
        yield process
    finally:
        process.close()


@pytest.fixture
def bmq_url(request: pytest.FixtureRequest) -> str:
    """The address of a broker chosen by `--bmq-url`: in-process, a broker process, or any other."""
    where: str = request.config.getoption("--bmq-url") or request.config.getini("bmq_url")
    if where == "memory":
        broker: Broker = request.getfixturevalue("bmq_broker")
        return broker.listen()
    if where == "process":
        process: BrokerProcess = request.getfixturevalue("bmq_process")
        return process.url
    if not where.startswith(("tcp://", "tls://")):
        raise pytest.UsageError(f"--bmq-url {where!r}: use memory, process, or tcp://host:port")
    return where


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None],
                              ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add transcripts of brokers to the report of a failed test."""
    report = yield
    if report.failed and ("bmqtwist.testing.broker" in sys.modules or "bmqtwist.testing.process" in sys.modules):
        _add_transcripts(item, call, report)
    return report


def _add_transcripts(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    from bmqtwist.testing.broker import Broker, Unmet
    from bmqtwist.testing.process import BrokerProcess
    lines = int(item.config.getini("bmq_transcript_lines"))
    for name, value in getattr(item, "funcargs", {}).items() if lines else ():
        if isinstance(value, Broker) and not (call.excinfo and isinstance(call.excinfo.value, Unmet)):
            report.sections.append((f"{name}: transcript", value.recorder.transcript(lines)))
        elif isinstance(value, BrokerProcess):
            report.sections.append((f"{name}: log", "\n".join(line[:400] for line in value.log()[-lines:])))
