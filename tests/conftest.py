"""What every test shares: command line options, the conformance count, fixtures of tests/kit."""

from __future__ import annotations

import pytest
from conformance import Conformance


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite."""
    group = parser.getgroup("bmqtwist")
    group.addoption("--conformance", action="store_true", help="list the specification items no passing test proves")
    group.addoption("--slow", action="store_true", help="also run what takes minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Register the conformance count."""
    config.pluginmanager.register(Conformance(), "bmqtwist-conformance")
