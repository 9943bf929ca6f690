"""Client processes of a soak test: each is started with a specification, and writes its record when its standard input ends.

Used by `cluster_load.py` and `restarts.py`. The processes run `restart_clients.py` and `probe.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parent.parent
_POLL_S = 0.05


class ClientProcesses:
    """The client processes of one test; logs and records are in `root`."""

    def __init__(self, root: Path, finish_seconds: float) -> None:
        self._root, self._finish_seconds = root, finish_seconds
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, module: str, /, **spec: Any) -> None:
        """Start a client process."""
        spec["out"] = str(self._root / f"{name}.json")
        with (self._root / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen([sys.executable, "-m", module, json.dumps(spec)], cwd=_TESTS,
                                                     stdin=subprocess.PIPE, stdout=log, stderr=log)

    def finish(self, *names: str) -> None:
        """End the standard input of clients and wait for their end. RuntimeError: a client failed."""
        for name in names:
            pipe = self._processes[name].stdin
            assert pipe is not None
            pipe.close()
        for name in names:
            if self._processes[name].wait(self._finish_seconds):
                self._raise(name)

    def is_open(self, *names: str) -> bool:
        """Return whether these clients have opened their queues; without names: all."""
        return all((self._root / f"{name}.open").exists() for name in names or self._processes)

    def record(self, name: str) -> Any:
        """Return the record of a client that has ended."""
        return json.loads((self._root / f"{name}.json").read_text(encoding="utf-8"))

    def until(self, done: Callable[[], object], what: str, seconds: float, state: Callable[[], object] = str) -> None:
        """Wait for a condition. RuntimeError: a client failed, or `seconds` are over; then the text has `state()`."""
        end = time.monotonic() + seconds
        while not done():
            for name, process in self._processes.items():
                if process.poll():
                    self._raise(name)
            if time.monotonic() > end:
                raise RuntimeError(f"timeout after {seconds:g} s while waiting for {what}: {state()}")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _raise(self, name: str) -> None:
        raise RuntimeError(f"{name} failed: {(self._root / f'{name}.log').read_text()[-3000:]}")
