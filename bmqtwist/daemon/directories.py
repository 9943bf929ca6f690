"""Directories of a configuration: checks that each is usable and used once, and creation of missing ones.

A rollover moves the old file set into the archive, and deletes the oldest file sets there. If an archive were also a storage
directory, by the same path or a symbolic link, a rollover would delete files in use.

`assemble.py` calls it at the start, `preflight.py` before it, `tap.py` and `cli/bmqbrkr.py` create missing directories. The
lock of a directory is in `storage/files.py`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Hashable, Iterator, Sequence

from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.config.declare import Finding
from bmqtwist.storage.store import FileSizes, StorageError

DIRECTORY_MODE = 0o700  # only the user of the broker may read messages
_MEMBERS = (("location", "location"), ("archiveLocation", "archive_location"))


def readable_by_others(path: str) -> bool:
    """Return whether every user of this machine may read a file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False


def configured_directories(clusters: Sequence[ClusterDefinition]) -> list[tuple[str, str]]:
    """Return (configuration path, directory) of each storage directory and archive."""
    return [(f"myClusters[{i}].partitionConfig.{member}", getattr(cluster.partition_config, attribute))
            for i, cluster in enumerate(clusters) for member, attribute in _MEMBERS]


def unusable_directories(clusters: Sequence[ClusterDefinition], file: str,
                    complaint: Callable[[str], str]) -> Iterator[Finding]:
    """Find directories in which files cannot be created, and file sizes that the format does not allow. `complaint`
    returns the reason why a directory is unusable, "" if it is usable."""
    for i, cluster in enumerate(clusters):
        for where, path in configured_directories(clusters)[2 * i:2 * i + 2]:
            if wrong := complaint(path):
                yield Finding(file, 0, where, f'found "{path}", but {wrong}')
        config = cluster.partition_config
        try:
            FileSizes(config.max_journal_file_size, config.max_data_file_size, config.max_qlist_file_size)
        except StorageError as error:
            yield Finding(file, 0, f"myClusters[{i}].partitionConfig.{str(error).partition(' ')[0]}", str(error))


def shared_directories(clusters: Sequence[ClusterDefinition], file: str,
                  identify: Callable[[str], Hashable]) -> Iterator[Finding]:
    """Find directories that are configured twice. `identify`: equal for two paths of one directory; OSError if missing."""
    seen: dict[Hashable, tuple[str, str]] = {}
    for where, path in configured_directories(clusters):
        try:
            found = seen.setdefault(identify(path), (where, path))
        except OSError:
            continue
        if found[0] != where:
            yield Finding(file, 0, where, f'found "{path}", which is the directory of {found[0]} ("{found[1]}"); expected '
                                          "a directory of its own")


def create_missing(configuration: Configuration) -> list[str]:
    """Create missing directories of logs, statistics, storage and archives; return a log line for each.

    If a directory cannot be created, the part that uses it refuses the start.
    """
    wanted = [(os.path.dirname(configuration.broker.task_config.log_controller.file_name), "logs"),
              (os.path.dirname(configuration.app.stats.printer.file), "statistics"),
              (configuration.extension.control_directory, "control pipe")]
    for cluster in configuration.clusters.my_clusters:
        wanted += [(path, f"{where.rpartition('.')[2]} of cluster '{cluster.name}'")
                   for where, path in configured_directories([cluster])]
    lines = []
    for path, what in wanted:
        if path and not os.path.exists(path):
            try:
                os.makedirs(path, DIRECTORY_MODE)
            except OSError as error:
                lines.append(f"The directory '{path}' ({what}) is missing and cannot be created: {error}")
            else:
                lines.append(f"The directory '{path}' ({what}) was missing and has been created")
    return lines
