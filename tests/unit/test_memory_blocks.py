"""daemon/service.py: where the C library keeps large blocks. In a process of its own, since it is set once for all."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1 << 20
SCRIPT = """
import ctypes, sys
from bmqtwist.daemon.service import map_large_blocks


class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                     "uordblks", "fordblks", "keepcost")]


library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
if sys.argv[1] == "set":
    map_large_blocks()
bytes(31 << 20)  # once it is freed, the library keeps all that is smaller in its heap, if it is left alone
before = library.mallinfo2().hblkhd
kept = bytes(8 << 20)
print(library.mallinfo2().hblkhd - before)
"""


def mapped(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.parametrize("how, least, most", [("set", 8 * MIB, 9 * MIB), ("left alone", 0, 0)])
def test_a_large_block_has_pages_of_its_own_whatever_was_freed_before(how: str, least: int, most: int) -> None:
    assert least <= mapped(how) <= most
