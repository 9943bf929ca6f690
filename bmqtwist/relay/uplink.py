"""Way of PUTs, CONFIRMs and REJECTs to the upstream nodes of one cluster, and the bound of the PUTs that wait there.

The way of a PUT through three nodes is in docs/architecture.md.
"""

from __future__ import annotations

from functools import partial

from bmqtwist.cluster.streams import AppStream, StreamState
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.link.extensions import RELAY_EXTENSION, RETURNED_MESSAGES
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.session import Session
from bmqtwist.link.states import State
from bmqtwist.loop.loop import Loop
from bmqtwist.queue.queue import Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.upstream_queue import Upstream, UpstreamQueue
from bmqtwist.relay.user import RelayUser
from bmqtwist.storage.message import Message

LINGERING_MAX = 32  # CONFIRMs that wait for something else that goes up; who may hold not many more waits for each of them
_WINDOW, _WINDOW_BYTES = 8 * LINGERING_MAX, 1 << 20


class RelayUplink:
    """`queue.relay.Uplink` of one cluster. `opened`: the queues open at upstream nodes, by URI; `bytes_max`: of PUTs that
    wait for an answer."""

    def __init__(self, opened: dict[str, UpstreamQueue], user: RelayUser, host: Loop, bytes_max: int) -> None:
        self._opened, self._user, self._host = opened, user, host
        self._bytes_max = bytes_max
        self._bytes = 0
        self._paused: dict[Session, None] = {}  # not read from, until less waits for an answer
        self._resuming = False  # they are about to be

    def put(self, queue: RelayQueue, put: Put) -> None:
        """A PUT goes up."""
        upstream = self._opened[queue.uri].upstream
        if upstream is not None:
            upstream.upbound.put(self._opened[queue.uri].q_id, put.message, not queue.broadcast)
            upstream.peer.session.flush()

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A CONFIRM goes up."""
        found = self._found(queue, app_id)
        if found is not None:
            upstream, q_id, stream = found
            upbound = upstream.upbound
            upbound.add(upbound.confirms, q_id, guid, stream.sub_id)
            if upstream.tells_receipts:
                upbound.keep(queue, app_id, guid)
            if len(upbound.confirms) > LINGERING_MAX or _hurries(stream):
                upstream.peer.session.flush()
            else:
                upstream.peer.session.flush_soon()

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """A REJECT goes up."""
        found = self._found(queue, app_id)
        if found is not None:
            upstream, q_id, stream = found
            upstream.upbound.add(upstream.upbound.rejects, q_id, guid, stream.sub_id)
            upstream.peer.session.flush()

    def give_back(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        """Messages go back up, if the node there takes them, and knows by now what is wanted here."""
        found = self._found(queue, app_id)
        if found is None or not _takes_back(found[0].peer):
            return False
        upstream, q_id, stream = found
        if stream.state is not StreamState.OPEN or stream.told != stream.wanted:
            return False
        for guid in guids:
            upstream.upbound.add(upstream.upbound.returns, q_id, guid, stream.sub_id)
        upstream.peer.session.flush()
        return True

    def _found(self, queue: RelayQueue, app_id: str) -> tuple[Upstream, int, AppStream] | None:
        """Where an app of a queue is open: the node, the id of the queue there, the stream."""
        opened = self._opened.get(queue.uri)
        stream = opened.stream(app_id) if opened is not None else None
        if opened is None or opened.upstream is None or stream is None:
            return None
        return opened.upstream, opened.q_id, stream

    def payload(self, queue: RelayQueue, message: Message) -> bytes:
        """Of a message that came without."""
        return self._user.payload(queue.uri, message.guid)

    def keep(self, put: Put) -> None:
        """Beyond the limit whoever posts is not read from."""
        self._bytes += put.message.size + len(put.message.options)
        if self._bytes > self._bytes_max and put.handle is not None:
            session: Session | None = getattr(put.handle.client, "session", None)
            if session is not None:
                self._paused[session] = None
                self._host.performer.read(session, False)

    def let_go(self, put: Put) -> None:
        """Below half of the limit everybody is read from again."""
        self._bytes -= put.message.size + len(put.message.options)
        if self._paused and self._bytes <= self._bytes_max // 2 and not self._resuming:
            self._resuming = True
            self._host.timers.at(self._host.now, self._resume)  # not in the middle of what is done now

    def _resume(self, now: float) -> None:
        self._resuming = False
        if self._bytes > self._bytes_max // 2:
            return
        paused, self._paused = self._paused, {}
        for session in paused:
            if session.state is not State.CLOSED:
                self._host.performer.read(session, True)

    def post_again_at(self, queue: RelayQueue, when: float) -> None:
        """After a while."""
        self._host.timers.at(when, partial(self._post_again, queue))

    def _post_again(self, queue: RelayQueue, now: float) -> None:
        opened = self._opened.get(queue.uri)
        if opened is not None and opened.relay is queue:
            upstream, stream = opened.upstream, opened.stream(DEFAULT_APP_ID)
            ready = stream is not None and stream.state is StreamState.OPEN
            queue.post_again(upstream.generation if ready and upstream is not None and not upstream.stopping else 0)


def _hurries(stream: AppStream) -> bool:
    """Whether its consumers may wait for each CONFIRM."""
    for spec in stream.told:
        if spec.max_messages < _WINDOW or spec.max_bytes < _WINDOW_BYTES:
            return True
    return False


def _takes_back(peer: PeerSession) -> bool:
    return RETURNED_MESSAGES in peer.session.remote.features.get(RELAY_EXTENSION, ())
