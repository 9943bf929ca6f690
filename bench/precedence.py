"""Process priority of brokers above their clients, for machines on which both share few processors.

Called by `run.py` for the processes of each target.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def can_set_nice(nice: int) -> bool:
    """Return whether this user may give a process this nice value."""
    code = f"import os; os.setpriority(os.PRIO_PROCESS, 0, {nice})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def set_nice(pids: Iterable[int], nice: int) -> None:
    """Set the nice value of all threads of the processes; threads that they start later inherit it."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
