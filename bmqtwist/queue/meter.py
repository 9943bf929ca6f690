"""Quota meters: usage and limits of a queue, with the meter of its domain as parent.

A message is admitted while messages and bytes are *at or below* their limits before it is added, so each limit may
be exceeded once: a limit of N admits N + 1 messages. The limits of the queue are checked before those of its domain.

         NORMAL  --- value >= high --->  HIGH_WATERMARK  --- value >= limit --->  FULL
            ^                               |      ^                                |
            +------- value <= low ----------+      +-------- value <= high ---------+

Messages and bytes have a state each; the state of the meter is the worse of the two. A change upwards raises an alarm,
a change to NORMAL is logged as information, a change from FULL to HIGH_WATERMARK is not reported. high = floor(ratio *
limit), low = floor(ratio / 2 * limit). A limit of 0 is always FULL.

The free quota is *ample* while it cannot be used up within the delay of a CONFIRM and a round trip: usage is at most
1/AMPLE_QUOTA_RATIO of each limit, and AMPLE_MESSAGES_MIN messages and AMPLE_BYTES_MIN bytes are free. It is ample again
below half of that usage. CONFIRMs are delayed only then (`link/client.py`, `relay/messages.py`).

Limits and ratios are declared in `config/domain.py: LimitsConfig`. `root.py` adds and removes messages,
`broker/deliveries.py` processes the events of `take_events`. Space in the files is in `storage/room.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.errors import AckStatus
from bmqtwist.textformat import grouped, pretty_bytes

_REFUSED_MESSAGES = AckStatus.LIMIT_MESSAGES
_REFUSED_BYTES = AckStatus.LIMIT_BYTES
_NEVER = 1 << 63  # no count reaches it
_LOW_RATIO = 0.5  # of the high watermark's ratio
AMPLE_QUOTA_RATIO: Final = 4  # quota / usage
AMPLE_MESSAGES_MIN: Final = 10_000  # free messages, as many as arrive in 50 ms at 200,000 messages/s
AMPLE_BYTES_MIN: Final = 16 << 20  # free bytes, as many as arrive in 50 ms at 320 MiB/s


class MeterState(IntEnum):
    """Fill state; alarms print the names."""

    STATE_NORMAL = 0
    STATE_HIGH_WATERMARK = 1
    STATE_FULL = 2


_ALARMS: Final[dict[MeterState, AlarmKind]] = {
    MeterState.STATE_HIGH_WATERMARK: alarms.CAPACITY_STATE_HIGH_WATERMARK,
    MeterState.STATE_FULL: alarms.CAPACITY_STATE_FULL}


@dataclass(frozen=True, slots=True)
class MeterEvent:
    """Change of a meter to `state`; None = its free quota is no longer ample. `alarm`: alarm to raise with `text`; None =
    log `text` as information."""

    meter: Meter
    state: MeterState | None
    alarm: AlarmKind | None
    text: str


class Meter:
    """Usage of a queue or domain: messages, and bytes of application data and options.

    `events`: changes until the next `take_events`, one list for a domain and its queues. Callers of a method that changes
    the usage check whether it is empty.
    """

    __slots__ = ("name", "parent", "disabled", "events", "messages", "bytes", "messages_max", "bytes_max",
                 "messages_low", "messages_high", "bytes_low", "bytes_high", "messages_state", "bytes_state",
                 "_ample", "_ample_messages", "_ample_bytes", "_messages_up", "_messages_down", "_bytes_up", "_bytes_down")

    def __init__(self, name: str, parent: Meter | None = None, messages_max: int = 0, bytes_max: int = 0,
                 messages_ratio: float = 0.8, bytes_ratio: float = 0.8, disabled: bool = False) -> None:
        self.name, self.parent, self.disabled = name, parent, disabled
        self.events: list[MeterEvent] = [] if parent is None else parent.events
        self.messages = self.bytes = 0
        self.reconfigure(messages_max, bytes_max, messages_ratio, bytes_ratio)

    def reconfigure(self, messages_max: int, bytes_max: int, messages_ratio: float = 0.8,
                    bytes_ratio: float = 0.8) -> None:
        """Set new limits, without a state change event."""
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self.messages_low = int(messages_max * (messages_ratio * _LOW_RATIO))
        self.messages_high = int(messages_max * messages_ratio)
        self.bytes_low = int(bytes_max * (bytes_ratio * _LOW_RATIO))
        self.bytes_high = int(bytes_max * bytes_ratio)
        self.messages_state = _initial_state(self.messages, self.messages_high, messages_max)
        self.bytes_state = _initial_state(self.bytes, self.bytes_high, bytes_max)
        self._ample_messages = min(messages_max // AMPLE_QUOTA_RATIO, messages_max - AMPLE_MESSAGES_MIN)
        self._ample_bytes = min(bytes_max // AMPLE_QUOTA_RATIO, bytes_max - AMPLE_BYTES_MIN)
        self._ample = self.messages <= self._ample_messages and self.bytes <= self._ample_bytes
        self._set_marks()

    @property
    def state(self) -> MeterState:
        """The worse of the two states."""
        return max(self.messages_state, self.bytes_state)

    @property
    def has_ample_quota(self) -> bool:
        """True if the free quota is ample, here and in the parent."""
        return self.disabled or self._ample and (self.parent is None or self.parent.has_ample_quota)

    def try_add(self, size: int) -> int:
        """Add a message of `size` bytes here and in the parent; return 0, or the AckStatus of the exceeded limit."""
        if self.disabled:
            return 0
        if self.messages > self.messages_max:
            return _REFUSED_MESSAGES
        if self.bytes > self.bytes_max:
            return _REFUSED_BYTES
        parent = self.parent
        if parent is not None:
            refused = parent.try_add(size)
            if refused:
                return refused
        self.messages = messages = self.messages + 1
        self.bytes = total = self.bytes + size
        if messages >= self._messages_up or total >= self._bytes_up:
            self._update_state(silent=False)
        return 0

    def force_add(self, messages: int, size: int) -> None:
        """Add messages without a check of the limits; without an event for the change of the state (recovery, replicas)."""
        if self.disabled:
            return
        self.messages += messages
        self.bytes += size
        self._update_state(silent=True)
        if self.parent is not None:
            self.parent.force_add(messages, size)

    def remove(self, messages: int, size: int) -> None:
        """Subtract `messages` messages with `size` bytes in total, here and in the parent."""
        if self.disabled:
            return
        parent = self.parent
        if parent is not None:
            parent.remove(messages, size)
        self.messages = left = self.messages - messages
        self.bytes = total = self.bytes - size
        if left <= self._messages_down or total <= self._bytes_down:
            self._update_state(silent=False)

    def clear(self) -> None:
        """Reset the usage after a purge of the whole queue, and subtract it from the parent; no state change event here."""
        if self.disabled:
            return
        if self.parent is not None:
            self.parent.remove(self.messages, self.bytes)
        self.messages = self.bytes = 0
        self._update_state(silent=True)

    def take_events(self) -> list[MeterEvent]:
        """Return and clear `events`, oldest first."""
        taken = list(self.events)
        self.events.clear()
        return taken

    def summary(self) -> str:
        """Return `Messages [current: n / limit], Bytes [current: x / limit]` for the stuck-queue alarm."""
        if self.disabled:
            return "** DISABLED **"
        return (f"Messages [current: {grouped(self.messages)} / {grouped(self.messages_max)}], "
                f"Bytes [current: {pretty_bytes(self.bytes)} / {pretty_bytes(self.bytes_max)}]")

    def describe(self) -> str:
        """Return `for '<name>': [Messages (STATE): n (limit: m), Bytes (STATE): x (limit: y)]`."""
        return (f"for '{self.name}': [Messages ({self.messages_state.name}): {grouped(self.messages)} "
                f"(limit: {grouped(self.messages_max)}), Bytes ({self.bytes_state.name}): {pretty_bytes(self.bytes)} "
                f"(limit: {pretty_bytes(self.bytes_max)})]")

    def _update_state(self, silent: bool) -> None:
        before = self.state
        self._update_ample()
        self.messages_state = _next_state(self.messages_state, self.messages, self.messages_low, self.messages_high,
                                          self.messages_max)
        self.bytes_state = _next_state(self.bytes_state, self.bytes, self.bytes_low, self.bytes_high, self.bytes_max)
        self._set_marks()
        after = self.state
        if silent or after == before or (before > after > MeterState.STATE_NORMAL):
            return
        self.events.append(MeterEvent(self, after, _ALARMS[after] if after > before else None, self.describe()))

    def _update_ample(self) -> None:
        messages, size = self._ample_messages, self._ample_bytes
        if not self._ample:
            self._ample = self.messages <= messages // 2 and self.bytes <= size // 2
        elif self.messages > messages or self.bytes > size:
            self._ample = False
            self.events.append(MeterEvent(self, None, None, ""))

    def _set_marks(self) -> None:
        """Set the values at which a state changes next; most updates compare with these only."""
        self._messages_up, self._messages_down = _state_marks(self.messages_state, self.messages_low, self.messages_high,
                                                              self.messages_max)
        self._bytes_up, self._bytes_down = _state_marks(self.bytes_state, self.bytes_low, self.bytes_high, self.bytes_max)
        messages, size = self._ample_messages, self._ample_bytes
        if self._ample:
            self._messages_up, self._bytes_up = min(self._messages_up, messages + 1), min(self._bytes_up, size + 1)
        elif messages >= 0 and size >= 0:  # the value that is too high must fall
            if self.messages > messages // 2:
                self._messages_down = max(self._messages_down, messages // 2)
            if self.bytes > size // 2:
                self._bytes_down = max(self._bytes_down, size // 2)


def _initial_state(value: int, high: int, limit: int) -> MeterState:
    """Return the state of a value without history; 0 is NORMAL unless the limit is 0."""
    if not limit or (value and value >= limit):
        return MeterState.STATE_FULL
    return MeterState.STATE_HIGH_WATERMARK if value and value >= high else MeterState.STATE_NORMAL


def _next_state(state: MeterState, value: int, low: int, high: int, limit: int) -> MeterState:
    """Return the state after a change of the value; it may skip a state."""
    if not limit:
        return MeterState.STATE_FULL
    if state is MeterState.STATE_FULL and value <= high and value < limit:
        state = MeterState.STATE_HIGH_WATERMARK
    if state is MeterState.STATE_HIGH_WATERMARK and value <= low:
        return MeterState.STATE_NORMAL
    return max(state, _initial_state(value, high, limit))


def _state_marks(state: MeterState, low: int, high: int, limit: int) -> tuple[int, int]:
    """Return the values at or above which, and at or below which, the state changes."""
    if not limit:
        return _NEVER, -1
    if state is MeterState.STATE_NORMAL:
        return high, -1
    return (limit, low) if state is MeterState.STATE_HIGH_WATERMARK else (_NEVER, min(high, limit - 1))
