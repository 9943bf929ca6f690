"""Options area that may follow the header of a PUT or PUSH message.

Each option begins with the word that `layout.OPTION_HEADER` declares. A packed option consists of this word alone.

| type | content |
|---|---|
| 1 SUB_QUEUE_IDS_OLD | n ids |
| 2 MSG_GROUP_ID | a string of at most 31 bytes, word padded |
| 3 SUB_QUEUE_INFOS | n items {id, delivery attempts left, 3 reserved}; packed: one item, id 0, attempts in `words` |

Extension, between brokers of this kind: items of SUB_QUEUE_INFOS that continue with lease and sequence number.

An unknown type, a repeated type or an option without content makes the whole area invalid.

Called by `relay/messages.py` and the SDK to decode the options of PUSHes; `fast.py` encodes the options of PUSHes. Numbers
of types 1 and 3 are in `fast.py`, the maximum of delivery attempts is in `bmqtwist/limits.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.limits import DELIVERY_ATTEMPTS_MAX
from bmqtwist.wire import layout
from bmqtwist.wire.fast import OPTION_ONE_INFO_HEAD, SUB_QUEUE_IDS_OLD, SUB_QUEUE_INFOS

MSG_GROUP_ID = 2
GROUP_ID_BYTES_MAX = 31
_WORD = layout.OPTION_HEADER.struct
_TYPE_SHIFT = layout.OPTION_HEADER.shift("type")
_PACKED = layout.OPTION_HEADER.word(packed=1)
_WORDS_MASK = layout.OPTION_HEADER.mask("words")
_SPECIFIC_SHIFT = layout.OPTION_HEADER.shift("type_specific")
_SPECIFIC_MASK = layout.OPTION_HEADER.mask("type_specific")
_INFO = layout.SUB_QUEUE_INFO.struct
_INFO_WITH_PSN = layout.SUB_QUEUE_INFO_WITH_PSN.struct
_ONLY_INFO = Struct(_WORD.format + _INFO.format.lstrip(">"))
_UNLIMITED = layout.SUB_QUEUE_INFO.word(unlimited=1)
_POISONOUS = layout.SUB_QUEUE_INFO.word(poisonous=1)
_RDA_MASK = 0xFF  # remaining delivery attempts in the word of a packed SUB_QUEUE_INFOS


@dataclass(frozen=True, slots=True)
class SubQueueIds:
    """Subscriptions of a PUSH."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupId:
    """Group of a message; disabled in the original."""

    text: bytes


@dataclass(frozen=True, slots=True)
class SubQueueInfo:
    """One subscription. `attempts`: remaining delivery attempts, None = unlimited; `lease`, `sequence`: PSN of the message,
    0 = unknown."""

    id: int
    attempts: int | None = None
    poisonous: bool = False
    lease: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class SubQueueInfos:
    """Subscriptions of a PUSH between brokers; `packed`: a single one with id 0."""

    items: tuple[SubQueueInfo, ...]
    packed: bool = False


Option = SubQueueIds | GroupId | SubQueueInfos


def rda_byte(info: SubQueueInfo) -> int:
    """Encode the remaining delivery attempts as the byte of `layout.SUB_QUEUE_INFO`."""
    count = _UNLIMITED if info.attempts is None else info.attempts
    if info.attempts is not None and not 0 <= info.attempts <= DELIVERY_ATTEMPTS_MAX:
        raise LocalError(f"{info.attempts} delivery attempts: use 0 to {DELIVERY_ATTEMPTS_MAX}, or None")
    return count | (_POISONOUS if info.poisonous else 0)


def _info(id_: int, rda: int, lease: int = 0, sequence: int = 0) -> SubQueueInfo:
    attempts = None if rda & _UNLIMITED else rda & DELIVERY_ATTEMPTS_MAX
    return SubQueueInfo(id_, attempts, bool(rda & _POISONOUS), lease, sequence)


def only_info(area: bytes) -> tuple[int, int | None] | None:
    """Return id and attempts of an area with a single SUB_QUEUE_INFO, usual between brokers; None for other areas."""
    if len(area) != _ONLY_INFO.size:
        return None
    word, number, rda = _ONLY_INFO.unpack(area)
    return (number, None if rda & _UNLIMITED else rda & DELIVERY_ATTEMPTS_MAX) if word == OPTION_ONE_INFO_HEAD else None


def decode(area: bytes) -> list[Option]:
    """Decode the options of an area, in order."""
    found: list[Option] = []
    seen = set()
    pos = 0
    if len(area) & 3:
        raise PeerError("not whole words", "options", len(area))
    while pos < len(area):
        word, = _WORD.unpack_from(area, pos)
        kind, packed, words = word >> _TYPE_SHIFT, word & _PACKED, word & _WORDS_MASK
        if kind in seen:
            raise PeerError(f"option {kind} given twice", "options", pos)
        seen.add(kind)
        end = pos + 4 if packed else pos + words * 4
        if not packed and (words < 2 or end > len(area)):
            raise PeerError(f"option of {words} words", "options", pos)
        found.append(_decode_one(area, kind, word, pos, end))
        pos = end
    return found


def _decode_one(area: bytes, kind: int, word: int, pos: int, end: int) -> Option:
    start, packed = pos + 4, bool(word & _PACKED)
    if kind == SUB_QUEUE_INFOS and packed:
        return SubQueueInfos((_info(0, word & _RDA_MASK),), True)
    if packed:
        raise PeerError(f"option {kind} cannot be packed", "options", pos)
    if kind == SUB_QUEUE_IDS_OLD:
        return SubQueueIds(Struct(f">{(end - start) // 4}I").unpack_from(area, start))
    if kind == MSG_GROUP_ID:
        pad = area[end - 1]
        if not 1 <= pad <= 4 or end - start - pad > GROUP_ID_BYTES_MAX:
            raise PeerError("bad message group id", "options", pos)
        return GroupId(area[start:end - pad])
    if kind == SUB_QUEUE_INFOS:
        step = (word >> _SPECIFIC_SHIFT & _SPECIFIC_MASK) * 4
        if step < _INFO.size or (end - start) % step:
            raise PeerError("bad size of an item", "options", pos)
        item = _INFO_WITH_PSN if step >= _INFO_WITH_PSN.size else _INFO
        return SubQueueInfos(tuple(_info(*item.unpack_from(area, at)) for at in range(start, end, step)))
    raise PeerError(f"unknown option {kind}", "options", pos)
