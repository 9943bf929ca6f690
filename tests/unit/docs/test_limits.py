"""The page of limits is up to date, and the floors of dependencies exclude versions with known vulnerabilities."""

from __future__ import annotations

import configparser
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]
# First version without the vulnerability, for each library that parses input of peers.
FIXED = {"twisted": ("24.7", "CVE-2024-41671"), "jinja2": ("3.1.6", "CVE-2025-27516"),
         "werkzeug": ("3.0.6", "CVE-2024-49767"), "cryptography": ("44.0.1", "CVE-2024-12797"),
         "idna": ("3.7", "CVE-2024-3651")}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_page_of_limits_is_up_to_date() -> None:
    page = ROOT / "docs" / "limits.md"
    refresh = runpy.run_path(str(ROOT / "docs" / "make_limits.py"))["refresh"]
    assert refresh(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8"), "run: python docs/make_limits.py"


def test_dependencies_have_floors_without_known_vulnerabilities() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    floors = {match[1].lower(): match[2] for match in re.finditer(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)$",
                                                                  setup["options"]["install_requires"], re.M)}
    weak = {name: (floors.get(name), cve) for name, (fixed, cve) in FIXED.items()
            if name not in floors or numbers(floors[name]) < numbers(fixed)}
    assert not weak
