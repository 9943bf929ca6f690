"""Fixtures of the page tests: one browser, clusters of fake consoles, and a page.

The browser is in `chromium.py`, the consoles are in `fake_console.py`; real nodes are started by `test_real_nodes.py` and
`test_numbers.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bmqtwist.testing.process import free_port
from browser.chromium import Chromium, Tab

TESTS = Path(__file__).resolve().parents[1]


class FakeNode:
    """Process of a fake console."""

    def __init__(self, name: str, port: int, urls: dict[str, str], scene: str, *options: str) -> None:
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        command = [
            sys.executable,
            "-m",
            "browser.fake_console",
            "--name",
            name,
            "--port",
            str(port),
            "--scene",
            scene,
            *options,
            *(f"--node={name}={url}" for name, url in urls.items()),
        ]
        self._process = subprocess.Popen(
            command,
            cwd=TESTS,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def control(self, **what: Any) -> None:
        """Change the state of the scripted cluster; the members are those of `FakeConsole.control`."""
        request = urllib.request.Request(f"{self.url}/control", json.dumps(what).encode(), method="POST")
        urllib.request.urlopen(request, timeout=20).read()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: it still accepts connections, and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self._process.kill()
        self._process.wait()


class FakeCluster:
    """Consoles of one scripted cluster of three nodes; only the first `serving` of them run."""

    def __init__(self, scene: str = "good", *options: str, serving: int = 1) -> None:
        self.urls = {f"n{n}": f"http://127.0.0.1:{free_port()}" for n in (1, 2, 3)}
        self.nodes = [
            FakeNode(name, int(url.rpartition(":")[2]), self.urls, scene, *options)
            for name, url in list(self.urls.items())[:serving]
        ]
        self.url = self.nodes[0].url

    def close(self) -> None:
        """Kill all running consoles."""
        for node in self.nodes:
            node.kill()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """Browser of the test session."""
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def scenes() -> Iterator[Callable[..., FakeCluster]]:
    """Return clusters by scene, shared by all tests, which must not change them: scenes("good")."""
    made: dict[tuple[str, ...], FakeCluster] = {}

    def get(scene: str, *options: str) -> FakeCluster:
        if (scene, *options) not in made:
            made[scene, *options] = FakeCluster(scene, *options)
        return made[scene, *options]

    yield get
    for cluster in made.values():
        cluster.close()


@pytest.fixture
def clusters() -> Iterator[Callable[..., FakeCluster]]:
    """Return new clusters, which the test may change: clusters("good", serving=2)."""
    made: list[FakeCluster] = []

    def get(scene: str = "good", *options: str, serving: int = 1) -> FakeCluster:
        made.append(FakeCluster(scene, *options, serving=serving))
        return made[-1]

    yield get
    for cluster in made:
        cluster.close()


@pytest.fixture
def tab(chromium: Chromium) -> Iterator[Tab]:
    """Page of 1280 x 900 pixels."""
    page = chromium.open()
    yield page
    page.end()
