"""Choice of the cluster features to activate (`versions.py`). Pure.

A feature is due when every member has announced it for `delay_s` seconds, and all members are connected. The delay is the
time for a rollback after an upgrade: an active feature stays active, and refuses releases without it. A member that connects
without the feature begins the delay anew; a member that is not connected does not, since it may be restarting. A new cluster
has nothing to roll back: its first record contains all features that its members have announced.

Every member keeps the time, so that a new leader continues it. Called by `member/features.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bmqtwist.versions import BASELINE, ActiveFeatures


class FeatureActivation:
    """Features of one cluster that its members have announced. `own`: features of this node."""

    def __init__(self, own: Collection[str], delay_s: float) -> None:
        self._own, self._delay_s = own, delay_s
        self.common_since: dict[str, float] = {}  # inactive feature -> time since which all members announce it

    def common(self, others: Sequence[Collection[str]] | None) -> list[str]:
        """Return the features that all members have announced, sorted. `others`: announced by each other member; None: a
        member is not connected."""
        if others is None:
            return []
        return sorted(name for name in self._own if name not in BASELINE and all(name in each for each in others))

    def due(self, now: float, others: Sequence[Collection[str]] | None, active: ActiveFeatures) -> list[str]:
        """Return the features to activate now."""
        if others is None:
            return []
        common = [name for name in self.common(others) if not active.active(name)]
        self.common_since = {name: self.common_since.get(name, now) for name in common}
        return [name for name in common if now - self.common_since[name] >= self._delay_s]

    def seconds_left(self, now: float) -> dict[str, float]:
        """Return for each feature that all members have announced the time until its activation."""
        return {name: max(0.0, since + self._delay_s - now) for name, since in self.common_since.items()}
