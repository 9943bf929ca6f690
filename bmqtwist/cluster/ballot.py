"""A node's term and vote: durable before anything that follows from them is said. Pure.

One write is under way at a time; what is said meanwhile waits for it, and for the next one if term or vote have changed
since. Of what waits for one node, only the newest message of a kind is kept.
"""

from __future__ import annotations

from bmqtwist.cluster.election_events import ElectionOutput, SaveVote, Tell
from bmqtwist.wire.control import ElectorMessage

_UNKNOWN = (-1, None)  # what the file holds: no term is -1
_OF_A_STANDING = ("electionProposal", "leaderHeartbeat")  # what only a candidate or a leader says


class Ballot:
    """See above. `kept`: there is a file; the only member of a cluster has none, its first record of a term tells of it."""

    def __init__(self, kept: bool) -> None:
        self.term = 0
        self.vote: int | None = None  # in this term
        self._kept = kept
        self._saved: tuple[int, int | None] = _UNKNOWN
        self._saving: tuple[int, int | None] = _UNKNOWN  # what the write under way writes
        self._writing: int | None = None  # its number
        self._numbers = 0
        self._held: dict[tuple[int, str], ElectorMessage] = {}

    def found(self, term: int, vote: int | None, damaged: bool) -> None:
        """This was in the file."""
        self.term, self.vote = term, vote
        self._saved = _UNKNOWN if damaged else (term, vote)

    def forget(self) -> None:
        """The node stops: what is in the file counts from now on."""
        self.found(0, None, False)
        self._writing, self._held = None, {}

    def set(self, term: int, vote: int | None) -> list[ElectionOutput]:
        """A new term, or a vote in it."""
        self.term, self.vote = term, vote
        return self.save()

    def save(self) -> list[ElectionOutput]:
        """What is said from now on waits until term and vote are durable."""
        if not self._kept or self._writing is not None or (self.term, self.vote) == self._saved:
            return []
        self._numbers += 1
        self._writing, self._saving = self._numbers, (self.term, self.vote)
        return [SaveVote(self._writing, self.term, self.vote)]

    def tell(self, node_id: int, message: ElectorMessage) -> list[ElectionOutput]:
        """Say it as soon as that may be."""
        if self._writing is None:
            return [Tell(node_id, message)]
        self._held.pop((node_id, message.choice), None)
        self._held[node_id, message.choice] = message
        return []

    def withdraw(self) -> None:
        """The node is no candidate or leader any more: what it did not come to say as one is left unsaid."""
        self._held = {key: message for key, message in self._held.items() if key[1] not in _OF_A_STANDING}

    def is_current(self, number: int) -> bool:
        """Whether the write with this number is the one under way."""
        return number == self._writing

    def written(self) -> list[ElectionOutput]:
        """The write under way has come through: the next one, or what waited."""
        self._writing, self._saved = None, self._saving
        again = self.save()
        if again:
            return again
        held, self._held = self._held, {}
        return [Tell(node_id, message) for (node_id, _), message in held.items()]

    def failed(self) -> None:
        """The write under way failed: nothing of what waited is said, and nobody can tell what the file holds."""
        self._writing, self._saved, self._held = None, _UNKNOWN, {}

    @property
    def is_durable(self) -> bool:
        """Whether a loss of power would leave term and vote as they are."""
        return not self._kept or self._writing is None and (self.term, self.vote) == self._saved
