"""A byte of a DATA file changes below running nodes of a cluster: consumers receive the message, the file is repaired."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from bmqtwist.sdk.simple import Session
from bmqtwist.testing import ClusterProcess

URI = "bmq://bmq.test.persistent.priority/rot"
PAYLOADS = [b"stored message %04d" % number for number in range(50)]
DAMAGED = PAYLOADS[7]
DEADLINE_S = 30.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def data_files(directory: Path) -> list[Path]:
    """Return the DATA files of a node that contain the message, damaged or not."""
    return [path for path in sorted((directory / "storage").glob("*.bmq_data")) if PAYLOADS[0] in path.read_bytes()]


def damage(directory: Path) -> Path:
    """Change one byte of the message in the DATA file of a node."""
    path, = data_files(directory)
    at = path.read_bytes().index(DAMAGED)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"S")
    assert DAMAGED not in path.read_bytes()
    return path


def metric(console: str, name: str) -> int:
    """Return the sum of a counter of all partitions."""
    with urlopen(f"{console}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith("cluster_partition") and name in line)


def test_a_damaged_byte_is_repaired_before_the_delivery_and_by_the_scrub(tmp_path: Path) -> None:
    app = {"bmqtwist": {"payloadCacheBytes": 0, "scrubIntervalSeconds": 2}}
    with ClusterProcess(tmp_path, app=app) as cluster:
        leader = cluster.leader
        with Session(cluster[leader].url) as session:
            writer = session.open(URI, write=True)
            for payload in PAYLOADS:
                writer.post(payload)
            writer.close()
            names = sorted(cluster.names)
            wait_for("all nodes store the messages", lambda: all(
                len(data_files(tmp_path / name)) == 1 and DAMAGED in data_files(tmp_path / name)[0].read_bytes()
                for name in names))
            path = damage(tmp_path / leader)
            reader = session.open(URI, read=True)
            received = [message.payload for _ in PAYLOADS if (message := reader.get(DEADLINE_S)) is not None]
            assert received == PAYLOADS, "in order"
            wait_for("the file is repaired", lambda: DAMAGED in path.read_bytes())
        replica = next(name for name in names if name != leader)
        path = damage(tmp_path / replica)
        wait_for("a scrub repairs the file of the replica", lambda: DAMAGED in path.read_bytes())
        assert metric(cluster.consoles[leader], "repaired_msgs") == 1 == metric(cluster.consoles[replica], "repaired_msgs")
        assert any("[STORAGE] payload-damaged: " in line and URI in line for line in cluster[leader].records)
