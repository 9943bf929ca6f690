"""GUIDs that follow from what is posted, so that a task that is run again posts the same messages and the broker drops
what it has.

    with a key:  digest of (queue, key): the same for ever
    without:     digest of (query or write, batch, partition, queue, content, how many equal rows came before it)

Not from the row's number: after a shuffle a second attempt of a task has its rows in another order, two different rows
would share a GUID, and the broker would drop one of them. The digest takes the place of counter and timer:

    2 bits version (1)   78 bits digest        48 bits client id: a digest of what the rows have in common
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from bmqtwist.errors import LocalError
from bmqtwist.ids import NULL_GUID

_VERSION = 1 << 78
_MASK = _VERSION - 1


def _framed(parts: Iterable[bytes]) -> bytes:
    """Parts with their lengths: no two lists of parts become the same bytes."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])


def _guid(common: bytes, parts: Iterable[bytes]) -> bytes:
    digest = int.from_bytes(blake2b(_framed(parts), digest_size=10, key=common).digest(), "big")
    return (_VERSION | digest & _MASK).to_bytes(10, "big") + common[:6]


class Guids:
    """Of one attempt of one task. `scope`: what tells this write from all others (query or write id, batch, partition)."""

    def __init__(self, scope: Iterable[str | int]) -> None:
        self._common = blake2b(_framed(str(each).encode() for each in scope), digest_size=16).digest()
        self._by_key: dict[str, bytes] = {}
        self._seen: Counter[bytes] = Counter()

    def of_key(self, queue: str, key: bytes) -> bytes:
        """Of a row with a key."""
        common = self._by_key.get(queue)
        if common is None:
            common = self._by_key[queue] = blake2b(queue.encode(), digest_size=16, person=b"bmq key").digest()
        return _guid(common, [key])

    def of_content(self, queue: str, value: bytes, properties: Iterable[tuple[str, str]]) -> bytes:
        """Of a row without one. `properties` in any order."""
        parts = [queue.encode(), value]
        for name, text in sorted(properties):
            parts += (name.encode(), text.encode())
        content = blake2b(_framed(parts), digest_size=16).digest()
        self._seen[content] += 1
        return _guid(self._common, [content, self._seen[content].to_bytes(8, "big")])


def given_guid(value: bytes) -> bytes:
    """A GUID from a column; LocalError if it is none."""
    if len(value) != len(NULL_GUID) or value[0] >> 6 != 1:
        raise LocalError(f"{value.hex().upper()} is no GUID: 16 bytes whose first two bits are 01. Use column dedupKey for "
                         "keys of your own")
    return bytes(value)
