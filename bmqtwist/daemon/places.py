"""Directories of the clusters: each can be used, and for one thing by one cluster, whatever it is called.

A rollover moves the old file set into the archive and thins that out. An archive that is the storage of somebody, by the
same name or through a symbolic link, would lose the files in use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.config.declare import Finding
from bmqtwist.storage.store import FileSizes, StorageError

MEMBERS = (("location", "location"), ("archiveLocation", "archive_location"))
Identify = Callable[[str], Hashable]  # equal for two paths of one directory; OSError if there is no such directory


def unusable_places(clusters: Sequence[ClusterDefinition], file: str, complaint: Callable[[str], str]) -> list[Finding]:
    """Directories in which no files can be made, and sizes of files that the format cannot have."""
    problems: list[Finding] = []
    for i, cluster in enumerate(clusters):
        config, where = cluster.partition_config, f"myClusters[{i}].partitionConfig"
        for member, attribute in MEMBERS:
            path: str = getattr(config, attribute)
            wrong = complaint(path)
            if wrong:
                problems.append(Finding(file, 0, f"{where}.{member}", f'found "{path}", but {wrong}'))
        try:
            FileSizes(config.max_journal_file_size, config.max_data_file_size, config.max_qlist_file_size)
        except StorageError as error:
            member = str(error).partition(" ")[0]
            problems.append(Finding(file, 0, f"{where}.{member}", str(error)))
    return problems


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
