"""Messages of relays: PUTs and CONFIRMs to upstream nodes, PUSHes and ACKs from them, in order.

A PUSH without payload waits for its record, which may be large: it is returned to the upstream node RECORD_WAIT_S seconds
after the last data from that node, or RECORD_WAIT_MAX_S after the record before it.
docs/architecture.md shows the way of a PUT through three nodes, and of its ACK back. Part of `relays.py`:
`queue/relay.py` calls `RelayUplink`, `member/member_relays.py` and `proxy.py` pass messages to `RelayIncoming`.
Requests to open, configure and close are in `relays.py` itself, limits in `bmqtwist/limits.py`.
"""

from __future__ import annotations

from functools import partial

from bmqtwist.cluster.streams import AppStream, StreamState
from bmqtwist.errors import PeerError
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.limits import RELAY_WAITING_PUSHES_MAX
from bmqtwist.link.extensions import RELAY_EXTENSION, RETURNED_MESSAGES
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.session import Session
from bmqtwist.link.states import ConnectionState
from bmqtwist.loop.loop import Loop
from bmqtwist.queue.queue import Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.upstream_queue import RelayUser, Upstream, UpstreamQueue, WaitingPush
from bmqtwist.storage.message import Message
from bmqtwist.wire import options
from bmqtwist.wire.cluster_schema import QuotaAdvisory
from bmqtwist.wire.events import AckMessage, decode_ack
from bmqtwist.wire.fast import IMPLICIT_PAYLOAD, MESSAGE_PROPERTIES, OUT_OF_ORDER
from bmqtwist.wire.walk import MessageError, walk_pushes

DELAYED_CONFIRMS_MAX = 32  # delayed CONFIRMs; consumers with a smaller window may wait for each of them
_WINDOW, _WINDOW_BYTES = 8 * DELAYED_CONFIRMS_MAX, 1 << 20
RECORD_WAIT_S = 10.0  # without data from the upstream node, until a PUSH without payload is returned
RECORD_WAIT_MAX_S = 60.0  # without a record for the waiting PUSHes of a queue; 64 MiB take 27 s at 20 Mbit/s


class RelayUplink:
    """`queue.relay.Uplink` of one cluster. `opened`: queues open at upstream nodes, by URI; `bytes_max`: limit of PUTs that
    wait for ACKs, above which their producers are not read."""

    def __init__(self, opened: dict[str, UpstreamQueue], user: RelayUser, loop: Loop, bytes_max: int) -> None:
        self._opened, self._user, self._loop = opened, user, loop
        self._bytes_max = bytes_max
        self._bytes = 0
        self._paused: dict[Session, None] = {}  # sessions that are not read
        self._resuming = False  # a timer is set that resumes them

    def put(self, queue: RelayQueue, put: Put) -> None:
        """Send a PUT upstream."""
        upstream = self._opened[queue.uri].upstream
        if upstream is not None:
            upstream.batch.put(self._opened[queue.uri].q_id, put.message, not queue.broadcast)
            upstream.peer.session.flush()

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """Send a CONFIRM upstream, delayed unless a consumer may wait for it or a producer may need its room."""
        found = self._find(queue, app_id)
        if found is not None:
            upstream, q_id, stream = found
            batch = upstream.batch
            batch.add(batch.confirms, q_id, guid, stream.sub_id)
            if upstream.sends_receipts:
                batch.await_receipt(queue, app_id, guid)
            if (not queue.has_ample_quota or len(batch.confirms) > DELAYED_CONFIRMS_MAX
                    or _may_block_on_confirms(stream) or len(self._opened[queue.uri].sources) > 1):
                upstream.peer.session.flush()
            else:
                upstream.peer.session.flush_soon()

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        """Send a REJECT upstream."""
        found = self._find(queue, app_id)
        if found is not None:
            upstream, q_id, stream = found
            upstream.batch.add(upstream.batch.rejects, q_id, guid, stream.sub_id)
            upstream.peer.session.flush()

    def return_messages(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        """Return messages to the upstream node; False if it does not support that or subscriptions are being changed."""
        found = self._find(queue, app_id)
        if found is None or not _accepts_returns(found[0].peer):
            return False
        upstream, q_id, stream = found
        if stream.state is not StreamState.OPEN or stream.configured != stream.wanted:
            return False
        for guid in guids:
            upstream.batch.add(upstream.batch.returns, q_id, guid, stream.sub_id)
        upstream.peer.session.flush()
        return True

    def _find(self, queue: RelayQueue, app_id: str) -> tuple[Upstream, int, AppStream] | None:
        """Return the upstream, queue id and stream of an app, if it is open."""
        opened = self._opened.get(queue.uri)
        if opened is not None and len(opened.sources) > 1:
            opened = opened.source_of(app_id)
        stream = opened.streams.get(app_id) if opened is not None else None
        if opened is None or opened.upstream is None or stream is None:
            return None
        return opened.upstream, opened.q_id, stream

    def payload(self, queue: RelayQueue, message: Message) -> bytes:
        """Return the payload of a message that came without it."""
        return self._user.payload(queue.uri, message.guid)

    def count_pending(self, put: Put) -> None:
        """Count a waiting PUT; above the limit its producer's session is not read."""
        self._bytes += put.message.size + len(put.message.options)
        if self._bytes > self._bytes_max and put.handle is not None:
            session: Session | None = getattr(put.handle.client, "session", None)
            if session is not None:
                self._paused[session] = None
                self._loop.performer.set_reading(session, False)

    def uncount_pending(self, put: Put) -> None:
        """Subtract a PUT that has stopped waiting; below half of the limit all sessions are read again."""
        self._bytes -= put.message.size + len(put.message.options)
        if self._paused and self._bytes <= self._bytes_max // 2 and not self._resuming:
            self._resuming = True
            self._loop.timers.at(self._loop.now, self._resume)  # after the current call

    def _resume(self, now: float) -> None:
        self._resuming = False
        if self._bytes > self._bytes_max // 2:
            return
        paused, self._paused = self._paused, {}
        for session in paused:
            if session.state is not ConnectionState.CLOSED:
                self._loop.performer.set_reading(session, True)

    def retry_pending_at(self, queue: RelayQueue, when: float) -> None:
        """Send waiting PUTs again at `when`."""
        self._loop.timers.at(when, partial(self._post_again, queue))

    def _post_again(self, queue: RelayQueue, now: float) -> None:
        opened = self._opened.get(queue.uri)
        if opened is not None and opened.relay is queue:
            upstream, stream = opened.upstream, opened.streams.get(DEFAULT_APP_ID)
            ready = stream is not None and stream.state is StreamState.OPEN
            queue.retry_pending(upstream.generation if ready and upstream is not None and not upstream.stopping
                                and opened.takes_posts else 0)


def _may_block_on_confirms(stream: AppStream) -> bool:
    """Return whether a consumer's window is so small that it may wait for each CONFIRM."""
    for spec in stream.configured:
        if spec.max_messages < _WINDOW or spec.max_bytes < _WINDOW_BYTES:
            return True
    return False


def _accepts_returns(peer: PeerSession) -> bool:
    return RETURNED_MESSAGES in peer.session.remote.features.get(RELAY_EXTENSION, ())


class RelayIncoming:
    """Messages from the upstream nodes of one cluster. `by_id`: queues open at upstream nodes, by queue id."""

    def __init__(self, by_id: dict[int, UpstreamQueue], uplink: RelayUplink, user: RelayUser, loop: Loop) -> None:
        self._by_id, self._uplink, self._user, self._loop = by_id, uplink, user, loop
        self._with_waiting: dict[UpstreamQueue, None] = {}  # queues with PUSHes that wait for their records

    def on_acks(self, peer: PeerSession, body: bytes, now: float) -> None:
        """Handle an ACK event; raises PeerError after the ACKs before the error were processed."""
        found, error = decode_ack(body, 0, len(body))
        self.pass_acks(peer, found, now)
        if error is not None:
            raise error

    def pass_acks(self, peer: PeerSession, acks: list[AckMessage], now: float) -> None:
        """Pass ACKs of an upstream node to their relays."""
        for ack in acks:
            opened = self._by_id.get(ack.queue_id)
            if opened is None or opened.relay is None or not opened.is_upstream(peer):
                continue
            drain = opened.drain
            if drain is None or drain.awaits(ack.guid):
                opened.relay.on_ack(ack.guid, ack.status, now)
                if drain is not None:
                    drain.on_answered(ack.guid)

    def on_pushes(self, peer: PeerSession, body: bytes, now: float) -> None:
        """Handle a PUSH event; raises PeerError after the PUSHes before the error were processed."""
        wall = self._loop.wall(now)
        try:
            for q_id, guid, payload, flags, compression, schema_id, area, _, _ in walk_pushes(body, 0, len(body)):
                opened = self._by_id.get(q_id)
                if opened is None or opened.relay is None or not opened.is_upstream(peer):
                    continue  # closed meanwhile: the upstream redelivers it
                (targets, lease, sequence), late = _targets(opened, area), bool(flags & OUT_OF_ORDER)
                if opened.drain is not None:
                    opened.drain.note_pushes(targets)
                if len(opened.sources) > 1 or opened.drain is not None:
                    targets = [each for each in targets if opened.reads(each[0])]
                    if not targets:
                        continue  # the app reads another cluster: this one keeps the message
                if not flags & IMPLICIT_PAYLOAD:
                    message = Message(guid, payload, b"", bool(flags & MESSAGE_PROPERTIES), compression, schema_id, 0, now,
                                      wall)
                    message.lease, message.sequence = lease, sequence
                    opened.relay.on_push(message, targets, late)
                    continue
                stored = self._user.find_stored(opened.name, guid) if not opened.waiting_pushes else None
                if stored is not None:
                    opened.relay.on_push(stored, targets, late)
                else:
                    self._hold_push(opened, peer, WaitingPush(guid, targets, late), now)
        except MessageError as error:
            raise PeerError(str(error)) from None

    def _hold_push(self, opened: UpstreamQueue, peer: PeerSession, push: WaitingPush, now: float) -> None:
        self._with_waiting[opened] = None
        if not opened.waiting_pushes:
            opened.waiting_since = now
        opened.waiting_pushes.append(push)
        if len(opened.waiting_pushes) > RELAY_WAITING_PUSHES_MAX:
            opened.waiting_pushes.clear()
            peer.session.close("#PEER_IMPROPER_BEHAVIOR %s: too many messages of queue '%s' without their records (limit: "
                               "%d)", peer.session.description, opened.name, RELAY_WAITING_PUSHES_MAX)

    def on_quota(self, peer: PeerSession, advisory: QuotaAdvisory) -> None:
        """Handle the upstream's advisory about a queue's quota: without ample quota, delayed CONFIRMs are sent at once."""
        opened = self._by_id.get(advisory.q_id)
        if opened is not None and opened.relay is not None and opened.is_upstream(peer) and opened.drain is None:
            opened.relay.ample_quota = advisory.ample
            opened.relay.end_confirm_delays()
            if not advisory.ample:
                peer.session.flush()

    def on_records(self, now: float) -> None:
        """Deliver waiting PUSHes whose records have been written."""
        for opened in list(self._with_waiting):
            if self._by_id.get(opened.q_id) is opened:
                self.deliver_waiting(opened, now)
            if not opened.waiting_pushes or self._by_id.get(opened.q_id) is not opened:
                self._with_waiting.pop(opened, None)

    def deliver_waiting(self, opened: UpstreamQueue, now: float) -> None:
        """Deliver pending PUSHes in order, up to the first whose record has not arrived; return the expired ones."""
        relay = opened.relay
        while relay is not None and opened.waiting_pushes:
            push = opened.waiting_pushes[0]
            message = self._user.find_stored(opened.name, push.guid)
            if message is not None:
                relay.on_push(message, push.targets, push.late)
                opened.waiting_since = now
            elif now < _waits_until(opened):
                return
            else:
                for app_id, _ in push.targets:
                    self._uplink.return_messages(relay, app_id, [push.guid])
            opened.waiting_pushes.popleft()


def _waits_until(opened: UpstreamQueue) -> float:
    """Return the time at which the first waiting PUSH of a queue is returned, monotonic seconds."""
    since, upstream = opened.waiting_since, opened.upstream
    arrived = since if upstream is None else max(since, upstream.peer.data_received_at)
    return min(arrived + RECORD_WAIT_S, since + RECORD_WAIT_MAX_S)


def _targets(opened: UpstreamQueue, area: bytes) -> tuple[list[tuple[str, int | None]], int, int]:
    """Return the apps of a PUSH, each with its remaining delivery attempts, and lease and sequence number of the stored
    message, 0 if not sent."""
    found: list[tuple[str, int | None]] = []
    apps, lease, sequence = opened.ids.apps, 0, 0
    only = options.only_info(area)
    if only is not None:
        number, attempts = only
        return [(apps.get(number, "" if number else DEFAULT_APP_ID), attempts)], 0, 0
    for option in options.decode(area):
        if isinstance(option, options.SubQueueInfos):
            found += [(apps.get(item.id, DEFAULT_APP_ID if not item.id else ""), item.attempts) for item in option.items]
            lease, sequence = option.items[0].lease, option.items[0].sequence
        elif isinstance(option, options.SubQueueIds):
            found += [(apps.get(each, DEFAULT_APP_ID if not each else ""), None) for each in option.ids]
    return found or [(DEFAULT_APP_ID, None)], lease, sequence
