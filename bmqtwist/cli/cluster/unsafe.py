"""`bmq cluster unsafe-force` and `unsafe-clear`: one node of a cluster goes on alone, and becomes one of several again."""

from __future__ import annotations

import time

import click

from bmqtwist.cli.exits import Unreachable
from bmqtwist.cluster.metadata_log import rewritten, unsafe_of
from bmqtwist.config.clusters import ClusterDefinition, ClusterNode
from bmqtwist.config.declare import ConfigError
from bmqtwist.config.load import load
from bmqtwist.errors import LocalError
from bmqtwist.ids import make_storage_key
from bmqtwist.storage.files import RealDisk
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.wire.cluster_schema import UnsafeInfo

_cluster = click.option("--cluster", metavar="NAME", help="Which one, if the node is a member of several.")
_configuration = click.argument("directory", metavar="CONFIGDIR", type=click.Path(exists=True, file_okay=False))


@click.command("unsafe-force")
@_configuration
@_cluster
@click.option("--accept-data-loss", is_flag=True, help="Required: what only the other nodes have is lost.")
def unsafe_force(directory: str, cluster: str | None, accept_data_loss: bool) -> None:
    """Let the one node that is left of a cluster go on alone, without the majority that is lost for ever.

    CONFIGDIR is its configuration directory; its broker is down. The other nodes must never start again with what they
    have: end them, and keep them ended.
    """
    definition, node, others = _member(directory, cluster)
    if not accept_data_loss:
        raise LocalError(f"{node.name} would go on without {others}: messages that they have acknowledged, and it does "
                         "not have, would be lost. If they never come back, say so with --accept-data-loss")
    _rewrite(definition, node, UnsafeInfo(node.id, int(time.time())))
    click.echo(f"{node.name} of cluster '{definition.name}' goes on alone with its next start. Never start {others} with "
               "their present storage.")


@click.command("unsafe-clear")
@_configuration
@_cluster
def unsafe_clear(directory: str, cluster: str | None) -> None:
    """Let a node that went on alone be one of several again. Its broker is down, the storage of the others is empty."""
    definition, node, _ = _member(directory, cluster)
    _rewrite(definition, node, None)
    click.echo(f"{node.name} of cluster '{definition.name}' is one of several again. Start it with one other node, "
               "whose storage is empty, and the rest when both are available.")


def _member(directory: str, name: str | None) -> tuple[ClusterDefinition, ClusterNode, str]:
    """The cluster of several nodes in a configuration directory, the node of the directory, and the names of the others."""
    try:
        configuration = load(directory).configuration
    except ConfigError as error:
        raise LocalError(f"the configuration cannot be used:\n{error}") from None
    several = [each for each in configuration.clusters.my_clusters if len(each.nodes) > 1 and name in (None, each.name)]
    if len(several) != 1:
        raise LocalError(f"'{directory}' has {len(several)} clusters of several nodes" + (
                         f" with the name '{name}'" if name else "; name one with --cluster" if several else ""))
    own = configuration.self_nodes[several[0].name]
    return (several[0], next(each for each in several[0].nodes if each.id == own),
            ", ".join(each.name for each in several[0].nodes if each.id != own))


def _rewrite(definition: ClusterDefinition, node: ClusterNode, unsafe: UnsafeInfo | None) -> None:
    """Replace the ledger by one that says so; the present one is kept beside it."""
    disk, location = RealDisk(), definition.partition_config.location
    try:
        lock = disk.lock(location)
    except OSError as error:
        raise Unreachable(f"'{location}' cannot be used: {error.strerror or error}. Does the broker still run?") from None
    file = LedgerFile(disk, location)
    try:
        file.open()
        data, wall = file.read_all(), int(time.time())
        if not data:
            raise LocalError(f"'{location}' holds no metadata ledger: this node was never part of the cluster")
        if (unsafe_of(data) is None) is (unsafe is None):
            raise LocalError(f"{node.name} " + ("goes on alone already" if unsafe else "does not go on alone"))
        log_id = make_storage_key(node.name, time.time_ns(), set())
        file.replace(log_id, rewritten(data, node.id, node.name, log_id, unsafe, wall), wall)
    except OSError as error:
        raise Unreachable(f"the metadata ledger in '{location}' cannot be replaced: {error.strerror or error}") from None
    finally:
        file.close()
        lock.close()
