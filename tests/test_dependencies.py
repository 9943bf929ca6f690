"""Dependencies: the floors of setup.cfg, and known vulnerabilities of the installed releases."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import warnings
from pathlib import Path

# The first releases without the advisories known in November 2026
FIXED = {"twisted": (24, 7), "cryptography": (44, 0, 1), "idna": (3, 7), "jinja2": (3, 1, 6), "werkzeug": (3, 0, 6)}


def floors() -> dict[str, tuple[int, ...]]:
    """Return the least release of each dependency at run time."""
    found = configparser.ConfigParser()
    found.read(Path(__file__).parent.parent / "setup.cfg", encoding="utf-8")
    matches = re.findall(r"^([\w.-]+)(?:\[\w+\])?>=([\d.]+)$", found["options"]["install_requires"], re.MULTILINE)
    return {name: tuple(map(int, version.split("."))) for name, version in matches}


def test_the_floors_of_dependencies_exclude_releases_with_known_vulnerabilities() -> None:
    least = floors()
    assert not {name: (least.get(name), fixed) for name, fixed in FIXED.items() if least.get(name, (0,)) < fixed}


def test_installed_dependencies_have_no_known_vulnerabilities() -> None:
    """Without pip-audit, or a service that it can reach, a warning says so; `make lint` needs both."""
    done = subprocess.run([sys.executable, "-m", "pip_audit", "--skip-editable", "--timeout", "5", "--progress-spinner",
                           "off"],
                          capture_output=True, text=True, check=False)
    assert not re.search(r"Found \d+ known ", done.stderr), done.stdout
    if done.returncode:
        warnings.warn(f"pip-audit has not run: {done.stderr[-200:]}", stacklevel=1)
