"""Brokers go before their clients where both share a few processors, as they do where a load is made on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def may_precede(nice: int) -> bool:
    """Whether the system lets us give a process this niceness."""
    code = f"import os; os.setpriority(os.PRIO_PROCESS, 0, {nice})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def give_precedence(pids: Iterable[int], nice: int) -> None:
    """To these processes, all of their threads; those that they start later have it, too."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
