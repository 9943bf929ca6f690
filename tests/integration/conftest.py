"""Broker processes of the scenarios, one for each test or one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.cli_kit import Cli, running_broker
from kit.process import BrokerProcess, ProcessWorld, running_world
from kit.secure_broker import secure

__all__ = ["cli", "node", "running", "secure", "shared_node"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessWorld]:
    """Yield a broker process for one test."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    with running_world(tmp_path) as world:
        yield world


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessWorld]:
    """Yield a broker process for all tests of a module; each test has its own queue and leaves the broker unchanged."""
    with running_world(tmp_path_factory.mktemp("node")) as world:
        yield world


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Cli]]:
    """Yield a broker process, and the command `bmq` with its address."""
    with running_broker(tmp_path_factory.mktemp("broker")) as both:
        yield both


@pytest.fixture
def cli(running: tuple[BrokerProcess, Cli]) -> Cli:
    """Return the command `bmq` with the address of the broker."""
    return running[1]
