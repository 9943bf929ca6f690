"""Mistakes that are planted into the code, to see that a campaign finds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bmqtwist.cluster.ballot import Ballot
from bmqtwist.cluster.elector import Elector
from bmqtwist.cluster.log_events import Entries
from bmqtwist.cluster.metadata_log import MetadataLog
from bmqtwist.cluster.record_log import RecordLog
from bmqtwist.storage.vote_file import VoteFile


def _vote_not_synced(self: VoteFile, term: int, vote: int | None) -> None:
    """Nothing is written."""


def _vote_not_saved(self: Ballot) -> list[Any]:
    return []


def _log_not_compared(self: Elector, request: Any) -> bool:
    return not self.ignorant


def _commit_alone(self: MetadataLog) -> None:
    """What this node has is committed, whoever else has it."""
    own = self.lsn
    if own[0] == self.term:
        self._committed = max(self._committed, own)
        for lsn in self._apply_committed():
            if lsn[0] == self.term and not self.alone:
                self._append_commit(lsn)


_on_entries = MetadataLog._on_entries


def _previous_not_checked(self: MetadataLog, event: Entries) -> None:
    holds = RecordLog.holds
    try:
        RecordLog.holds = lambda log, lsn: lsn == event.previous or holds(log, lsn)  # type: ignore[method-assign]
        _on_entries(self, event)
    finally:
        RecordLog.holds = holds  # type: ignore[method-assign]


def _conflict_kept(self: RecordLog, count: int) -> list[Any]:
    return []


def _leader_for_ever(self: Elector) -> None:
    """A leader that nobody answers goes on."""


# name -> where it is planted, and what takes whose place
CANARIES: dict[str, tuple[type, str, Any]] = {
    "vote not persisted": (VoteFile, "write", _vote_not_synced),
    "vote not saved": (Ballot, "save", _vote_not_saved),
    "log check off": (Elector, "_is_eligible", _log_not_compared),
    "commit rule off": (MetadataLog, "_count", _commit_alone),
    "prev check off": (MetadataLog, "_on_entries", _previous_not_checked),
    "conflicts kept": (RecordLog, "cut", _conflict_kept),
    "quorum check off": (Elector, "_keep_quorum", _leader_for_ever),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With that mistake, or none."""
    if name is None:
        yield
        return
    place, method, mistake = CANARIES[name]
    right = getattr(place, method)
    setattr(place, method, mistake)
    try:
        yield
    finally:
        setattr(place, method, right)
