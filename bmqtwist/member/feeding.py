"""What a primary sends a node that lacks some of a partition: records, or all that is live.

Records that were written last are in memory, and go out at once. What has to be read again goes out one message at a time,
so that others are served in between.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from bmqtwist.cluster.partition_events import (
    Fed,
    Feed,
    FeedFailed,
    FeedImage,
    ImageLost,
    PartitionInput,
    Records,
    encode_partition_message,
)
from bmqtwist.loop.loop import Timers
from bmqtwist.member.cell import Cell
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report
from bmqtwist.storage.image import ImageSource
from bmqtwist.storage.psn import NO_PSN, Psn, RecordRun
from bmqtwist.wire.cluster_schema import ImagePart

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
            self._fail(cell, output.node_id, f"node {self._links.name(output.node_id)} gets all that is live, since records "
                                             f"cannot be read that it lacks: {error}")
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
            self._continue_later(cell, fed, now)

    def send_image(self, cell: Cell, output: FeedImage, now: float) -> None:
        """The next part of all that is live."""
        node_id, name = output.node_id, self._links.name(output.node_id)
        try:
            if output.number == 0:
                cell.images[node_id] = ImageSource(cell.partition, max(cell.unreadable, output.behind))
                self._report.info(f"{cell.machine.name}: node {name} gets all that is live")
            source = cell.images.get(node_id)
            if source is None:
                raise OSError(errno.ESTALE, "it was given up")
            run, final = source.part()
        except OSError as error:
            cell.images.pop(node_id, None)
            if error.errno == errno.ESTALE:
                cell.inputs.append(ImageLost(node_id))
            else:
                self._fail(cell, node_id, f"an image cannot be made for node {name}: {error}")
            return
        if final:
            del cell.images[node_id]
        part = ImagePart(self._node_id, cell.machine.lease, output.number, source.at, final, run.journal, run.data,
                         run.qlist)
        self._links.send(node_id, encode_partition_message(cell.index, part))
        self._continue_later(cell, Fed(node_id, None, run.size, final), now)

    def _fail(self, cell: Cell, node_id: int, reason: str) -> None:
        cell.unreadable = cell.summary.last
        cell.inputs.append(FeedFailed(node_id, reason))

    def _continue_later(self, cell: Cell, fed: Fed, now: float) -> None:
        target = cell.machine.targets.get(fed.node_id)

        def go_on(now: float) -> None:
            if cell.machine.targets.get(fed.node_id) is target:  # else it has begun anew
                self._step(cell, now, fed)
        self._timers.at(now + PAUSE_S, go_on)
