"""`bmq cluster unsafe-force` and `unsafe-clear`: single-node operation of a cluster that lost its majority, and its end.

`command.py` adds both to `bmq cluster`. They change the ledger files of stopped brokers with `cluster/metadata_log.py`:
they set or remove `UnsafeInfo` (`wire/cluster_schema.py`). The broker reads the result at its start.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

import click

from bmqtwist.cli.exits import Unreachable
from bmqtwist.cluster.member_lists import list_of_one
from bmqtwist.cluster.metadata_log import open_alone, read_unsafe_info, rewrite_ledger
from bmqtwist.config.clusters import ClusterDefinition, ClusterNode
from bmqtwist.config.declare import ConfigError
from bmqtwist.config.load import load
from bmqtwist.errors import LocalError
from bmqtwist.ids import make_storage_key
from bmqtwist.storage.files import RealDisk
from bmqtwist.storage.identity import IdentityFile, StorageIdentity, StorageState, id_text, random_id
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.wire.cluster_schema import UnsafeInfo

_cluster = click.option("--cluster", metavar="NAME", help="Name of the cluster, if the node is a member of several.")
_configuration = click.argument("directory", metavar="CONFIGDIR", type=click.Path(exists=True, file_okay=False))


@click.command("unsafe-force")
@_configuration
@_cluster
@click.option("--accept-data-loss", is_flag=True, help="Required: data that only the other nodes have is lost.")
def unsafe_force(directory: str, cluster: str | None, accept_data_loss: bool) -> None:
    """Let the only remaining node of a cluster operate alone, after the permanent loss of the majority.

    CONFIGDIR is its configuration directory; its broker must be stopped. The other nodes must never start again with their
    present storage.
    """
    definition, node, others = _load_cluster(directory, cluster)
    if not accept_data_loss:
        raise LocalError(f"{node.name} would operate without {others}: acknowledged messages that only those nodes have "
                         "would be lost. If the nodes are lost permanently, confirm with --accept-data-loss")
    cluster_id = _rewrite_storage(definition, node, UnsafeInfo(node.id, int(time.time())))
    click.echo(f"{node.name} of cluster '{definition.name}' operates alone from its next start. The cluster id is now "
               f"{id_text(cluster_id)}: {others} cannot join with their present storage.")


@click.command("unsafe-clear")
@_configuration
@_cluster
def unsafe_clear(directory: str, cluster: str | None) -> None:
    """End the single-node operation of a node. Its broker must be stopped, the storage of the other nodes empty."""
    definition, node, others = _load_cluster(directory, cluster)
    _rewrite_storage(definition, node, None)
    click.echo(f"{node.name} of cluster '{definition.name}' no longer operates alone. Start it, and {others} with empty "
               "storage: they become members when they have copied all data.")


def _load_cluster(directory: str, name: str | None) -> tuple[ClusterDefinition, ClusterNode, str]:
    """Return the multi-node cluster of a configuration directory, its own node, and the names of the other nodes."""
    try:
        configuration = load(directory).configuration
    except ConfigError as error:
        raise LocalError(f"the configuration cannot be used:\n{error}") from None
    several = [each for each in configuration.clusters.my_clusters if len(each.nodes) > 1 and name in (None, each.name)]
    if len(several) != 1:
        raise LocalError(f"'{directory}' has {len(several)} clusters of several nodes" + (
                         f" with the name '{name}'" if name else "; select one with --cluster" if several else ""))
    own = configuration.self_nodes[several[0].name]
    return (several[0], next(each for each in several[0].nodes if each.id == own),
            ", ".join(each.name for each in several[0].nodes if each.id != own))


def _rewrite_storage(definition: ClusterDefinition, node: ClusterNode, unsafe: UnsafeInfo | None) -> int:
    """Replace the ledger by one with this UnsafeInfo, in which the node is the only voter; the present file is kept beside
    it. Return the cluster id, a new one if the node is to operate alone."""
    disk, location = RealDisk(), definition.partition_config.location
    try:
        lock = disk.lock(location)
    except OSError as error:
        raise Unreachable(f"'{location}' cannot be used: {error.strerror or error}. Is the broker still running?") from None
    file = LedgerFile(disk, location)
    try:
        file.open()
        data, wall = file.read_all(), int(time.time())
        if not data:
            raise LocalError(f"'{location}' contains no metadata ledger: this node was never part of the cluster")
        if (read_unsafe_info(data) is None) is (unsafe is None):
            raise LocalError(f"{node.name} " + ("already operates alone" if unsafe else "does not operate alone"))
        log, partitions = open_alone(data, node.id, node.name), definition.partition_config.num_partitions
        identities = IdentityFile(disk, location)
        identity, before = identities.read()[0], log.state.members
        cluster_id = before.cluster_id if unsafe is None and before is not None else random_id(random.random)
        if identity is None:
            identity = StorageIdentity(definition.name, node.id, partitions, random_id(random.random))
        identities.write(replace(identity, state=StorageState.COMPLETE, cluster_id=cluster_id, previous=0))
        nodes = {each.node_id: each for each in definition.members}
        voter = replace(nodes.pop(node.id), incarnation=identity.incarnation)
        members = list_of_one(before, voter, nodes.values() if unsafe is None else (), cluster_id, partitions)
        log_id = make_storage_key(node.name, time.time_ns(), set())
        file.replace(log_id, rewrite_ledger(log, log_id, unsafe, members, wall), wall)
        return cluster_id
    except OSError as error:
        raise Unreachable(f"the metadata ledger in '{location}' cannot be replaced: {error.strerror or error}") from None
    finally:
        file.close()
        lock.close()
