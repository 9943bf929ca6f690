"""Second start after damage: it does not repeat the alarms of the repaired storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from kit.memory import MemoryWorld

from bmqtwist.storage.memory import MemoryDisk


def flip_a_bit(disk: MemoryDisk, path: str, end: int, random: Random) -> None:
    disk.flip(path, random.randrange(end), 1 << random.randrange(8))


def append_garbage(disk: MemoryDisk, path: str, end: int, random: Random) -> None:
    disk.put(path, disk.content(path)[:end] + random.randbytes(40))


def truncate(disk: MemoryDisk, path: str, end: int, random: Random) -> None:
    disk.put(path, disk.content(path)[:random.randrange(end)])


def remove_file(disk: MemoryDisk, path: str, end: int, random: Random) -> None:
    disk.remove(path)


@pytest.mark.parametrize("kind", ["bmq_journal", "bmq_data", "bmq_qlist", "bmq_csl"])
@pytest.mark.parametrize("damage", [flip_a_bit, append_garbage, truncate, remove_file])
def test_alarms_are_not_repeated_at_the_second_start(tmp_path: Path, kind: str,
                                                     damage: Callable[[MemoryDisk, str, int, Random], None]) -> None:
    random = Random(f"{kind}/{damage.__name__}")
    world = MemoryWorld(tmp_path)
    world.domain("f", "fanout", apps=["foo", "bar"])
    world.producer("bmq://f/q").post_all(*[b"%d" % number * 50 for number in range(20)])
    consumer = world.consumer("bmq://f/q", "foo")
    consumer.confirm(*world.pushes(consumer)[:10])
    world.run()
    world._drop_clients()
    world.crash()
    path = max((path for path in world.disk.paths() if path.endswith(kind)), key=lambda path: len(
        world.disk.content(path).rstrip(b"\0")))
    damage(world.disk, path, len(world.disk.content(path).rstrip(b"\0")), random)
    for start_number in range(3):
        lines_before = len(world.report.lines)
        world.start()
        world.advance(2.0)
        alarms = [text for severity, text in world.report.lines[lines_before:] if severity in ("ALARM", "PANIC", "ERROR")]
        assert not (start_number and alarms), (start_number, alarms)
        (world.stop if start_number else world.crash)()
