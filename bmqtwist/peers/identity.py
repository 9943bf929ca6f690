"""Who a broker is: its process, for those it talks to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process this is: what a negotiation tells, and what makes its GUIDs unique."""

    process_name: str
    pid: int
    host_name: str
    client_id: bytes  # 6 bytes: "BrokerId"
    started: float  # monotonic
    started_wall: float  # seconds since the epoch at the same moment
