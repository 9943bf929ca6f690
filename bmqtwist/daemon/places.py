"""Directories of the clusters: each is used for one thing by one cluster, whatever it is called.

A rollover moves the old file set into the archive and thins that out. An archive that is the storage of somebody, by the
same name or through a symbolic link, would lose the files in use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.config.declare import Finding

MEMBERS = (("location", "location"), ("archiveLocation", "archive_location"))
Identify = Callable[[str], Hashable]  # equal for two paths of one directory; OSError if there is no such directory


def shared_places(clusters: Sequence[ClusterDefinition], file: str, identify: Identify) -> list[Finding]:
    """What is wrong with directories that are named twice. A directory that is not there is passed over."""
    problems: list[Finding] = []
    seen: dict[Hashable, tuple[str, str]] = {}
    for i, cluster in enumerate(clusters):
        for member, attribute in MEMBERS:
            path: str = getattr(cluster.partition_config, attribute)
            where = f"myClusters[{i}].partitionConfig.{member}"
            try:
                found = seen.setdefault(identify(path), (where, path))
            except OSError:
                continue
            if found[0] != where:
                problems.append(Finding(file, 0, where, f'found "{path}", which is the directory of {found[0]} '
                                        f'("{found[1]}"); expected a directory of its own'))
    return problems
