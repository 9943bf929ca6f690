"""Templates and scripts of the console, in a checkout and in an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.layers import ROOT

from bmqtwist.console.pages import PAGES, StaticFiles, find_directory


def test_in_a_checkout_the_templates_and_scripts_are_beside_the_package() -> None:
    assert find_directory("web") == ROOT / "web" and find_directory("templates") == ROOT / "templates"
    assert {f"{name}.html" for name in (*PAGES.values(), "login", "message")} <= {
        path.name for path in find_directory("templates").iterdir()}


@pytest.mark.timeout(300)
def test_an_installed_package_contains_the_templates_and_scripts(tmp_path: Path) -> None:
    """Built like a wheel, without the archive."""
    subprocess.run([sys.executable, "setup.py", "-q", "egg_info", "-e", str(tmp_path), "build", "-b",
                    str(tmp_path / "build"),
                    "--build-lib", str(tmp_path / "lib")], cwd=ROOT, check=True, capture_output=True)
    found = subprocess.run(
        [sys.executable, "-c", "from bmqtwist.console.pages import *; from bmqtwist.console.pages import *\n"
         "print(find_directory('web')); print(*StaticFiles(find_directory('web'))._paths)\n"
         "PageWriter(find_directory('templates')).write('login', '')"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path / 'lib'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        check=True, capture_output=True, text=True).stdout.splitlines()
    assert found[0] == str(tmp_path / "lib" / "bmqtwist" / "console" / "web")
    assert set(found[1].split()) == set(StaticFiles(ROOT / "web")._paths)


def test_changed_and_removed_static_files_are_detected(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.js").write_text("1")
    (tmp_path / ".secret.js").write_text("x")
    (tmp_path / "a.exe").write_text("x")
    files = StaticFiles(tmp_path)
    assert list(files._paths) == ["pages/a.js"]
    first = files.find("pages/a.js")
    assert first is not None and first.content == b"1" and files.find("pages/a.js") is first
    (tmp_path / "pages" / "a.js").write_text("22")
    os.utime(tmp_path / "pages" / "a.js", ns=(1, 1))
    second = files.find("pages/a.js")
    assert second is not None and second.content == b"22" and second.tag != first.tag
    (tmp_path / "pages" / "a.js").unlink()
    assert files.find("pages/a.js") is None and files.find("../setup.cfg") is None
