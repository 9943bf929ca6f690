"""Mutated configuration directories: they load, or are refused with readable findings.

Run by `test_fuzz.py` and by `tests/soak/command.py` (`configs`). It tests `bmqtwist/daemon/preflight.py`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from kit.config import ConfigDirectory, app_subscription

from bmqtwist.config.declare import ConfigError
from bmqtwist.config.load import load
from bmqtwist.daemon.preflight import check
from fuzz.findings import Finding
from fuzz.mutation import Mutator

_ODD: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2, 63, 64, 65535, 65536, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 63,
                         1 << 64, -(1 << 63) - 1, 0.5, 1.5, -0.1, 1e308, "", "x", "/nowhere/at/all", "E_VERSION_1",
                         "tcp://localhost:30114", "tcp://localhost:99999", "bmq://", "\0", "\u00e9", "a" * 5000,
                          [], [[]], {}, [{}],
                         {"a": 1}, {"inMemory": {}}, {"fileBacked": {}}, ["foo", "foo"], ["", "__default"], [1, "two"])
_FILES = ("bmqbrkrcfg.json", "clusters.json", "domains/d.json", "domains/fan.json", "domains/cast.json")


class Configurations:
    """Mutates one file of a valid directory at a time; `close` removes the directory."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.mutator = Mutator(self.random)
        self._folder = tempfile.TemporaryDirectory(prefix="bmq-fuzz-config-")
        directory = ConfigDirectory(Path(self._folder.name), 30114)
        directory.domain("d")
        directory.domain("fan", "fanout", subscriptions=[app_subscription("foo", "x > 1")], maxDeliveryAttempts=3)
        directory.domain("cast", "broadcast", in_memory=True)
        self.etc = directory.etc
        self.texts = {name: (self.etc / name).read_text() for name in _FILES}
        self.counts = {"cases": 0, "loaded": 0, "refused": 0, "warned": 0}
        problems, _ = check(str(self.etc), environment={})
        if problems:
            raise Finding(f"the valid directory is refused: {problems[0]}", "configuration")

    def close(self) -> None:
        """Remove the directory."""
        self._folder.cleanup()

    def run(self, count: int) -> dict[str, int]:
        """Check `count` mutated directories."""
        for _ in range(count):
            with self.changed() as (name, data):
                self._check(name, data)
            self.counts["cases"] += 1
        return self.counts

    @contextmanager
    def changed(self) -> Iterator[tuple[str, bytes]]:
        """Mutate one file for a moment; yield its name and content."""
        name = self.random.choice(_FILES)
        data = self._tree(self.texts[name]) if self.random.random() < 0.7 else self._bytes(self.texts[name])
        (self.etc / name).write_bytes(data)
        try:
            yield name, data
        finally:
            (self.etc / name).write_text(self.texts[name])

    def _bytes(self, text: str) -> bytes:
        return self.mutator.mutate(text.encode())

    def _tree(self, text: str) -> bytes:
        tree = json.loads(text)
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            places = list(_places(tree))
            holder, key = self.random.choice(places)
            way = self.random.randrange(5)
            if way == 0:
                del holder[key]
            elif way == 1:
                other, other_key = self.random.choice(places)
                holder[key] = deepcopy(other[other_key])
            elif way == 2 and isinstance(holder, dict):
                holder[str(key) + "x"] = holder.pop(key)
            elif way == 2 and isinstance(holder, list):
                holder.append(deepcopy(holder[key]))
            else:
                holder[key] = deepcopy(self.random.choice(_ODD))
            if not list(_places(tree)):
                break
        return json.dumps(tree).encode("utf-8", "surrogateescape")

    def _check(self, name: str, changed: bytes) -> None:
        try:
            problems, warnings = check(str(self.etc), environment={})
            for finding in (*problems, *warnings):
                if not str(finding):
                    raise AssertionError("a finding without a text")
            self.counts["warned"] += bool(warnings)
            try:
                load(str(self.etc), environment={})
                refused = False
            except ConfigError as error:
                refused = True
                if not error.findings or not all(map(str, error.findings)):
                    raise AssertionError("a refusal without a reason") from None
            if refused and not problems:
                raise AssertionError("load refuses a directory without problems")
            self.counts["refused" if problems else "loaded"] += 1
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}", f"configuration {name}", changed) from error


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of all values in a tree."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in pairs:
            found.append((holder, key))
            waiting.append(value)
    return found
