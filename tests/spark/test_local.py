"""Requirements of a session, their error texts, and the command.

The tested module is `bmqtwist/spark/local.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bmqtwist.cli.main import main
from bmqtwist.spark.local import NotInstalled, check_java, check_pyspark
from spark.conftest import ROOT


def java(place: Path, text: str) -> None:
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "java").write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    (place / "bin" / "java").chmod(0o755)


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match="contains no Java.*apt-get install openjdk-17-jre-headless"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match="no `java` on the PATH.*JAVA_HOME"):
        check_java()


@pytest.mark.parametrize(("output", "text"), [('openjdk version "11.0.2"', "is version 11"), ("nonsense", "is not Java")])
def test_the_error_about_an_unsuitable_java_names_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str,
                                                              text: str) -> None:
    java(tmp_path, output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match=text):
        check_java()


def test_a_java_of_the_minimum_version_or_newer_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, 'openjdk version "21.0.1" 2026-10-20')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == 21


def test_the_error_about_a_missing_or_old_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(NotInstalled, match=r"pip install 'bmqtwist\[spark\]'"):
        check_pyspark()
    monkeypatch.setitem(sys.modules, "pyspark", type(sys)("pyspark"))
    sys.modules["pyspark"].__version__ = "4.1.4"  # type: ignore[attr-defined]
    with pytest.raises(NotInstalled, match="4.1.4 is too old"):
        check_pyspark()


def test_the_help_of_the_command_lists_its_jobs() -> None:
    output = CliRunner().invoke(main, ["pipeline", "--help"]).stdout
    assert all(name in output for name in ("archive", "report", "replay", "live"))


def test_the_zip_of_the_package_has_the_discovery_modules_at_top_level(tmp_path: Path) -> None:
    """The zip works without other files."""
    result = CliRunner().invoke(main, ["pipeline", "package", str(tmp_path / "a" / "bmqtwist.zip")])
    assert result.exit_code == 0, result.output
    code = ("import sys, pkgutil; sys.path.insert(0, sys.argv[1]); import bmqtwist.wire, pyspark_bmqtwist; "
            "print(bmqtwist.__file__, sorted(each.name for each in pkgutil.iter_modules(sys.path[:1])))")
    seen = subprocess.run([sys.executable, "-c", code, result.stdout.strip()], cwd=tmp_path, env={}, capture_output=True,
                          text=True, check=True).stdout
    assert ".zip" in seen and "['bmqtwist', 'pyspark_bmqtwist', 'pyspark_bmqtwist_storage']" in seen


def test_an_installed_package_has_the_discovery_modules_at_top_level(tmp_path: Path) -> None:
    """For wheels; in an editable install `register` registers the formats."""
    subprocess.run([sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)], cwd=ROOT, check=True,
                   capture_output=True)
    assert {each.name for each in tmp_path.glob("pyspark_*")} == {"pyspark_bmqtwist.py", "pyspark_bmqtwist_storage.py"}


def test_a_malformed_spark_setting_has_exit_code_2() -> None:
    assert CliRunner().invoke(main, ["pipeline", "replay", "x", "--conf", "nonsense"]).exit_code == 2
