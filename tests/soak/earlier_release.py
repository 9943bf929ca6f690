"""Broker of an earlier release, built from git in a temporary directory with a virtual environment of its own.

Used by `upgrade.py` and `failover.py`.
"""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

from bmqtwist.versions import BASELINE

ROOT = Path(__file__).resolve().parent.parent.parent
_FEATURES = "from bmqtwist.versions import OWN; print(*OWN.features)"


class EarlierRelease:
    """Broker of a commit below `place`. `features`: cluster features that it supports."""

    def __init__(self, reference: str, place: Path) -> None:
        source, environment = place / "source", place / "venv"
        source.mkdir()
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", reference], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        venv.create(environment, with_pip=True)
        self.python = str(environment / "bin" / "python")
        subprocess.run([self.python, "-m", "pip", "install", "-q", str(source)], check=True)
        self.command = [str(environment / "bin" / "bmqbrkr")]
        found = subprocess.run([self.python, "-c", _FEATURES], cwd=place, capture_output=True, text=True, check=False)
        self.features = tuple(found.stdout.split()) or BASELINE
