"""Makes the directories that a configuration names and that are not there."""

from __future__ import annotations

import os

from bmqtwist.config.broker import Configuration
from bmqtwist.daemon.places import MEMBERS

DIRECTORY_MODE = 0o700  # messages are for the user the broker runs as


def make_missing(configuration: Configuration) -> list[str]:
    """Make the directories of logs, statistics, storage and archives that are missing; a line for the log for each.

    Whoever uses one that cannot be made refuses the start.
    """
    files = (("logs", configuration.broker.task_config.log_controller.file_name),
             ("statistics", configuration.app.stats.printer.file))
    wanted = [(os.path.dirname(file), what) for what, file in files]
    wanted += [(getattr(cluster.partition_config, attribute), f"{member} of cluster '{cluster.name}'")
               for cluster in configuration.clusters.my_clusters for member, attribute in MEMBERS]
    lines = []
    for path, what in wanted:
        if path and not os.path.exists(path):
            try:
                os.makedirs(path, DIRECTORY_MODE)
            except OSError as error:
                lines.append(f"The directory '{path}' ({what}) is missing and cannot be made: {error}")
            else:
                lines.append(f"The directory '{path}' ({what}) was missing and has been made")
    return lines
