"""Three members as processes: the disk of the leader fills up and is freed again.

The storage is on a small tmpfs. If this user must not mount one, a limit of the leader's file sizes takes its place.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import blazingmq
import pytest
from kit.sdk import Application, application

from bmqtwist.testing import ClusterProcess

STRONG = "bmq://bmq.test.persistent.priority.sc/"
DISK_BYTES = 64 << 20
CHUNK_BYTES = 1 << 16
PAYLOAD_BYTES = 3_000  # 300 of them are below the quota of a queue, 1 MiB
FILLER = "filler"
FILE_BYTES_MAX = 1 << 10  # limit that takes the place of a full disk

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Yield available members, whose storage directories are mounts if this user may mount."""
    with ExitStack() as stack:
        for number in (1, 2, 3):
            place = tmp_path / f"n{number}" / "storage"
            place.mkdir(parents=True)
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", place], check=False,
                                     capture_output=True)
            if not mounted.returncode:
                stack.callback(subprocess.run, ["umount", "--lazy", place], check=False)
        nodes = stack.enter_context(ClusterProcess(tmp_path))
        for name in nodes.names:
            nodes[name].expect("Transitioning to AVAILABLE", deadline=30.0)
        yield nodes


@contextmanager
def full_disk(nodes: ClusterProcess, name: str, directory: Path) -> Iterator[str]:
    """Context with a full disk of a node; yield the error of its writes."""
    if os.path.ismount(directory):
        for size in (CHUNK_BYTES, 1):
            with open(directory / FILLER, "ab", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(size))
        yield os.strerror(errno.ENOSPC)
        os.unlink(directory / FILLER)
        return
    process = nodes[name].process
    assert process is not None
    limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, limits[1]))
    yield os.strerror(errno.EFBIG)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.1)


def post(app: Application, uri: str) -> None:
    app.post(uri, b"payload", wait=False)
    assert app.next_ack(30.0).status is blazingmq.AckStatus.SUCCESS


def leader_at(nodes: ClusterProcess, name: str) -> str:
    """Return the active leader that a node follows; "" = none."""
    answer = nodes[name].admin("ENCODING JSON_COMPACT CLUSTERS CLUSTER c3 STATUS")
    elector = json.loads(answer)["clusterStatus"]["electorInfo"]
    return str(elector["leaderNode"]).strip("[]").partition(",")[0] if elector["leaderStatus"] == "ACTIVE" else ""


def readiness(nodes: ClusterProcess, name: str) -> str:
    try:
        with urlopen(f"{nodes.consoles[name]}/readyz", timeout=20) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return error.read().decode()


def test_a_leader_whose_disk_is_full_hands_its_roles_over(cluster: ClusterProcess, tmp_path: Path) -> None:
    former = cluster.leader
    location = tmp_path / former / "storage"
    place = next(name for name in cluster.names if name != former)
    with application(cluster[place].url) as app:
        app.session.open_queue(f"{STRONG}q", write=True)
        post(app, f"{STRONG}q")
        with full_disk(cluster, former, location) as error:
            since = time.monotonic()
            while leader_at(cluster, place) == former:  # until the primary needs another page of its disk
                app.post(f"{STRONG}q", bytes(PAYLOAD_BYTES), wait=False)
                assert app.next_ack(30.0).status is blazingmq.AckStatus.SUCCESS
                assert time.monotonic() - since < 30.0
                time.sleep(0.1)  # at most 300 posts
            app.session.open_queue(f"{STRONG}new", write=True)
            for uri in (f"{STRONG}q", f"{STRONG}new"):
                post(app, uri)
            assert time.monotonic() - since < 30.0
            wait_for(lambda: leader_at(cluster, place) not in ("", former), 15.0)
            assert "cannot write" in readiness(cluster, former) and error in readiness(cluster, former)
            status = cluster[place].admin("CLUSTERS CLUSTER c3 STATUS")
            assert status.count("(cannot write ") == 1 and "Primary for partitions" in status
            leader = cluster[leader_at(cluster, place)]
            assert "cannot write" in leader.admin(f"CLUSTERS CLUSTER c3 STORAGE PARTITION 0 MOVE {former}")
            assert "cannot write" in leader.admin(f"CLUSTERS CLUSTER c3 STATE ELECTOR TRANSFER {former}")
        wait_for(lambda: readiness(cluster, former) == "ok\n", 30.0)
        assert leader.admin(f"CLUSTERS CLUSTER c3 STATE ELECTOR TRANSFER {former}") == "SUCCESS"
        assert cluster.elect() == former
        assert cluster[former].admin(f"CLUSTERS CLUSTER c3 STORAGE PARTITION 0 MOVE {former}") == "SUCCESS"
        post(app, f"{STRONG}q")
