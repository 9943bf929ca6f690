"""What a partition says when it cannot do what is asked for."""

from __future__ import annotations

from bmqtwist.errors import LocalError


class PartitionUnavailable(LocalError):
    """The partition takes no records now: producers are answered STORAGE_FAILURE."""


class PayloadDamaged(PartitionUnavailable):
    """The stored application data of a message is not what was written: it must not be delivered."""
