"""Faults of a cluster of processes, as a table: each is caused, and ended again, while the cluster is under load.

A fault of storage, list of nodes or disk must be named by the node that has it: in its log, as the end of its start, or by
/readyz. Called by `failover.py`, whose help describes all kinds; `member_changes.py` has the changes of members.
"""

from __future__ import annotations

import copy
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmqtwist.testing import BrokerProcess
from soak.cluster_load import LoadedCluster
from soak.cutting import CuttingRelays
from soak.member_changes import add_node, remove_node, replace_node

NARROW_BYTES_PER_SECOND = 1_000_000
DELAY_S, JITTER_S = 0.3, 0.25
FILE_BYTES_MAX = 4096  # writes beyond this size fail on a full disk
NAMED_SECONDS_MAX = 60.0
LOSSES = {"everything": "*", "the ledger": "*.bmq_csl", "the vote": "bmqtwist_vote", "the promises": "bmqtwist_promises",
          "the journals": "*.bmq_journal", "the file sets": "bmq_[0-9]*", "the file set of partition 0": "bmq_0.*",
          "the identity": "bmqtwist_identity"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `act`: causes and ends it at a node; `prepare`: called before it begins; `of_node`: its consequences
    depend on the role of the node; `majority`: at most one node is down at a time; `relays`: it needs relays;
    `possible`: False if the cluster must not have this fault now."""

    act: Callable[[LoadedCluster, str], None]
    prepare: Callable[[LoadedCluster, str], None] = lambda load, name: None
    of_node: bool = True
    at_leader: bool = False
    majority: bool = True
    relays: bool = False
    possible: Callable[[LoadedCluster], bool] = lambda load: True


# -- processes ------------------------------------------------------------------------------------------------------------


def _kill(load: LoadedCluster, name: str) -> None:
    load.cluster[name].kill()
    load.sleep(0.1, 3.0)
    load.cluster[name].launch()


def _stop(load: LoadedCluster, name: str) -> None:
    load.stop(name)
    load.sleep(0.1, 3.0)
    load.cluster[name].launch()


def _pause(load: LoadedCluster, name: str) -> None:
    load.cluster[name].pause()
    load.sleep(2.0, 6.0)
    load.cluster[name].resume()


def _change_release(load: LoadedCluster, name: str) -> None:
    for command in (load.earlier_command, None):
        load.stop(name)
        load.cluster[name].command = command
        load.cluster[name].launch()
        load.wait_available()
        load.sleep(1.0, 3.0)


# -- links ----------------------------------------------------------------------------------------------------------------


@contextmanager
def _links(load: LoadedCluster) -> Iterator[CuttingRelays]:
    """Heal all links after a fault of 2 to 8 s."""
    assert load.relays is not None
    yield load.relays
    load.sleep(2.0, 8.0)
    load.relays.heal()


def _other(load: LoadedCluster, name: str) -> str:
    return load.random.choice([each for each in load.cluster.names if each != name])


def _cut(inbound: bool, outbound: bool) -> Callable[[LoadedCluster, str], None]:
    def act(load: LoadedCluster, name: str) -> None:
        with _links(load) as relays:
            for other in load.cluster.names:
                if other != name and inbound:
                    relays.cut(other, name)
                if other != name and outbound:
                    relays.cut(name, other)
    return act


def _cut_pair(load: LoadedCluster, name: str) -> None:
    other = _other(load, name)
    with _links(load) as relays:
        relays.cut(name, other)
        relays.cut(other, name)


def _narrow(load: LoadedCluster, name: str) -> None:
    with _links(load) as relays:
        relays.limit(NARROW_BYTES_PER_SECOND, name, _other(load, name))


def _delay(load: LoadedCluster, name: str) -> None:
    with _links(load) as relays:
        relays.delay(DELAY_S, JITTER_S)


# -- storage --------------------------------------------------------------------------------------------------------------


def _await_text(load: LoadedCluster, name: str, since: int, texts: Sequence[str], readyz: str = "") -> None:
    """Wait until the log of a node, from line `since` on, has one of the texts, or its /readyz contains `readyz`."""
    records = load.cluster[name].records
    load.until(lambda: any(text in line for line in records[since:] for text in texts)
               or readyz and readyz in load.reason(name), f"{name} to say {texts or readyz}", NAMED_SECONDS_MAX)


def _lose_storage(load: LoadedCluster, name: str) -> None:
    node, (what, pattern) = load.cluster[name], load.random.choice(list(LOSSES.items()))
    node.kill()
    _remove(node, pattern)
    since = len(node.records)
    node.launch()
    load.losses[what] += 1
    _await_text(load, name, since, ["storage-lost", "this node is FORMING"])  # FORMING: an empty directory


def _remove(node: BrokerProcess, pattern: str) -> None:
    for path in node.config.storage.glob(pattern):
        path.unlink()


def _save_copy(load: LoadedCluster, name: str) -> None:
    node = load.cluster[name]
    load.begin("stop", name)
    load.stop(name)
    shutil.copytree(node.config.storage, node.root / "copy")
    node.launch()
    load.wait_available()
    load.sleep(2.0, 4.0)


def _restore_copy(load: LoadedCluster, name: str) -> None:
    node = load.cluster[name]
    node.kill()
    shutil.rmtree(node.config.storage)
    (node.root / "copy").rename(node.config.storage)
    load.sleep(0.1, 3.0)
    node.launch()


def _swap(load: LoadedCluster, name: str) -> None:
    nodes = [load.cluster[name], load.cluster[_other(load, name)]]
    for node in nodes:
        node.kill()
    _swap_directories(nodes)
    for node in nodes:
        since = len(node.records)
        node.launch()
        node.wait()
        _await_text(load, node.root.name, since, ["it belongs to node"])
    _swap_directories(nodes)
    for node in nodes:
        node.launch()


def _swap_directories(nodes: list[BrokerProcess]) -> None:
    one, two = (node.config.storage for node in nodes)
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


# -- list of nodes --------------------------------------------------------------------------------------------------------

Nodes = list[dict[str, Any]]


def _alone(nodes: Nodes, name: str) -> Nodes:
    return [node for node in nodes if node["name"] == name]


def _one_missing(nodes: Nodes, name: str) -> Nodes:
    missing = next(node for node in nodes if node["name"] != name)
    return [node for node in nodes if node is not missing]


def _one_added(nodes: Nodes, name: str) -> Nodes:
    added = {**nodes[0], "id": 99, "name": "n99", "transport": {"tcp": {"endpoint": "tcp://127.0.0.1:9"}}}
    return [*nodes, added]


def _renumbered(nodes: Nodes, name: str) -> Nodes:
    others = [node for node in nodes if node["name"] != name]
    others[0]["id"], others[1]["id"] = others[1]["id"], others[0]["id"]
    return nodes


def _endpoints_swapped(nodes: Nodes, name: str) -> Nodes:
    others = [node for node in nodes if node["name"] != name]
    others[0]["transport"], others[1]["transport"] = others[1]["transport"], others[0]["transport"]
    return nodes


MISTAKES = (_alone, _one_missing, _one_added, _renumbered, _endpoints_swapped)


def _mistake_list(load: LoadedCluster, name: str) -> None:
    node = load.cluster[name]
    load.stop(name)
    right = node.config.clusters["myClusters"]
    wrong = copy.deepcopy(right)
    wrong[0]["nodes"] = load.random.choice(MISTAKES)(wrong[0]["nodes"], name)
    node.config.clusters["myClusters"] = wrong
    node.config.write()
    since = len(node.records)
    node.launch()
    _await_text(load, name, since, ["clusters.json differs from the members"])
    load.until(lambda: not node.running or "MISCONFIGURED" in load.reason(name), f"{name} to be misconfigured")
    load.sleep(1.0, 3.0)
    if not load.reason(name):
        raise RuntimeError(f"{name} serves with a wrong list of nodes")
    if node.running:
        node.kill()
    node.config.clusters["myClusters"] = right
    node.config.write()
    node.launch()


# -- disks ----------------------------------------------------------------------------------------------------------------


def _fill_disk(load: LoadedCluster, name: str) -> None:
    """Let all files of a running node end at FILE_BYTES_MAX: writes beyond fail, as on a full disk."""
    process = load.cluster[name].process
    assert process is not None
    hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, hard))
    _await_text(load, name, 0, [], "cannot write")
    load.sleep(2.0, 5.0)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def _make_read_only(load: LoadedCluster, name: str) -> None:
    """Start a node whose storage directory is read-only: it names the reason."""
    node = load.cluster[name]
    load.stop(name)
    since = len(node.records)
    with _read_only(node.config.storage):
        node.launch()
        _await_text(load, name, since, ["Read-only file system", "Permission denied"], "cannot write")
        load.sleep(1.0, 3.0)
        if not load.reason(name):
            raise RuntimeError(f"{name} serves with a read-only directory")
        if node.running:
            node.kill()
    node.launch()


@contextmanager
def _read_only(directory: Path) -> Iterator[None]:
    """Make a directory read-only: for root, whom permissions do not stop, by a mount."""
    if os.geteuid():
        directory.chmod(0o500)
        yield
        directory.chmod(0o700)
        return
    for options in (["--bind", str(directory)], ["-o", "remount,bind,ro"]):
        subprocess.run(["mount", *options, str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


# -- members --------------------------------------------------------------------------------------------------------------


def _can_grow(load: LoadedCluster) -> bool:
    return len(load.cluster.names) == load.size


FAULTS = {
    "kill": Fault(_kill),
    "pause": Fault(_pause, at_leader=True),
    "stop": Fault(_stop),
    "isolate": Fault(_cut(inbound=True, outbound=True), relays=True),
    "inbound": Fault(_cut(inbound=True, outbound=False), relays=True),
    "outbound": Fault(_cut(inbound=False, outbound=True), relays=True),
    "pair": Fault(_cut_pair, relays=True),
    "narrow": Fault(_narrow, relays=True),
    "delay": Fault(_delay, of_node=False, relays=True),
    "storage": Fault(_lose_storage),
    "copy": Fault(_restore_copy, prepare=_save_copy),
    "swapped": Fault(_swap, of_node=False, majority=False),
    "list": Fault(_mistake_list),
    "full": Fault(_fill_disk),
    "readonly": Fault(_make_read_only),
    "add": Fault(lambda load, name: add_node(load), of_node=False, possible=_can_grow),
    "remove": Fault(remove_node, of_node=False, majority=False, possible=lambda load: not _can_grow(load)),
    "replace": Fault(replace_node, of_node=False, majority=False),
    "versions": Fault(_change_release, possible=lambda load: bool(load.earlier_command)),
}


def cause(load: LoadedCluster, kind: str) -> None:
    """Cause one fault, end it, and wait until all nodes are ready."""
    fault, leader = FAULTS[kind], load.cluster.leader
    name = leader if fault.at_leader else load.random.choice(load.cluster.names)
    fault.prepare(load, name)
    load.begin(kind, name if fault.of_node else "")
    fault.act(load, name)
    load.wait_available()
