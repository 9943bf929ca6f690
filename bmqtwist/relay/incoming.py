"""ACKs and PUSHes of upstream nodes: to the queues that clients here have open, in order.

A PUSH without payload waits until its record is here, and goes back to the upstream node after RECORD_WAIT_S.
The way of an ACK back to its client is part of the way of a PUT through three nodes, in docs/architecture.md.
"""

from __future__ import annotations

from bmqtwist.errors import PeerError
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.limits import RELAY_WAITING_PUSHES_MAX
from bmqtwist.link.peer import PeerSession
from bmqtwist.loop.loop import Loop
from bmqtwist.relay.uplink import RelayUplink
from bmqtwist.relay.upstream_queue import UpstreamQueue, WaitingPush
from bmqtwist.relay.user import RelayUser
from bmqtwist.storage.message import Message
from bmqtwist.wire import options
from bmqtwist.wire.events import AckMessage, decode_ack
from bmqtwist.wire.fast import IMPLICIT_PAYLOAD, MESSAGE_PROPERTIES, OUT_OF_ORDER
from bmqtwist.wire.walk import MessageError, walk_pushes

RECORD_WAIT_S = 10.0  # that a PUSH may come before the record it speaks of; then the message goes back above


class RelayIncoming:
    """Of one cluster. `by_id`: the queues open at upstream nodes, by their id there."""

    def __init__(self, by_id: dict[int, UpstreamQueue], uplink: RelayUplink, user: RelayUser, host: Loop) -> None:
        self._by_id, self._uplink, self._user, self._host = by_id, uplink, user, host
        self._behind: dict[UpstreamQueue, None] = {}  # they have pushes that wait for their records

    def acks(self, peer: PeerSession, body: bytes, now: float) -> None:
        """ACKs of a node above. PeerError, with those before it taken."""
        found, error = decode_ack(body, 0, len(body))
        self.acked(peer, found, now)
        if error is not None:
            raise error

    def acked(self, peer: PeerSession, acks: list[AckMessage], now: float) -> None:
        """A node above has answered PUTs."""
        for ack in acks:
            opened = self._by_id.get(ack.queue_id)
            if opened is not None and opened.relay is not None and opened.is_above(peer):
                opened.relay.acked(ack.guid, ack.status, now)

    def pushes(self, peer: PeerSession, body: bytes, now: float) -> None:
        """Messages of a node above. PeerError, with those before it taken."""
        wall = self._host.wall(now)
        try:
            for q_id, guid, payload, flags, compression, schema_id, area, _, _ in walk_pushes(body, 0, len(body)):
                opened = self._by_id.get(q_id)
                if opened is None or opened.relay is None or not opened.is_above(peer):
                    continue  # closed meanwhile: what was on its way goes back above
                (targets, lease, sequence), late = _targets(opened, area), bool(flags & OUT_OF_ORDER)
                if not flags & IMPLICIT_PAYLOAD:
                    message = Message(guid, payload, b"", bool(flags & MESSAGE_PROPERTIES), compression, schema_id, 0, now,
                                      wall)
                    message.lease, message.sequence = lease, sequence
                    opened.relay.pushed(message, targets, late)
                    continue
                stored = self._user.stored(opened.name, guid) if not opened.waiting else None
                if stored is not None:
                    opened.relay.pushed(stored, targets, late)
                else:
                    self._wait(opened, peer, WaitingPush(guid, targets, late, now + RECORD_WAIT_S))
        except MessageError as error:
            raise PeerError(str(error)) from None

    def _wait(self, opened: UpstreamQueue, peer: PeerSession, push: WaitingPush) -> None:
        self._behind[opened] = None
        opened.waiting.append(push)
        if len(opened.waiting) > RELAY_WAITING_PUSHES_MAX:
            opened.waiting.clear()
            peer.session.close("#PEER_IMPROPER_BEHAVIOR %s: too many messages of queue '%s' without their records (limit: "
                               "%d)", peer.session.description, opened.name, RELAY_WAITING_PUSHES_MAX)

    def look_again(self, now: float) -> None:
        """More records are here."""
        for opened in list(self._behind):
            if self._by_id.get(opened.q_id) is opened:
                self.take_waiting(opened, now)
            if not opened.waiting or self._by_id.get(opened.q_id) is not opened:
                self._behind.pop(opened, None)

    def take_waiting(self, opened: UpstreamQueue, now: float) -> None:
        relay = opened.relay
        while relay is not None and opened.waiting:
            push = opened.waiting[0]
            message = self._user.stored(opened.name, push.guid)
            if message is not None:
                relay.pushed(message, push.targets, push.late)
            elif now < push.deadline:
                return
            else:
                for app_id, _ in push.targets:
                    self._uplink.give_back(relay, app_id, [push.guid])
            opened.waiting.popleft()


def _targets(opened: UpstreamQueue, area: bytes) -> tuple[list[tuple[str, int | None]], int, int]:
    """The apps that a PUSH is for, each with the delivery attempts that are left; lease and sequence number of where the
    message is stored, 0 where that is not told."""
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
