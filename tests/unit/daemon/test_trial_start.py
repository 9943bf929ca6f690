"""Trial start of `bmq check`: finds used ports and storage errors, with their place in the configuration."""

from __future__ import annotations

import hashlib
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kit.memory import MemoryWorld
from kit.process import free_port

from bmqtwist.cli.check import run_check
from bmqtwist.daemon import overlay
from bmqtwist.daemon.overlay import OverlayDisk
from bmqtwist.storage.files import RealDisk
from bmqtwist.storage.memory import MemoryDisk

PAGE_BYTES = 64 << 10


class DiskWorld(MemoryWorld):
    """A broker in this process over real directories."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, start=False)
        self.disk = RealDisk()  # type: ignore[assignment]
        self._set("etc/bmqbrkrcfg.json", lambda tree: self._listen(tree, free_port()))
        self.domain("d")

    def _set(self, name: str, change: Any) -> None:
        path = self.root / name
        tree = json.loads(path.read_text())
        change(tree)
        path.write_text(json.dumps(tree, indent=1))

    @staticmethod
    def _listen(tree: dict[str, Any], port: int) -> None:
        interface = tree["appConfig"]["networkInterfaces"]["tcpInterface"]
        interface["port"] = port
        for listener in interface.get("listeners", []):
            listener["port"] = port

    def partitions(self, number: int) -> None:
        """Change numPartitions."""
        self._set("etc/clusters.json", lambda tree: tree["myClusters"][0]["partitionConfig"].update(numPartitions=number))

    def store(self) -> None:
        """Create queues in all partitions and post messages; then close."""
        for part in ("location", "archive_location"):
            cluster, = self._configure().clusters.my_clusters
            Path(getattr(cluster.partition_config, part)).mkdir(parents=True, exist_ok=True)
        self.start()
        for number in range(4):
            self.producer(f"bmq://d/q{number}").post(b"x")
        self._drop_clients()
        self.stop()


@pytest.fixture
def world(tmp_path: Path) -> DiskWorld:
    return DiskWorld(tmp_path)


def findings(world: DiskWorld, **options: Any) -> list[dict[str, Any]]:
    out = io.StringIO()
    code = run_check(str(world.config.etc), out=out, as_json=True, **options)
    found = json.loads(out.getvalue())["findings"]
    assert (code != 0) == any(each["severity"] == "error" for each in found)
    return [each for each in found if "without effect" not in each["text"]]


def errors(world: DiskWorld) -> list[dict[str, Any]]:
    return [each for each in findings(world) if each["severity"] == "error"]


def tree(root: Path) -> dict[str, tuple[str, int]]:
    """Every file with its content and time of modification."""
    return {str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
            for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_trial_start_on_valid_storage_reports_no_error_and_changes_no_file(world: DiskWorld) -> None:
    assert not errors(world), "without stored queues"
    world.store()
    before = tree(world.root)
    assert not errors(world)
    assert tree(world.root) == before


def test_a_too_small_number_of_partitions_is_reported_with_its_line(world: DiskWorld) -> None:
    world.store()
    world.partitions(1)
    before = tree(world.root)
    found, = errors(world)
    lines = (world.config.etc / "clusters.json").read_text().splitlines()
    assert found["file"].endswith("clusters.json") and "numPartitions" in lines[found["line"] - 1]
    assert "numPartitions is 1, but" in found["text"] and "Set numPartitions to 2 or more" in found["text"]
    assert tree(world.root) == before


def test_a_changed_domain_mode_is_reported_with_its_file(world: DiskWorld) -> None:
    world.store()
    world.domain("d", "fanout")
    found, = errors(world)
    assert found["file"].endswith("domains/d.json") and "was stored as" in found["text"]


@pytest.mark.parametrize("kind", ["journal", "data"])
def test_damaged_files_are_reported_and_not_changed(world: DiskWorld, kind: str) -> None:
    """It is a warning: a start succeeds."""
    world.store()
    for path in world.root.rglob(f"*.bmq_{kind}"):
        data = bytearray(path.read_bytes())
        data[130 if kind == "journal" else 20] ^= 0xFF
        path.write_bytes(data)
    before = tree(world.root)
    assert not errors(world)
    assert kind == "data" or any("a start would report: [RECOVERY]" in each["text"] for each in findings(world))
    assert tree(world.root) == before
    assert kind == "data" or any(each["severity"] == "error" for each in findings(world, strict=True))


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as channel:
        channel.bind(("127.0.0.1", 0))
        channel.listen()
        yield channel.getsockname()[1]


def test_a_used_port_is_reported_with_its_line(world: DiskWorld, listener: int) -> None:
    world._set("etc/bmqbrkrcfg.json", lambda tree: world._listen(tree, listener))
    found = errors(world)
    lines = (world.config.etc / "bmqbrkrcfg.json").read_text().splitlines()
    assert found and all("Address already in use" in each["text"] for each in found)
    assert all(str(listener) in lines[each["line"] - 1] for each in found)


def test_a_used_port_of_the_console_is_reported(world: DiskWorld, listener: int) -> None:
    world._set("etc/bmqbrkrcfg.json", lambda tree: tree["appConfig"].setdefault("bmqtwist", {}).update(
        http={"port": listener, "address": "127.0.0.1"}))
    found, = errors(world)
    assert found["path"] == "appConfig.bmqtwist.http.port" and found["line"]


def test_an_address_of_another_machine_is_reported(world: DiskWorld) -> None:
    world._set("etc/bmqbrkrcfg.json", lambda tree: tree["appConfig"].setdefault("bmqtwist", {}).update(
        http={"port": 1, "address": "192.0.2.1"}))
    found, = errors(world)
    assert "Cannot listen at '192.0.2.1:1'" in found["text"]


def test_storage_and_ports_of_a_running_broker_are_not_checked(world: DiskWorld, listener: int) -> None:
    world.store()
    world._set("etc/bmqbrkrcfg.json", lambda tree: world._listen(tree, listener))
    cluster, = world._configure().clusters.my_clusters
    with_lock = RealDisk().lock(cluster.partition_config.location)
    try:
        assert not errors(world)
        assert any("in use by a running broker" in each["text"] for each in findings(world))
    finally:
        with_lock.close()
    assert errors(world)


# -- the overlay -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_an_overlay_behaves_like_a_disk_and_does_not_change_its_base(seed: int) -> None:
    """Random operations, compared with the same operations on a separate disk."""
    random = Random(seed)
    below, model = MemoryDisk(), MemoryDisk()
    for name in "abc":
        content = random.randbytes(random.randrange(3 * PAGE_BYTES))
        below.put(f"/d/{name}", content)
        model.put(f"/d/{name}", content)
    before = {path: below.content(path) for path in below.paths()}
    disk = OverlayDisk(below)
    for step in range(60):
        names = model.names("/d")
        assert disk.names("/d") == names
        if not names or random.random() < 0.1:
            for each in (disk, model):
                each.create(f"/d/new{step}").close()
            continue
        path = f"/d/{random.choice(names)}"
        real, modelled = disk.open(path), model.open(path)
        what = random.randrange(6)
        if what == 0:
            size = random.randrange(3 * PAGE_BYTES)
            real.resize(size, False)
            modelled.resize(size, False)
        elif what == 1 and random.random() < 0.3:
            disk.remove(path)
            model.remove(path)
            with pytest.raises(FileNotFoundError):
                disk.open(path)
            continue
        elif what == 2 and random.random() < 0.3:
            disk.rename(path, f"/d/moved{step}")
            model.rename(path, f"/d/moved{step}")
            continue
        else:
            at = random.randrange(real.size() + 1)
            data = random.randbytes(random.choice((1, 60, PAGE_BYTES + 5)))
            parts = [data[:3], data[3:]]
            assert real.write(at, parts) == modelled.write(at, parts) == len(data)
        at = random.randrange(real.size() + 10)
        size = random.randrange(2 * PAGE_BYTES)
        assert real.size() == modelled.size() and real.read(at, size) == modelled.read(at, size)
        there = real.data_after(at)
        rest = modelled.read(at, 4 * PAGE_BYTES)
        assert (there is None or there >= at) and not any(rest[:(len(rest) if there is None else there - at)])
    assert {path: below.content(path) for path in below.paths()} == before


def test_the_memory_of_an_overlay_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "WRITTEN_BYTES_MAX", 3 * PAGE_BYTES)
    file = OverlayDisk(MemoryDisk()).create("/d/x")
    file.write(0, [bytes(3 * PAGE_BYTES)])
    with pytest.raises(OSError, match="No space"):
        file.write(3 * PAGE_BYTES, [b"x"])
    file.resize(0, False)
    assert file.write(PAGE_BYTES, [b"x"]) == 1 and file.read(0, PAGE_BYTES + 1) == bytes(PAGE_BYTES) + b"x"
