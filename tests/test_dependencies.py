"""Dependencies: the floors of setup.cfg, and known vulnerabilities of the installed releases."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import subprocess
import sys
import urllib.request
import warnings
from pathlib import Path

# The first releases without the advisories known in November 2026
FIXED = {"twisted": (24, 7), "cryptography": (44, 0, 1), "idna": (3, 7), "jinja2": (3, 1, 6), "werkzeug": (3, 0, 6)}
ADVISORIES_URL = "https://pypi.org/pypi/twisted/22.1.0/json"  # a release with advisories
ANSWER_SECONDS_MAX = 3.0


def floors() -> dict[str, tuple[int, ...]]:
    """Return the least release of each dependency at run time."""
    found = configparser.ConfigParser()
    found.read(Path(__file__).parent.parent / "setup.cfg", encoding="utf-8")
    matches = re.findall(r"^([\w.-]+)(?:\[\w+\])?>=([\d.]+)$", found["options"]["install_requires"], re.MULTILINE)
    return {name: tuple(map(int, version.split("."))) for name, version in matches}


def has_advisories() -> bool:
    """Return whether the package index answers with advisories."""
    try:
        with urllib.request.urlopen(ADVISORIES_URL, timeout=ANSWER_SECONDS_MAX) as answer:
            return bool(json.load(answer)["vulnerabilities"])
    except (OSError, ValueError, KeyError):
        return False


def test_the_floors_of_dependencies_exclude_releases_with_known_vulnerabilities() -> None:
    least = floors()
    assert not {name: (least.get(name), fixed) for name, fixed in FIXED.items() if least.get(name, (0,)) < fixed}


def test_installed_dependencies_have_no_known_vulnerabilities() -> None:
    """Where the index has no advisories, a warning says so; `make lint` needs them."""
    if importlib.util.find_spec("pip_audit") is None or not has_advisories():
        warnings.warn("pip-audit has not run: it is not installed, or the package index has no advisories", stacklevel=1)
        return
    done = subprocess.run([sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner", "off"],
                          capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
