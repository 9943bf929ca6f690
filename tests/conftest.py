"""Pytest configuration of all tests: command line options, plug-ins, markers, the fixtures `world` and `broker_process`, and
the values of `fresh_seed`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conformance import Conformance
from hypothesis import settings
from kit.schedule import Schedule
from kit.watchdog import Watchdog

from bmqtwist import machine

if TYPE_CHECKING:
    from kit.process import BrokerProcess
    from kit.world import World


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: child processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# with this variable, each of the hundreds of broker processes would compile every module again, and each worker all tests
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
_FRESH = int(os.environ.setdefault("BMQ_TEST_SEED", str(int(time.time()))))  # the same in every worker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line options of this suite."""
    group = parser.getgroup("bmqtwist")
    group.addoption("--conformance", action="store_true", help="list the specification items that no passing test proves")
    group.addoption("--seeds", type=int, default=0, metavar="N", help="run seeded tests with N fresh seeds each")
    group.addoption("--memory-only", action="store_true", help="scenarios marked `real` in memory alone: `make test` runs "
                    "them with a compiled broker process afterwards")
    group.addoption("--note-durations", action="store_true", help="write tests/durations.json anew")


def pytest_configure(config: pytest.Config) -> None:
    """Register the conformance count, the schedule, the watchdog for hung runs, and the markers."""
    machine.STRICT = True
    config.pluginmanager.register(Conformance(), "bmqtwist-conformance")
    config.pluginmanager.register(Schedule(config), "bmqtwist-schedule")
    config.pluginmanager.register(Watchdog(2), "bmqtwist-watchdog")
    # no deadline on a busy machine; the same examples in each run, except with `--seeds`
    settings.register_profile("suite", deadline=None, derandomize=not config.getoption("seeds"))
    settings.load_profile("suite")
    config.addinivalue_line("markers", "campaign: random search at length, only run with --seeds (make sim)")
    config.addinivalue_line("markers", "fixed_seeds(count): fixed seeds that `fresh_seed` takes without --seeds (else 10)")
    config.addinivalue_line("markers", "real: run the scenario against a broker process, too")
    config.addinivalue_line("markers", "only_real: run the scenario against a broker process alone")
    config.addinivalue_line("markers", "setting(**keywords): keywords of the world: app=, cluster=, start=")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `world` and `fresh_seed`.

    `world`: in memory; with marker `real` also as a process (not with --memory-only); with `only_real` only as a process.
    `fresh_seed`: fixed seeds, or N new ones with --seeds N (the names of the tests contain them).
    """
    if "fresh_seed" in metafunc.fixturenames:
        count = metafunc.config.getoption("seeds")
        mark = metafunc.definition.get_closest_marker("fixed_seeds")
        fixed = mark.args[0] if mark else 10
        metafunc.parametrize("fresh_seed", [_FRESH + n for n in range(count)] if count else list(range(fixed)))
    if "world" not in metafunc.fixturenames:
        return
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    is_real = "real" in marks and not metafunc.config.getoption("memory_only")
    kinds = ["process"] if "only_real" in marks else ["memory", "process"] if is_real else ["memory"]
    metafunc.parametrize("world", kinds, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the campaigns, except with --seeds."""
    if not config.getoption("seeds"):
        left_out = [item for item in items if item.get_closest_marker("campaign")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("campaign")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of the broker's log to the report of a failure."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            log = getattr(value, "log", None) or (lambda value=value: getattr(value, "records", []))
            if callable(log) and type(value).__module__.startswith("kit."):
                report.sections.append(("broker log", "\n".join(record[:400] for record in log()[-40:])))
    return report


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A broker without domains, in memory or as a process."""
    mark = request.node.get_closest_marker("setting")
    keywords: dict[str, Any] = dict(mark.kwargs) if mark else {}
    if request.param == "memory":
        from kit.memory import MemoryWorld
        yield MemoryWorld(tmp_path, **keywords)
        return
    from kit.process import ProcessWorld
    world = ProcessWorld(tmp_path, start=False, **{k: v for k, v in keywords.items() if k != "start"})
    try:
        if keywords.get("start", True):
            world.start()
        yield world
    finally:
        world.cleanup()


@pytest.fixture
def broker_process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker process that is not started."""
    from kit.process import BrokerProcess
    mark = request.node.get_closest_marker("setting")
    broker = BrokerProcess(tmp_path, **(dict(mark.kwargs) if mark else {}))
    try:
        yield broker
    finally:
        broker.cleanup()
