"""Directories of a broker: each has one use and one broker, and foreign files in the archive are not deleted."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Any

import pytest
from kit.config import ConfigDirectory, broker_config, clusters_config
from kit.storage_kit import TINY, WALL, open_files

from bmqtwist.config.load import load
from bmqtwist.daemon.assemble import StartFailure
from bmqtwist.daemon.directories import create_missing
from bmqtwist.daemon.preflight import check
from bmqtwist.storage.files import RealDisk
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.store import DirectoryBusy
from bmqtwist.testing.config import DomainTable, configuration
from bmqtwist.testing.node import ImmediateNode

PORT = 30114


def clusters_with(root: Path, archive: str, second: str | None = None) -> dict[str, Any]:
    """`clusters.json` of a cluster with this archive, and of another one with this location."""
    partition = {"archiveLocation": archive}
    found = clusters_config(root / "storage", PORT, partition=partition)
    if second is not None:
        [other] = clusters_config(root / "storage", PORT, partition={
            "location": second, "archiveLocation": str(root / "other-archive")}, name="other")["myClusters"]
        found["myClusters"].append(other)
        found["myVirtualClusters"].append({"name": "other", "selfNodeId": 1})
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("archive", "other-archive", "other"):
        (tmp_path / name).mkdir()
    ConfigDirectory(tmp_path, PORT)
    (tmp_path / "link").symlink_to(tmp_path / "storage")
    return tmp_path


@pytest.mark.parametrize("archive, second", [
    ("storage", None), ("storage/.", None), ("other/../storage", None), ("link", None),
    ("other", "other"), ("archive", "storage"), ("archive", "archive")])
def test_check_and_start_refuse_an_archive_that_is_a_storage_directory(root: Path, archive: str, second: str | None) -> None:
    clusters = clusters_with(root, f"{root}/{archive}", second and f"{root}/{second}")
    directory = ConfigDirectory(root, PORT)
    directory.clusters = clusters
    directory.write()
    problems, _ = check(str(directory.etc), environment={})
    text = (directory.etc / "clusters.json").read_text().splitlines()
    [problem] = [each for each in problems if "which is the directory of" in each.text]
    assert "ocation" in text[problem.line - 1]
    node = ImmediateNode(lambda: configuration(broker_config(PurePath(root / "storage"), PORT), clusters),
                         lambda _: DomainTable())
    node.disk = RealDisk()  # type: ignore[assignment]
    with pytest.raises(StartFailure, match="which is the directory of myClusters"):
        node.start()
    assert not list((root / "storage").iterdir())


def test_separate_directories_are_accepted(root: Path) -> None:
    directory = ConfigDirectory(root, PORT)
    directory.clusters = clusters_with(root, f"{root}/archive", f"{root}/other")
    directory.write()
    assert check(str(directory.etc), environment={})[0] == []


def test_storage_and_archive_are_locked_while_a_broker_runs(root: Path) -> None:
    node = ImmediateNode(lambda: configuration(broker_config(PurePath(root / "storage"), PORT),
                                               clusters_with(root, f"{root}/archive")), lambda _: DomainTable())
    node.disk = RealDisk()  # type: ignore[assignment]
    node.start()
    for directory in (root / "storage", root / "archive"):
        with pytest.raises(DirectoryBusy, match="another broker"):
            RealDisk().lock(str(directory))
    node.stop()
    RealDisk().lock(str(root / "archive")).close()


def test_deleting_old_archived_file_sets_keeps_foreign_files() -> None:
    """Files of another partition, of another type, or of other programs are not deleted, whatever their names."""
    disk = MemoryDisk()
    files = open_files(disk, sizes=TINY, keep=0)
    partition = Partition(1, files, recover(files))
    partition.activate(1, WALL)
    journal = disk.content(next(path for path in disk.paths() if path.endswith("journal")))
    foreign = {"/a/bmq_0.20200101_000000.bmq_journal": b"notes of a colleague, longer than any header is",
               "/a/bmq_0.20200101_000000.bmq_data": journal, "/a/bmq_0.20200101_000000.bmq_qlist": b""}
    other = MemoryDisk()
    open_files(other, 1, TINY)
    foreign["/a/bmq_0.20200102_000000.bmq_journal"] = other.content(
        next(path for path in other.paths() if path.endswith("journal")))
    for path, content in foreign.items():
        disk.put(path, content)
    disk.put("/a/bmq_0.20200103_000000.bmq_journal", journal)
    partition.rollover(WALL)
    assert [path for path in disk.paths() if path.startswith("/a/")] == sorted(foreign)


def test_a_directory_is_identified_independent_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    os.symlink(tmp_path / "one", tmp_path / "two")
    disk, memory = RealDisk(), MemoryDisk()
    assert disk.identify(f"{tmp_path}/one") == disk.identify(f"{tmp_path}/two/.") != disk.identify(str(tmp_path))
    assert memory.identify("/m/one") == memory.identify("/m/one/.") != memory.identify("/m")
    with pytest.raises(OSError):
        disk.identify(f"{tmp_path}/three")


def test_missing_directories_are_created_and_logged(tmp_path: Path) -> None:
    directory = ConfigDirectory(tmp_path, PORT)
    directory.storage.rmdir()
    directory.broker["taskConfig"]["logController"]["fileName"] = str(tmp_path / "deep" / "logs" / "a.log")
    directory.write()
    found = load(str(directory.etc)).configuration
    lines = create_missing(found)
    assert directory.storage.is_dir() and (tmp_path / "deep" / "logs").is_dir()
    assert len(lines) == 2 and all(line.endswith("was missing and has been created") for line in lines)
    assert create_missing(found) == []


def test_a_directory_that_cannot_be_created_is_reported_by_check_and_start(tmp_path: Path) -> None:
    directory = ConfigDirectory(tmp_path, PORT)
    directory.storage.rmdir()
    assert not check(str(directory.etc))[0]
    (tmp_path / "file").write_text("")
    partition = directory.clusters["myClusters"][0]["partitionConfig"]
    partition["location"] = str(tmp_path / "file" / "storage")
    directory.write()
    [problem] = check(str(directory.etc))[0]
    assert "cannot create it in" in str(problem)
    [line] = create_missing(load(str(directory.etc)).configuration)
    assert "is missing and cannot be created" in line
