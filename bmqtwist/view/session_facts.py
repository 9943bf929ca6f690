"""Facts about connections: who is at the other end, and what it has open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmqtwist.view import snapshot as state
from bmqtwist.wire.schema import ClientType

if TYPE_CHECKING:
    from bmqtwist.link.session import Session

_KINDS = {ClientType.E_TCPCLIENT: "client", ClientType.E_TCPADMIN: "admin", ClientType.E_TCPBROKER: "broker"}


def session_state(session: Session, offset: float) -> state.SessionState:
    """One connection."""
    identity = session.identity
    kind = _KINDS.get(identity.client_type, "unknown") if session.negotiated_at is not None else "unknown"
    unconfirmed = sum(len(substream.unconfirmed) for handle in session.handles.values()
                      for substream in handle.substreams.values())
    return state.SessionState(
        session.description, session.peer, kind, identity.host_name,
        f"{identity.sdk_language.name.removeprefix('E_')} {identity.sdk_version}", 0, session.connected_at + offset,
        len(session.handles), unconfirmed, session.stats.totals(), session.channel.totals())
