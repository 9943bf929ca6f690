"""Images of a partition on their way between nodes: all that is live, for a node that lacks too much of the log."""

from __future__ import annotations

import errno
from collections.abc import Callable

from bmqtwist.cluster.partition_events import Fed, FeedFailed, FeedImage, ImageLost, ImagePart, LogFailed
from bmqtwist.cluster.partition_wire import encode_partition_message
from bmqtwist.errors import PeerError
from bmqtwist.member.cell import Cell
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report
from bmqtwist.storage.image import ImageFiles, ImageSource
from bmqtwist.storage.replay import RecordMismatch


def send_part(cell: Cell, output: FeedImage, node_id: int, links: ClusterLinks, report: Report) -> Fed | None:
    """Send the next part to another node; `node_id`: ours. None: that cannot be done."""
    try:
        if output.number == 0:
            cell.images[output.node_id] = ImageSource(cell.partition, max(cell.unreadable, output.behind))
            report.info(f"{cell.machine.name}: node {links.name(output.node_id)} gets all that is live")
        source = cell.images.get(output.node_id)
        if source is None:
            raise OSError(errno.ESTALE, "it was given up")
        run, final = source.part()
    except OSError as error:
        cell.images.pop(output.node_id, None)
        if error.errno == errno.ESTALE:
            cell.inputs.append(ImageLost(output.node_id))
        else:
            cell.unreadable = cell.summary.last
            cell.inputs.append(FeedFailed(output.node_id, f"an image cannot be made for node {links.name(output.node_id)}: "
                                          f"{error}"))
        return None
    if final:
        del cell.images[output.node_id]
    part = ImagePart(node_id, cell.machine.lease, output.number, source.at, final, run)
    links.send(output.node_id, encode_partition_message(cell.index, part))
    return Fed(output.node_id, None, run.size, final)


def take_part(cell: Cell, part: ImagePart, wall: int) -> Callable[[], None] | None:
    """A part from another node. After the last one: what puts the image in the place of our files."""
    try:
        if part.number == 0:
            cell.image = ImageFiles(cell.partition, wall)
        if cell.image is None:
            raise OSError("its beginning is missing")
        cell.image.take(part.run)
        if not part.final:
            return None
        image, cell.image = cell.image, None
        return image.complete(part.at, wall)
    except (PeerError, RecordMismatch, OSError) as error:
        cell.image = None
        cell.partition.files.abandon_roll()
        cell.inputs.append(LogFailed(f"an image is not taken: {error}"))
        return None
