"""Comparison of the copies of a partition, by the checks that the nodes have made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bmqtwist.console.documents import Document
from bmqtwist.view.storage_files import BLOCK_RECORDS, Psn

DIFFERENCES_MAX = 100  # that are shown one by one


def common(reached: Iterable[Document]) -> tuple[Psn, Psn]:
    """The first and the last record that all copies have."""
    all_of_them = list(reached)
    firsts, lasts = ([(each[name][0], each[name][1]) for each in all_of_them] for name in ("first", "last"))
    return max(firsts), min(lasts)


def differences(found: Mapping[str, Document]) -> tuple[int, list[Document]]:
    """Of how many records there are checks, and which blocks do not say the same everywhere."""
    blocks = sorted({block for each in found.values() for block in each["blocks"]}, key=_place)
    differing = [block for block in blocks if len({tuple(each["blocks"].get(block, ())) for each in found.values()}) > 1]
    compared = max((sum(count for count, _ in each["blocks"].values()) for each in found.values()), default=0)
    return compared, [{"lease": lease, "from": number * BLOCK_RECORDS, "to": (number + 1) * BLOCK_RECORDS - 1}
                      for lease, number in map(_place, differing[:DIFFERENCES_MAX])]


def _place(block: str) -> Psn:
    lease, number = block.split("-")
    return int(lease), int(number)
