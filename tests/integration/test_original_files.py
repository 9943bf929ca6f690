"""A broker on storage files of the original: consumers get exactly the outstanding messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit.memory import MemoryWorld

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
DAY = 24 * 3600
ONE_PARTITION = {"partitions": 1}


def take_over(tmp_path: Path, case: str, ledger: bool = True) -> MemoryWorld:
    """Return a world, not started, with the recorded files of a case as its storage."""
    world = MemoryWorld(tmp_path, cluster=ONE_PARTITION, start=False)
    places = [VECTORS / "storage-recorded" / case / "n1"] + [VECTORS / "ledger-files" / f"{case}.n1"] * ledger
    for place in places:
        for path in place.glob("bmq_*"):
            world.disk.put(str(world.config.storage / path.name), path.read_bytes())
    world.domain("d.prio", messageTtl=365 * DAY)
    world.domain("d.fan", "fanout", apps=("foo", "bar", "baz"), messageTtl=365 * DAY)
    return world


def outstanding(case: str) -> list[str]:
    """Return the GUIDs of outstanding messages from the recorded output of the original's tool, in order."""
    text = (VECTORS / "storage-recorded" / case / "n1" / "p0.outstanding.human.txt").read_text()
    return re.findall(r"^([0-9A-F]{32})$", text, re.MULTILINE)


@pytest.mark.parametrize("ledger", [True, False], ids=["whole", "without the ledger"])
@pytest.mark.parametrize(("case", "uri"), [("crash-single", "bmq://d.prio/c"), ("payload-60k", "bmq://d.prio/big")])
def test_consumers_get_the_messages_of_storage_files_of_the_original(
        tmp_path: Path, case: str, uri: str, ledger: bool) -> None:
    """After a clean stop or a crash, and without the metadata."""
    world = take_over(tmp_path, case, ledger)
    world.start()
    pushed = world.pushes(world.consumer(uri))
    assert [push.guid.hex().upper() for push in pushed] == outstanding(case)


def test_each_app_gets_its_unconfirmed_messages_of_storage_files_of_the_original(tmp_path: Path) -> None:
    """Of six messages foo has confirmed six, bar three, baz one."""
    world = take_over(tmp_path, "fanout-partial")
    world.start()
    left = [len(world.pushes(world.consumer("bmq://d.fan/f", app))) for app in ("foo", "bar", "baz")]
    assert left == [0, 3, 5]


def test_the_broker_continues_storage_files_of_the_original(tmp_path: Path) -> None:
    """A restart finds old and new messages."""
    world = take_over(tmp_path, "crash-single")
    world.start()
    world.producer("bmq://d.prio/c").post(b"new")
    world.restart()
    pushed = world.pushes(world.consumer("bmq://d.prio/c"))
    assert [push.guid.hex().upper() for push in pushed][:-1] == outstanding("crash-single")
    assert pushed[-1].payload == b"new"
