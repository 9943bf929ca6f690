"""What a primary sends a node that lacks some of a partition: records, or all that is live.

Records that were written last are in memory, and go out at once. What has to be read again goes out one message at a time,
so that others are served in between.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.partition_events import Fed, Feed, FeedFailed, FeedImage, PartitionInput, Records
from bmqtwist.cluster.partition_wire import encode_partition_message
from bmqtwist.loop.timers import Timers
from bmqtwist.member import images
from bmqtwist.member.cell import Cell
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report
from bmqtwist.storage.psn import NO_PSN, Psn, RecordRun

PAUSE_S = 0.001  # behind a message with what was read again


class Feeding:
    """See above; `node_id`: ours, `step(cell, now, input)`: something happens to the machine of a partition."""

    def __init__(self, node_id: int, links: ClusterLinks, timers: Timers, report: Report,
                 step: Callable[[Cell, float, PartitionInput], None]) -> None:
        self._node_id, self._links, self._timers, self._report, self._step = node_id, links, timers, report, step
        self._encoded: tuple[RecordRun | None, Psn, bytes] = (None, NO_PSN, b"")  # the last event with records

    def send_records(self, cell: Cell, output: Feed, now: float) -> None:
        """Some of those behind the one that a node has."""
        recent = cell.partition.recent_run(output.after)
        try:
            run = recent or cell.partition.read_run(output.after)
        except OSError as error:
            cell.unreadable = cell.summary.last
            cell.inputs.append(FeedFailed(output.node_id, f"node {self._links.name(output.node_id)} gets all that is live, "
                                          f"since records cannot be read that it lacks: {error}"))
            return
        if run is None:
            cell.inputs.append(Fed(output.node_id, output.after, 0))
            return
        machine = cell.machine
        message = Records(self._node_id, machine.lease, machine.committed, run)
        if self._encoded[0] is not run or self._encoded[1] != machine.committed:
            self._encoded = run, machine.committed, encode_partition_message(cell.index, message)
        self._links.send(output.node_id, self._encoded[2])  # all replicas are sent the same, as a rule
        fed = Fed(output.node_id, run.last, run.size)
        if recent is not None:
            cell.inputs.append(fed)
        else:
            self._go_on(cell, fed, now)

    def send_image(self, cell: Cell, output: FeedImage, now: float) -> None:
        """The next part of all that is live."""
        fed = images.send_part(cell, output, self._node_id, self._links, self._report)
        if fed is not None:
            self._go_on(cell, fed, now)

    def _go_on(self, cell: Cell, fed: Fed, now: float) -> None:
        target = cell.machine.targets.get(fed.node_id)

        def go_on(now: float) -> None:
            if cell.machine.targets.get(fed.node_id) is target:  # else it has begun anew
                self._step(cell, now, fed)
        self._timers.at(now + PAUSE_S, go_on)
